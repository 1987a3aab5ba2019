"""Scheduler and client: one core and one thread times the wall time, and the lag of their event loops; fine metrics:
what Dask itself measured in the tasks of the run's span, and merges of results."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from functools import partial
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
def scheduler_usage(run: Run, sampling: Table) -> Usage:
    """What the scheduler used so far, by sample."""
    refuse_if(run.merged, OF_SEVERAL)
    known = sampling.filter(sampling["loop_cpu_seconds"].is_valid())
    refuse_if(len(known) < 2, "the scheduler's CPU time was not sampled")
    lag = amounts(known, "late_seconds") + amounts(known, "missed") * (run.sampling_interval or 0.0)
    time, cpu = moments(known, "time"), moments(known, "loop_cpu_seconds")
    return Usage(time, cpu, moments(known, "loop_queue_seconds"), moments(known, "process_cpu_seconds"), lag)


@fact
def scheduler_time(run: Run, scheduler_usage: Usage) -> Mapping[str, float | None]:
    """Wall time of the run by what the event loop's thread did."""
    usage = scheduler_usage
    start, stop = np.clip([run.start, run.stop], usage.time[0], usage.time[-1])[:, None]
    cpu, queue = (usage.within(used, start, stop) for used in (usage.cpu, usage.queue))
    waited = 0.0 if np.isnan(queue) else queue
    idle = max(float(stop[0] - start[0]) - cpu - waited, 0.0)
    known = {"cpu": cpu, "queue": None if np.isnan(queue) else queue, "idle": idle}
    return known | {"unaccounted": elapsed_seconds(run) - cpu - waited - idle}


@fact
def in_flight(run: Run, tasks: Table, scheduler_usage: Usage) -> Spans:
    """Times between two samples of the scheduler in which tasks of the run were assigned and had not ended."""
    ours = tasks.filter(tasks["key"].is_valid()).select(["assigned", "seen"]).drop_null()
    starts, stops = (np.clip(column.to_numpy(), *scheduler_usage.time[[0, -1]]) for column in ours.columns)
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
def ended(tasks: Table) -> Numbers:
    """When the scheduler learned of the end of each attempt of a task, in order."""
    return np.sort(measured_values(tasks["seen"]))


# Metrics

of_scheduler = partial(metric, group=CENTRAL, source="samples of the scheduler")
of_both = partial(metric, group=CENTRAL, source="samples of the scheduler, records of tasks")

# fmt: off
OF_SCHEDULER: Final = (
    ("cpu", "CPU",
     "CPU time of the scheduler's event loop, which has one thread. In a LocalCluster the client shares it.",
     "CPU time of the thread of its event loop, in the run"),
    ("queue", "CPU contention",
     "Time in which the scheduler's event loop was runnable and had no core, as others used them.",
     "run-queue time of that thread"),
    ("idle", "idle",
     "Time in which the scheduler's event loop waited for messages, a lock or, without run-queue times, a core.",
     "sampled time - CPU - CPU contention"),
    ("unaccounted", "unaccounted",
     "Wall time of the run outside the samples of the scheduler.",
     "wall time - CPU - CPU contention - idle"),
)
# fmt: on
"""Classes of the time of the scheduler's event loop: name, label, meaning, formula."""


def _seconds_of(name: str, times: Mapping[str, float | None]) -> float | None:
    refuse_if(times[name] is None, "the scheduler's system does not report run-queue times")
    return times[name]


for name, label, meaning, formula in OF_SCHEDULER:
    of_class = partial(of_scheduler, label=f"scheduler: {label}", meaning=meaning, formula=formula)
    of_class(SECOND, name=f"scheduler_{name}_seconds", inputs=("scheduler_time",))(partial(_seconds_of, name))


@of_scheduler(SECOND, "scheduler process CPU", "CPU time of all threads of its process")
def scheduler_process_cpu_seconds(run: Run, scheduler_usage: Usage) -> float:
    """CPU time of the scheduler's process, which in a LocalCluster is the client's."""
    start, stop = np.array([[run.start], [run.stop]])
    return scheduler_usage.within(scheduler_usage.process, start, stop)


@of_both(FRACTION, "scheduler: share of core", "CPU / time, while tasks were in flight; at most 1")
def scheduler_core_share(scheduler_usage: Usage, in_flight: Spans) -> float:
    """Share of one core that the scheduler's event loop used while tasks were in flight; it cannot use more."""
    return scheduler_usage.within(scheduler_usage.cpu, *in_flight) / union_length(*in_flight)


