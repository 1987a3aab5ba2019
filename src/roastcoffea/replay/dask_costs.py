"""Dask's share of a recorded run's time: gaps between tasks, event loops, merges, and starting processes.

The first task of a process loads and compiles code that all others use.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from roastcoffea.metrics.statistics import Flags, Integers, Numbers, amounts, codes, moments
from roastcoffea.metrics.workflow import worker_cpu_time_seconds
from roastcoffea.records.run import Run, RunnerCall
from roastcoffea.records.tasks import MERGE_PREFIX
from roastcoffea.replay.cluster import Merging, tree
from roastcoffea.replay.inputs import Costs

SCHEDULER_SECONDS: Final = 1.1e-3
"""CPU time of Dask's scheduler per task: assumed, because no run records it."""

IDLE_TASKS: Final = 8.0
"""Tasks that cost a worker process as much CPU, beside what they compute, as a second of its life: measured."""

MOST_IDLE: Final = 0.05
"""Largest share of a core that a process takes if it does nothing, as measured: more is due to tasks, such as threads
that receive what these read."""

TYPICAL_GAP: Final = 1.5e-3
"""Seconds between two tasks of a thread if a run has too few to measure it."""

OF_CHUNKS: Final = ("wall", "cpu", "helper_cpu")

FEWEST: Final = 3
"""Fewest tasks for a median."""

ABOUT: Final = 0.25
"""Relative difference of events below which chunks are alike."""

ENOUGH: Final = 1000
"""Tasks that are enough for a median."""

COMPARED: Final = 20_000
"""Tasks among which similar ones are searched."""

STANDS_OUT: Final = 2.0
"""Standard deviations above which the first tasks of processes take longer than others."""


def task_durations(tasks: pa.Table) -> Numbers:
    """Seconds of each task; 0 if unknown."""
    return np.nan_to_num(moments(tasks, "stop") - moments(tasks, "start"))


def costs_of(run: Run, tasks: pa.Table) -> Costs:
    """Dask's costs for started tasks, including failed ones, on which worker processes spend CPU time as well."""
    gap = _gap(tasks)
    latency = _middle(tasks, "seen", "stop") + _middle(tasks, "arrived", "assigned") + gap
    own, idle = _own_and_idle(run, tasks, latency)
    return Costs(gap=gap, latency=latency, scheduler=SCHEDULER_SECONDS, own=own, idle=idle)


def _middle(tasks: pa.Table, later: str, earlier: str) -> float:
    """Median time between two moments of tasks."""
    took = moments(tasks, later) - moments(tasks, earlier)
    return max(float(np.nanmedian(took)), 0.0) if np.isfinite(took).any() else 0.0


def _gap(tasks: pa.Table) -> float:
    """Median time between two tasks of a thread, if the second was ready before the first ended."""
    thread, worker = codes(tasks["thread"]), codes(tasks["worker"])
    start, stop, ready = (moments(tasks, name) for name in ("start", "stop", "ready"))
    order = np.lexsort((start, thread, worker))
    one, other = order[:-1], order[1:]
    follows = (thread[one] == thread[other]) & (worker[one] == worker[other]) & (ready[other] <= stop[one])
    gaps = (start[other] - stop[one])[follows]
    return max(float(np.median(gaps)), 0.0) if len(gaps) >= FEWEST else TYPICAL_GAP


def _own_and_idle(run: Run, tasks: pa.Table, latency: float) -> tuple[float, float]:
    """CPU time of a worker process beside its tasks and start-up: for each task, and for each second of its life."""
    if run.lifetimes is None or run.lifetimes["cpu_seconds"].null_count or not len(tasks):
        return 0.0, 0.0
    busy = worker_cpu_time_seconds(run.lifetimes)
    began = late_start(tasks.select(["worker", "assigned", "start"]).sort_by("start"), latency) * len(
        tasks["worker"].unique()
    )
    of_tasks = float(task_durations(tasks).sum())
    if run.chunks is not None:
        wall, *cpu = (float(amounts(run.chunks, f"{name}_seconds").sum()) for name in OF_CHUNKS)
        # measured CPU time for chunks, and total time for everything else
        of_tasks += sum(cpu) - wall
    lived = float(np.nansum(moments(run.lifetimes, "stop") - moments(run.lifetimes, "start")))
    beside = max(busy - began - of_tasks, 0.0)
    idle = min(IDLE_TASKS * beside / (len(tasks) + IDLE_TASKS * lived), MOST_IDLE)
    return max(beside - idle * lived, 0.0) / len(tasks), idle


