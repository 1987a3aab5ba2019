"""Memory: the peak of each worker against its limit, who was killed for it, and what an event of a dataset takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roastcoffea.metrics.catalogue import table
from roastcoffea.metrics.facts import aggregated
from roastcoffea.metrics.failures import REPEATED
from roastcoffea.metrics.statistics import Flags, Numbers, amounts, moments
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.chunks import CHUNK_COLUMNS, OK
from roastcoffea.records.columns import Column, picked
from roastcoffea.records.run import Run
from roastcoffea.records.tasks import LOST, PROCESSOR
from roastcoffea.records.workers import LIFETIME_COLUMNS

PAUSED_FROM: Final = 0.8
"""Share of the limit from which on Dask pauses a worker (its default): one that was lost there ran out of memory."""

VARIED: Final = 1.5
"""The ninth decile of chunks' events divided by the first, from which on a fixed part can be told from events."""

KEPT: Final = 0.1
"""Share of a chunk's growth up to which its process has kept nothing of earlier ones."""

FEWEST_TO_FIT: Final = 8
MOST_TO_FIT: Final = 500
"""Chunks of which the median slope is taken, at least and at most."""

BY_NANNY: Final = "Dask's nanny"
BY_SAMPLE: Final = "last sample"

WORKER_MEMORY_COLUMNS: Final = (
    *picked(LIFETIME_COLUMNS, "worker", "host", "threads", "memory_limit"),
    Column("memory_peak", "integer", "B", "highest resident memory, by chunks, samples and its nanny"),
    Column("memory_before", "integer", "B", "resident memory before its first chunk; without one the lowest sample"),
    Column("results", "integer", "B", "results that it held at most"),
    Column("paused_seconds", "number", "s", "time in which Dask had paused it"),
    Column("spilled", "integer", "B", "results that it had spilled at most (their size in memory)"),
    Column("spill_seconds", "number", "s", "writing results to disk and reading them back (Dask)"),
    Column("killed_memory", "integer", "B", "resident memory when it was killed for it; none where it was not"),
    Column("killed_by", "text", None, f'how that is known: "{BY_NANNY}", or "{BY_SAMPLE}" before it was lost'),
    Column("lost_attempts", "integer", None, "attempts that were lost, or whose results were lost, as it was killed"),
    Column("lost_seconds", "number", "s", "thread time of them"),
)
"""One row for each worker."""

DATASET_MEMORY_COLUMNS: Final = (
    *picked(CHUNK_COLUMNS, "dataset"),
    Column("chunks", "integer", None, "chunks from which it is known"),
    Column("bytes_per_event", "number", "B", "growth of resident memory above that before the first chunk, an event"),
    Column(
        "least_bytes_per_event", "number", "B", "growth an event within chunks after a process's first: a lower bound"
    ),
    Column("fixed_bytes", "number", "B", "growth that does not depend on events; none where it cannot be told apart"),
    Column("at_least", "integer", None, "1 where only attempts that were killed tell, which needed more"),
    Column("reason", "text", None, "why it is not known"),
)
"""One row for each dataset."""


# Workers


@table
def worker_memory(  # noqa: PLR0917
    run: Run,
    lifetimes: pa.Table,
    chunks: pa.Table | None = None,
    samples: pa.Table | None = None,
    failed_work: pa.Table | None = None,
    fine_metrics_per_worker: Mapping[str, Mapping[str, float]] | None = None,
) -> pa.Table:
    """Workers with WORKER_MEMORY_COLUMNS."""
    in_chunks, sampled = _highest(chunks, "memory_peak"), _highest(samples, "memory")
    spilled, results, last = _highest(samples, "spilled"), _highest(samples, "nbytes"), _last_memory(samples)
    paused, lost = _paused(run.pauses), _lost(failed_work)
    before = _lowest_memory(samples) | _before_first_chunk(chunks)
    rows: dict[str, dict[str, Any]] = {}
    for life in lifetimes.select([*NAMES_OF_LIFE, "killed_memory"]).to_pylist():
        worker = life["worker"]
        killed, by = life.pop("killed_memory"), BY_NANNY
        if killed is None:
            killed, by = _by_last_sample(life, last.get(worker), worker in lost and LOST in lost[worker]), BY_SAMPLE
        peaks = [peak for peak in (in_chunks.get(worker), sampled.get(worker), killed) if peak is not None]
        reasons = lost.get(worker, {}) if killed is not None else {}
        rows[worker] = life | {
            "memory_peak": max(peaks, default=None),
            "memory_before": before.get(worker),
            "results": results.get(worker),
            "paused_seconds": None if run.pauses is None else paused.get(worker, 0.0),
            "spilled": spilled.get(worker),
            "spill_seconds": (fine_metrics_per_worker or {}).get(worker, {}).get("spill_seconds"),
            "killed_memory": killed,
            "killed_by": None if killed is None else by,
            "lost_attempts": sum(count for count, _ in reasons.values()),
            "lost_seconds": sum(seconds for _, seconds in reasons.values()),
        }
    return table_of_rows(WORKER_MEMORY_COLUMNS, rows.values())