@of_scheduler(FRACTION, "scheduler: core (peak)", "highest CPU / time of any ten seconds; at least the mean")
def scheduler_core_share_peak(scheduler_usage: Usage, scheduler_core_share: float | None = None) -> float:
    """Share of one core that the scheduler's event loop used in its busiest ten seconds, or with tasks in flight."""
    return max(busiest(scheduler_usage.time, scheduler_usage.cpu), scheduler_core_share or 0.0)


@of_both(SECOND, "scheduler lag", "mean lag of samples, while tasks were in flight")
def scheduler_lag_seconds(scheduler_usage: Usage, in_flight: Spans) -> float:
    """How late the scheduler's event loop came to what was due while tasks were in flight, on average."""
    lags = scheduler_usage.lag[inside(scheduler_usage.time, in_flight)]
    refuse_if(not len(lags), "the scheduler was not sampled while tasks were in flight")
    return float(lags.mean())


@of_scheduler(SECOND, "scheduler lag (peak)", "highest lag of a sample")
def scheduler_lag_peak_seconds(scheduler_usage: Usage) -> float:
    """How late the scheduler's event loop came to what was due, at most."""
    return float(scheduler_usage.lag.max())


@fact
def ended_in_flight(ended: Numbers, in_flight: Spans) -> int:
    """Attempts of tasks, of other users as well, that ended while tasks were in flight."""
    number = int(np.count_nonzero(inside(ended, in_flight)))
    refuse_if(not number, NO_TASK)
    return number


@of_both(COUNT, "tasks per second", "attempts that ended / time, while tasks were in flight")
def scheduler_task_rate(ended_in_flight: int, in_flight: Spans) -> float:
    """Tasks that ended each second while tasks were in flight."""
    return ended_in_flight / union_length(*in_flight)


@of_both(COUNT, "tasks per second (peak)", "highest number in any ten seconds / 10 s; at least the mean")
def scheduler_task_rate_peak(ended: Numbers, scheduler_usage: Usage, scheduler_task_rate: float | None = None) -> float:
    """Tasks that ended each second in the busiest ten seconds, or while tasks were in flight if that was shorter."""
    times = scheduler_usage.time
    most = busiest(times, np.searchsorted(ended, times, side="right").astype(np.float64))
    return max(most, scheduler_task_rate or 0.0)


@of_both(SECOND, "scheduler CPU per task", "CPU / attempts that ended, while tasks were in flight")
def scheduler_cpu_per_task_seconds(scheduler_usage: Usage, in_flight: Spans, ended_in_flight: int) -> float:
    """CPU time of the scheduler's event loop for each task."""
    return scheduler_usage.within(scheduler_usage.cpu, *in_flight) / ended_in_flight


@of_both(COUNT, "tasks per second (limit)")
def scheduler_task_rate_limit(scheduler_cpu_per_task_seconds: float) -> float:
    """Tasks per second with which the scheduler's event loop would use its core all the time."""
    return 1 / scheduler_cpu_per_task_seconds


@fact
def client_steps(run: Run) -> Table:
    """What the client's thread did for executors, and samples of its event loop."""
    refuse_if(run.merged, OF_SEVERAL)
    return recorded(run, "client_steps")


@fact
def executor_steps(run: Run, client_steps: Table) -> Table:
    """Steps of executors."""
    without_runner = any(call.id.startswith(OF_TASKS) for call in run.calls)
    refuse_if(without_runner, "tasks ran without a Runner: what the client did meanwhile is not known")
    found = rows_where(client_steps, pc.is_valid(client_steps["work"]))
    return some(found, "no executor of a Runner call worked on the cluster")


