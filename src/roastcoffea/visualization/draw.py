"""What several plots draw: lines and bands of workers, bars, distributions, clouds; units of axes, legends."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from textwrap import fill, shorten
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from roastcoffea.metrics.statistics import Numbers
from roastcoffea.units import LARGE_PREFIXES, SECONDS_PER_HOUR, SECONDS_PER_MINUTE
from roastcoffea.visualization.colours import BLUE, CYCLE
from roastcoffea.visualization.series import Presence, Series, Span, held, lasting, on_grid, steps_on_grid

MOST_LINES: Final = 7
"""Workers or datasets that are told apart by line; more are drawn as bands, or together."""

MOST_BARS: Final = 20
MOST_POINTS: Final = 3000
"""Points that are drawn one by one; more are drawn as a density."""

NARROW: Final = 0.01
"""Spread of values, beside themselves, below which it is not worth to look closer."""

GRID: Final = 300
MOST_STEPS: Final = 2000
"""Moments of values that hold until the next one; of more those on a grid are drawn."""

DARK: Final = "#162E50"
LONGEST_NAME: Final = 30
NAMELESS: Final = "(none)"
NOTE_WIDTH: Final = 46
LONGEST_NOTE: Final = 3 * NOTE_WIDTH
POINTS_PER_INCH: Final = 72

MANY_TIMES: Final = 100
"""Spread of values, largest beside smallest, from which an axis is logarithmic."""


class Scale(NamedTuple):
    """Factor from stored values to those on an axis, and the unit there."""

    factor: float
    unit: str


ScaleOf = Callable[[float], Scale]


# Units


def bytes_scale(largest: float, unit: str = "B") -> Scale:
    """Prefix in which the largest amount has one to three digits before the point."""
    steps = int(np.clip(np.floor(np.log10(max(largest, 1.0)) / 3), 0, len(LARGE_PREFIXES) - 1))
    return Scale(10.0 ** (-3 * steps), f"{LARGE_PREFIXES[steps]}{unit}")


def seconds_scale(longest: float) -> Scale:
    """Unit of time in which the longest duration is easily read."""
    if longest >= 3 * SECONDS_PER_HOUR:
        return Scale(1 / SECONDS_PER_HOUR, "h")
    if longest >= 3 * SECONDS_PER_MINUTE:
        return Scale(1 / SECONDS_PER_MINUTE, "min")
    return Scale(1.0, "s") if longest >= 1 or longest <= 0 else Scale(1e3, "ms")


def time_axis(ax: Axes, start: float, stop: float) -> Callable[[Numbers], Numbers]:
    """Label a time axis from start to stop (Unix seconds); give what turns moments into its numbers."""
    scale = seconds_scale(max(stop - start, 1.0))
    ax.set_xlabel(f"time since the start of the run ({scale.unit})")
    if stop > start:
        ax.set_xlim(0, (stop - start) * scale.factor)
    return lambda moments: (np.asarray(moments, dtype=np.float64) - start) * scale.factor


def whole_numbers(axis: Axis) -> None:
    """Have an axis say whole numbers only, thousands separated."""
    axis.set_major_locator(MaxNLocator(integer=True, nbins=6, min_n_ticks=1))
    axis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))


# Words


def short(name: str | None, longest: int = LONGEST_NAME) -> str:
    """Name that fits beside an axis: the middle of a long one is left out; `$` stays what it is."""
    text = str(NAMELESS if name is None else name).replace("$", r"\$")
    half = (longest - 1) // 2
    return text if len(text) <= longest else f"{text[:half]}…{text[-half:]}"


def entry(name: str | None) -> str:
    """Name in a legend; matplotlib leaves out what begins with an underscore."""
    text = short(name)
    return f" {text}" if text.startswith("_") else text


def letters(ax: Axes) -> float:
    """Size of the letters of labels, in points: others are in proportion to it."""
    return float(ax.xaxis.label.get_fontsize())


def worker_names(addresses: Sequence[str]) -> list[str]:
    """Addresses of workers, without what they all have in front."""
    plain = [address.partition("://")[2] or address for address in addresses]
    one_host = len({name.rpartition(":")[0] for name in plain}) == 1
    return [short(name.rpartition(":")[2] if one_host else name) for name in plain]


def note(ax: Axes, text: str) -> None:
    """Write a remark below the label of the x axis; a very long one is cut."""
    remark = fill(shorten(text, LONGEST_NOTE, placeholder=" ..."), NOTE_WIDTH).replace("$", r"\$")
    ax.set_xlabel("\n".join(filter(None, (ax.get_xlabel(), remark))))


def legend(ax: Axes, most: int | None = None) -> None:
    """Legend above all that was drawn, of so many entries: the y axis grows by the room that it takes."""
    if most is not None and most < 0:
        raise ValueError(f"a legend has 0 entries or more, not {most}")
    handles, labels = ax.get_legend_handles_labels()
    handles, labels = handles[:most], labels[:most]
    if not labels:
        return
    box, points, size = ax.get_window_extent(), POINTS_PER_INCH / ax.figure.dpi, 0.9 * letters(ax)
    columns = max(1, int(box.width * points / (0.58 * size * max(map(len, labels)) + 3.6 * size)))
    rows = math.ceil(len(labels) / columns)
    share = min((1.3 * rows + 0.7) * size / (box.height * points), 0.6)
    _grow(ax, share / (1 - share))
    gaps: dict[str, Any] = {"columnspacing": 1.0, "handlelength": 1.4, "handletextpad": 0.5, "labelspacing": 0.3}
    look: dict[str, Any] = {"loc": "upper center", "fontsize": size, "frameon": False, "borderaxespad": 0.1}
    ax.legend(handles, labels, ncols=math.ceil(len(labels) / rows), **look, **gaps)


def _grow(ax: Axes, share: float) -> None:
    """Move the upper end of the y axis outwards by a share of its length."""
    transform = ax.yaxis.get_transform()
    low, high = transform.transform(np.array(ax.get_ylim()))
    top = transform.inverted().transform(np.array([high + share * (high - low)]))[0]
    ax.set_ylim(top=top)


# Workers over time


def worker_lines(
    ax: Axes, series: Series, span: Span, label: str, scale: float = 1.0, *, most: int | None = None
) -> None:
    """Draw each worker's line, with names for so many; of many workers the median, and bands of 80 % and all."""
    if len(series.workers) > MOST_LINES:
        _worker_bands(ax, *_gridded(series), span, scale, None)
    else:
        _worker_lines(ax, series, span, scale, "default")
    _end_of_workers(ax, label, most)


