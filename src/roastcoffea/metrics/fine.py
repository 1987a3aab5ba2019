"""Fine metrics: what Dask itself metered in the tasks of the run's span.

Dask meters the activities of a task that succeeded; of one that failed it keeps the duration alone, which
is in none of these. Bytes and seconds of transfers between workers belong to no task, and are not in a span
either.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from typing import Final, NamedTuple

from roastcoffea.metrics.catalogue import CATALOGUE, FINE, Metric, NotMeasuredError, metric
from roastcoffea.metrics.facts import NO_WORK, recorded
from roastcoffea.records.run import Run, SpanMetrics
from roastcoffea.units import BYTE, PERCENT, SECOND, STRUCTURE, Unit

SPAN: Final = "Dask span metrics"


class Activity(NamedTuple):
    """A metric that sums one of Dask's activities; `of` says over which tasks."""

    name: str
    unit: Unit
    of: str
    activity: str
    label: str
    meaning: str
    alias: str | None = None


ACTIVITIES: Final = (
    Activity(
        "processor_cpu_time_seconds",
        SECOND,
        "processor tasks",
        "thread-cpu",
        "processor: CPU",
        "CPU time of the threads that ran the processor's tasks, of those that succeeded.",
    ),
    Activity(
        "processor_noncpu_time_seconds",
        SECOND,
        "processor tasks",
        "thread-noncpu",
        "processor: not CPU",
        "Time of the processor's tasks in which their thread used no CPU: input, locks, the GIL, sleep.",
        "processor_io_wait_time_seconds",
    ),
    Activity(
        "overhead_cpu_time_seconds",
        SECOND,
        "other tasks",
        "thread-cpu",
        "other tasks: CPU",
        "CPU time of the run's other tasks: preprocessing, merging.",
    ),
    Activity(
        "overhead_noncpu_time_seconds",
        SECOND,
        "other tasks",
        "thread-noncpu",
        "other tasks: not CPU",
        "Time of the run's other tasks in which their thread used no CPU.",
        "overhead_io_wait_time_seconds",
    ),
    Activity(
        "disk_read_bytes",
        BYTE,
        "all tasks",
        "disk-read",
        "read back from disk",
        "Results that Dask read back from disk.",
    ),
    Activity(
        "disk_write_bytes",
        BYTE,
        "all tasks",
        "disk-write",
        "spilled to disk",
        "Results that Dask spilled to disk.",
    ),
    Activity(
        "total_bytes_memory_read",
        BYTE,
        "all tasks",
        "memory-read",
        "inputs from memory",
        "Results of other tasks that tasks took from their worker's memory.",
    ),
    Activity(
        "compression_time_seconds",
        SECOND,
        "all tasks",
        "compress",
        "compression",
        "Time in which Dask compressed data inside tasks; not ROOT's compression.",
    ),
    Activity(
        "decompression_time_seconds",
        SECOND,
        "all tasks",
        "decompress",
        "decompression",
        "Time in which Dask decompressed data inside tasks; not ROOT's decompression.",
    ),
    Activity(
        "serialization_time_seconds",
        SECOND,
        "all tasks",
        "serialize",
        "serialization",
        "Time in which Dask serialized data inside tasks.",
    ),
    Activity(
        "deserialization_time_seconds",
        SECOND,
        "all tasks",
        "deserialize",
        "deserialization",
        "Time in which Dask deserialized data inside tasks.",
    ),
)


def processor_sum(activity: str, unit: str, task_metrics: SpanMetrics, prefixes: frozenset[str]) -> float:
    """Amount of an activity in the processor's tasks, of which the span has to know at least one."""
    if not any(prefix in prefixes for prefix, *_ in task_metrics):
        raise NotMeasuredError(f"Dask's span holds no task of {', '.join(sorted(prefixes))}")
    return sum(amount for key, amount in task_metrics.items() if key[0] in prefixes and key[1:] == (activity, unit))


def other_sum(activity: str, unit: str, task_metrics: SpanMetrics, prefixes: frozenset[str]) -> float:
    """Amount of an activity in tasks other than the processor's; zero where there are none."""
    return sum(amount for key, amount in task_metrics.items() if key[0] not in prefixes and key[1:] == (activity, unit))


def whole_sum(activity: str, unit: str, task_metrics: SpanMetrics) -> float:
    """Amount of an activity in all tasks; what Dask does not mention did not happen."""
    return sum(amount for key, amount in task_metrics.items() if key[1:] == (activity, unit))


SUMS: Final[dict[str, tuple[Callable[..., float], tuple[str, ...]]]] = {
    "processor tasks": (processor_sum, ("task_metrics", "processor_prefixes")),
    "other tasks": (other_sum, ("task_metrics", "processor_prefixes")),
    "all tasks": (whole_sum, ("task_metrics",)),
}