@fact
def client_time(run: Run, executor_steps: Table, tasks: Table) -> Mapping[str, float]:
    """Wall time of the run by what the client did; where Runner calls of several threads overlap, the first counts."""
    kinds = {"preprocessing": [PREPROCESSING], "processing": [PROCESSOR, MERGE]}
    ends = {work: np.sort(measured_values(rows_with(tasks, "kind", of)["seen"])) for work, of in kinds.items()}
    spans: dict[str, list[tuple[float, float]]] = {name: [] for name in ("submit", "merge", "gather", "waiting")}
    for step in executor_steps.to_pylist():
        start, stop = step["start"], step["stop"]
        if step["step"] == workers.RESULTS:
            # a result is there when its last task has ended: until then the client waits for it
            ended = ends[step["work"]]
            last = ended[: np.searchsorted(ended, stop, side="right")][-1:]
            # a scheduler that is busy may see the last task end after the client has its result
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
    # a call whose executors were not recorded is in none of them
    in_steps = sum(covered[name] for name in ("submit", "merge", "gather", "waiting"))
    covered["preparing"] = np.maximum(covered["call"] - covered["unknown"] - in_steps, 0)
    covered["outside"] = covered["call"] == 0
    taken, left = {}, np.diff(times)
    for name in ("submit", "merge", "gather", "preparing", "waiting", "outside"):
        taken[name] = float(left[covered[name] > 0].sum())
        left = np.where(covered[name] > 0, 0.0, left)
    return taken | {"unaccounted": run.stop - run.start - sum(taken.values())}


# Metrics

of_client = partial(metric, group=CENTRAL, source="steps of the client")

TABLE: Final = {
    "submit": (
        "submitting",
        "Time in which the client built and sent graphs of tasks.",
        "client.map and client.submit",
    ),
    "waiting": (
        "waiting for the cluster",
        "Time in which the client waited for tasks.",
        "until the last task has ended",
    ),
    "gather": (
        "gathering",
        "Time in which the client fetched the result of executors.",
        "from then on until it is there",
    ),
    "merge": ("final merge", "Time in which the client added results to the output.", "until the executor returns"),
    "preparing": (
        "preparing",
        "Other time in Runner calls: chunks are made, for example.",
        "Runner calls less the others",
    ),
    "outside": ("outside Runner calls", "Time of the run outside Runner calls.", "wall time less Runner calls"),
    "unaccounted": ("unaccounted", "Time of calls whose executors were not recorded.", "wall time less all others"),
}
"""Classes of the client's time in the order of tables: label, meaning, formula."""

for name, (label, meaning, formula) in TABLE.items():
    of_class = partial(of_client, label=f"client: {label}", meaning=meaning, formula=formula)
    of_class(SECOND, name=f"client_{name}_seconds", inputs=("client_time",))(partial(_seconds_of, name))


@of_client(
    FRACTION,
    "client: not waiting",
    "submitting, gathering, final merge, preparing and outside Runner calls / wall time",
)
def client_busy_share(client_time: Mapping[str, float], elapsed_time_seconds: float) -> float:
    """Share of the wall time in which the client did something else than waiting for tasks."""
    return 1 - (client_time["waiting"] + client_time["unaccounted"]) / elapsed_time_seconds


@fact
def loop_samples(client_steps: Table) -> Table:
    """Samples of the client's event loop."""
    return some(rows_where(client_steps, pc.is_null(client_steps["work"])), "the client's event loop was not sampled")


@fact
def own_loop_samples(loop_samples: Table) -> Table:
    """Samples of an event loop that is the client's alone."""
    shared = workers.SHARED_LOOP in loop_samples["step"].to_pylist()
    refuse_if(shared, "the client has the event loop of the scheduler (LocalCluster)")
    return loop_samples


@of_client(SECOND, "client loop CPU", "CPU time of its thread")
def client_loop_cpu_seconds(own_loop_samples: Table) -> float:
    """CPU time of the client's event loop, which takes the messages of the scheduler."""
    return float(known_sum(own_loop_samples["cpu_seconds"]))


@of_client(FRACTION, "client loop: core", "CPU / time; at most 1")
def client_loop_core_share(client_loop_cpu_seconds: float, own_loop_samples: Table) -> float:
    """Share of one core that the client's event loop used; it cannot use more."""
    seconds = pc.subtract(own_loop_samples["stop"], own_loop_samples["start"])
    return client_loop_cpu_seconds / float(pc.sum(seconds).as_py())


@of_client(SECOND, "client loop lag", "mean of samples")
def client_loop_lag_seconds(loop_samples: Table) -> float:
    """How late the client's event loop came to what was due, on average."""
    return float(pc.mean(loop_samples["late_seconds"]).as_py())


@of_client(SECOND, "client loop lag (peak)", "highest of samples")
def client_loop_lag_peak_seconds(loop_samples: Table) -> float:
    """How late the client's event loop came to what was due, at most."""
    return float(pc.max(loop_samples["late_seconds"]).as_py())


