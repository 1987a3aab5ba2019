"""Metrics for the scheduler, the client and the merging of results, and Dask's fine metrics for the run's span."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from functools import partial, reduce
from typing import Final, NamedTuple

import numpy as np
import pyarrow.compute as pc
from pyarrow import Table

from roastcoffea.metrics.catalogue import CENTRAL, FINE, RUN, NotMeasuredError, fact, metric, refuse_if, table
from roastcoffea.metrics.facts import (
    aggregated,
    complete_sum,
    elapsed_seconds,
    in_tasks,
    known_sum,
    recorded,
    rows_where,
    rows_with,
    some,
)
from roastcoffea.metrics.statistics import (
    Flags,
    Numbers,
    amounts,
    measured_values,
    moments,
    union,
    union_length,
)
from roastcoffea.records import workers
from roastcoffea.records.columns import Column, bytes_column, integer_column, seconds_column
from roastcoffea.records.run import OF_TASKS, Run, SpanMetrics
from roastcoffea.records.workers import MERGE, OK, PREPROCESSING, PROCESSOR
from roastcoffea.units import BYTE, COUNT, FRACTION, PERCENT, SECOND, STRUCTURE, Unit

OF_SEVERAL: Final = "each merged run had its own scheduler and client"
NO_TASK: Final = "no task of the run was in flight between two scheduler samples"

Spans = tuple[Numbers, Numbers]
"""Starts and stops of non-overlapping intervals, sorted by time."""


class Usage(NamedTuple):
    """Scheduler samples: times, cumulative CPU times and event loop lags."""

    time: Numbers
    cpu: Numbers
    queue: Numbers
    """Cumulative run-queue time of the event loop, or NaN if the system does not report it."""
    process: Numbers
    lag: Numbers

    def within(self, used: Numbers, starts: Numbers, stops: Numbers) -> float:
        """Total increase in a cumulative time during the sampled parts of these intervals."""
        return float(np.sum(np.interp(stops, self.time, used) - np.interp(starts, self.time, used)))


@fact
def scheduler_usage(run: Run, sampling: Table) -> Usage:
    refuse_if(run.merged, OF_SEVERAL)
    known = sampling.filter(sampling["loop_cpu_seconds"].is_valid())
    refuse_if(len(known) < 2, "the scheduler's CPU time was not sampled")
    lag = amounts(known, "late_seconds") + amounts(known, "missed") * (run.sampling_interval or 0.0)
    time, cpu = moments(known, "time"), moments(known, "loop_cpu_seconds")
    return Usage(time, cpu, moments(known, "loop_queue_seconds"), moments(known, "process_cpu_seconds"), lag)


@fact
def scheduler_time(run: Run, scheduler_usage: Usage) -> Mapping[str, float | None]:
    usage = scheduler_usage
    start, stop = np.clip([run.start, run.stop], usage.time[0], usage.time[-1])[:, None]
    cpu, queue = (usage.within(used, start, stop) for used in (usage.cpu, usage.queue))
    waited = 0.0 if np.isnan(queue) else queue
    idle = max(float(stop[0] - start[0]) - cpu - waited, 0.0)
    known = {"cpu": cpu, "queue": None if np.isnan(queue) else queue, "idle": idle}
    return known | {"unaccounted": elapsed_seconds(run) - cpu - waited - idle}


@fact
def in_flight(run: Run, tasks: Table, scheduler_usage: Usage) -> Spans:
    """Periods between the first and last scheduler sample in which any of the run's tasks were in flight."""
    known = (tasks[name].is_valid() for name in ("key", "assigned", "seen"))
    ours = rows_where(tasks.select(["assigned", "seen"]), reduce(pc.and_, known))
    starts, stops = (np.clip(column.to_numpy(), *scheduler_usage.time[[0, -1]]) for column in ours.columns)
    spans = union(starts, stops, gap=run.sampling_interval or 0.0)
    refuse_if(not union_length(*spans), NO_TASK)
    return spans


def inside(times: Numbers, spans: Spans) -> Flags:
    starts, stops = spans
    place = np.searchsorted(starts, times, side="right") - 1
    return np.asarray((place >= 0) & (times <= stops[np.maximum(place, 0)]), np.bool_)


