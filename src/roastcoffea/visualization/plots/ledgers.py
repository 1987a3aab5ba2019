"""How well the run used what it had: shares, both ledgers, and what Dask metered in tasks."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
from matplotlib.axes import Axes

from roastcoffea.metrics import ByteLedger, TimeLedger
from roastcoffea.metrics.catalogue import NotMeasuredError, refuse_if
from roastcoffea.metrics.facts import in_tasks
from roastcoffea.metrics.phases import RESIDUAL, TOTAL
from roastcoffea.records.run import SpanMetrics
from roastcoffea.units import BYTE, SECOND, Unit, number, three_digits
from roastcoffea.visualization import draw
from roastcoffea.visualization.colours import BLUE, CPU, CYCLE, NOT_CPU, OF_BYTES, OF_TIME
from roastcoffea.visualization.registry import TALL, plot

Ask = Callable[[str], Any]


class Share(NamedTuple):
    """A share in percent: `of` asks for metrics by name; `text` says what it is a share of."""

    label: str
    of: Callable[[Ask], float]
    text: Callable[[Ask], str] | None = None


EFFICIENCIES: Final = (
    Share("core efficiency", lambda ask: 100 * ask("core_efficiency")),
    Share("threads with a task", lambda ask: ask("busy_percent")),
    Share("CPU in processor tasks", lambda ask: ask("processor_cpu_percentage")),
    Share("useful bytes", lambda ask: 100 * ask("useful_fraction")),
    Share("of files: bytes read", lambda ask: ask("avg_bytes_read_percent")),
    Share("of files: branches read", lambda ask: ask("avg_branches_read_percent")),
)

UTILIZATIONS: Final = (
    Share(
        "workers: mean of peak",
        lambda ask: 100 * ask("avg_workers") / ask("peak_workers"),
        lambda ask: f"{number(three_digits(ask('avg_workers')))} of {number(ask('peak_workers'))}",
    ),
    Share(
        "cores: used by chunks",
        lambda ask: 100 * ask("core_efficiency"),
        lambda ask: f"{number(three_digits(ask('speedup_factor')))} of {number(three_digits(ask('total_cores')))}",
    ),
    Share(
        "cores: used by workers",
        lambda ask: 100 * ask("worker_cpu_time_seconds") / (ask("elapsed_time_seconds") * ask("total_cores")),
        lambda ask: SECOND.text(ask("worker_cpu_time_seconds")),
    ),
    Share(
        "memory: mean of peak",
        lambda ask: 100 * ask("avg_memory_per_worker_bytes") / ask("peak_memory_bytes"),
        lambda ask: f"{BYTE.text(ask('avg_memory_per_worker_bytes'))} of {BYTE.text(ask('peak_memory_bytes'))}",
    ),
)


@plot("Efficiency")
def plot_efficiency_summary(ax: Axes, metric: Ask) -> None:
    """Draw what share of cores, threads and bytes was put to use."""
    _draw_shares(ax, EFFICIENCIES, metric)


@plot("Use of resources")
def plot_resource_utilization(ax: Axes, metric: Ask) -> None:
    """Draw how much of workers, cores and memory was used, beside what there was."""
    _draw_shares(ax, UTILIZATIONS, metric)


def _draw_shares(ax: Axes, shares: tuple[Share, ...], metric: Ask) -> None:
    values, texts, reasons = [0.0] * len(shares), ["not measured"] * len(shares), []
    for place, share in enumerate(shares):
        try:
            values[place] = float(share.of(metric))
            texts[place] = f"{three_digits(values[place]):g} %" + (f" ({share.text(metric)})" if share.text else "")
        except (NotMeasuredError, ZeroDivisionError) as reason:
            reasons.append(str(reason))
    refuse_if(len(reasons) == len(shares), "; ".join(dict.fromkeys(reasons)))
    draw.bars(ax, [share.label for share in shares], {"share": np.array(values)}, {"share": BLUE})
    ax.set_xlabel("share (%)")
    draw.bar_texts(ax, values, texts)
    if max(values) <= 100:
        ax.set_xticks(range(0, int(min(100, ax.get_xlim()[1])) + 1, 20))


TOO_SMALL_TO_SEE: Final = 1e-3
"""Share of all thread time up to which a class has no entry in the legend of a timeline."""


@plot("Bytes requested from storage")
def plot_byte_ledger(ax: Axes, byte_ledger: ByteLedger) -> None:
    """Draw the classes of the byte ledger, with the residual, and whether it is complete."""
    scale = draw.bytes_scale(max([*(amount or 0 for amount in byte_ledger.values()), 1]))
    _draw_classes(ax, byte_ledger, list(byte_ledger), scale, OF_BYTES)
    ax.set_xlabel(f"requested ({scale.unit}); in all {BYTE.text(byte_ledger.total or 0)}")
    _note_gaps(ax, byte_ledger)


@plot("Thread time by class", size=TALL)
def plot_time_ledger(ax: Axes, time_ledger: TimeLedger) -> None:
    """Draw the classes of the time ledger that are not zero, with the residual, and whether it is complete."""
    shown = [name for name, seconds in time_ledger.items() if seconds or name == RESIDUAL]
    scale = draw.seconds_scale(max(time_ledger[name] for name in shown))
    _draw_classes(ax, time_ledger, shown, scale, OF_TIME)
    ax.set_xlabel(f"worker threads x time ({scale.unit}); in all {SECOND.text(time_ledger.total or 0.0)}")
    _note_gaps(ax, time_ledger, time_ledger.unknown)


@plot("Threads by class over time", size=TALL)
def plot_time_ledger_timeline(ax: Axes, start: float, time_ledger: TimeLedger) -> None:
    """Draw how many threads did what, and why they did nothing, over time: areas are the time ledger's classes."""
    timeline = time_ledger.timeline(draw.GRID)
    moments = timeline.index.to_numpy(np.float64)
    stop = float(moments[-1] + timeline["seconds"].iloc[-1])
    edges = draw.time_axis(ax, start, stop)(np.append(moments, stop))
    threads = {name: timeline[name].to_numpy(np.float64) for name in OF_TIME if name in timeline}
    least = TOO_SMALL_TO_SEE * (time_ledger.total or 0.0)
    labels = {name: name if time_ledger[name] > least else None for name in threads if threads[name].any()}
    draw.stacked(ax, edges, [(label, threads[name], OF_TIME[name]) for name, label in labels.items()])
    ax.stairs(timeline[TOTAL], edges, baseline=None, color="#222222", linewidth=0.8, label="threads there were")
    ax.set_ylabel("threads")
    draw.whole_numbers(ax.yaxis)
    ax.set_ylim(bottom=0)
    draw.legend(ax)
    _note_gaps(ax, time_ledger, time_ledger.unknown)


