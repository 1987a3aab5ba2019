"""Scheduler and client: one core and one thread times the wall time, and the lag of their event loops."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roastcoffea.metrics.catalogue import CENTRAL, fact, metric, refuse_if
from roastcoffea.metrics.facts import complete_sum, elapsed_seconds, known_sum, recorded, rows_where, rows_with
from roastcoffea.metrics.statistics import (
    Flags,
    Integers,
    Numbers,
    amounts,
    measured_values,
    moments,
    union,
    union_length,
)
from roastcoffea.records import workers
from roastcoffea.records.run import OF_TASKS, Run
from roastcoffea.records.tasks import MERGE, PREPROCESSING, PROCESSOR
from roastcoffea.units import BYTE, COUNT, FRACTION, SECOND

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
    refuse_if(len(known) < 2, "the scheduler's CPU time was not sampled")
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
    return known | {"unaccounted": elapsed_seconds(run) - cpu - (waited or 0.0) - idle}


@fact
def in_flight(run: Run, tasks: pa.Table, scheduler_usage: Usage) -> Spans:
    """Times between two samples of the scheduler in which tasks of the run were assigned and had not ended."""
    ours = tasks.filter(tasks["key"].is_valid()).select(["assigned", "seen"]).drop_null()
    low, high = scheduler_usage.time[[0, -1]]
    starts, stops = (np.clip(measured_values(ours[name]), low, high) for name in ("assigned", "seen"))
    spans = union(starts, stops, gap=run.sampling_interval or 0.0)
    refuse_if(not union_length(*spans), NO_TASK)
    return spans


def inside(times: Numbers, spans: Spans) -> Flags:
    """Whether moments are in these times."""
    starts, stops = spans
    place = np.searchsorted(starts, times, side="right") - 1
    return np.asarray((place >= 0) & (times <= stops[np.maximum(place, 0)]), np.bool_)


def busiest(times: Numbers, so_far: Numbers, window: float = 10.0) -> float:
    """Highest rate over this many seconds, or over all of them, of an amount that is known so far at these times."""
    window = min(window, float(times[-1] - times[0]))
    begins = np.minimum(times, times[-1] - window)
    return float(np.max(np.interp(begins + window, times, so_far) - np.interp(begins, times, so_far)) / window)


@fact
def ended(tasks: pa.Table) -> Numbers:
    """When the scheduler learned of the end of each attempt of a task, in order."""
    return np.sort(measured_values(tasks["seen"]))


# Metrics

of_scheduler = partial(metric, group=CENTRAL, source="samples of the scheduler")
of_both = partial(metric, group=CENTRAL, source="samples of the scheduler, records of tasks")

OF_SCHEDULER: Final[Mapping[str, tuple[str, str, str]]] = {
    "cpu": (
        "CPU",
        "CPU time of the scheduler's event loop, which has one thread. In a LocalCluster the client shares it.",
        "CPU time of the thread of its event loop, in the run",
    ),
    "queue": (
        "CPU contention",
        "Time in which the scheduler's event loop was runnable and had no core, as others used them.",
        "run-queue time of that thread",
    ),
    "idle": (
        "idle",
        "Time in which the scheduler's event loop waited for messages, a lock or, without run-queue times, a core.",
        "sampled time - CPU - CPU contention",
    ),
    "unaccounted": (
        "unaccounted",
        "Wall time of the run outside the samples of the scheduler.",
        "wall time - CPU - CPU contention - idle",
    ),
}
"""Classes of the time of the scheduler's event loop: label, meaning, formula."""


def _seconds_of_scheduler(name: str, scheduler_time: Mapping[str, float | None]) -> float | None:
    refuse_if(scheduler_time[name] is None, "the scheduler's system does not report run-queue times")
    return scheduler_time[name]


for name, (label, meaning, formula) in OF_SCHEDULER.items():
    of_class = partial(of_scheduler, label=f"scheduler: {label}", meaning=meaning, formula=formula)
    of_class(SECOND, name=f"scheduler_{name}_seconds")(partial(_seconds_of_scheduler, name))


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


SUBMIT, MERGING, GATHER, PREPARE = "submit", "merge", "gather", "preparing"
WAIT, OUTSIDE, UNACCOUNTED = "waiting", "outside", "unaccounted"
CLASSES: Final = (SUBMIT, MERGING, GATHER, PREPARE, WAIT, OUTSIDE, UNACCOUNTED)
"""Classes of the client's time; where Runner calls of several threads overlap, the first one counts."""