def busiest(times: Numbers, so_far: Numbers, window: float = 10.0) -> float:
    """Highest rate of increase of a cumulative amount in any window of this length.

    A shorter recording is treated as one window.
    """
    window = min(window, float(times[-1] - times[0]))
    begins = np.minimum(times, times[-1] - window)
    return float(np.max(np.interp(begins + window, times, so_far) - np.interp(begins, times, so_far)) / window)


@fact
def ended(tasks: Table) -> Numbers:
    """Sorted times at which the scheduler learned that task attempts had finished."""
    return np.sort(measured_values(tasks["seen"]))


# Metrics

of_scheduler = partial(metric, group=CENTRAL, source="scheduler samples")
of_both = partial(metric, group=CENTRAL, source="scheduler samples, task records")

# fmt: off
OF_SCHEDULER: Final = (
    ("cpu", "CPU",
     "CPU time of the scheduler's event loop, which runs in one thread. In a LocalCluster, the client shares the loop.",
     "CPU time of the event loop thread during the run"),
    ("queue", "CPU contention",
     "Time the scheduler's event loop spent runnable but waiting for a core.",
     "run-queue time of the event loop thread"),
    ("idle", "idle",
     ("Time during which the scheduler's event loop was waiting for messages or a lock. If run-queue times are not "
      "available, time spent waiting for a core is included."),
     "sampled time - CPU - CPU contention"),
    ("unaccounted", "unaccounted",
     "Wall time not covered by scheduler samples.",
     "wall time - CPU - CPU contention - idle"),
)
# fmt: on
"""Classes of the event loop's time: name, label, meaning and formula."""


def _seconds_of(name: str, times: Mapping[str, float | None]) -> float | None:
    refuse_if(times[name] is None, "the scheduler's system does not report run-queue times")
    return times[name]


for name, label, meaning, formula in OF_SCHEDULER:
    of_class = partial(of_scheduler, label=f"scheduler: {label}", meaning=meaning, formula=formula)
    of_class(SECOND, name=f"scheduler_{name}_seconds", inputs=("scheduler_time",))(partial(_seconds_of, name))


@of_scheduler(SECOND, "scheduler process CPU", "CPU time of all threads of the process")
def scheduler_process_cpu_seconds(run: Run, scheduler_usage: Usage) -> float:
    """CPU time of the scheduler's process. In a LocalCluster, the process also contains the client."""
    start, stop = np.array([[run.start], [run.stop]])
    return scheduler_usage.within(scheduler_usage.process, start, stop)


@of_both(FRACTION, "scheduler: core share", "CPU time / wall time, while tasks were in flight")
def scheduler_core_share(scheduler_usage: Usage, in_flight: Spans) -> float:
    """Share of one core used by the scheduler's event loop while tasks were in flight. The maximum is 1."""
    return scheduler_usage.within(scheduler_usage.cpu, *in_flight) / union_length(*in_flight)


@of_scheduler(
    FRACTION, "scheduler: core (peak)", "highest CPU time in a 10-second window / 10 s, but at least the mean"
)
def scheduler_core_share_peak(scheduler_usage: Usage, scheduler_core_share: float | None = None) -> float:
    """Share of one core used by the scheduler's event loop in its busiest 10-second window."""
    return max(busiest(scheduler_usage.time, scheduler_usage.cpu), scheduler_core_share or 0.0)


@of_both(SECOND, "scheduler lag", "mean lag of the samples taken while tasks were in flight")
def scheduler_lag_seconds(scheduler_usage: Usage, in_flight: Spans) -> float:
    """Mean delay of the scheduler's event loop while tasks were in flight."""
    lags = scheduler_usage.lag[inside(scheduler_usage.time, in_flight)]
    refuse_if(not len(lags), "the scheduler was not sampled while tasks were in flight")
    return float(lags.mean())


@of_scheduler(SECOND, "scheduler lag (peak)", "maximum lag over samples")
def scheduler_lag_peak_seconds(scheduler_usage: Usage) -> float:
    """Largest delay of the scheduler's event loop."""
    return float(scheduler_usage.lag.max())


@fact
def ended_in_flight(ended: Numbers, in_flight: Spans) -> int:
    """Number of task attempts, from all users, that finished while any of this run's tasks were in flight."""
    number = int(np.count_nonzero(inside(ended, in_flight)))
    refuse_if(not number, NO_TASK)
    return number


