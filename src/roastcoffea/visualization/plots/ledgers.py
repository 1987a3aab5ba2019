"""The whole run: where thread time and bytes went, and how efficiently resources were used."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from matplotlib.axes import Axes

from roastcoffea.metrics import ByteLedger, TimeLedger
from roastcoffea.metrics.catalogue import NotMeasuredError, refuse_if
from roastcoffea.metrics.phases import COMPUTING, READING, TIME_NAMES, TOTAL, Family
from roastcoffea.metrics.statistics import Numbers
from roastcoffea.units import BYTE, SECOND, Unit, number, three_digits
from roastcoffea.visualization import draw
from roastcoffea.visualization.distributions import stacked
from roastcoffea.visualization.draw import GRID, by_family, family_labels, legend, scheme_of
from roastcoffea.visualization.registry import TALL, WIDE, plot

Ask = Callable[[str], Any]


class Share(NamedTuple):
    """A share in percent. `of` computes the share from metrics, and `text` describes the amounts."""

    label: str
    family: Family | None
    of: Callable[[Ask], float]
    text: Callable[[Ask], str] | None = None


EFFICIENCIES: Final = (
    Share("cores: CPU time of chunks", COMPUTING, lambda ask: 100 * ask("core_efficiency")),
    Share("chunk tasks: CPU time", COMPUTING, lambda ask: ask("processor_cpu_percentage")),
    Share("bytes: useful", READING, lambda ask: 100 * ask("useful_fraction")),
)
"""Shares of available resources that were used."""

UTILIZATIONS: Final = (
    Share(
        "workers: mean / peak",
        None,
        lambda ask: 100 * ask("avg_workers") / ask("peak_workers"),
        lambda ask: f"{number(three_digits(ask('avg_workers')))} of {number(ask('peak_workers'))}",
    ),
    Share(
        "cores: used by chunks",
        COMPUTING,
        lambda ask: 100 * ask("core_efficiency"),
        lambda ask: f"{number(three_digits(ask('speedup_factor')))} of {number(three_digits(ask('total_cores')))}",
    ),
    Share(
        "cores: used by workers",
        COMPUTING,
        lambda ask: 100 * ask("worker_cpu_time_seconds") / (ask("elapsed_time_seconds") * ask("total_cores")),
        lambda ask: SECOND.text(ask("worker_cpu_time_seconds")),
    ),
    Share(
        "memory: peak / limit",
        None,
        lambda ask: 100 * _fullest(ask)[0] / _fullest(ask)[1],
        lambda ask: " of ".join(map(BYTE.text, _fullest(ask))),
    ),
)


def _fullest(ask: Ask) -> tuple[int, int]:
    known = ask("worker_memory").select(["memory_peak", "memory_limit"]).drop_null()
    limited = [(peak, limit) for peak, limit in zip(*known.to_pydict().values(), strict=True) if limit > 0]
    refuse_if(not limited, "no worker has both a memory peak and a limit")
    return max(limited, key=lambda found: found[0] / found[1])


@plot("Efficiency")
def plot_efficiency_summary(ax: Axes, metric: Ask) -> None:
    """Plot the used share of cores, task time and bytes."""
    _draw_shares(ax, EFFICIENCIES, metric)


@plot("Resource usage")
def plot_resource_utilization(ax: Axes, metric: Ask) -> None:
    """Plot the used share of workers, cores and memory."""
    _draw_shares(ax, UTILIZATIONS, metric)


def _draw_shares(ax: Axes, shares: tuple[Share, ...], metric: Ask) -> None:
    """Draw shares as bars. Shares of 0 are listed in a note, unless all shares are 0."""
    values, texts, reasons = {}, {}, []
    for share in shares:
        try:
            values[share.label] = float(share.of(metric))
            in_words = f" ({share.text(metric)})" if share.text else ""
            texts[share.label] = f"{three_digits(values[share.label]):g} %{in_words}"
        except NotMeasuredError as reason:
            reasons.append(str(reason))
        except ZeroDivisionError:
            reasons.append(f"{share.label}: there were none")
    refuse_if(len(reasons) == len(shares), "; ".join(dict.fromkeys(reasons)))
    nothing = [label for label, value in values.items() if value == 0] if any(values.values()) else []
    shown = [share for share in shares if share.label not in nothing]
    amounts, scheme = [values.get(share.label, 0.0) for share in shown], scheme_of(ax)
    colours = [scheme.series[0] if share.family is None else scheme.of(share.family) for share in shown]
    _draw_bars(ax, [share.label for share in shown], np.array(amounts), colours)
    ax.set_xlabel("share (%)")
    draw.bar_texts(ax, amounts, [texts.get(share.label, "not measured") for share in shown])
    if nothing:
        draw.note(ax, f"0 %: {', '.join(nothing)}")
    if max(amounts) <= 100:
        ax.set_xticks(range(0, int(min(100, ax.get_xlim()[1])) + 1, 20))


def _draw_bars(ax: Axes, names: Sequence[str], amounts: Numbers, colours: Sequence[str]) -> None:
    draw.bars(ax, names, {"all": amounts}, {"all": "none"})
    for bar, colour in zip(ax.containers[-1], colours, strict=True) if ax.containers else ():
        bar.set_facecolor(colour)


@plot("Bytes requested from storage")
def plot_byte_ledger(ax: Axes, byte_ledger: ByteLedger) -> None:
    """Plot the byte ledger's classes and residual, with notes on missing data."""
    refuse_if(not byte_ledger.total, "no bytes were requested from storage")
    scale = draw.bytes_scale(max(amount or 0 for amount in byte_ledger.values()))
    _draw_classes(ax, byte_ledger, list(byte_ledger), scale, scheme_of(ax).of_bytes)
    ax.set_xlabel(f"requested ({scale.unit}); total {BYTE.text(byte_ledger.total or 0)}")
    _note_gaps(ax, byte_ledger)


