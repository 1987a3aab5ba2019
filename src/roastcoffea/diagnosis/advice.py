"""What to change so that a run requests fewer bytes, with the number to change it to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from roastcoffea.metrics.branches import OTHER_DATASET, SAME_ATTEMPT, SAME_DATASET, SAME_LOOP
from roastcoffea.metrics.byte_ledger import ByteLedger, Saving
from roastcoffea.metrics.phases import METADATA
from roastcoffea.metrics.requests import Repeated
from roastcoffea.units import BYTE, number

WORTH_SAYING: Final = 0.01
"""Least share of the total at which repeated metadata is mentioned; re-read bytes always are."""

MEMORY: Final = ", and memory grows with it"
"""What a chunk of a whole file costs."""


def _chunks_of_a_file(repeated: Repeated, amount: str) -> str:
    return (
        f"{amount} of baskets that lie in several chunks were read again: {_whole_files(repeated)} reads each once"
        f"{MEMORY}{_alignment(repeated)}"
    )


def _metadata(repeated: Repeated, amount: str) -> str:
    return (
        f"{amount} of metadata were read again by each chunk of a file: {_whole_files(repeated)} reads them once a "
        f"file, in {number(repeated.files)} chunks instead of {number(repeated.chunks)}{MEMORY}"
    )


TEXTS: Final[Mapping[str, Callable[[Repeated, str], str]]] = {
    SAME_LOOP: _chunks_of_a_file,
    SAME_DATASET: lambda _, amount: f"{amount} were read again by another Runner call: read shared files in one",
    OTHER_DATASET: lambda _, amount: f"{amount} were read again because a file is in two datasets: list it in one",
    SAME_ATTEMPT: lambda _, amount: (
        f"{amount} were requested again within a chunk, by the processor or by the reader: "
        "keep arrays that are used again"
    ),
    METADATA: _metadata,
}


@ByteLedger.advised_by
def savings(repeated: Repeated, total: int) -> list[Saving]:
    """What would save bytes, largest saving first."""
    found = {**repeated.baskets, METADATA: repeated.metadata}
    worth = {cause: size for cause, size in found.items() if size > (total * WORTH_SAYING if cause == METADATA else 0)}
    order = sorted(worth, key=lambda cause: worth[cause], reverse=True)
    return [Saving(cause, worth[cause], TEXTS[cause](repeated, BYTE.text(worth[cause]))) for cause in order]


def _whole_files(repeated: Repeated) -> str:
    """The chunk size that makes one chunk of each file; events that were left out were not seen."""
    if repeated.cut_short:
        return "a chunksize of the largest file's events (not known, as chunks were left out)"
    size = repeated.largest_file
    return "a larger chunksize" if size is None else f"chunksize={size} (the largest file's events)"


def _alignment(repeated: Repeated) -> str:
    """The other way to have chunks end where baskets do; Parquet has none, and one that is in use did not help."""
    if repeated.parquet or repeated.aligned:
        return ""
    return "; align_clusters=True in the Runner reads each once as well, where the files hold TTrees"