@of_both(COUNT, "tasks per second", "finished attempts / wall time, while tasks were in flight")
def scheduler_task_rate(ended_in_flight: int, in_flight: Spans) -> float:
    """Number of tasks finished per second while tasks were in flight."""
    return ended_in_flight / union_length(*in_flight)


@of_both(COUNT, "tasks per second (peak)", "highest number in a 10-second window / 10 s, but at least the mean")
def scheduler_task_rate_peak(ended: Numbers, scheduler_usage: Usage, scheduler_task_rate: float | None = None) -> float:
    """Number of tasks finished per second in the busiest 10-second window."""
    times = scheduler_usage.time
    most = busiest(times, np.searchsorted(ended, times, side="right").astype(np.float64))
    return max(most, scheduler_task_rate or 0.0)


@of_both(SECOND, "scheduler CPU per task", "CPU time / finished attempts, while tasks were in flight")
def scheduler_cpu_per_task_seconds(scheduler_usage: Usage, in_flight: Spans, ended_in_flight: int) -> float:
    """CPU time of the scheduler's event loop per task."""
    return scheduler_usage.within(scheduler_usage.cpu, *in_flight) / ended_in_flight


@of_both(COUNT, "tasks per second (limit)")
def scheduler_task_rate_limit(scheduler_cpu_per_task_seconds: float) -> float:
    """Number of tasks per second at which the scheduler's event loop would keep a core fully busy."""
    return 1 / scheduler_cpu_per_task_seconds


@fact
def client_steps(run: Run) -> Table:
    """Executor steps in the client thread, and samples of the client's event loop."""
    refuse_if(run.merged, OF_SEVERAL)
    return recorded(run, "client_steps")


@fact
def executor_steps(run: Run, client_steps: Table) -> Table:
    without_runner = any(call.id.startswith(OF_TASKS) for call in run.calls)
    refuse_if(without_runner, "tasks ran without a Runner, so the client's steps are unknown")
    found = rows_where(client_steps, pc.is_valid(client_steps["work"]))
    return some(found, "no Runner call's executor ran on the cluster")


@fact
def client_time(run: Run, executor_steps: Table, tasks: Table) -> Mapping[str, float]:
    """Wall time of the run, by client activity.

    If Runner calls from several threads overlap, work takes precedence over waiting.
    """
    kinds = {"preprocessing": [PREPROCESSING], "processing": [PROCESSOR, MERGE]}
    ends = {work: np.sort(measured_values(rows_with(tasks, "kind", of)["seen"])) for work, of in kinds.items()}
    spans: dict[str, list[tuple[float, float]]] = {name: [] for name in ("submit", "merge", "gather", "waiting")}
    for step in executor_steps.to_pylist():
        start, stop = step["start"], step["stop"]
        if step["step"] == workers.RESULTS:
            # a result is ready when its last task has finished; until then the client waits for it
            ended = ends[step["work"]]
            last = ended[: np.searchsorted(ended, stop, side="right")][-1:]
            # a busy scheduler may learn that the last task has finished only after the client has received the result
            there = max([start, *last]) if len(last) or not len(ended) else stop
            spans["waiting"].append((start, there))
            spans["gather"].append((there, stop))
        elif step["step"] in (workers.SUBMIT, workers.MERGE):
            spans[step["step"]].append((start, stop))
    known = executor_steps["call"].to_pylist()
    spans["call"] = [(call.start, call.stop) for call in run.calls]
    spans["unknown"] = [(call.start, call.stop) for call in run.calls if call.id not in known]
    edges = [run.start, run.stop, *(edge for each in spans.values() for span in each for edge in span)]
    times = np.clip(np.unique(edges), run.start, run.stop)
    covered = {}
    for name, each in spans.items():
        begun, done = np.sort(np.array(each, np.float64).reshape(-1, 2), axis=0).T
        covered[name] = np.searchsorted(begun, times[:-1], "right") - np.searchsorted(done, times[:-1], "right")
    # time in a call whose executors were not recorded is not counted in any of these classes
    in_steps = sum(covered[name] for name in ("submit", "merge", "gather", "waiting"))
    covered["preparing"] = np.maximum(covered["call"] - covered["unknown"] - in_steps, 0)
    covered["outside"] = covered["call"] == 0
    taken, left = {}, np.diff(times)
    for name in ("submit", "merge", "gather", "preparing", "waiting", "outside"):
        taken[name] = float(left[covered[name] > 0].sum())
        left = np.where(covered[name] > 0, 0.0, left)
    return taken | {"unaccounted": run.stop - run.start - sum(taken.values())}


