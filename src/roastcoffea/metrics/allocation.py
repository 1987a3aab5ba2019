"""What batch jobs took: their cores from start to end, and where that time went."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from roastcoffea.metrics.catalogue import RESOURCES, TIMING, metric, refuse_if, table
from roastcoffea.metrics.facts import complete_sum, some
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.columns import Column, picked
from roastcoffea.records.run import Run
from roastcoffea.records.workers import LIFETIME_COLUMNS
from roastcoffea.units import COUNT, FRACTION, SECOND

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
Span = tuple[float, float]


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


def _job(lives: Sequence[Row], run: Span, peaks: Mapping[str, int | None]) -> Row:
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


# Metrics

of_jobs = partial(metric, source=JOBS)


def _some(jobs: pa.Table) -> pa.Table:
    return some(jobs, "no worker reported a batch job")


@of_jobs(COUNT, group=RESOURCES, label="batch jobs", formula="number of batch jobs with a worker in the run")
def num_jobs(jobs: pa.Table) -> int:
    """Batch jobs with a worker in the run."""
    return len(_some(jobs))


@of_jobs(SECOND, group=RESOURCES, label="core time charged", formula="sum over jobs of cores x (end - start)")
def core_seconds_charged(jobs: pa.Table) -> float:
    """Cores of batch jobs times their time from start to end, or to the end of the run if they went on."""
    return float(complete_sum(_some(jobs), "charged", "batch jobs"))


@metric(FRACTION, group=RESOURCES, source=f"chunk records; {JOBS}", label="CPU of charged core time")
def charged_cpu_efficiency(total_cpu_time: float, core_seconds_charged: float) -> float:
    """Share of the charged core time in which a chunk used the CPU."""
    return total_cpu_time / core_seconds_charged


def _mean(jobs: pa.Table, column: str, otherwise: str) -> float:
    known = _some(jobs)[column].drop_null()
    refuse_if(not len(known), otherwise)
    return float(pc.mean(known).as_py())


@of_jobs(SECOND, group=TIMING, label="queue time of jobs (mean)", formula="mean of start - submission")
def job_queue_seconds(jobs: pa.Table) -> float:
    """Time from the submission of a batch job to its start, on average."""
    return _mean(jobs, "queue_seconds", "no job tells when it was submitted")


@of_jobs(SECOND, group=TIMING, label="start-up of jobs (mean)", formula="mean of the first worker's arrival - start")
def job_startup_seconds(jobs: pa.Table) -> float:
    """Time from the start of a batch job to its first worker's arrival, on average over jobs started in the run."""
    return _mean(jobs, "startup_seconds", "no job with a known start started in the run")


@of_jobs(SECOND, group=TIMING, label="shut-down of workers (mean)", formula="mean of departure - closing")
def job_shutdown_seconds(jobs: pa.Table) -> float:
    """Time from the closing of a batch job's last worker to its departure, on average over jobs ended in the run."""
    return _mean(jobs, "shutdown_seconds", "no job ended in the run")


@of_jobs(
    FRACTION,
    group=RESOURCES,
    label="memory of jobs used (peak)",
    formula="largest of memory_peak / job_memory over jobs",
)
def job_memory_used(jobs: pa.Table) -> float:
    """Highest share of a batch job's memory that its workers used: at most this much, as peaks are added up."""
    shares = [
        row["memory_peak"] / row["job_memory"]
        for row in _some(jobs).to_pylist()
        if row["memory_peak"] is not None and row["job_memory"]
    ]
    refuse_if(not shares, "no job tells how much memory it has, or no worker's peak was measured")
    return float(max(shares))