def _draw_classes(
    ax: Axes, ledger: ByteLedger | TimeLedger, names: list[str], scale: draw.Scale, colours: Mapping[str, str]
) -> None:
    amounts = np.array([float(ledger[name] or 0) * scale.factor for name in names])
    draw.bars(ax, names, {"all": amounts}, {"all": "none"})
    for bar, name in zip(ax.containers[-1], names, strict=True) if ax.containers else ():
        bar.set(facecolor=colours[name], edgecolor="#555555", linewidth=0.4)
    draw.bar_texts(ax, amounts.tolist(), [_text(ledger[name], ledger.total or 0, ledger.unit) for name in names])


def _text(amount: float | None, total: float, unit: Unit) -> str:
    if amount is None:
        return "not measured"
    if not total or not amount:
        return unit.text(amount)
    percent = 100 * amount / total
    return f"{unit.text(amount)}, {'< 0.1' if abs(percent) < 0.1 else f'{three_digits(percent):g}'} %"


def _note_gaps(ax: Axes, ledger: ByteLedger | TimeLedger, unknown: Iterable[str] = ()) -> None:
    """Note what is not in a ledger, and which classes were not measured."""
    if ledger.certificate.reasons:
        draw.note(ax, f"incomplete: {'; '.join(ledger.certificate.reasons)}")
    if unknown:
        draw.note(ax, f"not measured: {', '.join(unknown)}")


BYTES: Final = "bytes"
SECONDS: Final = "seconds"
FIRST_UNITS: Final = {BYTES: 0, SECONDS: 1, "count": 2}
"""Of an activity that Dask counts in several units the first of these goes by its plain name."""

IN_THREADS: Final = {"thread-cpu": "CPU", "thread-noncpu": "not CPU (storage, locks, sleep)"}
READING: Final = {"memory-read": "memory", "disk-read": "disk"}
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
    refuse_if(not tasks, "Dask counted nothing in tasks of this run")
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
