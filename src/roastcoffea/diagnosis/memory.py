"""Memory: which workers were killed, paused or spilling, and the chunk size that would fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roastcoffea.diagnosis.completeness import CulpritParts
from roastcoffea.metrics.catalogue import fact
from roastcoffea.metrics.memory import typical_before
from roastcoffea.records.run import Run
from roastcoffea.units import BYTE, FRACTION, SECOND, counted, number

TARGET: Final = 0.6
"""Share of a worker's limit that chunks may fill: above it Dask spills results to disk (its default)."""

MANY_RESULTS: Final = 0.5
"""Smallest share of held results in a worker's growth at which results, not chunks, fill its memory."""


WITHOUT_EVENTS: Final = "what chunks take does not depend on their events"

LEAST_SPILLED: Final = 0.01
"""Smallest relevant amount of spilled results, as a share of the limit: Dask spills a few bytes on any worker."""


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
        """Workers that spilled, largest amount first."""
        found = [row for row in self.workers if (row["spilled"] or 0) > LEAST_SPILLED * (row["memory_limit"] or 0)]
        return sorted(found, key=lambda row: -(row["spilled"] or 0))

    @property
    def seconds(self) -> float:
        """Thread seconds of lost attempts and of spilling; pauses are a class of the time ledger."""
        return float(sum(row["lost_seconds"] + (row["spill_seconds"] or 0.0) for row in self.workers))

    @property
    def results_fill_it(self) -> bool:
        """Whether the results that workers hold, not their chunks, use most of the memory."""
        lacking = [row for row in self.workers if row["killed_by"] or row["paused_seconds"] or row["spilled"]]
        shares = [row["results"] / row["memory_peak"] for row in lacking if row["results"] and row["memory_peak"]]
        return bool(shares) and max(shares) >= MANY_RESULTS

    @property
    def heaviest(self) -> dict[str, Any] | None:
        """The dataset that needs most memory per event."""
        known = [row for row in self.datasets if row["bytes_per_event"] is not None]
        return max(known, key=lambda row: row["bytes_per_event"], default=None)

    @property
    def what(self) -> str:
        """What happened, and on which workers."""
        if self.killed:
            found, worst = self.killed, self.killed[0]
            peak = (
                f"{BYTE.text(worst['killed_memory'])}{self._of_limit(worst, 'killed_memory')} by {worst['killed_by']}"
            )
            return f"{self._of(found)} {_were(found)} killed at the memory limit ({worst['worker']} at {peak})."
        for found, verb in ((self.paused, "paused"), (self.spilled, "moved results to disk")):
            if found:
                peak = found[0]["memory_peak"]
                share = self._of_limit(found[0], "memory_peak").rstrip(",")
                at = "" if peak is None else f", peak {BYTE.text(peak)}{share}"
                were = f"{_were(found)} paused" if verb == "paused" else verb
                return f"{self._of(found)} {were} for lack of memory ({found[0]['worker']}{at})."
        return "No worker was killed or paused for lack of memory, and none spilled."

    @property
    def how_much(self) -> str:
        """Lost attempts, pauses, spilling, and memory per event."""
        lost = sum(row["lost_attempts"] for row in self.killed)
        parts = [f"{counted(lost, 'attempt')} {'was' if lost == 1 else 'were'} lost"] if lost else []
        seconds = sum(row["lost_seconds"] for row in self.killed)
        parts = [f"{part} ({SECOND.text(seconds)} of thread time)" for part in parts]
        if self.paused:
            parts.append(f"workers were paused for {SECOND.text(sum(row['paused_seconds'] for row in self.paused))}")
        if self.spilled:
            most = max(row["spilled"] or 0 for row in self.spilled)
            spent = SECOND.text(sum(row["spill_seconds"] or 0.0 for row in self.spilled))
            parts.append(f"a worker spilled up to {BYTE.text(most)}, which took {spent}")
        heaviest = self.heaviest
        if heaviest is not None and not self.results_fill_it:
            parts.append(f"an event of {heaviest['dataset']} takes {_an_event(heaviest)}")
        text = "; ".join(parts)
        return f"{text[:1].upper()}{text[1:]}."

    @property
    def remedy(self) -> str:
        """What to change, with a value if known."""
        if self.results_fill_it:
            most = max(row["results"] or 0 for row in self.workers)
            return f"Make the output smaller: results held by a worker take {BYTE.text(most)}"
        fit = self.fit
        if fit is None and self.fit_absent == WITHOUT_EVENTS:
            return f"Give workers more memory: {WITHOUT_EVENTS}"
        if fit is None:
            return f"Make chunks smaller, or give workers more memory; which size fits is unknown: {self.fit_absent}"
        if self.chunk_events is None or fit.events >= self.chunk_events:
            return f"Give workers more memory, or let them hold less: {number(fit.events)} events a chunk would fit"
        size = f"chunksize={fit.events}{' or less' if fit.at_most else ''}"
        more = BYTE.text(fit.limit_for(self.chunk_events))
        least = "at least " if fit.at_most else ""
        return (
            f"Use {size} (now about {number(round(self.chunk_events))}): {fit.arithmetic}. Or give each worker "
            f"{least}{more}"
        )

    def culprits(self) -> list[CulpritParts]:
        """Workers that were killed, else paused, else spilling, and the dataset that needs most memory.

        Seconds are those of lost attempts, pauses and spilling; the factor is the peak divided by the limit.
        """
        rows = self.killed or self.paused or self.spilled
        found: list[CulpritParts] = []
        for row in rows:
            seconds = row["lost_seconds"] + row["threads"] * row["paused_seconds"] + (row["spill_seconds"] or 0.0)
            known = row["memory_peak"] is not None and row["memory_limit"]
            found.append(
                ("worker", row["worker"], seconds, row["memory_peak"] / row["memory_limit"] if known else None)
            )
        if rows and self.heaviest is not None:
            found.append(("dataset", self.heaviest["dataset"], 0.0, None))
        return found

    def _of(self, found: Sequence[Any]) -> str:
        return f"{number(len(found))} of {counted(len(self.workers), 'worker')}"

    @staticmethod
    def _of_limit(row: Mapping[str, Any], name: str) -> str:
        limit = row["memory_limit"]
        return "" if not limit else f", {FRACTION.text(row[name] / limit)} of its {BYTE.text(limit)},"