@of_client(SECOND, "client process CPU", "CPU time of all threads of its process")
def client_process_cpu_seconds(loop_samples: Table) -> float:
    """CPU time of the client's process; it may hold a scheduler and workers as well."""
    return float(known_sum(loop_samples["process_cpu_seconds"]))


@fact
def graphs(executor_steps: Table) -> Table:
    """Graphs that were sent."""
    return rows_with(executor_steps, "step", [workers.SUBMIT])


@of_client(BYTE, "graphs sent", "sum of their sizes")
def graph_bytes(graphs: Table) -> int:
    """Size of the graphs of tasks that executors sent to the scheduler."""
    return int(complete_sum(graphs, "graph_bytes", "graphs"))


@of_client(COUNT, "tasks in graphs", "sum of their tasks")
def graph_tasks(graphs: Table) -> int:
    """Tasks in the graphs that executors sent to the scheduler."""
    return int(complete_sum(graphs, "tasks", "graphs"))


@of_client(BYTE, "graph bytes per task", "graph_bytes / graph_tasks")
def graph_bytes_per_task(graph_bytes: int, graph_tasks: int) -> float:
    """Size of the graphs for each task in them."""
    refuse_if(not graph_tasks, "no graph was sent")
    return graph_bytes / graph_tasks


# What Dask itself measured in the tasks of the run's span

OF_PROCESSOR: Final = "processor tasks"
OF_OTHERS: Final = "other tasks"
OF_ALL: Final = "all tasks"


class Activity(NamedTuple):
    """A metric that sums one of Dask's activities over the tasks in `of`."""

    name: str
    unit: Unit
    of: str
    activity: str
    label: str
    meaning: str
    alias: str | None = None

    def sum(self, in_tasks: SpanMetrics, prefixes: Container[object] = ()) -> float | None:
        """Its amount in tasks of its kind, by the processor's prefixes; None if nothing was counted, not even 0."""
        counted = [
            amount
            for (prefix, *key), amount in in_tasks.items()
            if key == [self.activity, UNITS[self.unit]]
            and (self.of == OF_ALL or (prefix in prefixes) == (self.of == OF_PROCESSOR))
        ]
        return sum(counted) if counted else None


UNITS: Final = {BYTE: "bytes", SECOND: "seconds"}
"""What Dask calls units."""

# fmt: off
ACTIVITIES: Final = (
    Activity("processor_cpu_time_seconds", SECOND, OF_PROCESSOR, "thread-cpu", "processor: CPU",
             "CPU time of the threads that ran the processor's successful tasks."),
    Activity("processor_noncpu_time_seconds", SECOND, OF_PROCESSOR, "thread-noncpu", "processor: off CPU",
             "Time of the processor's tasks off the CPU: input, locks, the GIL, sleep.",
             alias="processor_io_wait_time_seconds"),
    Activity("overhead_cpu_time_seconds", SECOND, OF_OTHERS, "thread-cpu", "other tasks: CPU",
             "CPU time of the run's other tasks: preprocessing, merging."),
    Activity("overhead_noncpu_time_seconds", SECOND, OF_OTHERS, "thread-noncpu", "other tasks: off CPU",
             "Time of the run's other tasks off the CPU.",
             alias="overhead_io_wait_time_seconds"),
    Activity("tasks_cpu_time_seconds", SECOND, OF_ALL, "thread-cpu", "all tasks: CPU",
             "CPU time of the threads that ran the run's successful tasks."),
    Activity("tasks_noncpu_time_seconds", SECOND, OF_ALL, "thread-noncpu", "all tasks: off CPU",
             "Time of the run's tasks off the CPU."),
    Activity("disk_read_bytes", BYTE, OF_ALL, "disk-read", "read back from disk",
             "Results that Dask read back from disk inside tasks."),
    Activity("disk_write_bytes", BYTE, OF_ALL, "disk-write", "spilled to disk",
             "Results that Dask spilled to disk as a task ended; when memory runs full, it spills outside tasks, too."),
    Activity("total_bytes_memory_read", BYTE, OF_ALL, "memory-read", "inputs from memory",
             "Results of other tasks that tasks took from their worker's memory."),
    Activity("compression_time_seconds", SECOND, OF_ALL, "compress", "compression",
             "Time Dask spent compressing data inside tasks; not ROOT's compression."),
    Activity("decompression_time_seconds", SECOND, OF_ALL, "decompress", "decompression",
             "Time Dask spent decompressing data inside tasks; not ROOT's decompression."),
    Activity("serialization_time_seconds", SECOND, OF_ALL, "serialize", "serialization",
             "Time Dask spent serializing data inside tasks."),
    Activity("deserialization_time_seconds", SECOND, OF_ALL, "deserialize", "deserialization",
             "Time Dask spent deserializing data inside tasks."),
)
# fmt: on