def merging_of(run: Run, call: RunnerCall, results: int, merges: pa.Table) -> Merging:
    """Form and costs of the merging of results."""
    fan_in = call.options.get("executor.treereduction")
    if not len(merges) or not isinstance(fan_in, int) or fan_in < 2:
        return Merging()
    each = float(task_durations(merges).sum()) / max(int(tree(results, fan_in)[1].sum()), 1)
    # share of CPU in the time of merges, as measured by Dask; otherwise 1
    kinds = (("execute", MERGE_PREFIX, activity, "seconds") for activity in ("thread-cpu", "thread-noncpu"))
    cpu, other = ((run.span_metrics or {}).get(kind, 0.0) for kind in kinds)
    share = cpu / (cpu + other) if cpu + other else 1.0
    return Merging(fan_in=fan_in, cpu=each * share, wait=each * (1 - share), fetch=_middle(merges, "ready", "arrived"))


# First tasks


@dataclass(frozen=True, slots=True)
class FirstTasks:
    """Tasks that started before the first one of their process ended.

    `alike` has similar later tasks for each of them, `leaders` are the first of each process. Both are empty if first
    tasks took no longer than others, or cannot be compared.
    """

    alike: Mapping[int, Integers]
    leaders: Integers
    events: Numbers

    def warm(self, values: Numbers) -> Numbers:
        """Values with those of the first tasks replaced by typical ones."""
        warm = values.copy()
        for row in self.alike:
            warm[row] = self.typical(values, row)
        return warm

    def excess(self, values: Numbers) -> float:
        """Mean excess of a process's first task over the typical value."""
        beyond = [values[row] - self.typical(values, row) for row in self.leaders.tolist()]
        return max(float(np.mean(beyond)), 0.0) if beyond else 0.0

    def typical(self, values: Numbers, row: int) -> float:
        """Typical value for a task with this many events."""
        alike = self.alike[row]
        return float(np.median(values[alike] / self.events[alike]) * self.events[row])


def first_tasks(tasks: pa.Table, group: Integers, events: Numbers, seconds: Numbers) -> FirstTasks:
    """First tasks of processes, among tasks in order of start; those of a group are alike."""
    _, leaders = np.unique(codes(tasks["worker"]), return_index=True)
    early = early_tasks(tasks)
    others = ~early[:COMPARED]
    alike = {row: _alike(row, others, group, events) for row in np.flatnonzero(early).tolist()}
    first = FirstTasks(alike, leaders, np.maximum(events, 1.0))
    if all(len(others) >= FEWEST for others in alike.values()):
        spread = np.mean([np.std(seconds[alike[row]]) for row in leaders.tolist()])
        # whether first tasks took longer than expected by chance
        if first.excess(seconds) > STANDS_OUT * spread / len(leaders) ** 0.5:
            return first
    return FirstTasks({}, leaders[:0], events)


def early_tasks(tasks: pa.Table) -> Flags:
    """Whether each task started before the first one of its process ended; tasks are in order of start."""
    worker, start, stop = codes(tasks["worker"]), moments(tasks, "start"), moments(tasks, "stop")
    _, leaders = np.unique(worker, return_index=True)
    ended = np.zeros(worker.max() + 1)
    ended[worker[leaders]] = stop[leaders]
    return np.asarray(start < ended[worker], np.bool_)


def _alike(row: int, others: Flags, group: Integers, events: Numbers) -> Integers:
    """Tasks of the same group with about as many events, if there are enough; at most as many as a median needs."""
    of_group = others & (group[: len(others)] == group[row])
    of_size = np.abs(events[: len(others)] - events[row]) <= ABOUT * events[row]
    for some in (of_group & of_size, of_group, others):
        if np.count_nonzero(some) >= FEWEST:
            break
    found = np.flatnonzero(some)
    return found[:: max(len(found) // ENOUGH, 1)]


def late_start(tasks: pa.Table, latency: float) -> float:
    """Seconds between assignment and start of a process's first task, without latency: unpickling, imports."""
    _, leaders = np.unique(codes(tasks["worker"]), return_index=True)
    late = (moments(tasks, "start") - moments(tasks, "assigned"))[leaders]
    return max(float(np.nanmean(late)) - latency, 0.0) if np.isfinite(late).any() else 0.0
