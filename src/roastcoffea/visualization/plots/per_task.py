"""Tasks: what Dask counted in them, by prefix."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Final

import numpy as np
from matplotlib.axes import Axes

from roastcoffea.metrics.catalogue import refuse_if
from roastcoffea.metrics.facts import in_tasks
from roastcoffea.metrics.phases import COMPUTING, DECODING, HANDLING, OPENING, READING
from roastcoffea.records.run import SpanMetrics
from roastcoffea.visualization import draw
from roastcoffea.visualization.draw import Scheme, legend, scheme_of
from roastcoffea.visualization.registry import plot

BYTES: Final = "bytes"
SECONDS: Final = "seconds"
FIRST_UNITS: Final = {BYTES: 0, SECONDS: 1, "count": 2}
"""Of an activity that Dask counts in several units the first of these goes by its plain name."""

IN_THREADS: Final = {"thread-cpu": "CPU", "thread-noncpu": "not CPU (storage, locks, sleep)"}
READ: Final = {"memory-read": "memory", "disk-read": "disk"}
OVERHEAD: Final = {name: name for name in ("deserialize", "serialize", "decompress", "compress")} | {
    "disk-read": "read from disk",
    "disk-write": "write to disk",
}
AXES: Final[Mapping[str, tuple[str, draw.ScaleOf]]] = {
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
    found: dict[str, dict[str, float]] = {}
    for prefix, amounts in _of_prefixes(span_metrics).items():
        ranked = sorted(amounts, key=lambda counted: FIRST_UNITS.get(counted[1], len(FIRST_UNITS)))
        first = dict(reversed(ranked))
        found[prefix] = {
            activity if unit == first[activity] else f"{activity} ({unit})": amount
            for (activity, unit), amount in amounts.items()
        }
    return found


def _of_prefixes(span_metrics: SpanMetrics) -> dict[str, dict[tuple[str, str], float]]:
    """Amounts by prefix, and by activity and unit."""
    found: dict[str, dict[tuple[str, str], float]] = {}
    for key, amount in in_tasks(span_metrics).items():
        if len(key) == 3:
            prefix, activity, unit = map(str, key)
            found.setdefault(prefix, {})[activity, unit] = amount
    return found


@plot("CPU and other time of tasks")
def plot_per_task_cpu_io(ax: Axes, cumulative_metrics: SpanMetrics) -> None:
    """Draw, for each task prefix, the time in which threads used the CPU, beside that in which they did not."""
    _draw_activities(ax, cumulative_metrics, IN_THREADS, SECONDS)


@plot("Inputs of tasks")
def plot_per_task_bytes_read(ax: Axes, cumulative_metrics: SpanMetrics) -> None:
    """Draw, for each task prefix, the bytes of other tasks' results that it took from its worker's memory or disk."""
    _draw_activities(ax, cumulative_metrics, READ, BYTES)


@plot("Overhead of tasks")
def plot_per_task_overhead(ax: Axes, cumulative_metrics: SpanMetrics) -> None:
    """Draw, for each task prefix, what Dask took for serializing, compressing and spilling inside of tasks."""
    _draw_activities(ax, cumulative_metrics, OVERHEAD, SECONDS)


def _draw_activities(ax: Axes, span_metrics: SpanMetrics, activities: Mapping[str, str], unit: str) -> None:
    """Draw activities, which are counted in a unit, by their words; where Dask counted none, there is no plot."""
    tasks, colours = _of_prefixes(span_metrics), _colours_of(scheme_of(ax))
    refuse_if(not tasks, "Dask counted nothing in tasks of this run")
    parts = {
        word: (np.array([float(amounts.get((activity, unit), 0.0)) for amounts in tasks.values()]), colours[activity])
        for activity, word in activities.items()
    }
    none = not any(amounts.any() for amounts, _ in parts.values())
    refuse_if(none, f"Dask counted no {unit} of {', '.join(activities)} in tasks of this run")
    label, scale_of = AXES[unit]
    draw.pooled_bars(ax, list(tasks), parts, scale_of=scale_of, label=label)
    legend(ax)


def _colours_of(scheme: Scheme) -> dict[str, str]:
    """Colours of activities: those of the families that they belong to, and others."""
    families = {
        "thread-cpu": COMPUTING,
        "memory-read": HANDLING,
        "deserialize": HANDLING,
        "decompress": DECODING,
        "disk-read": READING,
        "disk-write": OPENING,
    }
    others = dict(zip(("thread-noncpu", "serialize", "compress"), scheme.series[1:], strict=True))
    return others | {activity: scheme.of(family) for activity, family in families.items()}