def worker_steps(  # noqa: PLR0917
    ax: Axes, series: Series, span: Span, label: str, there: Presence, scale: float = 1.0, *, most: int | None = None
) -> None:
    """Draw what `worker_lines` does of values that hold from sample to sample, the last one until the worker left."""
    series = held(series, there)
    if len(series.workers) > MOST_LINES:
        _worker_bands(ax, *_stepped(series), span, scale, "post")
    else:
        _worker_lines(ax, series, span, scale, "steps-post")
    _end_of_workers(ax, label, most)


def _worker_bands(  # noqa: PLR0917
    ax: Axes, moments: Numbers, rows: Numbers, span: Span, scale: float, step: Literal["post"] | None
) -> None:
    x = time_axis(ax, *span)(moments)
    low, tenth, middle, ninth, high = scale * np.nanquantile(rows, [0, 0.1, 0.5, 0.9, 1], axis=0)
    _band(ax, x, low, high, 0.2, f"all {len(rows)} workers", step)
    _band(ax, x, tenth, ninth, 0.4, "80 % of them", step)
    ax.plot(x, middle, color=DARK, linewidth=1.4, label="median", drawstyle=f"steps-{step}" if step else "default")


def _worker_lines(ax: Axes, series: Series, span: Span, scale: float, drawstyle: str) -> None:
    axis, names = time_axis(ax, *span), worker_names(series.workers)
    wider = range(len(names) - 1, -1, -1)  # so that lines which lie on each other are all seen
    for name, times, values, colour, more in zip(names, series.times, series.values, CYCLE, wider, strict=False):
        dotted = len(times) < 30 and drawstyle == "default"
        look: dict[str, Any] = {"marker": "." if dotted else None, "markersize": 4, "drawstyle": drawstyle}
        ax.plot(axis(times), values * scale, color=colour, label=name, linewidth=1.2 + 0.5 * more, **look)


def worker_mean(ax: Axes, series: Series, span: Span, label: str) -> None:
    """Draw the mean over the workers that are there, in a band from the least to the most."""
    grid, rows = _gridded(series)
    x = time_axis(ax, *span)(grid)
    if len(rows) > 1:
        _band(ax, x, np.nanmin(rows, axis=0), np.nanmax(rows, axis=0), 0.25, "least to most")
    ax.plot(x, np.nanmean(rows, axis=0), color=DARK, linewidth=1.4, label="mean over workers")
    _end_of_workers(ax, label)


