"""The scheduler's event loop: one core times the wall time, its lag, and the tasks that end there."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from roastcoffea.metrics.catalogue import CENTRAL, NotMeasuredError, fact, metric, refuse_if
from roastcoffea.metrics.facts import elapsed_seconds
from roastcoffea.metrics.statistics import Flags, Numbers, amounts, measured_values, moments, union_length
from roastcoffea.records.run import Run
from roastcoffea.units import COUNT, FRACTION, SECOND

SCHEDULER: Final = "samples of the scheduler"
SAMPLES_AND_TASKS: Final = "samples of the scheduler, records of tasks"

PEAK: Final = 10.0
"""Seconds over which the busiest time of the scheduler is averaged."""

NOT_SAMPLED: Final = "the scheduler's CPU time was not sampled"
OF_SEVERAL: Final = "the merged runs had schedulers and clients of their own"
NO_TASK: Final = "no task of the run was in flight between two samples of the scheduler"

Spans = tuple[Numbers, Numbers]
"""Starts and stops of times that do not overlap, in order."""


class Usage(NamedTuple):
    """What the scheduler's event loop used so far, at the times of its samples."""

    time: Numbers
    cpu: Numbers
    queue: Numbers
    """Time in which it was runnable and had no core; NaN where the system does not tell."""
    process: Numbers
    lag: Numbers

    def within(self, used: Numbers, starts: Numbers, stops: Numbers) -> float:
        """How much was used in these times, as far as they were sampled."""
        return float(np.sum(np.interp(stops, self.time, used) - np.interp(starts, self.time, used)))


@fact
def scheduler_usage(run: Run, sampling: pa.Table) -> Usage:
    """What the scheduler used so far, by sample."""
    refuse_if(run.merged, OF_SEVERAL)
    known = sampling.filter(sampling["loop_cpu_seconds"].is_valid())
    refuse_if(len(known) < 2, NOT_SAMPLED)
    missed = amounts(known, "missed") * (run.sampling_interval or 0.0)
    cpu, queue, process = (moments(known, f"{name}_seconds") for name in ("loop_cpu", "loop_queue", "process_cpu"))
    return Usage(moments(known, "time"), cpu, queue, process, amounts(known, "late_seconds") + missed)


@fact
def scheduler_time(run: Run, scheduler_usage: Usage) -> Mapping[str, float | None]:
    """Wall time of the run by what the event loop's thread did."""
    usage = scheduler_usage
    start, stop = np.clip([run.start, run.stop], usage.time[0], usage.time[-1])[:, None]
    cpu, queue = (usage.within(used, start, stop) for used in (usage.cpu, usage.queue))
    waited = None if np.isnan(queue) else queue
    idle = max(float(stop[0] - start[0]) - cpu - (waited or 0.0), 0.0)
    known = {"cpu": cpu, "queue": waited, "idle": idle}
    return known | {"unaccounted": elapsed_seconds(run) - sum(filter(None, known.values()))}


@fact
def in_flight(run: Run, tasks: pa.Table, scheduler_usage: Usage) -> Spans:
    """Times between two samples of the scheduler in which tasks of the run were assigned and had not ended."""
    ours = tasks.filter(tasks["key"].is_valid()).select(["assigned", "seen"]).drop_null()
    low, high = scheduler_usage.time[[0, -1]]
    starts, stops = (np.clip(measured_values(ours[name]), low, high) for name in ("assigned", "seen"))
    spans = union(starts, stops, gap=run.sampling_interval or 0.0)
    refuse_if(not union_length(*spans), NO_TASK)
    return spans


def union(starts: Numbers, stops: Numbers, gap: float = 0.0) -> Spans:
    """Times that are in at least one of these, with gaps of up to this many seconds."""
    if not len(starts):
        return starts, stops
    order = np.argsort(starts, kind="stable")
    starts, until = starts[order], np.maximum.accumulate(stops[order])
    first = np.append(True, starts[1:] > until[:-1] + gap)
    return starts[first], until[np.append(first[1:], True)]


def inside(times: Numbers, spans: Spans) -> Flags:
    """Whether moments are in these times."""
    starts, stops = spans
    place = np.searchsorted(starts, times, side="right") - 1
    return np.asarray((place >= 0) & (times <= stops[np.maximum(place, 0)]), np.bool_)


def busiest(times: Numbers, so_far: Numbers, window: float = PEAK) -> float:
    """Highest rate over this many seconds, or over all of them, of an amount that is known so far at these times."""
    window = min(window, float(times[-1] - times[0]))
    begins = np.minimum(times, times[-1] - window)
    return float(np.max(np.interp(begins + window, times, so_far) - np.interp(begins, times, so_far)) / window)


@fact
def ended(tasks: pa.Table) -> Numbers:
    """When the scheduler learned of the end of each attempt of a task, in order."""
    return np.sort(measured_values(tasks["seen"]))


# Metrics

of_scheduler = partial(metric, group=CENTRAL, source=SCHEDULER)
of_both = partial(metric, group=CENTRAL, source=SAMPLES_AND_TASKS)


