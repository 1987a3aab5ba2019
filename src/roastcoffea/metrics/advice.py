"""What to change so that a run requests fewer bytes, with the number to change it to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from roastcoffea.metrics.baskets import OTHER_DATASET, SAME_ATTEMPT, SAME_DATASET, SAME_LOOP
from roastcoffea.records.run import RunnerCall
from roastcoffea.units import BYTE, number

METADATA: Final = "metadata"
WORTH_SAYING: Final = 0.01
"""Share of the total from which on repeated metadata is mentioned; re-read bytes always are."""

MEMORY: Final = ", and memory grows with it"
"""What a chunk of a whole file costs."""


@dataclass(frozen=True, slots=True)
class Saving:
    """Bytes that a change would save: why they were requested, how many, and what to do."""

    cause: str
    bytes: int
    text: str


ADVISED: Final = ("call", "dataset", "file", "tree", "entry_stop", "source", "bytes_metadata")
"""Columns of attempts that advice is made of."""


def savings(
    counted: pa.Table, calls: tuple[RunnerCall, ...], reread: Mapping[str, int], total: int
) -> tuple[Saving, ...]:
    """What can be saved, the most first.

    Parameters
    ----------
    counted
        Attempts that counted.
    reread
        Bytes that were read again, by cause.
    """
    chunksize = _whole_files(counted, calls)
    found = dict(reread) | {METADATA: _repeated_metadata(counted)}
    texts: Mapping[str, Callable[[str], str]] = {
        SAME_LOOP: lambda amount: (
            f"{amount} of baskets that lie in several chunks were read again: {chunksize} reads each once"
            f"{MEMORY}{_alignment(counted, calls)}"
        ),
        SAME_DATASET: lambda amount: f"{amount} were read again by another Runner call: read shared files in one",
        OTHER_DATASET: lambda amount: f"{amount} were read again because a file is in two datasets: list it in one",
        SAME_ATTEMPT: lambda amount: (
            f"{amount} were requested again within a chunk, by the processor or by the reader: "
            "keep arrays that are used again"
        ),
        METADATA: lambda amount: (
            f"{amount} of metadata were read again by each chunk of a file: {chunksize} reads them once a file, "
            f"in {number(_files(counted))} chunks instead of {number(len(counted))}{MEMORY}"
        ),
    }
    least = dict.fromkeys(reread, 0.0) | {METADATA: total * WORTH_SAYING}
    worth = {cause: amount for cause, amount in found.items() if amount > least[cause]}
    order = sorted(worth, key=lambda cause: worth[cause], reverse=True)
    return tuple(Saving(cause, worth[cause], texts[cause](BYTE.text(worth[cause]))) for cause in order)


def _whole_files(counted: pa.Table, calls: tuple[RunnerCall, ...]) -> str:
    """The chunk size that makes one chunk of each file; events that `maxchunks` left out were not seen."""
    size = pc.max(counted["entry_stop"]).as_py()
    if any(call.options.get("maxchunks") is not None for call in calls):
        return "a chunksize of the largest file's events (not known where maxchunks is set)"
    return "a larger chunksize" if size is None else f"chunksize={size} (the largest file's events)"


def _alignment(counted: pa.Table, calls: tuple[RunnerCall, ...]) -> str:
    """The other way to have chunks end where baskets do; Parquet has none, and one that is in use did not help."""
    parquet = pc.any(pc.starts_with(counted["source"], "Parquet")).as_py()
    in_use = any(call.options.get("align_clusters") for call in calls)
    other = "; align_clusters=True in the Runner reads each once as well, where the files hold TTrees"
    return "" if parquet or in_use else other


def _by_file(counted: pa.Table) -> pa.TableGroupBy:
    return counted.group_by(["call", "dataset", "file", "tree"])


def _files(counted: pa.Table) -> int:
    return len(_by_file(counted).aggregate([]))


def _repeated_metadata(counted: pa.Table) -> int:
    """Metadata of all chunks of a file but one."""
    amounts = _by_file(counted).aggregate([("bytes_metadata", "sum"), ("bytes_metadata", "max")])
    repeated = pc.subtract(amounts["bytes_metadata_sum"], amounts["bytes_metadata_max"])
    return int(pc.sum(repeated, min_count=0).as_py())
