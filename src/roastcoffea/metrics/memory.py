"""Memory and batch jobs: each worker's peak against its limit, workers killed for memory, memory per event by dataset,
and what batch jobs took: their cores from start to end, and where that time went."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roastcoffea.metrics.catalogue import RESOURCES, TIMING, fact, metric, refuse_if, table
from roastcoffea.metrics.facts import aggregated, complete_sum, rows_where, rows_with, some, with_outcome
from roastcoffea.metrics.statistics import Flags, Numbers, amounts, moments
from roastcoffea.metrics.thread_activity import REPEATED
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.chunks import CHUNK_COLUMNS, OK
from roastcoffea.records.columns import Column, picked
from roastcoffea.records.run import Run
from roastcoffea.records.workers import LIFETIME_COLUMNS, LOST, PROCESSOR
from roastcoffea.units import COUNT, FRACTION, SECOND

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


# Batch jobs

JOBS: Final = "batch jobs, as workers report them; arrivals and departures of workers"

CLASSES: Final[Mapping[str, str]] = {
    "before_run": "before the run",
    "startup": "start-up of jobs",
    "threads": "worker threads",
    "threadless": "cores without a thread",
    "replaced": "between workers",
    "shutdown": "shut-down of workers",
}
"""Classes of charged core time, by column of the table of jobs."""

JOB_COLUMNS: Final = (
    *picked(LIFETIME_COLUMNS, "batch_system", "job", "queue", "node", "run"),
    Column("workers", "integer", "workers", "workers that ran in it"),
    *picked(LIFETIME_COLUMNS, "job_cores", "job_memory"),
    Column("memory_peak", "integer", "B", "sum of its workers' highest resident memory, an upper bound of its own"),
    *picked(LIFETIME_COLUMNS, "job_limit", "job_queued", "job_start"),
    Column("job_stop", "number", "s", "when its last worker left; the end of the run if the job went on"),
    Column("ended", "integer", None, "1 if its last worker left before the end of the run"),
    Column("queue_seconds", "number", "s", "from submission to start"),
    Column("startup_seconds", "number", "s", "from start to its first worker, for jobs that started in the run"),
    Column("shutdown_seconds", "number", "s", "from closing of the last worker to its departure"),
    Column("charged", "number", "s", "cores x time from start to `job_stop`"),
    Column("before_run", "number", "s", "charged before the run"),
    Column("startup", "number", "s", "charged before its first worker"),
    Column("threads", "number", "s", "charged for worker threads, closing ones excepted: at most one for each core"),
    Column("threadless", "number", "s", "charged for cores without a worker thread"),
    Column("replaced", "number", "s", "charged while a worker had left and its replacement had not arrived"),
    Column("shutdown", "number", "s", "charged while its last worker closed"),
    Column("residual", "number", "s", "charged, less all of these"),
)
"""One row for each batch job. Charged time is core time."""

Row = dict[str, Any]


@table
def jobs(run: Run, lifetimes: pa.Table, worker_memory: pa.Table | None = None) -> pa.Table:
    """Batch jobs with JOB_COLUMNS, in order of their start."""
    names = ("batch_system", "job", "run")
    spans = {part.id: (part.start, part.stop) for part in run.merged}
    peaks: dict[str, int | None] = {}
    if worker_memory is not None:
        peaks = dict(zip(worker_memory["worker"].to_pylist(), worker_memory["memory_peak"].to_pylist(), strict=True))
    found: dict[tuple[str | None, ...], list[Row]] = {}
    for row in lifetimes.to_pylist():
        if row["job"] is not None:
            found.setdefault(tuple(row[name] for name in names), []).append(row)
    rows = [_job(lives, spans.get(lives[0]["run"], (run.start, run.stop)), peaks) for lives in found.values()]
    return table_of_rows(JOB_COLUMNS, sorted(rows, key=lambda row: (row["job_start"] or 0.0, row["job"])))


def _job(lives: Sequence[Row], run: tuple[float, float], peaks: Mapping[str, int | None]) -> Row:
    """A job from the lifetimes of its workers."""
    first, last = min(life["start"] for life in lives), max(life["stop"] for life in lives)
    names = ("batch_system", "job", "queue", "node", "run", "job_cores", "job_memory", "job_limit", "job_queued")
    known = {
        name: next((life[name] for life in lives if life[name] is not None), None) for name in (*names, "job_start")
    }
    own = [peaks.get(worker) for worker in dict.fromkeys(life["worker"] for life in lives)]
    closing = [life["closing"] for life in lives if life["stop"] == last]
    row = known | {
        "workers": len(lives),
        "memory_peak": None if None in own else sum(filter(None, own)),
        "job_stop": last,
        "ended": int(last < run[1]),
        "shutdown_seconds": last - closing[0] if last < run[1] and closing[0] is not None else None,
    }
    start, queued = known["job_start"], known["job_queued"]
    if start is not None:
        row["queue_seconds"] = None if queued is None else start - queued
        row["startup_seconds"] = first - start if start >= run[0] else None
        row |= _charged(row, lives, first, run[0])
    return row


def _charged(job: Row, lives: Sequence[Row], first: float, begin: float) -> Row:
    """Charged core time of a job that starts at a known time, by class; nothing if its cores are unknown."""
    cores, start, stop = job["job_cores"], job["job_start"], job["job_stop"]
    if cores is None or any(life["threads"] is None for life in lives):
        return {}
    # a job has no worker before its start: a clock may be ahead by a little
    start = min(start, first)
    closing = stop - (job["shutdown_seconds"] or 0.0)
    spans = [*_present(lives, first, closing)]
    row = {
        "before_run": cores * max(min(begin, first) - start, 0.0),
        "startup": cores * max(first - max(start, begin), 0.0),
        "threads": sum(seconds * min(present, cores) for seconds, present in spans),
        "threadless": sum(seconds * (cores - min(present, cores)) for seconds, present in spans if present),
        "replaced": sum(seconds * cores for seconds, present in spans if not present),
        "shutdown": cores * (job["shutdown_seconds"] or 0.0),
    }
    charged = cores * (stop - start)
    return row | {"charged": charged, "residual": charged - math.fsum(row.values())}


def _present(lives: Sequence[Row], begin: float, end: float) -> Iterator[tuple[float, float]]:
    """Seconds, and the threads present for them."""
    edges = {begin, end, *(moment for life in lives for moment in (life["start"], life["stop"]))}
    for one, other in pairwise(sorted(edge for edge in edges if begin <= edge <= end)):
        yield other - one, sum(life["threads"] for life in lives if life["start"] <= one and other <= life["stop"])


@fact
def some_jobs(jobs: pa.Table) -> pa.Table:
    """Batch jobs, at least one."""
    return some(jobs, "no worker reported a batch job")


of_jobs = partial(metric, source=JOBS)


@of_jobs(COUNT, group=RESOURCES, label="batch jobs", formula="number of batch jobs with a worker in the run")
def num_jobs(some_jobs: pa.Table) -> int:
    """Batch jobs with a worker in the run."""
    return len(some_jobs)


@of_jobs(SECOND, group=RESOURCES, label="core time charged", formula="sum over jobs of cores x (end - start)")
def core_seconds_charged(some_jobs: pa.Table) -> float:
    """Cores of batch jobs times their time from start to end, or to the end of the run if they went on."""
    return float(complete_sum(some_jobs, "charged", "batch jobs"))


@metric(FRACTION, group=RESOURCES, source=f"chunk records; {JOBS}", label="CPU of charged core time")
def charged_cpu_efficiency(total_cpu_time: float, core_seconds_charged: float) -> float:
    """Share of the charged core time in which a chunk used the CPU."""
    return total_cpu_time / core_seconds_charged


def _mean(some_jobs: pa.Table, column: str, otherwise: str) -> float:
    known = some_jobs[column].drop_null()
    refuse_if(not len(known), otherwise)
    return float(pc.mean(known).as_py())


@of_jobs(SECOND, group=TIMING, label="queue time of jobs (mean)", formula="mean of start - submission")
def job_queue_seconds(some_jobs: pa.Table) -> float:
    """Time from the submission of a batch job to its start, on average."""
    return _mean(some_jobs, "queue_seconds", "no job tells when it was submitted")


@of_jobs(SECOND, group=TIMING, label="start-up of jobs (mean)", formula="mean of the first worker's arrival - start")
def job_startup_seconds(some_jobs: pa.Table) -> float:
    """Time from the start of a batch job to its first worker's arrival, on average over jobs started in the run."""
    return _mean(some_jobs, "startup_seconds", "no job with a known start started in the run")


@of_jobs(SECOND, group=TIMING, label="shut-down of workers (mean)", formula="mean of departure - closing")
def job_shutdown_seconds(some_jobs: pa.Table) -> float:
    """Time from the closing of a batch job's last worker to its departure, on average over jobs ended in the run."""
    return _mean(some_jobs, "shutdown_seconds", "no job ended in the run")


@of_jobs(
    FRACTION,
    group=RESOURCES,
    label="memory of jobs used (peak)",
    formula="largest of memory_peak / job_memory over jobs",
)
def job_memory_used(some_jobs: pa.Table) -> float:
    """Highest share of a batch job's memory that its workers used: at most this much, as peaks are added up."""
    shares = [
        row["memory_peak"] / row["job_memory"]
        for row in some_jobs.to_pylist()
        if row["memory_peak"] is not None and row["job_memory"]
    ]
    refuse_if(not shares, "no job tells how much memory it has, or no worker's peak was measured")
    return float(max(shares))