@of_scheduler(SECOND, label="scheduler: CPU", formula="CPU time of the thread of its event loop, in the run")
def scheduler_cpu_seconds(scheduler_time: Mapping[str, float]) -> float:
    """CPU time of the scheduler's event loop, which has one thread. In a LocalCluster the client shares it."""
    return scheduler_time["cpu"]


@of_scheduler(SECOND, label="scheduler: CPU contention", formula="run-queue time of that thread")
def scheduler_queue_seconds(scheduler_time: Mapping[str, float | None]) -> float:
    """Time in which the scheduler's event loop was runnable and had no core, as others used them."""
    queue = scheduler_time["queue"]
    if queue is None:
        raise NotMeasuredError("the scheduler's system does not report run-queue times")
    return queue


@of_scheduler(SECOND, label="scheduler: idle", formula="sampled time - CPU - CPU contention")
def scheduler_idle_seconds(scheduler_time: Mapping[str, float]) -> float:
    """Time in which the scheduler's event loop waited for messages, a lock or, without run-queue times, a core."""
    return scheduler_time["idle"]


@of_scheduler(SECOND, label="scheduler: unaccounted", formula="wall time - CPU - CPU contention - idle")
def scheduler_unaccounted_seconds(scheduler_time: Mapping[str, float]) -> float:
    """Wall time of the run outside the samples of the scheduler."""
    return scheduler_time["unaccounted"]


@of_scheduler(SECOND, label="scheduler process CPU", formula="CPU time of all threads of its process")
def scheduler_process_cpu_seconds(run: Run, scheduler_usage: Usage) -> float:
    """CPU time of the scheduler's process, which in a LocalCluster is the client's."""
    start, stop = np.array([[run.start], [run.stop]])
    return scheduler_usage.within(scheduler_usage.process, start, stop)


@of_both(FRACTION, label="scheduler: share of core", formula="CPU / time, while tasks were in flight; at most 1")
def scheduler_core_share(scheduler_usage: Usage, in_flight: Spans) -> float:
    """Share of one core that the scheduler's event loop used while tasks were in flight; it cannot use more."""
    return scheduler_usage.within(scheduler_usage.cpu, *in_flight) / union_length(*in_flight)


@of_scheduler(
    FRACTION, label="scheduler: core (peak)", formula="highest CPU / time of any ten seconds; at least the mean"
)
def scheduler_core_share_peak(scheduler_usage: Usage, scheduler_core_share: float | None = None) -> float:
    """Share of one core that the scheduler's event loop used in its busiest ten seconds, or with tasks in flight."""
    return max(busiest(scheduler_usage.time, scheduler_usage.cpu), scheduler_core_share or 0.0)


@of_both(SECOND, label="scheduler lag", formula="mean lag of samples, while tasks were in flight")
def scheduler_lag_seconds(scheduler_usage: Usage, in_flight: Spans) -> float:
    """How late the scheduler's event loop came to what was due while tasks were in flight, on average."""
    lags = scheduler_usage.lag[inside(scheduler_usage.time, in_flight)]
    refuse_if(not len(lags), "the scheduler was not sampled while tasks were in flight")
    return float(lags.mean())


@of_scheduler(SECOND, label="scheduler lag (peak)", formula="highest lag of a sample")
def scheduler_lag_peak_seconds(scheduler_usage: Usage) -> float:
    """How late the scheduler's event loop came to what was due, at most."""
    return float(scheduler_usage.lag.max())


@fact
def ended_in_flight(ended: Numbers, in_flight: Spans) -> int:
    """Attempts of tasks, of other users as well, that ended while tasks were in flight."""
    number = int(np.count_nonzero(inside(ended, in_flight)))
    refuse_if(not number, NO_TASK)
    return number


@of_both(COUNT, label="tasks per second", formula="attempts that ended / time, while tasks were in flight")
def scheduler_task_rate(ended_in_flight: int, in_flight: Spans) -> float:
    """Tasks that ended each second while tasks were in flight."""
    return ended_in_flight / union_length(*in_flight)


@of_both(COUNT, label="tasks per second (peak)", formula="highest number in any ten seconds / 10 s; at least the mean")
def scheduler_task_rate_peak(ended: Numbers, scheduler_usage: Usage, scheduler_task_rate: float | None = None) -> float:
    """Tasks that ended each second in the busiest ten seconds, or while tasks were in flight if that was shorter."""
    times = scheduler_usage.time
    most = busiest(times, np.searchsorted(ended, times, side="right").astype(np.float64))
    return max(most, scheduler_task_rate or 0.0)


@of_both(SECOND, label="scheduler CPU per task", formula="CPU / attempts that ended, while tasks were in flight")
def scheduler_cpu_per_task_seconds(scheduler_usage: Usage, in_flight: Spans, ended_in_flight: int) -> float:
    """CPU time of the scheduler's event loop for each task."""
    return scheduler_usage.within(scheduler_usage.cpu, *in_flight) / ended_in_flight


@of_both(COUNT, label="tasks per second (limit)")
def scheduler_task_rate_limit(scheduler_cpu_per_task_seconds: float) -> float:
    """Tasks per second with which the scheduler's event loop would use its core all the time."""
    return 1 / scheduler_cpu_per_task_seconds