Span = tuple[float, float]
StepSpans = dict[str, list[Span]]


@fact
def client_steps(run: Run) -> pa.Table:
    """What the client's thread did for executors, and samples of its event loop."""
    refuse_if(run.merged, OF_SEVERAL)
    return recorded(run, "client_steps")


@fact
def executor_steps(run: Run, client_steps: pa.Table) -> pa.Table:
    """Steps of executors."""
    found = rows_where(client_steps, pc.is_valid(client_steps["work"]))
    without_runner = any(call.id.startswith(OF_TASKS) for call in run.calls)
    refuse_if(without_runner, "tasks ran without a Runner: what the client did meanwhile is not known")
    refuse_if(not len(found), "no executor of a Runner call worked on the cluster")
    return found


@fact
def client_time(run: Run, executor_steps: pa.Table, tasks: pa.Table) -> Mapping[str, float]:
    """Wall time of the run by what the client did."""
    spans = _spans(executor_steps.to_pylist(), _ends(tasks))
    spans["call"] = [(call.start, call.stop) for call in run.calls]
    recorded_calls = set(executor_steps["call"].to_pylist())
    spans["unknown"] = [(call.start, call.stop) for call in run.calls if call.id not in recorded_calls]
    edges = {edge for each in spans.values() for span in each for edge in span}
    times = np.clip(np.array(sorted({run.start, run.stop, *edges})), run.start, run.stop)
    taken = _classes({name: _coverage(times[:-1], each) for name, each in spans.items()}, np.diff(times))
    return taken | {UNACCOUNTED: run.stop - run.start - sum(taken.values())}


def _spans(steps: list[dict[str, Any]], ends: Mapping[str, Numbers]) -> StepSpans:
    """Times of each class. A result is there when its last task has ended: until then the client waits for it."""
    found: StepSpans = {name: [] for name in (SUBMIT, MERGING, GATHER, WAIT)}
    for step in steps:
        start, stop = step["start"], step["stop"]
        if step["step"] == workers.RESULTS:
            moments = ends[step["work"]]
            last = moments[: np.searchsorted(moments, stop, side="right")][-1:]
            # a scheduler that is busy may see the last task end after the client has its result
            there = max([start, *last]) if len(last) or not len(moments) else stop
            found[WAIT].append((start, there))
            found[GATHER].append((there, stop))
        elif name := {workers.SUBMIT: SUBMIT, workers.MERGE: MERGING}.get(step["step"]):
            found[name].append((start, stop))
    return found


def _ends(tasks: pa.Table) -> dict[str, Numbers]:
    """When tasks ended, in order, by what executors work on."""
    return {
        work: np.sort(measured_values(rows_with(tasks, "kind", kinds)["seen"]))
        for work, kinds in {"preprocessing": [PREPROCESSING], "processing": [PROCESSOR, MERGE]}.items()
    }


def _coverage(times: Numbers, spans: list[Span]) -> Integers:
    """How many of these hold from each of these times on."""
    starts, stops = np.sort(np.array(spans, np.float64).reshape(-1, 2).T)
    return np.searchsorted(starts, times, side="right") - np.searchsorted(stops, times, side="right")


def _classes(covered: Mapping[str, Integers], seconds: Numbers) -> dict[str, float]:
    """Seconds of each class; a call whose executors were not recorded is in none of them."""
    in_steps = sum(covered[name] for name in (SUBMIT, MERGING, GATHER, WAIT))
    holds = {name: covered[name] > 0 for name in (SUBMIT, MERGING, GATHER)}
    holds[PREPARE] = covered["call"] - covered["unknown"] > in_steps
    holds[WAIT] = covered[WAIT] > 0
    holds[OUTSIDE] = covered["call"] == 0
    found, left = {}, np.ones(len(seconds), np.bool_)
    for name, flags in holds.items():
        found[name] = float(np.sum(seconds[left & flags]))
        left &= ~flags
    return found


# Metrics

of_client = partial(metric, group=CENTRAL, source="steps of the client")

TABLE: Final[Mapping[str, tuple[str, str, str]]] = {
    SUBMIT: ("submitting", "Time in which the client built and sent graphs of tasks.", "client.map and client.submit"),
    WAIT: ("waiting for the cluster", "Time in which the client waited for tasks.", "until the last task has ended"),
    GATHER: (
        "gathering",
        "Time in which the client fetched the result of executors.",
        "from then on until it is there",
    ),
    MERGING: ("final merge", "Time in which the client added results to the output.", "until the executor returns"),
    PREPARE: ("preparing", "Other time in Runner calls: chunks are made, for example.", "Runner calls less the others"),
    OUTSIDE: ("outside Runner calls", "Time of the run outside Runner calls.", "wall time less Runner calls"),
    UNACCOUNTED: ("unaccounted", "Time of calls whose executors were not recorded.", "wall time less all others"),
}
"""Classes in the order of tables: label, meaning, formula."""