NAMES_OF_LIFE: Final = ("worker", "host", "threads", "memory_limit")


def _highest(rows: pa.Table | None, column: str) -> dict[str, int]:
    """Largest value of a column for each worker that has any."""
    if rows is None:
        return {}
    known = rows.select(["worker", column]).drop_null()
    return {row["worker"]: row["most"] for row in aggregated(known, ["worker"], {"most": (column, "max")}).to_pylist()}


def _last_memory(samples: pa.Table | None) -> dict[str, int]:
    """Resident memory in the last sample of each worker."""
    if samples is None:
        return {}
    known = samples.select(["worker", "time", "memory"]).drop_null().sort_by("time")
    return {
        row["worker"]: row["memory"]
        for row in known.group_by(["worker"], use_threads=False)
        .aggregate([("memory", "last")])
        .rename_columns(["worker", "memory"])
        .to_pylist()
    }


def _by_last_sample(life: Mapping[str, Any], last: int | None, was_lost: bool) -> int | None:
    """Memory of a worker that was lost with its tasks when it had more than lets Dask pause it; else None."""
    limit = life["memory_limit"]
    return last if was_lost and limit and last is not None and last >= PAUSED_FROM * limit else None


def _paused(pauses: pa.Table | None) -> dict[str, float]:
    """Seconds for which each worker was paused."""
    found: dict[str, float] = {}
    for row in [] if pauses is None else pauses.to_pylist():
        found[row["worker"]] = found.get(row["worker"], 0.0) + row["stop"] - row["start"]
    return found


Lost = dict[str, dict[str, tuple[int, float]]]
"""For each worker how many attempts were lost with it, and their seconds, by reason."""


def _lost(failed: pa.Table | None) -> Lost:
    """Attempts that were lost with their worker, and those that were repeated because their results were."""
    found: Lost = {}
    for row in [] if failed is None else failed.select(["worker", "reason", "seconds"]).to_pylist():
        if row["reason"] in {LOST, REPEATED} and row["worker"] is not None and row["seconds"] != 0:
            of_worker = found.setdefault(row["worker"], {})
            count, seconds = of_worker.get(row["reason"], (0, 0.0))
            of_worker[row["reason"]] = count + 1, seconds + (row["seconds"] or 0.0)
    return found


# Datasets


def _before_first_chunk(chunks: pa.Table | None) -> dict[str, int]:
    """Resident memory of each process before its first chunk."""
    if chunks is None:
        return {}
    known = chunks.select(["worker", "start", "memory_before"]).drop_null().sort_by("start")
    first = aggregated(known, ["worker"], {"before": ("memory_before", "first")}, None, use_threads=False)
    return {row["worker"]: row["before"] for row in first.to_pylist()}


def _lowest_memory(samples: pa.Table | None) -> dict[str, int]:
    """Lowest resident memory in samples of each worker."""
    if samples is None:
        return {}
    known = samples.select(["worker", "memory"]).drop_null()
    rows = aggregated(known, ["worker"], {"least": ("memory", "min")}).to_pylist()
    return {row["worker"]: row["least"] for row in rows}


def typical_before(workers: pa.Table) -> float | None:
    """Resident memory of the typical worker before its first chunk, by chunks, else by samples."""
    known = workers["memory_before"].drop_null().to_numpy()
    return float(np.median(known)) if len(known) else None


@table
def dataset_memory(chunks: pa.Table, worker_memory: pa.Table, failed_work: pa.Table | None = None) -> pa.Table:
    """Datasets with DATASET_MEMORY_COLUMNS.

    What a chunk takes is the peak of its process above what that had before its first chunk: memory that the allocator
    keeps is in it, and so is what libraries load with the first chunk, and results that the worker holds.
    """
    before = dict(zip(*worker_memory.select(["worker", "memory_before"]).to_pydict().values(), strict=True))
    typical, killed = typical_before(worker_memory), _killed_attempts(worker_memory, failed_work)
    datasets = dict.fromkeys([*chunks["dataset"].drop_null().unique().to_pylist(), *killed])
    rows = []
    for dataset in sorted(datasets):
        row = {"dataset": dataset} | _of_chunks(chunks.filter(pc.equal(chunks["dataset"], dataset)), before)
        rows.append(_raised(row, killed.get(dataset, ()), typical))
    return table_of_rows(DATASET_MEMORY_COLUMNS, rows)


