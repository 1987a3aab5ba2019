"""Fine metrics: what Dask itself measured in the tasks of the run's span, and merges of results."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container
from functools import partial
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roastcoffea.metrics.catalogue import CENTRAL, FINE, NotMeasuredError, fact, metric, refuse_if, table
from roastcoffea.metrics.facts import aggregated, complete_sum, in_tasks, recorded, rows_where
from roastcoffea.records.columns import Column
from roastcoffea.records.run import Run, SpanMetrics
from roastcoffea.records.tasks import MERGE, OK
from roastcoffea.units import BYTE, COUNT, PERCENT, SECOND, STRUCTURE, Unit

SPAN: Final = "Dask span metrics"


PROCESSOR: Final = "processor tasks"
OTHERS: Final = "other tasks"
ALL: Final = "all tasks"


class Activity(NamedTuple):
    """A metric that sums one of Dask's activities over the tasks in `of`."""

    name: str
    unit: Unit
    of: str
    activity: str
    label: str
    meaning: str
    alias: str | None = None

    @property
    def spelled_unit(self) -> str:
        """Dask's name of the unit."""
        return "bytes" if self.unit is BYTE else "seconds"

    def sum(self, in_tasks: SpanMetrics, processor_prefixes: Container[object] = ()) -> float | None:
        """Its amount in tasks of its kind; None if nothing was counted, not even 0."""
        counted = [
            amount
            for key, amount in in_tasks.items()
            if key[1:] == (self.activity, self.spelled_unit)
            and (self.of == ALL or (key[0] in processor_prefixes) == (self.of == PROCESSOR))
        ]
        return sum(counted) if counted else None


# fmt: off
ACTIVITIES: Final = (
    Activity("processor_cpu_time_seconds", SECOND, PROCESSOR, "thread-cpu", "processor: CPU",
             "CPU time of the threads that ran the processor's successful tasks."),
    Activity("processor_noncpu_time_seconds", SECOND, PROCESSOR, "thread-noncpu", "processor: off CPU",
             "Time of the processor's tasks off the CPU: input, locks, the GIL, sleep.",
             alias="processor_io_wait_time_seconds"),
    Activity("overhead_cpu_time_seconds", SECOND, OTHERS, "thread-cpu", "other tasks: CPU",
             "CPU time of the run's other tasks: preprocessing, merging."),
    Activity("overhead_noncpu_time_seconds", SECOND, OTHERS, "thread-noncpu", "other tasks: off CPU",
             "Time of the run's other tasks off the CPU.",
             alias="overhead_io_wait_time_seconds"),
    Activity("tasks_cpu_time_seconds", SECOND, ALL, "thread-cpu", "all tasks: CPU",
             "CPU time of the threads that ran the run's successful tasks."),
    Activity("tasks_noncpu_time_seconds", SECOND, ALL, "thread-noncpu", "all tasks: off CPU",
             "Time of the run's tasks off the CPU."),
    Activity("disk_read_bytes", BYTE, ALL, "disk-read", "read back from disk",
             "Results that Dask read back from disk inside tasks."),
    Activity("disk_write_bytes", BYTE, ALL, "disk-write", "spilled to disk",
             "Results that Dask spilled to disk as a task ended; when memory runs full, it spills outside tasks, too."),
    Activity("total_bytes_memory_read", BYTE, ALL, "memory-read", "inputs from memory",
             "Results of other tasks that tasks took from their worker's memory."),
    Activity("compression_time_seconds", SECOND, ALL, "compress", "compression",
             "Time Dask spent compressing data inside tasks; not ROOT's compression."),
    Activity("decompression_time_seconds", SECOND, ALL, "decompress", "decompression",
             "Time Dask spent decompressing data inside tasks; not ROOT's decompression."),
    Activity("serialization_time_seconds", SECOND, ALL, "serialize", "serialization",
             "Time Dask spent serializing data inside tasks."),
    Activity("deserialization_time_seconds", SECOND, ALL, "deserialize", "deserialization",
             "Time Dask spent deserializing data inside tasks."),
)
# fmt: on


def _sum_of_all(activity: Activity, task_metrics: SpanMetrics) -> float:
    return _sum_of_some(activity, task_metrics, frozenset())