# Metrics

of_client = partial(metric, group=CENTRAL, source="client steps")

TABLE: Final = {
    "submit": (
        "submitting",
        "Time the client spent building and sending task graphs.",
        "time in client.map and client.submit",
    ),
    "waiting": (
        "waiting for the cluster",
        "Time the client spent waiting for tasks.",
        "time from sending the last graph until the last task has finished",
    ),
    "gather": (
        "gathering",
        "Time the client spent fetching results for the executors.",
        "time from the end of the last task to the arrival of the result",
    ),
    "merge": (
        "final merge",
        "Time the client spent adding results to the output.",
        "time from the arrival of the result until the executor returns",
    ),
    "preparing": (
        "preparing",
        "Time in Runner calls spent on other work, such as creating chunks.",
        "Runner calls - submitting - waiting - gathering - final merge",
    ),
    "outside": ("outside Runner calls", "Time outside Runner calls.", "wall time - Runner calls"),
    "unaccounted": (
        "unaccounted",
        "Time in Runner calls whose executors were not recorded.",
        "wall time - all other client times",
    ),
}
"""Classes of the client's time, in table order: label, meaning and formula."""

for name, (label, meaning, formula) in TABLE.items():
    of_class = partial(of_client, label=f"client: {label}", meaning=meaning, formula=formula)
    of_class(SECOND, name=f"client_{name}_seconds", inputs=("client_time",))(partial(_seconds_of, name))


@of_client(
    FRACTION,
    "client: not waiting",
    "(submitting + gathering + final merge + preparing + outside Runner calls) / wall time",
)
def client_busy_share(client_time: Mapping[str, float], elapsed_time_seconds: float) -> float:
    """Share of the wall time during which the client was not waiting for tasks."""
    return 1 - (client_time["waiting"] + client_time["unaccounted"]) / elapsed_time_seconds


@fact
def loop_samples(client_steps: Table) -> Table:
    return some(rows_where(client_steps, pc.is_null(client_steps["work"])), "the client's event loop was not sampled")


@fact
def own_loop_samples(loop_samples: Table) -> Table:
    """Samples of the client's event loop, provided that the scheduler does not share the loop."""
    shared = workers.SHARED_LOOP in loop_samples["step"].to_pylist()
    refuse_if(shared, "the client shares the scheduler's event loop (LocalCluster)")
    return loop_samples


@of_client(SECOND, "client loop CPU", "CPU time of the event loop thread")
def client_loop_cpu_seconds(own_loop_samples: Table) -> float:
    """CPU time of the client's event loop, which handles messages from the scheduler."""
    return float(known_sum(own_loop_samples["cpu_seconds"]))


@of_client(FRACTION, "client loop: core", "CPU time / sampled time")
def client_loop_core_share(client_loop_cpu_seconds: float, own_loop_samples: Table) -> float:
    """Share of one core used by the client's event loop. The maximum is 1."""
    seconds = pc.subtract(own_loop_samples["stop"], own_loop_samples["start"])
    return client_loop_cpu_seconds / float(pc.sum(seconds).as_py())


@of_client(SECOND, "client loop lag", "mean over samples")
def client_loop_lag_seconds(loop_samples: Table) -> float:
    """Mean delay of the client's event loop."""
    return float(pc.mean(loop_samples["late_seconds"]).as_py())


@of_client(SECOND, "client loop lag (peak)", "maximum over samples")
def client_loop_lag_peak_seconds(loop_samples: Table) -> float:
    """Largest delay of the client's event loop."""
    return float(pc.max(loop_samples["late_seconds"]).as_py())


@of_client(SECOND, "client process CPU", "CPU time of all threads of the process")
def client_process_cpu_seconds(loop_samples: Table) -> float:
    """CPU time of the client's process, including any scheduler and workers that run in it."""
    return float(known_sum(loop_samples["process_cpu_seconds"]))


@fact
def graphs(executor_steps: Table) -> Table:
    return rows_with(executor_steps, "step", [workers.SUBMIT])


@of_client(BYTE, "graphs sent", "sum of the graph sizes")
def graph_bytes(graphs: Table) -> int:
    """Total size of the task graphs sent to the scheduler."""
    return int(complete_sum(graphs, "graph_bytes", "graphs"))


