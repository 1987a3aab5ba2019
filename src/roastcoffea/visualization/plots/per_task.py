"""What Dask metered in tasks, by their prefix."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Final

import numpy as np
from matplotlib.axes import Axes

from roastcoffea.metrics.catalogue import NotMeasuredError
from roastcoffea.metrics.facts import NO_WORK
from roastcoffea.metrics.statistics import Numbers
from roastcoffea.records.run import SpanMetrics
from roastcoffea.visualization import draw
from roastcoffea.visualization.colours import CPU, CYCLE, NOT_CPU
from roastcoffea.visualization.registry import plot

BYTES: Final = "bytes"
SECONDS: Final = "seconds"
FIRST_UNITS: Final = (BYTES, SECONDS, "count")
"""Of an activity that Dask counts in several units the first of these goes by its plain name."""

EXECUTE: Final = "execute"
READING: Final = {"memory-read": "memory", "disk-read": "disk"}
OVERHEAD: Final = {
    "deserialize": "deserialize",
    "serialize": "serialize",
    "decompress": "decompress",
    "compress": "compress",
    "disk-read": "read from disk",
    "disk-write": "write to disk",
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


def _amounts(span_metrics: SpanMetrics, parts: Mapping[tuple[str, str], str]) -> tuple[list[str], dict[str, Numbers]]:
    """Prefixes, and their amounts of each part, which is an activity in a unit."""
    tasks = _of_prefixes(span_metrics)
    if not tasks:
        raise NotMeasuredError("Dask counted nothing in tasks of this run")
    named = {
        part: np.array([float(amounts.get(key, 0.0)) for amounts in tasks.values()]) for key, part in parts.items()
    }
    return list(tasks), named


@plot("CPU and other time of tasks")
def plot_per_task_cpu_io(ax: Axes, span_metrics: SpanMetrics) -> None:
    """Draw, for each task prefix, the time in which threads used the CPU, beside that in which they did not."""
    parts = {("thread-cpu", SECONDS): "CPU", ("thread-noncpu", SECONDS): "not CPU (storage, locks, sleep)"}
    colours = dict(zip(parts.values(), (CPU, NOT_CPU), strict=True))
    _draw_seconds(ax, span_metrics, parts, colours, "time of threads")


@plot("Inputs of tasks")
def plot_per_task_bytes_read(ax: Axes, span_metrics: SpanMetrics) -> None:
    """Draw, for each task prefix, the bytes of other tasks' results that it took from its worker's memory or disk."""
    prefixes, parts = _amounts(span_metrics, {(activity, BYTES): part for activity, part in READING.items()})
    names, pooled = draw.pooled(prefixes, parts)
    scale = draw.bytes_scale(float(np.sum(list(pooled.values()), axis=0).max()))
    scaled = {part: amounts * scale.factor for part, amounts in pooled.items()}
    draw.bars(ax, names, scaled, dict(zip(READING.values(), CYCLE, strict=False)))
    ax.set_xlabel(f"results of other tasks ({scale.unit})")
    _end(ax, pooled)


@plot("Overhead of tasks")
def plot_per_task_overhead(ax: Axes, span_metrics: SpanMetrics) -> None:
    """Draw, for each task prefix, what Dask took for serializing, compressing and spilling inside of tasks."""
    parts = {(activity, SECONDS): part for activity, part in OVERHEAD.items()}
    _draw_seconds(ax, span_metrics, parts, dict(zip(OVERHEAD.values(), CYCLE, strict=False)), "time of threads")


def _draw_seconds(
    ax: Axes, span_metrics: SpanMetrics, parts: Mapping[tuple[str, str], str], colours: Mapping[str, str], what: str
) -> None:
    prefixes, amounts = _amounts(span_metrics, parts)
    names, pooled = draw.pooled(prefixes, amounts)
    scale = draw.seconds_scale(float(np.sum(list(pooled.values()), axis=0).max()))
    draw.bars(ax, names, {part: values * scale.factor for part, values in pooled.items()}, colours)
    ax.set_xlabel(f"{what} ({scale.unit})")
    _end(ax, pooled)


def _end(ax: Axes, amounts: Mapping[str, Numbers]) -> None:
    """Add the legend, and say where all is zero."""
    if not any(values.any() for values in amounts.values()):
        ax.set_xlim(0, 1)
        draw.note(ax, f"Dask counted none in tasks ({', '.join(amounts)})")
    draw.legend(ax)
