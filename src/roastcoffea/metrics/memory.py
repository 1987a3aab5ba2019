"""Memory: each worker's peak against its limit, workers killed for memory, and memory per event by dataset."""

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
"""Share of the limit at which Dask pauses a worker (default); a worker lost above it ran out of memory."""

VARIED: Final = 1.5
"""Ratio of the ninth to the first decile of events per chunk above which a fixed part can be separated from events."""

KEPT: Final = 0.1
"""Share of a chunk's growth below which its process retained nothing from earlier chunks."""

FEWEST_TO_FIT: Final = 8
MOST_TO_FIT: Final = 500
"""Fewest and most chunks for a median slope."""

BY_NANNY: Final = "Dask's nanny"
BY_SAMPLE: Final = "last sample"

WORKER_MEMORY_COLUMNS: Final = (
    *picked(LIFETIME_COLUMNS, "worker", "host", "threads", "memory_limit"),
    Column("memory_peak", "integer", "B", "highest resident memory, from chunks, samples and its nanny"),
    Column("memory_before", "integer", "B", "resident memory before its first chunk, otherwise in the lowest sample"),
    Column("results", "integer", "B", "most bytes of results held"),
    Column("paused_seconds", "number", "s", "time paused by Dask"),
    Column("spilled", "integer", "B", "most bytes of spilled results (their size in memory)"),
    Column("spill_seconds", "number", "s", "writing results to disk and reading them back (Dask)"),
    Column("killed_memory", "integer", "B", "resident memory when it was killed for memory; none if it was not"),
    Column("killed_by", "text", None, f'source of this: "{BY_NANNY}", or "{BY_SAMPLE}" before it was lost'),
    Column("lost_attempts", "integer", None, "attempts lost, or whose results were lost, when it was killed"),
    Column("lost_seconds", "number", "s", "thread time of these attempts"),
)
"""One row for each worker."""

