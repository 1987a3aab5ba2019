"""Tasks: times and bytes that Dask recorded inside tasks, by prefix."""

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
"""Units in order of precedence. If Dask records an activity in several units, the amount in the first one keeps the
plain name.
"""

IN_THREADS: Final = {"thread-cpu": "CPU", "thread-noncpu": "not CPU (storage, locks, sleep)"}
READ: Final = {"memory-read": "memory", "disk-read": "disk"}
OVERHEAD: Final = {name: name for name in ("deserialize", "serialize", "decompress", "compress")} | {
    "disk-read": "read from disk",
    "disk-write": "write to disk",
}
AXES: Final[Mapping[str, tuple[str, draw.ScaleOf]]] = {
    SECONDS: ("thread time", draw.seconds_scale),
    BYTES: ("other tasks' results", draw.bytes_scale),
}


def extract_per_task_metrics(span_metrics: Mapping[tuple[Hashable, ...], float]) -> dict[str, dict[str, float]]:
    """Return task activities by prefix, as {prefix: {activity: amount}}.

    Each entry has one unit. If Dask records an activity in several units, the amount in bytes (or in seconds, if there
    is no amount in bytes) keeps the plain name. The other entries are named "activity (unit)". For example,
    "disk-write" is in bytes, and "disk-write (seconds)" and "disk-write (count)" are separate entries. Counts outside
    tasks are omitted.

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
    found: dict[str, dict[tuple[str, str], float]] = {}
    for key, amount in in_tasks(span_metrics).items():
        if len(key) == 3:
            prefix, activity, unit = map(str, key)
            found.setdefault(prefix, {})[activity, unit] = amount
    return found


@plot("CPU and off-CPU time of tasks")
def plot_per_task_cpu_io(ax: Axes, cumulative_metrics: SpanMetrics) -> None:
    """Plot the CPU time and off-CPU time of tasks by prefix.

    Off-CPU time includes all kinds of waiting, not only I/O.
    """
    _draw_activities(ax, cumulative_metrics, IN_THREADS, SECONDS)


@plot("Task inputs")
def plot_per_task_bytes_read(ax: Axes, cumulative_metrics: SpanMetrics) -> None:
    """Plot the size of task inputs by prefix.

    Inputs are results of other tasks, read from the worker's memory or from spilled data. Reads from storage are not
    included.
    """
    _draw_activities(ax, cumulative_metrics, READ, BYTES)


@plot("Task overhead")
def plot_per_task_overhead(ax: Axes, cumulative_metrics: SpanMetrics) -> None:
    """Plot Dask's serialization, compression and spilling time by task prefix."""
    _draw_activities(ax, cumulative_metrics, OVERHEAD, SECONDS)


def _draw_activities(ax: Axes, span_metrics: SpanMetrics, activities: Mapping[str, str], unit: str) -> None:
    tasks, colours = _of_prefixes(span_metrics), _colours_of(scheme_of(ax))
    refuse_if(not tasks, "Dask recorded no activity in this run's tasks")
    parts = {
        word: (np.array([float(amounts.get((activity, unit), 0.0)) for amounts in tasks.values()]), colours[activity])
        for activity, word in activities.items()
    }
    none = not any(amounts.any() for amounts, _ in parts.values())
    refuse_if(none, f"Dask recorded no {unit} for {', '.join(activities)} in this run's tasks")
    label, scale_of = AXES[unit]
    draw.pooled_bars(ax, list(tasks), parts, scale_of=scale_of, label=label)
    legend(ax)


def _colours_of(scheme: Scheme) -> dict[str, str]:
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