def worker_sum(ax: Axes, series: Series, span: Span, label: str, there: Presence) -> None:
    """Draw the sum over the workers that are there; each has its first value from its arrival on."""
    moments, rows = _stepped(lasting(series, there))
    x, total = time_axis(ax, *span)(moments), np.nansum(rows, axis=0)
    ax.fill_between(x, total, step="post", color=BLUE, alpha=0.3, linewidth=0)
    ax.step(x, total, where="post", color=BLUE, linewidth=1.4)
    _end_of_workers(ax, label)


def _band(  # noqa: PLR0917
    ax: Axes, x: Numbers, low: Numbers, high: Numbers, alpha: float, label: str, step: Literal["post"] | None = None
) -> None:
    ax.fill_between(x, low, high, step=step, color=BLUE, alpha=alpha, linewidth=0, label=label)


def _end_of_workers(ax: Axes, label: str, most: int | None = None) -> None:
    ax.set_ylim(bottom=0)
    ax.set_ylabel(label)
    legend(ax, most)


def _gridded(series: Series) -> tuple[Numbers, Numbers]:
    """Moments at which any worker was sampled, and what each had there."""
    sampled = max(map(len, series.times))
    number = min(GRID, max(2 * sampled, 2)) if series.end > series.begin else 1
    grid = np.linspace(series.begin, series.end, number)
    return _where_known(grid, on_grid(series, grid))


def _stepped(series: Series) -> tuple[Numbers, Numbers]:
    """Moments at which a value changed, and what each worker had from there on."""
    moments = np.unique(np.concatenate(series.times))
    if len(moments) > MOST_STEPS:
        moments = np.linspace(series.begin, series.end, MOST_STEPS)
    return _where_known(moments, steps_on_grid(series, moments))


def _where_known(moments: Numbers, rows: Numbers) -> tuple[Numbers, Numbers]:
    """Those of the moments at which anything is known of any worker."""
    known = ~np.isnan(rows).all(axis=0)
    return moments[known], rows[:, known]


# Bars


def bars(ax: Axes, names: Sequence[str | None], parts: Mapping[str, Numbers], colours: Mapping[str, str]) -> None:
    """Draw one horizontal bar a name, the first on top, stacked of parts; parts of nothing but zeros are left out."""
    places = np.arange(len(names))
    reached = np.zeros(len(names))
    for part, amounts in parts.items():
        if np.any(amounts):
            ax.barh(places, amounts, left=reached, color=colours[part], label=part, height=0.75)
            reached = reached + amounts
    ax.set_yticks(places, [short(name) for name in names])
    ax.set_ylim(len(names) - 0.4, -0.6)
    ax.tick_params(axis="y", length=0)
    ax.set_xlim(left=min(0.0, float(reached.min(initial=0.0))))  # bars of almost nothing move the limit


def bar_texts(ax: Axes, ends: Sequence[float], texts: Sequence[str]) -> None:
    """Write a text beside the end of each bar, and make room for it."""
    size = 0.85 * letters(ax)
    for place, (end, text) in enumerate(zip(ends, texts, strict=True)):
        text_beside(ax, max(end, 0.0), place, text, size)
    low, high = min(0.0, *ends), max(0.0, *ends)
    width = ax.get_window_extent().width * POINTS_PER_INCH / ax.figure.dpi
    share = min((max(map(len, texts)) * 0.6 * size + 8) / width, 0.6)
    ax.set_xlim(1.02 * low, high / (1 - share) if high > 0 else 1.0)


def text_beside(ax: Axes, x: float, y: float, text: str, size: float) -> None:
    """Write a text to the right of a point."""
    ax.annotate(text, (x, y), (3, 0), textcoords="offset points", va="center", fontsize=size)


def largest_first(totals: Numbers, most: int = MOST_BARS) -> tuple[list[int], list[int]]:
    """Numbers of those with a bar of their own, the largest first, and of the others."""
    order = np.argsort(-totals, kind="stable").tolist()
    return (order, []) if len(order) <= most else (order[: most - 1], order[most - 1 :])


def pooled_bars(
    ax: Axes, names: Sequence[str | None], parts: Mapping[str, tuple[Numbers, str]], scale_of: ScaleOf, label: str
) -> None:
    """Draw bars of parts (amounts and colour), the largest on top, and the smallest together."""
    amounts = np.array([values for values, _ in parts.values()])
    own, others = largest_first(amounts.sum(axis=0))
    shown, drawn = [names[place] for place in own], amounts[:, own]
    if others:
        shown.append(f"{len(others)} others")
        drawn = np.column_stack([drawn, amounts[:, others].sum(axis=1)])
    scale = scale_of(float(drawn.sum(axis=0).max()))
    colours = {part: colour for part, (_, colour) in parts.items()}
    bars(ax, shown, dict(zip(parts, drawn * scale.factor, strict=True)), colours)
    ax.set_xlabel(f"{label} ({scale.unit})")