def _sum_of_some(activity: Activity, task_metrics: SpanMetrics, processor_prefixes: frozenset[str]) -> float:
    """Amount in the processor's tasks, or in others; a span without any of the processor's is refused."""
    if activity.of == PROCESSOR and not any(prefix in processor_prefixes for prefix, *_ in task_metrics):
        raise NotMeasuredError(f"Dask's span has no task of {', '.join(sorted(processor_prefixes))}")
    amount = activity.sum(task_metrics, processor_prefixes)
    if amount is None:
        which = {PROCESSOR: "the processor's tasks", OTHERS: "the other tasks", ALL: "the tasks"}[activity.of]
        raise NotMeasuredError(f"Dask counted none in {which} of this run")
    return amount


of_span: Final = partial(metric, group=FINE, source=SPAN)
for row in ACTIVITIES:
    formula = f"sum of {row.activity} [{row.spelled_unit}] over {row.of}"
    of_activity = partial(of_span, row.unit, name=row.name, label=row.label, alias=row.alias, meaning=row.meaning)
    of_activity(formula=formula)(partial(_sum_of_all if row.of == ALL else _sum_of_some, row))


@of_span(PERCENT, label="processor: CPU share", alias="processor_cpu_percent")
def processor_cpu_percentage(processor_cpu_time_seconds: float, processor_noncpu_time_seconds: float) -> float:
    """CPU time as a share of the time of the processor's tasks."""
    return 100 * processor_cpu_time_seconds / (processor_cpu_time_seconds + processor_noncpu_time_seconds)


@of_span(PERCENT, label="processor: off-CPU share", alias="processor_io_wait_percent")
def processor_noncpu_percentage(processor_cpu_time_seconds: float, processor_noncpu_time_seconds: float) -> float:
    """Time off the CPU as a share of the time of the processor's tasks."""
    return 100 * processor_noncpu_time_seconds / (processor_cpu_time_seconds + processor_noncpu_time_seconds)


@of_span(SECOND, label="compression, both ways")
def total_compression_overhead_seconds(compression_time_seconds: float, decompression_time_seconds: float) -> float:
    """Time Dask spent compressing or decompressing data inside tasks."""
    return compression_time_seconds + decompression_time_seconds


@of_span(SECOND, label="serialization, both ways")
def total_serialization_overhead_seconds(
    serialization_time_seconds: float, deserialization_time_seconds: float
) -> float:
    """Time Dask spent serializing or deserializing data inside tasks."""
    return serialization_time_seconds + deserialization_time_seconds


SENDING, FETCHING = "get-data", "gather-dep"
"""Contexts in which a worker sends results to others and to the client, and fetches them."""


class Transfer(NamedTuple):
    """A metric that sums the workers' work to pass on results outside tasks: pairs of context and activity."""

    name: str
    unit: Unit
    parts: tuple[tuple[str, str], ...]
    label: str
    meaning: str


WHILE: Final = "including other work on these workers at that time."

TRANSFERS: Final = (
    Transfer(
        "transfer_bytes_sent",
        BYTE,
        ((SENDING, "memory-read"), (SENDING, "disk-read")),
        "sent by workers",
        f"Size in memory of results that workers sent to other workers and the client, {WHILE}",
    ),
    Transfer(
        "transfer_serialization_seconds",
        SECOND,
        ((SENDING, "serialize"), (FETCHING, "deserialize")),
        "transfers: serialization",
        f"Time workers spent serializing results to send and deserializing fetched ones, {WHILE}",
    ),
    Transfer(
        "transfer_compression_seconds",
        SECOND,
        ((SENDING, "compress"), (FETCHING, "decompress")),
        "transfers: compression",
        f"Time workers spent compressing results to send and decompressing fetched ones, {WHILE}",
    ),
    Transfer(
        "transfer_network_seconds",
        SECOND,
        ((FETCHING, "network"),),
        "transfers: network",
        f"Time workers waited for results to fetch, several at a time, {WHILE}",
    ),
)


@fact
def outside_tasks(run: Run) -> dict[tuple[object, ...], float]:
    """Counts of all workers for passing on results, by context, activity and unit."""
    recorded(run, "span_metrics")
    found: dict[tuple[object, ...], float] = defaultdict(float)
    for counted in recorded(run, "span_metrics_per_worker").values():
        for key, amount in counted.items():
            if key[0] in (SENDING, FETCHING):
                found[key] += amount
    return found


