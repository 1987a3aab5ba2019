"""Memory and batch jobs: each worker's peak against its limit, workers killed for memory, memory per event by dataset,
and what batch jobs took: their cores from start to end, and where that time went."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

import numpy as np
import pyarrow.compute as pc
from pyarrow import Table

from roastcoffea.metrics.catalogue import RESOURCES, TIMING, fact, metric, refuse_if, table
from roastcoffea.metrics.facts import aggregated, complete_sum, rows_where, rows_with, some, with_outcome
from roastcoffea.metrics.statistics import Flags, Numbers, amounts, moments
from roastcoffea.metrics.thread_activity import REPEATED
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.chunks import CHUNK_COLUMNS, OK
from roastcoffea.records.columns import Column, Row, bytes_column, integer_column, picked, seconds_column, text_column
from roastcoffea.records.run import Run
from roastcoffea.records.workers import LIFETIME_COLUMNS, LOST, PROCESSOR
from roastcoffea.units import COUNT, FRACTION, SECOND

BY_NANNY: Final = "Dask's nanny"
BY_SAMPLE: Final = "last sample"

WORKER_MEMORY_COLUMNS: Final = (
    *picked(LIFETIME_COLUMNS, "worker", "host", "threads", "memory_limit"),
    bytes_column("memory_peak", "highest resident memory, from chunks, samples and its nanny"),
    bytes_column("memory_before", "resident memory before its first chunk, otherwise in the lowest sample"),
    bytes_column("results", "most bytes of results held"),
    seconds_column("paused_seconds", "time paused by Dask"),
    bytes_column("spilled", "most bytes of spilled results (their size in memory)"),
    seconds_column("spill_seconds", "writing results to disk and reading them back (Dask)"),
    bytes_column("killed_memory", "resident memory when it was killed for memory; none if it was not"),
    text_column("killed_by", f'source of this: "{BY_NANNY}", or "{BY_SAMPLE}" before it was lost'),
    integer_column("lost_attempts", "attempts lost, or whose results were lost, when it was killed"),
    seconds_column("lost_seconds", "thread time of these attempts"),
)
"""One row for each worker."""

DATASET_MEMORY_COLUMNS: Final = (
    *picked(CHUNK_COLUMNS, "dataset"),
    integer_column("chunks", "chunks that this is based on"),
    Column("bytes_per_event", "number", "B", "growth of resident memory per event, relative to before the first chunk"),
    Column("least_bytes_per_event", "number", "B", "growth per event within later chunks of a process: a lower bound"),
    Column("fixed_bytes", "number", "B", "growth independent of events; none if it cannot be separated"),
    integer_column("at_least", "1 if only killed attempts are known, which needed more"),
    text_column("reason", "why it is unknown"),
)
"""One row for each dataset."""


# Workers


@table
def worker_memory(  # noqa: PLR0917
    run: Run,
    lifetimes: Table,
    chunks: Table | None = None,
    samples: Table | None = None,
    failed_work: Table | None = None,
    fine_metrics_per_worker: Mapping[str, Mapping[str, float]] | None = None,
) -> Table:
    """Workers with WORKER_MEMORY_COLUMNS."""
    in_chunks, sampled, spilled, results = (
        _of_workers(*of)
        for of in ((chunks, "memory_peak"), (samples, "memory"), (samples, "spilled"), (samples, "nbytes"))
    )
    last = _of_workers(samples, "memory", "last", "time")
    before = _of_workers(samples, "memory", "min") | _of_workers(chunks, "memory_before", "first", "start")
    # attempts lost with each worker, and those repeated because their results were
    pauses, lost = run.pauses, defaultdict[str, list[Row]](list)
    for row in [] if failed_work is None else failed_work.select(["worker", "reason", "seconds"]).to_pylist():
        if row["reason"] in {LOST, REPEATED} and row["seconds"] != 0:
            lost[row["worker"]].append(row)
    if pauses is not None:
        pauses = pauses.append_column("seconds", pc.subtract(pauses["stop"], pauses["start"]))
    paused = _of_workers(pauses, "seconds", "sum")
    rows: dict[str, Row] = {}
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


def _of_workers(rows: Table | None, column: str, step: str = "max", *order: str) -> Row:
    """Largest, lowest, first or last value of a column, or their sum, for each worker with any."""
    if rows is None:
        return {}
    known = rows.select(["worker", column, *order]).drop_null()
    for name in order:
        known = known.sort_by(name)
    found = aggregated(known, ["worker"], {"value": (column, step)}, None, use_threads=False)
    return dict(zip(found["worker"].to_pylist(), found["value"].to_pylist(), strict=True))


# Datasets


def typical_before(workers: Table) -> float | None:
    """Resident memory of a typical worker before its first chunk, from chunks, otherwise from samples."""
    known = workers["memory_before"].drop_null().to_numpy()
    return float(np.median(known)) if len(known) else None


@table
def dataset_memory(run: Run, chunks: Table, worker_memory: Table, failed_work: Table | None = None) -> Table:
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


def _of_chunks(chunks: Table, before: Mapping[str, int | None], not_measured: str) -> Row:
    """Memory of a dataset from its chunks that ran alone in their processes."""
    import pandas as pd

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
    # events of the largest earlier chunk of the same process
    largest = pd.Series(events).groupby(workers).cummax().groupby(workers).shift(fill_value=0.0).to_numpy()
    # a process that kept what a larger chunk needed does not show the need of a smaller one after it
    informative = (events >= largest) | (begun - floor <= 0.1 * growth)
    fixed, each = _law(events, growth, informative)
    later = (largest > 0) & np.isfinite(begun)
    within = np.maximum(peak - begun, 0.0)[later] / events[later]
    least = None if fixed is not None or not len(within) else min(float(np.median(within)), each)
    found = {"bytes_per_event": each, "least_bytes_per_event": least, "fixed_bytes": fixed}
    return found | {"chunks": len(alone), "at_least": 0}


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


def _needs_of_killed(workers: Table, failed: Table | None) -> dict[str, list[float]]:
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

CLASSES: Final = {
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
    bytes_column("memory_peak", "sum of its workers' highest resident memory, an upper bound of its own"),
    *picked(LIFETIME_COLUMNS, "job_limit", "job_queued", "job_start"),
    seconds_column("job_stop", "when its last worker left; the end of the run if the job went on"),
    integer_column("ended", "1 if its last worker left before the end of the run"),
    seconds_column("queue_seconds", "from submission to start"),
    seconds_column("startup_seconds", "from start to its first worker, for jobs that started in the run"),
    seconds_column("shutdown_seconds", "from closing of the last worker to its departure"),
    seconds_column("charged", "cores x time from start to `job_stop`"),
    seconds_column("before_run", "charged before the run"),
    seconds_column("startup", "charged before its first worker"),
    seconds_column("threads", "charged for worker threads, closing ones excepted: at most one for each core"),
    seconds_column("threadless", "charged for cores without a worker thread"),
    seconds_column("replaced", "charged while a worker had left and its replacement had not arrived"),
    seconds_column("shutdown", "charged while its last worker closed"),
    seconds_column("residual", "charged, less all of these"),
)
"""One row for each batch job. Charged time is core time."""


@table
def jobs(run: Run, lifetimes: Table, worker_memory: Table | None = None) -> Table:
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
    starts, stops, threads = np.array([(life["start"], life["stop"], life["threads"]) for life in lives], np.float64).T
    edges = np.unique(np.clip([first, closing, *starts, *stops], first, closing))
    seconds, present = np.diff(edges), ((starts <= edges[:-1, None]) & (edges[1:, None] <= stops)) @ threads
    used = np.minimum(present, cores)
    row = {
        "before_run": cores * max(min(begin, first) - start, 0.0),
        "startup": cores * max(first - max(start, begin), 0.0),
        "threads": float(seconds @ used),
        "threadless": float(seconds @ np.where(present > 0, cores - used, 0.0)),
        "replaced": float(cores * seconds[present == 0].sum()),
        "shutdown": cores * (job["shutdown_seconds"] or 0.0),
    }
    charged = cores * (stop - start)
    return row | {"charged": charged, "residual": charged - math.fsum(row.values())}


@fact
def some_jobs(jobs: Table) -> Table:
    """Batch jobs, at least one."""
    return some(jobs, "no worker reported a batch job")


of_jobs = partial(metric, source=JOBS)


@of_jobs(COUNT, "batch jobs", "number of batch jobs with a worker in the run", group=RESOURCES)
def num_jobs(some_jobs: Table) -> int:
    """Batch jobs with a worker in the run."""
    return len(some_jobs)


@of_jobs(SECOND, "core time charged", "sum over jobs of cores x (end - start)", group=RESOURCES)
def core_seconds_charged(some_jobs: Table) -> float:
    """Cores of batch jobs times their time from start to end, or to the end of the run if they went on."""
    return float(complete_sum(some_jobs, "charged", "batch jobs"))


@metric(FRACTION, "CPU of charged core time", group=RESOURCES, source=f"chunk records; {JOBS}")
def charged_cpu_efficiency(total_cpu_time: float, core_seconds_charged: float) -> float:
    """Share of the charged core time in which a chunk used the CPU."""
    return total_cpu_time / core_seconds_charged


# fmt: off
MEANS: Final = (
    ("queue", "queue time of jobs", "start - submission", "no job tells when it was submitted",
     "Time from the submission of a batch job to its start, on average."),
    ("startup", "start-up of jobs", "the first worker's arrival - start",
     "no job with a known start started in the run",
     "Time from the start of a batch job to its first worker's arrival, on average over jobs started in the run."),
    ("shutdown", "shut-down of workers", "departure - closing", "no job ended in the run",
     "Time from the closing of a batch job's last worker to its departure, on average over jobs ended in the run."),
)
# fmt: on
"""Times of jobs with a metric for their mean: name, label, formula, reason for none, meaning."""


def _mean(column: str, otherwise: str, jobs: Table) -> float:
    known = jobs[column].drop_null()
    refuse_if(not len(known), otherwise)
    return float(pc.mean(known).as_py())


for name, label, formula, otherwise, meaning in MEANS:
    of_times = partial(of_jobs, SECOND, group=TIMING, inputs=("some_jobs",), meaning=meaning)
    of_times(name=f"job_{name}_seconds", label=f"{label} (mean)", formula=f"mean of {formula}")(
        partial(_mean, f"{name}_seconds", otherwise)
    )


@of_jobs(FRACTION, "memory of jobs used (peak)", "largest of memory_peak / job_memory over jobs", group=RESOURCES)
def job_memory_used(some_jobs: Table) -> float:
    """Highest share of a batch job's memory that its workers used: at most this much, as peaks are added up."""
    shares = [
        row["memory_peak"] / row["job_memory"]
        for row in some_jobs.to_pylist()
        if row["memory_peak"] is not None and row["job_memory"]
    ]
    refuse_if(not shares, "no job tells how much memory it has, or no worker's peak was measured")
    return float(max(shares))