def _an_event(row: Mapping[str, Any]) -> str:
    """What an event of a dataset takes, as far as that is known."""
    each, least = row["bytes_per_event"], row.get("least_bytes_per_event")
    if row["at_least"]:
        return f"at least {BYTE.text(each)}"
    if row["fixed_bytes"] is not None:
        return f"{BYTE.text(each)}, a chunk {BYTE.text(row['fixed_bytes'])} more"
    return f"{BYTE.text(least)} to {BYTE.text(each)}" if least else f"at most {BYTE.text(each)}"


def _were(found: Sequence[Any]) -> str:
    return "was" if len(found) == 1 else "were"


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


def _fit(
    workers: Sequence[Mapping[str, Any]],
    datasets: Sequence[Mapping[str, Any]],
    floor: float | None,
    typical: float | None,
) -> Fit | str:
    """The chunk size that fits into the smallest worker, or why it is unknown."""
    limited = [row for row in workers if row["memory_limit"]]
    if not limited:
        return "no worker has a memory limit"
    tightest = min(limited, key=lambda row: row["memory_limit"] / row["threads"])
    if floor is None:
        return "the memory of workers was not measured"
    limit, threads = tightest["memory_limit"], tightest["threads"]
    known = [row for row in datasets if row["bytes_per_event"]]
    if not known and any(row["bytes_per_event"] is not None for row in datasets):
        return WITHOUT_EVENTS
    if known:
        worst = max(known, key=lambda row: row["bytes_per_event"])
        fixed, each = threads * (worst["fixed_bytes"] or 0.0), worst["bytes_per_event"]
    else:
        # chunks shared processes: take the joint growth of all threads for their usual chunks
        peaks = [row["memory_peak"] - floor for row in limited if row["memory_peak"] is not None]
        if not peaks or not typical or max(peaks) <= 0:
            return "the memory per event could not be measured for any chunk"
        worst, fixed, each = {"dataset": "all datasets", "at_least": 0}, 0.0, max(peaks) / threads / typical
    room = TARGET * limit - floor - fixed
    if room <= 0:
        return f"a worker uses {BYTE.text(floor + fixed)} before any event, and its limit is {BYTE.text(limit)}"
    return Fit(
        _rounded_down(room / threads / each),
        worst["dataset"],
        limit,
        threads,
        floor + fixed,
        each,
        bool(worst["at_least"]),
    )


def _rounded_down(events: float) -> int:
    """Number of events, rounded down to two digits."""
    step = int(10 ** max(len(str(int(events))) - 2, 0))
    return max(int(events) // step * step, 1)