def _seconds_of_client(name: str, client_time: Mapping[str, float]) -> float:
    return client_time[name]


for name, (label, meaning, formula) in TABLE.items():
    of_class = partial(of_client, label=f"client: {label}", meaning=meaning, formula=formula)
    of_class(SECOND, name=f"client_{name}_seconds")(partial(_seconds_of_client, name))


@of_client(
    FRACTION,
    label="client: not waiting",
    formula="submitting, gathering, final merge, preparing and outside Runner calls / wall time",
)
def client_busy_share(client_time: Mapping[str, float], elapsed_time_seconds: float) -> float:
    """Share of the wall time in which the client did something else than waiting for tasks."""
    return 1 - (client_time[WAIT] + client_time[UNACCOUNTED]) / elapsed_time_seconds


@fact
def loop_samples(client_steps: pa.Table) -> pa.Table:
    """Samples of the client's event loop."""
    found = rows_where(client_steps, pc.is_null(client_steps["work"]))
    refuse_if(not len(found), "the client's event loop was not sampled")
    return found


@fact
def own_loop_samples(loop_samples: pa.Table) -> pa.Table:
    """Samples of an event loop that is the client's alone."""
    shared = workers.SHARED_LOOP in loop_samples["step"].to_pylist()
    refuse_if(shared, "the client has the event loop of the scheduler (LocalCluster)")
    return loop_samples


@of_client(SECOND, label="client loop CPU", formula="CPU time of its thread")
def client_loop_cpu_seconds(own_loop_samples: pa.Table) -> float:
    """CPU time of the client's event loop, which takes the messages of the scheduler."""
    return float(known_sum(own_loop_samples["cpu_seconds"]))


@of_client(FRACTION, label="client loop: core", formula="CPU / time; at most 1")
def client_loop_core_share(client_loop_cpu_seconds: float, own_loop_samples: pa.Table) -> float:
    """Share of one core that the client's event loop used; it cannot use more."""
    seconds = pc.subtract(own_loop_samples["stop"], own_loop_samples["start"])
    return client_loop_cpu_seconds / float(pc.sum(seconds).as_py())


@of_client(SECOND, label="client loop lag", formula="mean of samples")
def client_loop_lag_seconds(loop_samples: pa.Table) -> float:
    """How late the client's event loop came to what was due, on average."""
    return float(pc.mean(loop_samples["late_seconds"]).as_py())


@of_client(SECOND, label="client loop lag (peak)", formula="highest of samples")
def client_loop_lag_peak_seconds(loop_samples: pa.Table) -> float:
    """How late the client's event loop came to what was due, at most."""
    return float(pc.max(loop_samples["late_seconds"]).as_py())


@of_client(SECOND, label="client process CPU", formula="CPU time of all threads of its process")
def client_process_cpu_seconds(loop_samples: pa.Table) -> float:
    """CPU time of the client's process; it may hold a scheduler and workers as well."""
    return float(known_sum(loop_samples["process_cpu_seconds"]))


@fact
def graphs(executor_steps: pa.Table) -> pa.Table:
    """Graphs that were sent."""
    return rows_with(executor_steps, "step", [workers.SUBMIT])


@of_client(BYTE, label="graphs sent", formula="sum of their sizes")
def graph_bytes(graphs: pa.Table) -> int:
    """Size of the graphs of tasks that executors sent to the scheduler."""
    return int(complete_sum(graphs, "graph_bytes", "graphs"))


@of_client(COUNT, label="tasks in graphs", formula="sum of their tasks")
def graph_tasks(graphs: pa.Table) -> int:
    """Tasks in the graphs that executors sent to the scheduler."""
    return int(complete_sum(graphs, "tasks", "graphs"))


@of_client(BYTE, label="graph bytes per task", formula="graph_bytes / graph_tasks")
def graph_bytes_per_task(graph_bytes: int, graph_tasks: int) -> float:
    """Size of the graphs for each task in them."""
    refuse_if(not graph_tasks, "no graph was sent")
    return graph_bytes / graph_tasks
