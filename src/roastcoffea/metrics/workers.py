"""Metrics of the workers: how many there were, what they used, and how busy the chunks kept them."""

from __future__ import annotations

from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roastcoffea.metrics.catalogue import EVENTS, RESOURCES, TIMING, metric, refuse_if
from roastcoffea.metrics.facts import complete_sum
from roastcoffea.metrics.statistics import Numbers, highest_concurrency, integral, measured_values, time_weighted_mean
from roastcoffea.units import BYTE, COUNT, FRACTION, KILOHERTZ, RATIO, SECOND

ARRIVALS = "arrivals and departures at the scheduler"
SAMPLES = "samples of workers"
of_arrivals = partial(metric, COUNT, group=RESOURCES, source=ARRIVALS)


@of_arrivals(label="workers (mean)", formula="sum of lifetimes within the run / elapsed_time_seconds")
def avg_workers(present: tuple[Numbers, Numbers], elapsed_time_seconds: float) -> float:
    """Number of workers, averaged over the time of the run."""
    return integral(*present, np.ones(len(present[0]))) / elapsed_time_seconds


@of_arrivals(label="workers (peak)", formula="most lifetimes that overlap at one moment")
def peak_workers(present: tuple[Numbers, Numbers]) -> int:
    """Most workers at one moment; one that takes the place of another is not counted beside it."""
    return highest_concurrency(*present)


@of_arrivals(label="cores (mean)", formula="sum of threads x lifetime within the run / elapsed_time_seconds")
def total_cores(present: tuple[Numbers, Numbers], lifetimes: pa.Table, elapsed_time_seconds: float) -> float:
    """Worker threads, which Dask calls cores, averaged over the time of the run."""
    return integral(*present, measured_values(lifetimes["threads"])) / elapsed_time_seconds


@of_arrivals(label="cores per worker")
def cores_per_worker(total_cores: float, avg_workers: float) -> float:
    """Threads of a worker, averaged over the workers' time."""
    return total_cores / avg_workers


@metric(FRACTION, group=RESOURCES, source=f"chunk records; {ARRIVALS}", label="core efficiency")
def core_efficiency(total_cpu_time: float, elapsed_time_seconds: float, total_cores: float) -> float:
    """Share of the worker threads' time in which a chunk used CPU: near 0 where they wait."""
    return total_cpu_time / (elapsed_time_seconds * total_cores)


@metric(RATIO, group=RESOURCES, source="chunk records, wall clock", label="speedup")
def speedup_factor(total_cpu_time: float, elapsed_time_seconds: float) -> float:
    """Cores that the chunks kept busy on average: CPU time per wall time."""
    return total_cpu_time / elapsed_time_seconds


@metric(KILOHERTZ, group=EVENTS, source=f"total_events, wall clock, {ARRIVALS}", label="rate per core")
def event_rate_core_khz(total_events: int, elapsed_time_seconds: float, total_cores: float) -> float:
    """Events per second of wall time and core, busy or not."""
    return 1e-3 * total_events / (elapsed_time_seconds * total_cores)


@metric(
    BYTE,
    group=RESOURCES,
    source=f"{SAMPLES}, chunk records",
    label="memory of a worker (peak)",
    formula="maximum over samples and chunks' peaks",
)
def peak_memory_bytes(samples: pa.Table | None = None, chunks: pa.Table | None = None) -> int:
    """Highest resident memory of one worker process that was seen, between samples and in chunks."""
    columns = [
        measured_values(table[column])
        for table, column in ((samples, "memory"), (chunks, "memory_peak"))
        if table is not None
    ]
    seen = np.concatenate([np.empty(0), *columns])
    refuse_if(len(seen) == 0, "no sample of a worker's memory and no peak of a chunk")
    return int(seen.max())


@metric(
    BYTE,
    group=RESOURCES,
    source=SAMPLES,
    label="memory of a worker (mean)",
    formula="mean over workers of the time-weighted mean of each",
)
def avg_memory_per_worker_bytes(samples: pa.Table) -> float:
    """Resident memory of a worker process over the time of its samples, averaged over workers."""
    known = samples.select(["worker", "time", "memory"]).drop_null()
    refuse_if(len(known) == 0, "no sample of a worker's memory")
    number = pc.dictionary_encode(known["worker"].combine_chunks()).indices.to_numpy()
    order = np.argsort(number, kind="stable")
    ends = np.flatnonzero(np.diff(number[order])) + 1
    times, memory = (np.split(measured_values(known[name])[order], ends) for name in ("time", "memory"))
    return float(np.mean([time_weighted_mean(*worker) for worker in zip(times, memory, strict=True)]))


@metric(
    SECOND,
    group=TIMING,
    source="operating system, per worker process",
    label="CPU time of workers",
    formula="sum over worker processes of cpu_seconds",
)
def worker_cpu_time_seconds(lifetimes: pa.Table) -> float:
    """CPU time of the worker processes during the run: chunks, other tasks and Dask itself.

    Workers that share the client's process (a cluster without processes) count once.
    """
    complete_sum(lifetimes, "cpu_seconds", "workers")
    processes: dict[object, float] = {}
    for number, worker in enumerate(lifetimes.select(["worker", "process", "cpu_seconds"]).to_pylist()):
        shared = str(worker["worker"]).startswith("inproc://")
        process = ("process", worker["process"]) if shared else number
        processes[process] = max(worker["cpu_seconds"], processes.get(process, 0.0))
    return sum(processes.values())