@of_client(COUNT, "tasks in graphs", "sum of the task counts")
def graph_tasks(graphs: Table) -> int:
    """Number of tasks in the graphs sent to the scheduler."""
    return int(complete_sum(graphs, "tasks", "graphs"))


@of_client(BYTE, "graph bytes per task", "graph_bytes / graph_tasks")
def graph_bytes_per_task(graph_bytes: int, graph_tasks: int) -> float:
    """Mean graph size per task."""
    refuse_if(not graph_tasks, "no graph was sent")
    return graph_bytes / graph_tasks


# Dask's own measurements of tasks in the run's span

OF_PROCESSOR: Final = "processor tasks"
OF_OTHERS: Final = "other tasks"
OF_ALL: Final = "all tasks"


class Activity(NamedTuple):
    name: str
    unit: Unit
    of: str
    activity: str
    label: str
    meaning: str
    alias: str | None = None

    def sum(self, in_tasks: SpanMetrics, prefixes: Container[object] = ()) -> float | None:
        """Sum over the tasks in `of`, or None if Dask did not record the activity."""
        counted = [
            amount
            for (prefix, *key), amount in in_tasks.items()
            if key == [self.activity, UNITS[self.unit]]
            and (self.of == OF_ALL or (prefix in prefixes) == (self.of == OF_PROCESSOR))
        ]
        return sum(counted) if counted else None


UNITS: Final = {BYTE: "bytes", SECOND: "seconds"}

# fmt: off
ACTIVITIES: Final = (
    Activity("processor_cpu_time_seconds", SECOND, OF_PROCESSOR, "thread-cpu", "processor: CPU",
             "CPU time of the threads that ran the processor's successful tasks."),
    Activity("processor_noncpu_time_seconds", SECOND, OF_PROCESSOR, "thread-noncpu", "processor: off CPU",
             "Off-CPU time of the processor's tasks, spent sleeping or waiting for input, locks or the GIL.",
             alias="processor_io_wait_time_seconds"),
    Activity("overhead_cpu_time_seconds", SECOND, OF_OTHERS, "thread-cpu", "other tasks: CPU",
             "CPU time of the run's other tasks: preprocessing and merging."),
    Activity("overhead_noncpu_time_seconds", SECOND, OF_OTHERS, "thread-noncpu", "other tasks: off CPU",
             "Off-CPU time of the run's other tasks.",
             alias="overhead_io_wait_time_seconds"),
    Activity("tasks_cpu_time_seconds", SECOND, OF_ALL, "thread-cpu", "all tasks: CPU",
             "CPU time of the threads that ran the run's successful tasks."),
    Activity("tasks_noncpu_time_seconds", SECOND, OF_ALL, "thread-noncpu", "all tasks: off CPU",
             "Off-CPU time of the run's tasks."),
    Activity("disk_read_bytes", BYTE, OF_ALL, "disk-read", "read back from disk",
             "Size of the results that Dask read back from disk while executing tasks."),
    Activity("disk_write_bytes", BYTE, OF_ALL, "disk-write", "spilled to disk",
             "Size of the results that Dask spilled to disk when tasks finished, excluding spilling at other times."),
    Activity("total_bytes_memory_read", BYTE, OF_ALL, "memory-read", "inputs from memory",
             "Size of the task inputs (results of other tasks) that were already in the worker's memory."),
    Activity("compression_time_seconds", SECOND, OF_ALL, "compress", "compression",
             "Time Dask spent compressing data while executing tasks, excluding ROOT compression."),
    Activity("decompression_time_seconds", SECOND, OF_ALL, "decompress", "decompression",
             "Time Dask spent decompressing data while executing tasks, excluding ROOT decompression."),
    Activity("serialization_time_seconds", SECOND, OF_ALL, "serialize", "serialization",
             "Time Dask spent serializing data while executing tasks."),
    Activity("deserialization_time_seconds", SECOND, OF_ALL, "deserialize", "deserialization",
             "Time Dask spent deserializing data while executing tasks."),
)
# fmt: on


def _sum(activity: Activity, task_metrics: SpanMetrics, prefixes: frozenset[str] = frozenset()) -> float:
    without = activity.of == OF_PROCESSOR and not any(prefix in prefixes for prefix, *_ in task_metrics)
    refuse_if(without, f"Dask's span has no task with prefix {', '.join(sorted(prefixes))}")
    amount = activity.sum(task_metrics, prefixes)
    if amount is None:
        raise NotMeasuredError(f"Dask recorded no such activity in this run's {activity.of.removeprefix('all ')}")
    return amount


