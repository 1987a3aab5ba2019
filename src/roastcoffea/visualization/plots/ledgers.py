"""How well the run used what it had: shares, both ledgers, and what Dask metered in tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
from matplotlib.axes import Axes

from roastcoffea.metrics import ByteLedger, TimeLedger
from roastcoffea.metrics.catalogue import NotMeasuredError, refuse_if
from roastcoffea.metrics.phases import RESIDUAL, TOTAL
from roastcoffea.units import BYTE, SECOND, Unit, number, three_digits
from roastcoffea.visualization import draw
from roastcoffea.visualization.colours import BLUE, OF_BYTES, OF_TIME
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