DATASET_MEMORY_COLUMNS: Final = (
    *picked(CHUNK_COLUMNS, "dataset"),
    Column("chunks", "integer", None, "chunks that this is based on"),
    Column("bytes_per_event", "number", "B", "growth of resident memory per event, relative to before the first chunk"),
    Column("least_bytes_per_event", "number", "B", "growth per event within later chunks of a process: a lower bound"),
    Column("fixed_bytes", "number", "B", "growth independent of events; none if it cannot be separated"),
    Column("at_least", "integer", None, "1 if only killed attempts are known, which needed more"),
    Column("reason", "text", None, "why it is unknown"),
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


OF_CHUNKS: Final = ("dataset", "outcome", "worker", "overlaps", "memory_before", "memory_peak", "events", "start")
"""Columns of chunks that tell the memory of a dataset."""

NAMES_OF_LIFE: Final = ("worker", "host", "threads", "memory_limit")


def _highest(rows: pa.Table | None, column: str) -> dict[str, int]:
    """Largest value of a column for each worker with any."""
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
    """Memory of a worker lost with its tasks, if it was above Dask's pause threshold; else None."""
    limit = life["memory_limit"]
    return last if was_lost and limit and last is not None and last >= PAUSED_FROM * limit else None


def _paused(pauses: pa.Table | None) -> dict[str, float]:
    """Seconds for which each worker was paused."""
    found: dict[str, float] = {}
    for row in [] if pauses is None else pauses.to_pylist():
        found[row["worker"]] = found.get(row["worker"], 0.0) + row["stop"] - row["start"]
    return found


Lost = dict[str, dict[str, tuple[int, float]]]
"""Number of attempts lost with each worker, and their seconds, by reason."""


def _lost(failed: pa.Table | None) -> Lost:
    """Attempts lost with their worker, and attempts repeated because their results were lost."""
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
    """Resident memory of a typical worker before its first chunk, from chunks, otherwise from samples."""
    known = workers["memory_before"].drop_null().to_numpy()
    return float(np.median(known)) if len(known) else None


@table
def dataset_memory(
    run: Run, chunks: pa.Table, worker_memory: pa.Table, failed_work: pa.Table | None = None
) -> pa.Table:
    """Datasets with DATASET_MEMORY_COLUMNS.

    The memory of a chunk is the peak of its process relative to before the first chunk. That includes memory retained
    by the allocator, libraries loaded by the first chunk, and results held by the worker.
    """
    before = dict(zip(*worker_memory.select(["worker", "memory_before"]).to_pydict().values(), strict=True))
    typical, killed = typical_before(worker_memory), _killed_attempts(worker_memory, failed_work)
    why = run.absent.get("memory_peak", "memory of chunks was not measured")
    chunks = chunks.select(OF_CHUNKS)  # copying rows of all columns would take most of the time
    datasets = dict.fromkeys([*chunks["dataset"].drop_null().unique().to_pylist(), *killed])
    rows = []
    for dataset in sorted(datasets):
        row = {"dataset": dataset} | _of_chunks(chunks.filter(pc.equal(chunks["dataset"], dataset)), before, why)
        rows.append(_raised(row, killed.get(dataset, ()), typical))
    return table_of_rows(DATASET_MEMORY_COLUMNS, rows)


def _of_chunks(chunks: pa.Table, before: Mapping[str, int | None], not_measured: str) -> dict[str, Any]:
    """Memory of a dataset from its chunks that ran alone in their processes."""
    done = chunks.filter(pc.equal(chunks["outcome"], OK))
    valid = [done[name].is_valid().to_numpy() for name in ("worker", "overlaps", "memory_peak", "events")]
    known = done.filter(pa.array(np.logical_and.reduce(valid) & (amounts(done, "events") > 0)))
    alone = known.filter(pc.equal(known["overlaps"], 0)).sort_by("start")
    if not len(alone):
        reason = "none of its chunks finished"
        if len(done):
            reason = "its chunks shared processes with others" if len(known) else not_measured
        return {"chunks": 0, "bytes_per_event": None, "fixed_bytes": None, "at_least": 0, "reason": reason}
    workers, peak, events = alone["worker"].to_pylist(), amounts(alone, "memory_peak"), amounts(alone, "events")
    floor = np.array([before.get(worker) or 0 for worker in workers], np.float64)
    growth, begun = np.maximum(peak - floor, 0.0), moments(alone, "memory_before")
    largest, later = _earlier(workers, events)
    # a process retains what a larger chunk needed, so that a smaller one after it does not show its own need
    informative = (events >= largest) | (begun - floor <= KEPT * growth)
    fixed, each = _law(events, growth, informative)
    within = np.maximum(peak - begun, 0.0)[later & np.isfinite(begun)] / events[later & np.isfinite(begun)]
    least = None if fixed is not None or not len(within) else min(float(np.median(within)), each)
    found = {"chunks": len(alone), "bytes_per_event": each, "least_bytes_per_event": least, "fixed_bytes": fixed}
    return found | {"at_least": 0, "reason": None}


def _earlier(workers: Sequence[str], events: Numbers) -> tuple[Numbers, Flags]:
    """Events of the largest earlier chunk of the same process, and whether there was one."""
    so_far: dict[str, float] = {}
    largest = np.zeros(len(events))
    for place, (worker, number) in enumerate(zip(workers, events.tolist(), strict=True)):
        largest[place] = so_far.get(worker, 0.0)
        so_far[worker] = max(largest[place], number)
    return largest, largest > 0


def _law(events: Numbers, growth: Numbers, informative: Flags) -> tuple[float | None, float]:
    """Fixed part and growth per event, from the median slope if chunk sizes differ enough, otherwise the median ratio.

    Memory that does not grow with events is a fixed part and 0 per event.
    """
    ratio = float(np.median(growth / events))
    events, growth = events[informative], growth[informative]
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
    """An attempt during which its worker was killed: the worker's memory and threads, and the chunk's events."""

    memory: int
    threads: int
    events: int


def _killed_attempts(workers: pa.Table | None, failed: pa.Table | None) -> dict[str, list[_Killed]]:
    """Attempts on workers that were killed for memory, by dataset."""
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
    """The row of a dataset, raised to the least that killed attempts needed."""
    bounds = [(one.memory - (floor or 0.0)) / one.threads / one.events for one in killed if one.events]
    least = max(bounds, default=0.0)
    if least <= (row["bytes_per_event"] or 0.0):
        return row
    return row | {"chunks": row["chunks"] or len(bounds), "bytes_per_event": least, "at_least": 1, "reason": None}