of_span = partial(metric, group=FINE, source="Dask span metrics")
for row in ACTIVITIES:
    of_activity = partial(of_span, row.unit, name=row.name, label=row.label, alias=row.alias, meaning=row.meaning)
    inputs = ("task_metrics",) if row.of == OF_ALL else ("task_metrics", "processor_prefixes")
    formula = f"sum of {row.activity} [{UNITS[row.unit]}] over {row.of}"
    of_activity(formula=formula, inputs=inputs)(partial(_sum, row))


@of_span(PERCENT, "processor: CPU share", alias="processor_cpu_percent")
def processor_cpu_percentage(processor_cpu_time_seconds: float, processor_noncpu_time_seconds: float) -> float:
    """Share of the processor's task time spent on the CPU."""
    return 100 * processor_cpu_time_seconds / (processor_cpu_time_seconds + processor_noncpu_time_seconds)


@of_span(PERCENT, "processor: off-CPU share", alias="processor_io_wait_percent")
def processor_noncpu_percentage(processor_cpu_time_seconds: float, processor_noncpu_time_seconds: float) -> float:
    """Share of the processor's task time spent off the CPU."""
    return 100 * processor_noncpu_time_seconds / (processor_cpu_time_seconds + processor_noncpu_time_seconds)


@of_span(SECOND, "compression, both ways")
def total_compression_overhead_seconds(compression_time_seconds: float, decompression_time_seconds: float) -> float:
    """Time Dask spent compressing or decompressing data while executing tasks."""
    return compression_time_seconds + decompression_time_seconds


@of_span(SECOND, "serialization, both ways")
def total_serialization_overhead_seconds(
    serialization_time_seconds: float, deserialization_time_seconds: float
) -> float:
    """Time Dask spent serializing or deserializing data while executing tasks."""
    return serialization_time_seconds + deserialization_time_seconds


SENDING, FETCHING = "get-data", "gather-dep"
"""Dask contexts in which a worker sends results to other workers and the client, and fetches results."""


WHILE: Final = "Transfers for anything else the workers did are included."

# fmt: off
TRANSFERS: Final = (
    ("transfer_bytes_sent", BYTE, ((SENDING, "memory-read"), (SENDING, "disk-read")), "sent by workers",
     f"In-memory size of results that workers sent to other workers and the client. {WHILE}"),
    ("transfer_serialization_seconds", SECOND, ((SENDING, "serialize"), (FETCHING, "deserialize")),
     "transfers: serialization",
     f"Time workers spent serializing results to send and deserializing fetched results. {WHILE}"),
    ("transfer_compression_seconds", SECOND, ((SENDING, "compress"), (FETCHING, "decompress")),
     "transfers: compression",
     f"Time workers spent compressing results to send and decompressing fetched results. {WHILE}"),
    ("transfer_network_seconds", SECOND, ((FETCHING, "network"),), "transfers: network",
     f"Time workers spent waiting for results to arrive. Times of concurrent fetches are summed. {WHILE}"),
)
# fmt: on
"""Metrics for result transfers outside tasks: name, unit, (context, activity) pairs, label and meaning."""


def _transferred(parts: Sequence[tuple[str, str]], unit: Unit, run: Run) -> float:
    """Sum over workers.

    The counters cover the whole run. If an activity has no counter, it did not occur.
    """
    recorded(run, "span_metrics")
    workers = recorded(run, "span_metrics_per_worker").values()
    return float(sum(counted.get((*part, UNITS[unit]), 0.0) for counted in workers for part in parts))


for name, unit, parts, label, meaning in TRANSFERS:
    of_transfer = partial(metric, unit, group=FINE, source="each worker's counters", name=name, label=label)
    summed = ", ".join(map(" ".join, parts))
    of_transfer(meaning=meaning, formula=f"sum of {summed}", inputs=(RUN,))(partial(_transferred, parts, unit))