# Distributions


Bins = int | Sequence[float] | None
"""Number of bins, or their edges; None for as many as the values ask for."""


def distribution(
    ax: Axes,
    values: Numbers,
    groups: Sequence[str | None],
    things: str,
    *,
    bins: Bins = None,
    whole: bool = False,
) -> None:
    """Draw how values are distributed, stacked of groups where they are few; `whole` numbers get bins of their own."""
    edges = _edges(values, whole) if bins is None else np.histogram_bin_edges(values, bins)
    named = np.array([NAMELESS if group is None else str(group) for group in groups], dtype=object)
    kinds, sizes = np.unique(named, return_counts=True)
    if len(kinds) == 1 or len(kinds) > MOST_LINES:
        ax.stairs(np.histogram(values, edges)[0], edges, fill=True, color=BLUE)
    else:
        ordered = kinds[np.argsort(-sizes, kind="stable")]
        counts = [np.histogram(values[named == kind], edges)[0] for kind in ordered]
        stacked(ax, edges, zip(map(entry, ordered), counts, CYCLE, strict=False), alpha=0.85)
    if whole:
        ax.set_xlim(edges[0] - 1, edges[-1] + 1)
        whole_numbers(ax.xaxis)
    ax.set_ylabel(things)
    whole_numbers(ax.yaxis)
    ax.set_ylim(bottom=0)
    legend(ax)


def stacked(ax: Axes, edges: Numbers, layers: Iterable[tuple[str | None, Numbers, str]], **look: Any) -> None:
    """Draw steps on top of each other: label, heights and colour of each layer."""
    below = np.zeros(len(edges) - 1)
    for label, heights, colour in layers:
        ax.stairs(below + heights, edges, baseline=below, fill=True, color=colour, label=label, **look)
        below = below + heights


def _edges(values: Numbers, whole: bool) -> Numbers:
    low, high = float(values.min()), float(values.max())
    if whole and high - low < 2 * MOST_POINTS**0.5:
        step = max(1, round((high - low) / 50))
        return np.arange(low - 0.5, high + step + 0.5, step)
    if high - low < NARROW * abs(high):
        low, high = low - NARROW * abs(high), high + NARROW * abs(high)
    if low == high:
        low, high = low - 0.5, high + 0.5
    return np.linspace(low, high, int(np.clip(2 * len(values) ** 0.5, 8, 60)) + 1)


def cloud(ax: Axes, x: Numbers, y: Numbers, groups: Sequence[str | None], things: str) -> None:
    """Draw points, in groups where they are few; of many points their density."""
    for values, set_scale in ((x, ax.set_xscale), (y, ax.set_yscale)):
        if 0 < MANY_TIMES * values.min() < values.max():
            set_scale("log")
    if len(x) > MOST_POINTS:
        _density(ax, x, y, things)
        return
    kinds = list(dict.fromkeys(groups))
    if len(kinds) > MOST_LINES:
        kinds, groups = [None], [None] * len(x)
    for kind, colour in zip(kinds, CYCLE, strict=False):
        here = np.array([group == kind for group in groups])
        label = entry(kind) if len(kinds) > 1 else None
        ax.plot(x[here], y[here], ".", color=colour, markersize=7, alpha=0.75, markeredgewidth=0, label=label)


def _density(ax: Axes, x: Numbers, y: Numbers, things: str) -> None:
    across, up = _axis_bins(x, ax.get_xscale() == "log"), _axis_bins(y, ax.get_yscale() == "log")
    counts = np.histogram2d(x, y, (across, up))[0].T
    filled = np.ma.masked_equal(counts, 0)
    mesh = ax.pcolormesh(across, up, filled, norm=LogNorm(1, max(counts.max(), 2)), cmap="viridis_r", rasterized=True)
    if isinstance(ax.figure, Figure):
        ax.figure.colorbar(mesh, ax=ax, label=things, pad=0.02)


def _axis_bins(values: Numbers, log: bool) -> Numbers:
    low, high = float(values.min()), float(values.max())
    if log:
        return np.geomspace(low, high * 1.001, 101)
    margin = 0.01 * (high - low) or 0.01 * abs(high) or 0.5
    return np.linspace(low - margin, high + margin, 101)
