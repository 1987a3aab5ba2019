"""Memory: each worker's peak against its limit, workers killed for memory, and memory per event by dataset."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roastcoffea.metrics.busy import REPEATED
from roastcoffea.metrics.catalogue import table
from roastcoffea.metrics.facts import aggregated, rows_where, rows_with, with_outcome
from roastcoffea.metrics.statistics import Flags, Numbers, amounts, moments
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.chunks import CHUNK_COLUMNS, OK
from roastcoffea.records.columns import Column, picked
from roastcoffea.records.run import Run
from roastcoffea.records.tasks import LOST, PROCESSOR
from roastcoffea.records.workers import LIFETIME_COLUMNS

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
    in_chunks, sampled, spilled, results = (
        _of_workers(*of)
        for of in ((chunks, "memory_peak"), (samples, "memory"), (samples, "spilled"), (samples, "nbytes"))
    )
    last = _of_workers(samples, "memory", "last", "time")
    before = _of_workers(samples, "memory", "min") | _of_workers(chunks, "memory_before", "first", "start")
    paused, lost = _paused(run.pauses), _lost(failed_work)
    rows: dict[str, dict[str, Any]] = {}
    for life in lifetimes.select(["worker", "host", "threads", "memory_limit", "killed_memory"]).to_pylist():
        worker, killed, by = life["worker"], life["killed_memory"], BY_NANNY
        if killed is None and any(row["reason"] == LOST for row in lost[worker]):
            # Dask pauses a worker above this share of the limit (default): one lost there ran out of memory
            limit, size = life["memory_limit"], last.get(worker, 0)
            killed, by = size if limit and size >= 0.8 * limit else None, BY_SAMPLE
        peaks = [peak for peak in (in_chunks.get(worker), sampled.get(worker), killed) if peak is not None]
        repeated = [] if killed is None else lost[worker]
        rows[worker] = life | {
            "memory_peak": max(peaks, default=None),
            "memory_before": before.get(worker),
            "results": results.get(worker),
            "paused_seconds": None if run.pauses is None else paused.get(worker, 0.0),
            "spilled": spilled.get(worker),
            "spill_seconds": (fine_metrics_per_worker or {}).get(worker, {}).get("spill_seconds"),
            "killed_memory": killed,
            "killed_by": None if killed is None else by,
            "lost_attempts": len(repeated),
            "lost_seconds": sum(row["seconds"] or 0.0 for row in repeated),
        }
    return table_of_rows(WORKER_MEMORY_COLUMNS, rows.values())


def _of_workers(rows: pa.Table | None, column: str, step: str = "max", *order: str) -> dict[str, Any]:
    """Largest, lowest, first or last value of a column, or their sum, for each worker with any."""
    if rows is None:
        return {}
    known = rows.select(["worker", column, *order]).drop_null()
    for name in order:
        known = known.sort_by(name)
    found = aggregated(known, ["worker"], {"value": (column, step)}, None, use_threads=False)
    return dict(zip(found["worker"].to_pylist(), found["value"].to_pylist(), strict=True))


def _paused(pauses: pa.Table | None) -> dict[str, float]:
    """Seconds for which each worker was paused."""
    if pauses is None:
        return {}
    return _of_workers(pauses.append_column("seconds", pc.subtract(pauses["stop"], pauses["start"])), "seconds", "sum")


def _lost(failed: pa.Table | None) -> dict[str, list[dict[str, Any]]]:
    """Attempts lost with each worker, and attempts repeated because their results were lost."""
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in [] if failed is None else failed.select(["worker", "reason", "seconds"]).to_pylist():
        if row["reason"] in {LOST, REPEATED} and row["seconds"] != 0:
            found[row["worker"]].append(row)
    return found


# Datasets


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
    before = dict(zip(worker_memory["worker"].to_pylist(), worker_memory["memory_before"].to_pylist(), strict=True))
    killed = _needs_of_killed(worker_memory, failed_work)
    why = run.absent.get("memory_peak", "memory of chunks was not measured")
    # copying rows of all columns would take most of the time
    chunks = chunks.select(
        ["dataset", "outcome", "worker", "overlaps", "memory_before", "memory_peak", "events", "start"]
    )
    rows = []
    for dataset in sorted({*chunks["dataset"].drop_null().unique().to_pylist(), *killed}):
        row = {"dataset": dataset} | _of_chunks(rows_with(chunks, "dataset", [dataset]), before, why)
        least = max(killed[dataset], default=0.0)
        if least > (row["bytes_per_event"] or 0.0):
            number = row["chunks"] or len(killed[dataset])
            row |= {"chunks": number, "bytes_per_event": least, "at_least": 1, "reason": None}
        rows.append(row)
    return table_of_rows(DATASET_MEMORY_COLUMNS, rows)


def _of_chunks(chunks: pa.Table, before: Mapping[str, int | None], not_measured: str) -> dict[str, Any]:
    """Memory of a dataset from its chunks that ran alone in their processes."""
    done = with_outcome(chunks, (OK,))
    valid = [done[name].is_valid().to_numpy() for name in ("worker", "overlaps", "memory_peak", "events")]
    known = rows_where(done, np.logical_and.reduce(valid) & (amounts(done, "events") > 0))
    alone = known.filter(pc.equal(known["overlaps"], 0)).sort_by("start")
    if not len(alone):
        reason = "none of its chunks finished"
        if len(done):
            reason = "its chunks shared processes with others" if len(known) else not_measured
        return {"chunks": 0, "bytes_per_event": None, "at_least": 0, "reason": reason}
    workers, peak, events = alone["worker"].to_pylist(), amounts(alone, "memory_peak"), amounts(alone, "events")
    floor = np.array([before.get(worker) or 0 for worker in workers], np.float64)
    growth, begun = np.maximum(peak - floor, 0.0), moments(alone, "memory_before")
    largest, later = _earlier(workers, events)
    # a process that kept what a larger chunk needed does not show the need of a smaller one after it
    informative = (events >= largest) | (begun - floor <= 0.1 * growth)
    fixed, each = _law(events, growth, informative)
    within = np.maximum(peak - begun, 0.0)[later & np.isfinite(begun)] / events[later & np.isfinite(begun)]
    least = None if fixed is not None or not len(within) else min(float(np.median(within)), each)
    found = {"bytes_per_event": each, "least_bytes_per_event": least, "fixed_bytes": fixed}
    return found | {"chunks": len(alone), "at_least": 0}


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
    every = max(len(events) // 500, 1)  # the median is over pairs
    events, growth = events[::every], growth[::every]
    low, high = np.quantile(events, [0.1, 0.9]) if len(events) >= 8 else (1.0, 0.0)
    if high < 1.5 * low:
        return None, ratio
    first, second = np.triu_indices(len(events), 1)
    apart = np.abs(events[second] - events[first]) >= (high - low) / 4
    slopes = (growth[second] - growth[first])[apart] / (events[second] - events[first])[apart]
    each = max(float(np.median(slopes)), 0.0)
    fixed = float(np.median(growth - each * events))
    return (fixed, each) if fixed >= 0 else (None, ratio)


def _needs_of_killed(workers: pa.Table, failed: pa.Table | None) -> dict[str, list[float]]:
    """Bytes per event that attempts needed at least, on workers that were killed for memory, by dataset."""
    floor = typical_before(workers) or 0.0
    known = workers.select(["worker", "threads", "killed_memory"]).drop_null().to_pylist()
    of_a_thread = {row["worker"]: (row["killed_memory"] - floor) / row["threads"] for row in known}
    found: dict[str, list[float]] = defaultdict(list)
    for row in [] if failed is None else rows_with(failed, "reason", [LOST]).to_pylist():
        if row["worker"] in of_a_thread and row["kind"] == PROCESSOR and row["seconds"] and row["dataset"] is not None:
            events = row["entry_stop"] - row["entry_start"]
            found[row["dataset"]].append(of_a_thread[row["worker"]] / events if events else 0.0)
    return found