@metric(
    STRUCTURE,
    group=FINE,
    source="Dask, per worker",
    formula="per-worker counts over the tasks in the run's span",
)
def fine_metrics_per_worker(run: Run, processor_prefixes: frozenset[str]) -> dict[str, dict[str, float]]:
    """Fine metrics for each worker, including workers that left: {worker: {name: amount}}.

    The names are those of the metrics in this group, but the amounts cover only the worker's tasks. Two additional
    amounts also cover time outside tasks: `transfer_seconds` (fetching results from other workers) and `spill_seconds`
    (moving results to disk and back). Dask does not count the bytes that a worker fetches.
    """
    recorded(run, "span_metrics")
    counted = recorded(run, "span_metrics_per_worker")
    return {worker: _of_worker(metrics, processor_prefixes) for worker, metrics in counted.items()}


def _of_worker(metrics: SpanMetrics, prefixes: frozenset[str]) -> dict[str, float]:
    sums = {activity.name: activity.sum(in_tasks(metrics), prefixes) for activity in ACTIVITIES}
    amounts = {name: amount for name, amount in sums.items() if amount is not None}
    seconds = [(key[0], key[-2], value) for key, value in metrics.items() if key[-1] == "seconds"]
    fetched = sum(value for context, _, value in seconds if context == FETCHING)
    # results may be spilled or read back in any context
    spilling = {"disk-read", "disk-write"}
    spilled = sum(value for context, what, value in seconds if context == "memory-monitor" or what in spilling)
    return amounts | {"transfer_seconds": fetched, "spill_seconds": spilled}


MERGE_COLUMNS: Final = (
    integer_column("level", "level in the merge tree; level 1 merges chunk results"),
    Column("merges", "integer", "tasks", "number of merge attempts that returned a result"),
    integer_column("inputs", "number of results merged"),
    integer_column("inputs_max", "largest number of results in one merge"),
    bytes_column("input_bytes", "in-memory size of the inputs"),
    bytes_column("output_bytes", "in-memory size of the outputs"),
    bytes_column("largest_bytes", "in-memory size of the largest output"),
    seconds_column("thread_seconds", "thread time spent on merges"),
    seconds_column("start", "when the first merge started (Unix time, the client's clock)"),
    seconds_column("stop", "when the last merge ended (Unix time, the client's clock)"),
)


@fact
def merge_tasks(tasks: Table) -> Table:
    merged = pc.and_(pc.equal(tasks["kind"], MERGE), pc.equal(tasks["outcome"], OK))
    found = some(rows_where(tasks, merged), "no result was merged on the workers")
    unknown = found["merge_level"].null_count
    refuse_if(unknown, f"the level of {unknown} of {len(found)} merges was not recorded")
    return found


@table
def merges(merge_tasks: Table) -> Table:
    seconds = pc.subtract(merge_tasks["stop"], merge_tasks["start"])
    rows = merge_tasks.append_column("seconds", seconds)
    steps = {
        "merges": ("kind", "count"),
        "inputs": ("inputs", "sum"),
        "inputs_max": ("inputs", "max"),
        "input_bytes": ("input_bytes", "sum"),
        "output_bytes": ("nbytes", "sum"),
        "largest_bytes": ("nbytes", "max"),
        "thread_seconds": ("seconds", "sum"),
        "start": ("start", "min"),
        "stop": ("stop", "max"),
    }
    found = aggregated(rows, ["merge_level"], steps, None, use_threads=False)
    names = [column.name for column in MERGE_COLUMNS]
    return found.rename_columns(["level", *steps]).select(names).sort_by("level")


of_merges = partial(metric, group=CENTRAL, source="task records")


@of_merges(COUNT, "merges", "number of merges with a result")
def num_merges(merges: Table) -> int:
    """Number of merges on workers that returned a result."""
    return int(pc.sum(merges["merges"]).as_py())


@of_merges(COUNT, "merge levels", "highest level of a merge")
def merge_levels(merges: Table) -> int:
    """Number of levels in the merge tree on the workers."""
    return int(pc.max(merges["level"]).as_py())


@of_merges(COUNT, "inputs per merge (mean)", "results merged / merges")
def merge_inputs_mean(merges: Table, num_merges: int) -> float:
    """Mean number of results per merge."""
    return float(complete_sum(merges, "inputs", "levels")) / num_merges


@of_merges(BYTE, "merged bytes", "sum of the sizes of merged inputs")
def merged_bytes(merges: Table) -> int:
    """In-memory size of all results merged on the workers."""
    return int(complete_sum(merges, "input_bytes", "levels"))