def spelled(unit: Unit) -> str:
    """Unit as Dask calls it."""
    return "bytes" if unit is BYTE else "seconds"


for row in ACTIVITIES:
    function, inputs = SUMS[row.of]
    spelled_unit = spelled(row.unit)
    CATALOGUE.add(
        Metric(
            name=row.name,
            function=partial(function, row.activity, spelled_unit),
            inputs=inputs,
            unit=row.unit,
            group=FINE,
            source=SPAN,
            meaning=row.meaning,
            label=row.label,
            alias=row.alias,
            written_formula=f"sum of {row.activity} [{spelled_unit}] over {row.of}",
        )
    )


@metric(PERCENT, group=FINE, source=SPAN, label="processor: CPU share", alias="processor_cpu_percent")
def processor_cpu_percentage(processor_cpu_time_seconds: float, processor_noncpu_time_seconds: float) -> float:
    """Share of CPU in the threads' time in the processor's tasks."""
    return 100 * processor_cpu_time_seconds / (processor_cpu_time_seconds + processor_noncpu_time_seconds)


@metric(PERCENT, group=FINE, source=SPAN, label="processor: not-CPU share", alias="processor_io_wait_percent")
def processor_noncpu_percentage(processor_cpu_time_seconds: float, processor_noncpu_time_seconds: float) -> float:
    """Share of time without CPU in the threads' time in the processor's tasks."""
    return 100 * processor_noncpu_time_seconds / (processor_cpu_time_seconds + processor_noncpu_time_seconds)


@metric(SECOND, group=FINE, source=SPAN, label="compression both ways")
def total_compression_overhead_seconds(compression_time_seconds: float, decompression_time_seconds: float) -> float:
    """Time in which Dask compressed or decompressed data inside tasks."""
    return compression_time_seconds + decompression_time_seconds


@metric(SECOND, group=FINE, source=SPAN, label="serialization both ways")
def total_serialization_overhead_seconds(
    serialization_time_seconds: float, deserialization_time_seconds: float
) -> float:
    """Time in which Dask serialized or deserialized data inside tasks."""
    return serialization_time_seconds + deserialization_time_seconds


@metric(
    STRUCTURE,
    group=FINE,
    source="Dask, worker by worker",
    formula="what each worker counted in the tasks of the run's span",
)
def fine_metrics_per_worker(run: Run, processor_prefixes: frozenset[str]) -> dict[str, dict[str, float]]:
    """Processor and other tasks, spilling and transfers of each worker: {worker: {name: amount}}.

    Also of workers that left. Names are those of the metrics of this group, for the worker alone, and
    `transfer_seconds`, `transfer_bytes` (results fetched from other workers) and `spill_seconds` (results moved to disk
    and back), which are in no task or not in tasks alone.
    """
    recorded(run, "span_metrics")
    counted = recorded(run, "span_metrics_per_worker")
    return {worker: _of_worker(metrics, processor_prefixes) for worker, metrics in counted.items()}


OUTSIDE_TASKS: Final = {
    "transfer_seconds": ("gather-dep", "seconds"),
    "transfer_bytes": ("gather-dep", "bytes"),
}
"""Context and unit of what workers do outside of tasks."""

SPILLING: Final = ("disk-read", "disk-write")
MEMORY_MONITOR: Final = "memory-monitor"


def _of_worker(metrics: SpanMetrics, prefixes: frozenset[str]) -> dict[str, float]:
    in_tasks = {key[1:]: value for key, value in metrics.items() if key[0] == "execute" and key[1:3] != NO_WORK}
    amounts = {activity.name: _amount_of(activity, in_tasks, prefixes) for activity in ACTIVITIES}
    for name, (context, unit) in OUTSIDE_TASKS.items():
        amounts[name] = sum(value for key, value in metrics.items() if key[0] == context and key[-1] == unit)
    amounts["spill_seconds"] = sum(value for key, value in metrics.items() if _spills(key))
    return amounts


def _spills(key: tuple[Hashable, ...]) -> bool:
    """Whether Dask counted seconds there in which it moved results to disk or back, wherever that was asked for."""
    return key[-1] == "seconds" and (key[0] == MEMORY_MONITOR or key[-2] in SPILLING)


def _amount_of(activity: Activity, in_tasks: SpanMetrics, prefixes: frozenset[str]) -> float:
    ours = {"processor tasks": (True,), "other tasks": (False,), "all tasks": (True, False)}[activity.of]
    wanted = (activity.activity, spelled(activity.unit))
    return sum(value for key, value in in_tasks.items() if key[1:] == wanted and (key[0] in prefixes) in ours)