def _sum(activity: Activity, task_metrics: SpanMetrics, prefixes: frozenset[str] = frozenset()) -> float:
    """Amount in all tasks, the processor's, or others; a span without any of the processor's is refused."""
    without = activity.of == OF_PROCESSOR and not any(prefix in prefixes for prefix, *_ in task_metrics)
    refuse_if(without, f"Dask's span has no task of {', '.join(sorted(prefixes))}")
    amount = activity.sum(task_metrics, prefixes)
    if amount is None:
        raise NotMeasuredError(f"Dask counted none in the {activity.of.removeprefix('all ')} of this run")
    return amount


of_span = partial(metric, group=FINE, source="Dask span metrics")
for row in ACTIVITIES:
    of_activity = partial(of_span, row.unit, name=row.name, label=row.label, alias=row.alias, meaning=row.meaning)
    inputs = ("task_metrics",) if row.of == OF_ALL else ("task_metrics", "processor_prefixes")
    formula = f"sum of {row.activity} [{UNITS[row.unit]}] over {row.of}"
    of_activity(formula=formula, inputs=inputs)(partial(_sum, row))


@of_span(PERCENT, "processor: CPU share", alias="processor_cpu_percent")
def processor_cpu_percentage(processor_cpu_time_seconds: float, processor_noncpu_time_seconds: float) -> float:
    """CPU time as a share of the time of the processor's tasks."""
    return 100 * processor_cpu_time_seconds / (processor_cpu_time_seconds + processor_noncpu_time_seconds)


@of_span(PERCENT, "processor: off-CPU share", alias="processor_io_wait_percent")
def processor_noncpu_percentage(processor_cpu_time_seconds: float, processor_noncpu_time_seconds: float) -> float:
    """Time off the CPU as a share of the time of the processor's tasks."""
    return 100 * processor_noncpu_time_seconds / (processor_cpu_time_seconds + processor_noncpu_time_seconds)


@of_span(SECOND, "compression, both ways")
def total_compression_overhead_seconds(compression_time_seconds: float, decompression_time_seconds: float) -> float:
    """Time Dask spent compressing or decompressing data inside tasks."""
    return compression_time_seconds + decompression_time_seconds


@of_span(SECOND, "serialization, both ways")
def total_serialization_overhead_seconds(
    serialization_time_seconds: float, deserialization_time_seconds: float
) -> float:
    """Time Dask spent serializing or deserializing data inside tasks."""
    return serialization_time_seconds + deserialization_time_seconds


SENDING, FETCHING = "get-data", "gather-dep"
"""Contexts in which a worker sends results to others and to the client, and fetches them."""


WHILE: Final = "including other work on these workers at that time."

# fmt: off
TRANSFERS: Final = (
    ("transfer_bytes_sent", BYTE, ((SENDING, "memory-read"), (SENDING, "disk-read")), "sent by workers",
     f"Size in memory of results that workers sent to other workers and the client, {WHILE}"),
    ("transfer_serialization_seconds", SECOND, ((SENDING, "serialize"), (FETCHING, "deserialize")),
     "transfers: serialization",
     f"Time workers spent serializing results to send and deserializing fetched ones, {WHILE}"),
    ("transfer_compression_seconds", SECOND, ((SENDING, "compress"), (FETCHING, "decompress")),
     "transfers: compression",
     f"Time workers spent compressing results to send and decompressing fetched ones, {WHILE}"),
    ("transfer_network_seconds", SECOND, ((FETCHING, "network"),), "transfers: network",
     f"Time workers waited for results to fetch, several at a time, {WHILE}"),
)
# fmt: on
"""The workers' work to pass on results outside tasks: name, unit, pairs of context and activity, label, meaning."""


def _transferred(parts: Sequence[tuple[str, str]], unit: Unit, run: Run) -> float:
    """Sum over workers; they count from start to end of the run, so that what they do not list did not occur."""
    recorded(run, "span_metrics")
    workers = recorded(run, "span_metrics_per_worker").values()
    return float(sum(counted.get((*part, UNITS[unit]), 0.0) for counted in workers for part in parts))


