"""Memory: which workers were killed, paused or spilling, and the chunk size that would fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roastcoffea.diagnosis.chunk_size import rounded_down
from roastcoffea.metrics.catalogue import fact
from roastcoffea.metrics.memory import typical_before
from roastcoffea.records.run import Run
from roastcoffea.units import BYTE, number

TARGET: Final = 0.6
"""Share of a worker's limit that chunks may fill: above it Dask spills results to disk (its default)."""

WITHOUT_EVENTS: Final = "what chunks take does not depend on their events"

Row = Mapping[str, Any]


class Fit(NamedTuple):
    """The chunk size that fits into the memory of a worker's threads, with its inputs."""

    events: int
    dataset: str
    """The dataset that needs most memory per event."""
    limit: int
    threads: int
    baseline: float
    """Resident memory before the first chunk, plus the fixed part of a chunk."""
    bytes_per_event: float
    at_most: bool
    """Whether the fitting size may be smaller still, because attempts were killed before their peak."""

    @property
    def arithmetic(self) -> str:
        """The computation, written out."""
        threads = f" / {number(self.threads)} threads" if self.threads > 1 else ""
        return (
            f"({BYTE.text(self.limit)} x {TARGET:g} - {BYTE.text(self.baseline)} before chunks){threads} / "
            f"{BYTE.text(self.bytes_per_event)} per event"
        )

    def limit_for(self, events: float) -> float:
        """Memory limit of a worker that fits chunks of this many events."""
        return (self.baseline + self.threads * self.bytes_per_event * events) / TARGET


@dataclass(frozen=True, kw_only=True)
class MemoryEvidence:
    """Evidence about memory in a run.

    Attributes
    ----------
    workers : list of dict
        Rows of `worker_memory`.
    datasets : list of dict
        Rows of `dataset_memory`.
    fit : Fit or None
        The chunk size that fits; if None, `fit_absent` has the reason.
    chunk_events : float or None
        Events of the typical chunk.
    """

    workers: list[dict[str, Any]]
    datasets: list[dict[str, Any]]
    fit: Fit | None
    fit_absent: str | None
    chunk_events: float | None

    @property
    def killed(self) -> list[dict[str, Any]]:
        """Workers that were killed, largest loss first."""
        found = [row for row in self.workers if row["killed_by"] is not None]
        return sorted(found, key=lambda row: -row["lost_seconds"])

    @property
    def paused(self) -> list[dict[str, Any]]:
        """Workers that were paused, longest pause first."""
        return sorted((row for row in self.workers if row["paused_seconds"]), key=lambda row: -row["paused_seconds"])

    @property
    def spilled(self) -> list[dict[str, Any]]:
        """Workers that spilled, largest amount first: Dask spills a few bytes on any worker."""
        found = [row for row in self.workers if (row["spilled"] or 0) > 0.01 * (row["memory_limit"] or 0)]
        return sorted(found, key=lambda row: -(row["spilled"] or 0))

    @property
    def lacking(self) -> list[dict[str, Any]]:
        """Workers that were killed, else paused, else spilling."""
        return self.killed or self.paused or self.spilled

    @property
    def results_fill_it(self) -> bool:
        """Whether the results that workers hold, not their chunks, use most of the memory."""
        lacking = [row for row in self.workers if row["killed_by"] or row["paused_seconds"] or row["spilled"]]
        return any(
            row["results"] >= 0.5 * row["memory_peak"] for row in lacking if row["results"] and row["memory_peak"]
        )

    @property
    def heaviest(self) -> dict[str, Any] | None:
        """The dataset that needs most memory per event."""
        known = [row for row in self.datasets if row["bytes_per_event"] is not None]
        return max(known, key=lambda row: row["bytes_per_event"], default=None)


# Fit


@fact
def memory_evidence(
    run: Run, worker_memory: pa.Table, dataset_memory: pa.Table | None = None, chunks: pa.Table | None = None
) -> MemoryEvidence:
    """Evidence about memory, and the chunk size that fits."""
    workers = worker_memory.to_pylist()
    datasets = [] if dataset_memory is None else dataset_memory.to_pylist()
    typical = _typical_events(run.asked if run.asked is not None and len(run.asked) else chunks)
    found = _fit(workers, datasets, typical_before(worker_memory), typical)
    fit, absent = (found, None) if isinstance(found, Fit) else (None, found)
    return MemoryEvidence(workers=workers, datasets=datasets, fit=fit, fit_absent=absent, chunk_events=typical)


def _typical_events(chunks: pa.Table | None) -> float | None:
    """Events of the typical requested chunk, else of the typical attempted chunk."""
    if chunks is None:
        return None
    sizes = pc.subtract(chunks["entry_stop"], chunks["entry_start"]).drop_null().to_numpy()
    return float(np.median(sizes)) if len(sizes) else None


def _fit(workers: Sequence[Row], datasets: Sequence[Row], floor: float | None, typical: float | None) -> Fit | str:
    """The chunk size that fits into the smallest worker, or why it is unknown."""
    limited = [row for row in workers if row["memory_limit"]]
    if not limited or floor is None:
        return "the memory of workers was not measured" if limited else "no worker has a memory limit"
    tightest = min(limited, key=lambda row: row["memory_limit"] / row["threads"])
    limit, threads = tightest["memory_limit"], tightest["threads"]
    known = [row for row in datasets if row["bytes_per_event"]]
    if not known and any(row["bytes_per_event"] is not None for row in datasets):
        return WITHOUT_EVENTS
    worst = max(known, key=lambda row: row["bytes_per_event"], default=None)
    if worst is None:
        # chunks shared processes: take the joint growth of all threads for their usual chunks
        growth = max((row["memory_peak"] - floor for row in limited if row["memory_peak"] is not None), default=0)
        if not typical or growth <= 0:
            return "the memory per event could not be measured for any chunk"
        each = growth / threads / typical
        worst = {"dataset": "all datasets", "at_least": 0, "fixed_bytes": 0.0, "bytes_per_event": each}
    used, each = floor + threads * (worst["fixed_bytes"] or 0.0), worst["bytes_per_event"]
    if TARGET * limit <= used:
        return f"a worker uses {BYTE.text(used)} before any event, and its limit is {BYTE.text(limit)}"
    size = rounded_down((TARGET * limit - used) / threads / each)
    return Fit(size, worst["dataset"], limit, threads, used, each, bool(worst["at_least"]))
