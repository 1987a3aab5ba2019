"""How to make a run request fewer bytes, with the value to set."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from roastcoffea.diagnosis.evidence import WORTH_SAYING
from roastcoffea.generations.uproot import READS_ON
from roastcoffea.metrics.branches import OTHER_DATASET, SAME_ATTEMPT, SAME_DATASET, SAME_LOOP
from roastcoffea.metrics.byte_ledger import ByteLedger, Saving
from roastcoffea.metrics.phases import METADATA
from roastcoffea.metrics.requests import Repeated
from roastcoffea.records.calls import OF_TASKS
from roastcoffea.units import BYTE, counted, number

WHOLE_FILES: Final = "one chunk per file"
MEMORY: Final = ", at the cost of more memory"
"""The price of one chunk per file. Which chunk size pays is weighed by the verdict alone."""


def pieces(repeated: Repeated) -> str:
    """What a format reads at once."""
    return "row groups" if repeated.parquet else "baskets"


def _chunks_of_a_file(repeated: Repeated, amount: str) -> str:
    return (
        f"{amount} were read again because {pieces(repeated)} span chunk boundaries: {WHOLE_FILES} reads each once"
        f"{MEMORY}{_alignment(repeated)}"
    )


def _metadata(repeated: Repeated, amount: str) -> str:
    return (
        f"{amount} of metadata were read again, as each chunk of a file reads them: {WHOLE_FILES} reads "
        f"them once per file, in {counted(repeated.files, 'chunk')} instead of {number(repeated.chunks)}{MEMORY}"
    )


TEXTS: Final[Mapping[str, Callable[[Repeated, str], str]]] = {
    SAME_LOOP: _chunks_of_a_file,
    SAME_DATASET: lambda _, amount: (
        f"{amount} were read again by another Runner call: process shared files in a single call"
    ),
    OTHER_DATASET: lambda _, amount: (
        f"{amount} were read again because a file is listed in two datasets: list it in one only"
    ),
    SAME_ATTEMPT: lambda _, amount: (
        f"{amount} were requested again within a chunk, by the processor or the reader: "
        "keep arrays that are used more than once"
    ),
    OF_TASKS: lambda _, amount: f"{amount} were read again by another function: read each file in one function only",
    METADATA: _metadata,
}


@ByteLedger.advised_by
def savings(repeated: Repeated, total: int) -> list[Saving]:
    """Changes that would save bytes, largest saving first."""
    found = {**repeated.baskets, METADATA: repeated.metadata}
    worth = {cause: size for cause, size in found.items() if size > (total * WORTH_SAYING if cause == METADATA else 0)}
    order = sorted(worth, key=lambda cause: worth[cause], reverse=True)
    return [
        Saving(cause, worth[cause], TEXTS[repeated.readers(cause)](repeated, BYTE.text(worth[cause])))
        for cause in order
    ]


def _alignment(repeated: Repeated) -> str:
    """Alternative for TTrees: chunks that end where clusters do; Parquet has none, and once on it helps no more."""
    if repeated.parquet or repeated.aligned:
        return ""
    if repeated.reads_on:
        return f"; {READS_ON}"
    return "; align_clusters=True in the Runner also reads each once, if the files hold TTrees"