@plot("Thread time by class", size=TALL)
def plot_time_ledger(ax: Axes, time_ledger: TimeLedger) -> None:
    """Plot the larger classes of the time ledger, with notes on missing data."""
    least = _too_small(time_ledger)
    shown = [name for name, seconds in time_ledger.items() if abs(seconds) >= least]
    scale = draw.seconds_scale(max(time_ledger[name] for name in shown))
    _draw_classes(ax, time_ledger, shown, scale, scheme_of(ax).of_time)
    ax.set_xlabel(f"worker threads x time ({scale.unit}); total {SECOND.text(time_ledger.total or 0.0)}")
    if small := [name for name, seconds in time_ledger.items() if 0 < abs(seconds) < least]:
        draw.note(ax, f"below 0.1 % each: {', '.join(small)}")
    _note_gaps(ax, time_ledger, time_ledger.unknown)


@plot("Threads by class over time", size=WIDE)
def plot_time_ledger_timeline(ax: Axes, start: float, time_ledger: TimeLedger) -> None:
    """Plot worker threads over time by time ledger class."""
    least, scheme = _too_small(time_ledger), scheme_of(ax)
    timeline = time_ledger.timeline(GRID)
    moments = timeline.index.to_numpy(np.float64)
    stop = float(moments[-1] + timeline["seconds"].iloc[-1])
    edges = draw.time_axis(ax, start, stop)(np.append(moments, stop))
    threads = {name: timeline[name].to_numpy(np.float64) for name in by_family(TIME_NAMES) if name in timeline}
    threads = {name: row for name, row in threads.items() if row.any()}
    labels = family_labels({name: name for name in threads if time_ledger[name] >= least})
    stacked(ax, edges, [(labels.get(name), row, scheme.of_time[name]) for name, row in threads.items()])
    available = timeline[TOTAL].to_numpy(np.float64)
    ax.stairs(available, edges, baseline=None, edgecolor=scheme.ink, linewidth=0.8, label="threads available")
    ax.set_ylabel("threads")
    draw.whole_numbers(ax.yaxis)
    ax.set_ylim(bottom=0)
    legend(ax)
    _note_gaps(ax, time_ledger, time_ledger.unknown)


def _too_small(ledger: TimeLedger) -> float:
    """Return the time below which a class is negligible, in seconds.

    NotMeasuredError is raised if there were no threads.
    """
    refuse_if(not ledger.total, "there were no worker threads")
    return 1e-3 * (ledger.total or 0.0)


def _draw_classes(
    ax: Axes, ledger: ByteLedger | TimeLedger, names: list[str], scale: draw.Scale, colours: Mapping[str, str]
) -> None:
    amounts = np.array([float(ledger[name] or 0) * scale.factor for name in names])
    _draw_bars(ax, names, amounts, [colours[name] for name in names])
    draw.bar_texts(ax, amounts.tolist(), [_text(ledger[name], ledger.total or 0, ledger.unit) for name in names])


def _text(amount: float | None, total: float, unit: Unit) -> str:
    if amount is None:
        return "not measured"
    if not total or not amount:
        return unit.text(amount)
    percent = 100 * amount / total
    return f"{unit.text(amount)}, {three_digits(percent):g} %" if abs(percent) >= 0.1 else "below 0.1 %"


def _note_gaps(ax: Axes, ledger: ByteLedger | TimeLedger, unknown: Iterable[str] = ()) -> None:
    if ledger.certificate.reasons:
        draw.note(ax, f"incomplete: {'; '.join(ledger.certificate.reasons)}")
    if unknown:
        draw.note(ax, f"not measured: {', '.join(unknown)}")
