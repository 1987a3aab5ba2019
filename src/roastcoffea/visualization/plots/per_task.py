"""What Dask metered in tasks, by their prefix."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Final

import numpy as np
from matplotlib.axes import Axes

from roastcoffea.metrics.catalogue import NotMeasuredError
from roastcoffea.metrics.facts import NO_WORK
from roastcoffea.records.run import SpanMetrics
from roastcoffea.visualization import draw
from roastcoffea.visualization.colours import CPU, CYCLE, NOT_CPU
from roastcoffea.visualization.registry import plot

BYTES: Final = "bytes"
SECONDS: Final = "seconds"
FIRST_UNITS: Final = (BYTES, SECONDS, "count")
"""Of an activity that Dask counts in several units the first of these goes by its plain name."""

EXECUTE: Final = "execute"
IN_THREADS: Final = {"thread-cpu": "CPU", "thread-noncpu": "not CPU (storage, locks, sleep)"}
READING: Final = {"memory-read": "memory", "disk-read": "disk"}
OVERHEAD: Final = {
    "deserialize": "deserialize",
    "serialize": "serialize",
    "decompress": "decompress",
    "compress": "compress",
    "disk-read": "read from disk",
    "disk-write": "write to disk",
}
AXES: Final[Mapping[str, tuple[str, Callable[[float], draw.Scale]]]] = {
    SECONDS: ("time of threads", draw.seconds_scale),
    BYTES: ("results of other tasks", draw.bytes_scale),
}


def extract_per_task_metrics(span_metrics: Mapping[tuple[Hashable, ...], float]) -> dict[str, dict[str, float]]:
    """Activities of tasks by prefix: {prefix: {activity: amount}}.

    An activity is in one unit. Where Dask counts it in several, bytes go by its plain name (else seconds), and each of
    the others by "activity (unit)": "disk-write" is in bytes, "disk-write (seconds)" and "disk-write (count)" stand
    beside it. What belongs to no task is left out.

    Examples
    --------
    >>> extract_per_task_metrics({
    ...     ("execute", "Dijet", "thread-cpu", "seconds"): 12.0,
    ...     ("execute", "Dijet", "memory-read", "bytes"): 1000,
    ...     ("execute", "Dijet", "memory-read", "count"): 7,
    ... })
    {'Dijet': {'thread-cpu': 12.0, 'memory-read': 1000, 'memory-read (count)': 7}}
    """
    return {
        prefix: {_name(activity, unit, units[activity]): amount for (activity, unit), amount in amounts.items()}
        for prefix, amounts in _of_prefixes(span_metrics).items()
        for units in [_units(amounts)]
    }


def _of_prefixes(span_metrics: SpanMetrics) -> dict[str, dict[tuple[str, str], float]]:
    """Amounts by prefix, and by activity and unit."""
    found: dict[str, dict[tuple[str, str], float]] = {}
    for key, amount in span_metrics.items():
        if len(key) == 4 and key[0] == EXECUTE and key[1:3] != NO_WORK:
            _, prefix, activity, unit = map(str, key)
            found.setdefault(prefix, {})[activity, unit] = amount
    return found


def _units(amounts: Mapping[tuple[str, str], float]) -> dict[str, list[str]]:
    units: dict[str, list[str]] = {}
    for activity, unit in amounts:
        units.setdefault(activity, []).append(unit)
    return units


def _name(activity: str, unit: str, units: Sequence[str]) -> str:
    first = next((known for known in FIRST_UNITS if known in units), units[0])
    return activity if unit == first else f"{activity} ({unit})"


@plot("CPU and other time of tasks")
def plot_per_task_cpu_io(ax: Axes, cumulative_metrics: SpanMetrics) -> None:
    """Draw, for each task prefix, the time in which threads used the CPU, beside that in which they did not."""
    _draw_activities(ax, cumulative_metrics, IN_THREADS, SECONDS, (CPU, NOT_CPU))


@plot("Inputs of tasks")
def plot_per_task_bytes_read(ax: Axes, cumulative_metrics: SpanMetrics) -> None:
    """Draw, for each task prefix, the bytes of other tasks' results that it took from its worker's memory or disk."""
    _draw_activities(ax, cumulative_metrics, READING, BYTES, CYCLE)


@plot("Overhead of tasks")
def plot_per_task_overhead(ax: Axes, cumulative_metrics: SpanMetrics) -> None:
    """Draw, for each task prefix, what Dask took for serializing, compressing and spilling inside of tasks."""
    _draw_activities(ax, cumulative_metrics, OVERHEAD, SECONDS, CYCLE)


def _draw_activities(
    ax: Axes, span_metrics: SpanMetrics, activities: Mapping[str, str], unit: str, colours: Iterable[str]
) -> None:
    """Draw activities, which are counted in a unit, by their words; where all is zero, say so."""
    tasks = _of_prefixes(span_metrics)
    if not tasks:
        raise NotMeasuredError("Dask counted nothing in tasks of this run")
    parts = {
        word: (np.array([float(amounts.get((activity, unit), 0.0)) for amounts in tasks.values()]), colour)
        for (activity, word), colour in zip(activities.items(), colours, strict=False)
    }
    label, scale_of = AXES[unit]
    draw.pooled_bars(ax, list(tasks), parts, scale_of=scale_of, label=label)
    if not any(amounts.any() for amounts, _ in parts.values()):
        ax.set_xlim(0, 1)
        draw.note(ax, f"Dask counted none in tasks ({', '.join(parts)})")
    draw.legend(ax)