def _of_chunks(chunks: pa.Table, before: Mapping[str, int | None]) -> dict[str, Any]:
    """What chunks of a dataset tell, where they ran alone in their processes."""
    done = chunks.filter(pc.equal(chunks["outcome"], OK))
    valid = [done[name].is_valid().to_numpy() for name in ("worker", "overlaps", "memory_peak", "events")]
    known = done.filter(pa.array(np.logical_and.reduce(valid) & (amounts(done, "events") > 0)))
    alone = known.filter(pc.equal(known["overlaps"], 0)).sort_by("start")
    if not len(alone):
        reason = "no chunk of it ended"
        if len(done):
            reason = "its chunks shared processes with others" if len(known) else "memory of chunks was not measured"
        return {"chunks": 0, "bytes_per_event": None, "fixed_bytes": None, "at_least": 0, "reason": reason}
    workers, peak, events = alone["worker"].to_pylist(), amounts(alone, "memory_peak"), amounts(alone, "events")
    floor = np.array([before.get(worker) or 0 for worker in workers], np.float64)
    growth, begun = np.maximum(peak - floor, 0.0), moments(alone, "memory_before")
    largest, later = _earlier(workers, events)
    # a process keeps what a larger chunk needed: a smaller one after it does not show what it needs itself
    tells = (events >= largest) | (begun - floor <= KEPT * growth)
    fixed, each = _law(events, growth, tells)
    within = np.maximum(peak - begun, 0.0)[later & np.isfinite(begun)] / events[later & np.isfinite(begun)]
    least = None if fixed is not None or not len(within) else min(float(np.median(within)), each)
    found = {"chunks": len(alone), "bytes_per_event": each, "least_bytes_per_event": least, "fixed_bytes": fixed}
    return found | {"at_least": 0, "reason": None}


def _earlier(workers: Sequence[str], events: Numbers) -> tuple[Numbers, Flags]:
    """Events of the largest chunk of its process before each one, and whether there was any."""
    so_far: dict[str, float] = {}
    largest = np.zeros(len(events))
    for place, (worker, number) in enumerate(zip(workers, events.tolist(), strict=True)):
        largest[place] = so_far.get(worker, 0.0)
        so_far[worker] = max(largest[place], number)
    return largest, largest > 0


def _law(events: Numbers, growth: Numbers, tells: Flags) -> tuple[float | None, float]:
    """Fixed part and growth an event: by the median slope where chunks differ enough, else the median ratio alone.

    Memory that does not grow with events is a fixed part, and nothing an event.
    """
    ratio = float(np.median(growth / events))
    events, growth = events[tells], growth[tells]
    every = max(len(events) // MOST_TO_FIT, 1)
    events, growth = events[::every], growth[::every]
    if len(events) < FEWEST_TO_FIT:
        return None, ratio
    low, high = np.quantile(events, [0.1, 0.9])
    if high < VARIED * low:
        return None, ratio
    first, second = np.triu_indices(len(events), 1)
    apart = np.abs(events[second] - events[first]) >= (high - low) / 4
    slopes = (growth[second] - growth[first])[apart] / (events[second] - events[first])[apart]
    each = max(float(np.median(slopes)), 0.0)
    fixed = float(np.median(growth - each * events))
    return (fixed, each) if fixed >= 0 else (None, ratio)


class _Killed(NamedTuple):
    """An attempt during which its worker was killed: that worker's memory and threads, and events of the chunk."""

    memory: int
    threads: int
    events: int


def _killed_attempts(workers: pa.Table | None, failed: pa.Table | None) -> dict[str, list[_Killed]]:
    """Attempts that ran on workers that were killed for their memory, by dataset."""
    found: dict[str, list[_Killed]] = {}
    if workers is None or failed is None:
        return found
    rows = workers.select(["worker", "threads", "killed_memory"]).drop_null().to_pylist()
    killed = {row["worker"]: row for row in rows}
    for row in failed.filter(pc.equal(failed["reason"], LOST)).to_pylist():
        place = killed.get(row["worker"])
        if place and row["kind"] == PROCESSOR and row["seconds"] and row["dataset"] is not None:
            events = row["entry_stop"] - row["entry_start"]
            found.setdefault(row["dataset"], []).append(_Killed(place["killed_memory"], place["threads"], events))
    return found


def _raised(row: dict[str, Any], killed: Sequence[_Killed], floor: float | None) -> dict[str, Any]:
    """The row of a dataset, at least as much as attempts had that were killed."""
    bounds = [(one.memory - (floor or 0.0)) / one.threads / one.events for one in killed if one.events]
    least = max(bounds, default=0.0)
    if least <= (row["bytes_per_event"] or 0.0):
        return row
    return row | {"chunks": row["chunks"] or len(bounds), "bytes_per_event": least, "at_least": 1, "reason": None}