for name, unit, parts, label, meaning in TRANSFERS:
    of_transfer = partial(metric, unit, group=FINE, source="counters of each worker", name=name, label=label)
    summed = ", ".join(map(" ".join, parts))
    of_transfer(meaning=meaning, formula=f"sum of {summed}", inputs=(RUN,))(partial(_transferred, parts, unit))


@metric(
    STRUCTURE,
    group=FINE,
    source="Dask, worker by worker",
    formula="each worker's counts in the tasks of the run's span",
)
def fine_metrics_per_worker(run: Run, processor_prefixes: frozenset[str]) -> dict[str, dict[str, float]]:
    """Processor and other tasks, spilling and transfers of each worker: {worker: {name: amount}}.

    Includes workers that left. Names are those of the metrics of this group, counted inside the worker's tasks, plus
    `transfer_seconds` (fetching results from other workers; Dask does not count their bytes) and `spill_seconds`
    (moving results to disk and back), which also occur outside tasks.
    """
    recorded(run, "span_metrics")
    counted = recorded(run, "span_metrics_per_worker")
    return {worker: _of_worker(metrics, processor_prefixes) for worker, metrics in counted.items()}


def _of_worker(metrics: SpanMetrics, prefixes: frozenset[str]) -> dict[str, float]:
    sums = {activity.name: activity.sum(in_tasks(metrics), prefixes) for activity in ACTIVITIES}
    amounts = {name: amount for name, amount in sums.items() if amount is not None}
    seconds = [(key[0], key[-2], value) for key, value in metrics.items() if key[-1] == "seconds"]
    fetched = sum(value for context, _, value in seconds if context == FETCHING)
    # results move to disk or back in any context
    spilling = {"disk-read", "disk-write"}
    spilled = sum(value for context, what, value in seconds if context == "memory-monitor" or what in spilling)
    return amounts | {"transfer_seconds": fetched, "spill_seconds": spilled}


MERGE_COLUMNS: Final = (
    integer_column("level", "level in the tree; 1 merges results of chunks"),
    Column("merges", "integer", "tasks", "merges of this level, each attempt that gave a result"),
    integer_column("inputs", "results that they merged"),
    integer_column("inputs_max", "most results that one of them merged"),
    bytes_column("input_bytes", "size of these in memory"),
    bytes_column("output_bytes", "size of what they gave"),
    bytes_column("largest_bytes", "size of the largest of that"),
    seconds_column("thread_seconds", "time that they took on their threads"),
    seconds_column("start", "when the first one started (Unix time, the client's clock)"),
    seconds_column("stop", "when the last one ended (Unix time, the client's clock)"),
)
"""One row for each level of merges on the workers."""


@fact
def merge_tasks(tasks: Table) -> Table:
    """Merges that gave a result, with what they merged."""
    merged = pc.and_(pc.equal(tasks["kind"], MERGE), pc.equal(tasks["outcome"], OK))
    found = some(rows_where(tasks, merged), "no result was merged on the workers")
    unknown = found["merge_level"].null_count
    refuse_if(unknown, f"the level of {unknown} of {len(found)} merges was not recorded")
    return found


@table
def merges(merge_tasks: Table) -> Table:
    """Merges by level."""
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


of_merges = partial(metric, group=CENTRAL, source="records of tasks")


@of_merges(COUNT, "merges", "number of merges that gave a result")
def num_merges(merges: Table) -> int:
    """Merges of results on the workers."""
    return int(pc.sum(merges["merges"]).as_py())


@of_merges(COUNT, "merge levels", "highest level of a merge")
def merge_levels(merges: Table) -> int:
    """Levels of the tree in which results are merged on the workers."""
    return int(pc.max(merges["level"]).as_py())


@of_merges(COUNT, "inputs of a merge (mean)", "results that they merged / merges")
def merge_inputs_mean(merges: Table, num_merges: int) -> float:
    """Results that a merge merges, on average."""
    return float(complete_sum(merges, "inputs", "levels")) / num_merges


@of_merges(BYTE, "merged bytes", "sum of the sizes of what they merged")
def merged_bytes(merges: Table) -> int:
    """Size in memory of all results that were merged on the workers."""
    return int(complete_sum(merges, "input_bytes", "levels"))