def _amount(transfer: Transfer, outside_tasks: dict[tuple[object, ...], float]) -> float:
    """Sum of its parts; workers count from start to end of the run, so that what they do not list did not occur."""
    unit = "bytes" if transfer.unit is BYTE else "seconds"
    return sum(outside_tasks.get((*part, unit), 0.0) for part in transfer.parts)


for transfer in TRANSFERS:
    of_transfer = partial(metric, name=transfer.name, label=transfer.label, meaning=transfer.meaning)
    summed = ", ".join(" ".join(part) for part in transfer.parts)
    of_transfer(transfer.unit, group=FINE, source="counters of each worker", formula=f"sum of {summed}")(
        partial(_amount, transfer)
    )


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
    Column("level", "integer", None, "level in the tree; 1 merges results of chunks"),
    Column("merges", "integer", "tasks", "merges of this level, each attempt that gave a result"),
    Column("inputs", "integer", None, "results that they merged"),
    Column("inputs_max", "integer", None, "most results that one of them merged"),
    Column("input_bytes", "integer", "B", "size of these in memory"),
    Column("output_bytes", "integer", "B", "size of what they gave"),
    Column("largest_bytes", "integer", "B", "size of the largest of that"),
    Column("thread_seconds", "number", "s", "time that they took on their threads"),
    Column("start", "number", "s", "when the first one started (Unix time, the client's clock)"),
    Column("stop", "number", "s", "when the last one ended (Unix time, the client's clock)"),
)
"""One row for each level of merges on the workers."""


@fact
def merge_tasks(tasks: pa.Table) -> pa.Table:
    """Merges that gave a result, with what they merged."""
    found = rows_where(tasks, pc.and_(pc.equal(tasks["kind"], MERGE), pc.equal(tasks["outcome"], OK)))
    refuse_if(not len(found), "no result was merged on the workers")
    unknown = found["merge_level"].null_count
    refuse_if(unknown, f"the level of {unknown} of {len(found)} merges was not recorded")
    return found


@table
def merges(merge_tasks: pa.Table) -> pa.Table:
    """Merges by level."""
    seconds = pc.subtract(merge_tasks["stop"], merge_tasks["start"])
    rows = merge_tasks.append_column("seconds", seconds).append_column("one", pa.array(np.ones(len(seconds), np.int64)))
    steps = {
        "merges": ("one", "sum"),
        "inputs": ("inputs", "sum"),
        "inputs_max": ("inputs", "max"),
        "input_bytes": ("input_bytes", "sum"),
        "output_bytes": ("nbytes", "sum"),
        "largest_bytes": ("nbytes", "max"),
        "thread_seconds": ("seconds", "sum"),
        "start": ("start", "min"),
        "stop": ("stop", "max"),
    }
    found = aggregated(rows, ["merge_level"], steps, pc.ScalarAggregateOptions(), use_threads=False)
    names = [column.name for column in MERGE_COLUMNS]
    return found.rename_columns(["level", *steps]).select(names).sort_by("level")


of_merges = partial(metric, group=CENTRAL, source="records of tasks")


@of_merges(COUNT, label="merges", formula="number of merges that gave a result")
def num_merges(merges: pa.Table) -> int:
    """Merges of results on the workers."""
    return int(pc.sum(merges["merges"]).as_py())


@of_merges(COUNT, label="merge levels", formula="highest level of a merge")
def merge_levels(merges: pa.Table) -> int:
    """Levels of the tree in which results are merged on the workers."""
    return int(pc.max(merges["level"]).as_py())


@of_merges(COUNT, label="inputs of a merge (mean)", formula="results that they merged / merges")
def merge_inputs_mean(merges: pa.Table, num_merges: int) -> float:
    """Results that a merge merges, on average."""
    return float(complete_sum(merges, "inputs", "levels")) / num_merges


@of_merges(BYTE, label="merged bytes", formula="sum of the sizes of what they merged")
def merged_bytes(merges: pa.Table) -> int:
    """Size in memory of all results that were merged on the workers."""
    return int(complete_sum(merges, "input_bytes", "levels"))
