"""The two ledgers: bytes and thread time, by class."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from matplotlib.axes import Axes

from roastcoffea.metrics import ByteLedger, TimeLedger
from roastcoffea.metrics.ledger import Certificate
from roastcoffea.metrics.phases import RESIDUAL, TOTAL
from roastcoffea.units import BYTE, SECOND, Unit, three_digits
from roastcoffea.visualization import draw
from roastcoffea.visualization.colours import OF_BYTES, OF_TIME
from roastcoffea.visualization.registry import TALL, plot

TOO_SMALL_TO_SEE: Final = 1e-3
"""Share of all thread time up to which a class has no entry in the legend of a timeline."""


@plot("Bytes requested from storage")
def plot_byte_ledger(ax: Axes, byte_ledger: ByteLedger) -> None:
    """Draw the classes of the byte ledger, with the residual, and whether it is complete."""
    total = byte_ledger.total or 0
    scale = draw.bytes_scale(max([*(amount or 0 for amount in byte_ledger.values()), 1]))
    _draw_classes(ax, byte_ledger, total, scale, BYTE, OF_BYTES)
    ax.set_xlabel(f"requested ({scale.unit}); in all {BYTE.text(total)}")
    _note_certificate(ax, byte_ledger.certificate)


@plot("Thread time by class", size=TALL)
def plot_time_ledger(ax: Axes, time_ledger: TimeLedger) -> None:
    """Draw the classes of the time ledger that are not zero, with the residual, and whether it is complete."""
    total = time_ledger.total or 0.0
    shown = {name: seconds for name, seconds in time_ledger.items() if seconds or name == RESIDUAL}
    scale = draw.seconds_scale(max(shown.values()))
    _draw_classes(ax, shown, total, scale, SECOND, OF_TIME)
    ax.set_xlabel(f"worker threads x time ({scale.unit}); in all {SECOND.text(total)}")
    _note_certificate(ax, time_ledger.certificate)
    _note_unknown(ax, time_ledger)


@plot("Threads by class over time", size=TALL)
def plot_time_ledger_timeline(ax: Axes, start: float, time_ledger: TimeLedger) -> None:
    """Draw how many threads did what, and why they did nothing, over time: areas are the time ledger's classes."""
    timeline = time_ledger.timeline(draw.GRID)
    moments = timeline.index.to_numpy(np.float64)
    stop = float(moments[-1] + timeline["seconds"].iloc[-1])
    edges = draw.time_axis(ax, start, stop)(np.append(moments, stop))
    reached = np.zeros(len(timeline))
    for name in (name for name in OF_TIME if name in timeline and timeline[name].any()):
        threads = reached + timeline[name].to_numpy(np.float64)
        label = name if time_ledger[name] > TOO_SMALL_TO_SEE * (time_ledger.total or 0.0) else None
        ax.stairs(threads, edges, baseline=reached, fill=True, color=OF_TIME[name], label=label)
        reached = threads
    ax.stairs(timeline[TOTAL], edges, baseline=None, color="#222222", linewidth=0.8, label="threads there were")
    ax.set_ylabel("threads")
    draw.whole_numbers(ax.yaxis)
    ax.set_ylim(bottom=0)
    draw.legend(ax)
    _note_certificate(ax, time_ledger.certificate)
    _note_unknown(ax, time_ledger)


def _draw_classes(  # noqa: PLR0917
    ax: Axes,
    ledger: Mapping[str, float | None] | Mapping[str, int | None] | Mapping[str, float],
    total: float,
    scale: draw.Scale,
    unit: Unit,
    colours: Mapping[str, str],
) -> None:
    names = list(ledger)
    amounts = np.array([float(ledger[name] or 0) * scale.factor for name in names])
    draw.bars(ax, names, {"all": amounts}, {"all": "none"})
    for bar, name in zip(ax.containers[-1], names, strict=True) if ax.containers else ():
        bar.set_facecolor(colours[name])
        bar.set_edgecolor("#555555")
        bar.set_linewidth(0.4)
    draw.bar_texts(ax, amounts.tolist(), [_text(ledger[name], total, unit) for name in names])


def _text(amount: float | None, total: float, unit: Unit) -> str:
    if amount is None:
        return "not measured"
    if not total or not amount:
        return unit.text(amount)
    percent = 100 * amount / total
    return f"{unit.text(amount)}, {'< 0.1' if abs(percent) < 0.1 else f'{three_digits(percent):g}'} %"


def _note_certificate(ax: Axes, certificate: Certificate) -> None:
    if not certificate.complete:
        draw.note(ax, f"incomplete: {'; '.join(certificate.reasons)}")


def _note_unknown(ax: Axes, ledger: TimeLedger) -> None:
    if ledger.unknown:
        draw.note(ax, f"not measured: {', '.join(ledger.unknown)}")
