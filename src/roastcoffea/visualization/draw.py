"""Elements shared by plots: colours, axis units, text, legends, notes, bars and worker lines."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from textwrap import fill, shorten
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import to_rgb
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from roastcoffea.metrics import phases
from roastcoffea.metrics.phases import FAMILIES, FAMILY_OF, SERIES, Family
from roastcoffea.metrics.statistics import Numbers
from roastcoffea.sheets import sheet as cards
from roastcoffea.units import LARGE_PREFIXES, SECONDS_PER_HOUR, SECONDS_PER_MINUTE
from roastcoffea.visualization.inputs import Presence, Series, Span, lasting, on_grid

LETTER: Final = 0.58
"""Mean width of a letter, as a fraction of the font size."""

POINTS_PER_INCH: Final = 72
GAPS: Final[dict[str, Any]] = {"columnspacing": 1.0, "handlelength": 1.4, "handletextpad": 0.5, "labelspacing": 0.3}


def letters(ax: Axes) -> float:
    """Return the font size of axis labels in points. Other font sizes are proportional to this size."""
    return float(ax.xaxis.label.get_fontsize())


def size_in_points(ax: Axes) -> tuple[float, float]:
    """Return the width and height of axes before a layout engine adjusts the axes."""
    box, figure = ax.get_window_extent(), ax.figure.figure
    points = POINTS_PER_INCH / (figure.dpi if figure is not None else POINTS_PER_INCH)
    return box.width * points, box.height * points


def legend(ax: Axes, most: int | None = None) -> None:
    """Draw a legend with at most `most` entries, above the data if the legend is small, and otherwise next to the
    axes."""
    if most is not None and most < 0:
        raise ValueError(f"max_legend_entries must be 0 or more, not {most}")
    handles, labels = ax.get_legend_handles_labels()
    handles, labels = handles[:most], labels[:most]
    if not labels:
        return
    (width, height), size = size_in_points(ax), 0.9 * letters(ax)
    columns = max(1, int(width / (LETTER * size * max(map(len, labels)) + 3.6 * size)))
    rows = math.ceil(len(labels) / columns)
    share = (1.3 * rows + 0.7) * size / height
    if share > 0.15:
        _beside(ax, handles, labels)
        return
    _grow(ax, share / (1 - share))
    look: dict[str, Any] = {"loc": "upper center", "fontsize": size, "frameon": False, "borderaxespad": 0.1}
    ax.legend(handles, labels, ncols=math.ceil(len(labels) / rows), **look, **GAPS)


def _beside(ax: Axes, handles: Sequence[Any], labels: Sequence[str]) -> None:
    """Draw the legend to the right of the axes. Without a layout engine, the axes are made narrower."""
    size = 0.85 * letters(ax)
    lines = [fill(label, 22) for label in labels]
    figure = ax.figure.figure
    if figure is None or figure.get_layout_engine() is None:
        longest = max(len(line) for label in lines for line in label.split("\n"))
        share = (LETTER * longest + 4) * size / size_in_points(ax)[0]
        place = ax.get_position()
        ax.set_position((place.x0, place.y0, place.width * (1 - min(share, 0.5)), place.height))
    look: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0), "fontsize": size, "frameon": False}
    ax.legend(handles, lines, **look, **GAPS | {"labelspacing": 0.6})


def _grow(ax: Axes, share: float) -> None:
    transform = ax.yaxis.get_transform()
    low, high = transform.transform(np.array(ax.get_ylim()))
    top = transform.inverted().transform(np.array([high + share * (high - low)]))[0]
    ax.set_ylim(top=top)


# Classes


def by_family(names: Iterable[str], family_of: Mapping[str, Family] = FAMILY_OF) -> list[str]:
    """Sort classes or phases in stacking order, keeping families together."""
    return sorted(names, key=lambda name: FAMILIES.index(family_of[name]))


def family_labels(names: Mapping[str, str], family_of: Mapping[str, Family] = FAMILY_OF) -> dict[str, str | None]:
    """Return legend labels for classes, given their names.

    All classes in a family have the same colour, so the first class has a label for the whole family.
    """
    labels: dict[str, str | None] = {}
    for _, group in groupby(by_family(names, family_of), family_of.__getitem__):
        own = list(group)
        labels |= dict.fromkeys(own) | {own[0]: ", ".join(names[name] for name in own)}
    return labels


@dataclass(frozen=True, eq=False)
class Scheme:
    """All colours for a light or a dark background."""

    dark: bool
    ground: str
    """Colour of the background, and of thin lines between areas of the same colour."""
    ink: str
    """Colour of text, and of lines that do not belong to a class."""
    quiet: str
    """Colour of axes and reference lines."""
    series: tuple[str, ...]
    of_time: Mapping[str, str]
    of_bytes: Mapping[str, str]
    of_phases: Mapping[str, str]

    def of(self, family: Family) -> str:
        return family.dark if self.dark else family.light


FAMILY_OF_PHASE: Final = {phase.name: FAMILY_OF[phase.time_class] for phase in phases.PHASES}


def _scheme(dark: bool, ground: str, ink: str, quiet: str, series: tuple[str, ...]) -> Scheme:
    of = {family: family.dark if dark else family.light for family in phases.FAMILIES}
    of_time, of_bytes = (
        {name: of[FAMILY_OF[name]] for name in names} for names in (phases.TIME_NAMES, phases.BYTE_NAMES)
    )
    of_phases = {name: of[family] for name, family in FAMILY_OF_PHASE.items()}
    return Scheme(dark, ground, ink, quiet, series, of_time, of_bytes, of_phases)


LIGHT: Final = _scheme(False, "#FFFFFF", "#1C1C1E", "#5B5B60", tuple(one.light for one in SERIES))
DARK: Final = _scheme(True, "#17181A", "#E6E6E8", "#A5A5AB", tuple(one.dark for one in SERIES))

OF_TIME: Final = LIGHT.of_time
OF_BYTES: Final = LIGHT.of_bytes
OF_PHASES: Final = LIGHT.of_phases


def scheme_of(ax: Axes) -> Scheme:
    """Return the colours for these axes. Light labels imply a dark background, even if it is transparent."""
    return scheme_on(str(ax.xaxis.label.get_color()))


def scheme_on(ink: str) -> Scheme:
    """Return the colours that match text in this colour."""
    return DARK if luminance(ink) > cards.MIDDLE else LIGHT


def luminance(colour: str) -> float:
    return cards.luminance(to_rgb(colour))


MOST_BARS: Final = 20
LONGEST_NAME: Final = 30
NAMELESS: Final = "(none)"
NOTE_WIDTH: Final = 46
LONGEST_NOTE: Final = 3 * NOTE_WIDTH


class Scale(NamedTuple):
    """Axis unit, and the factor that converts stored values to this unit."""

    factor: float
    unit: str


ScaleOf = Callable[[float], Scale]


# Units


def bytes_scale(largest: float, unit: str = "B") -> Scale:
    """Choose the unit prefix for which the largest amount has one to three digits before the decimal point."""
    steps = int(np.clip(np.floor(np.log10(max(largest, 1.0)) / 3), 0, len(LARGE_PREFIXES) - 1))
    return Scale(10.0 ** (-3 * steps), f"{LARGE_PREFIXES[steps]}{unit}")


def seconds_scale(longest: float) -> Scale:
    if longest >= 3 * SECONDS_PER_HOUR:
        return Scale(1 / SECONDS_PER_HOUR, "h")
    if longest >= 3 * SECONDS_PER_MINUTE:
        return Scale(1 / SECONDS_PER_MINUTE, "min")
    return Scale(1.0, "s") if longest >= 1 or longest <= 0 else Scale(1e3, "ms")


def time_axis(ax: Axes, start: float, stop: float) -> Callable[[Numbers], Numbers]:
    """Label a time axis, and return a function that converts Unix seconds to axis values."""
    scale = seconds_scale(max(stop - start, 1.0))
    ax.set_xlabel(f"time since the start of the run ({scale.unit})")
    if stop > start:
        ax.set_xlim(0, (stop - start) * scale.factor)
    return lambda moments: (np.asarray(moments, dtype=np.float64) - start) * scale.factor


def whole_numbers(axis: Axis) -> None:
    axis.set_major_locator(MaxNLocator(integer=True, nbins=6, min_n_ticks=1))
    axis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))


# Words


def short(name: str | None, longest: int = LONGEST_NAME) -> str:
    """Format a name for an axis, omitting the middle of a long name and escaping `$`."""
    text = str(NAMELESS if name is None else name).replace("$", r"\$")
    half = (longest - 1) // 2
    return text if len(text) <= longest else f"{text[:half]}…{text[-half:]}"


def entry(name: str | None) -> str:
    """Format a name for a legend. matplotlib omits names that begin with an underscore."""
    text = short(name)
    return f" {text}" if text.startswith("_") else text


def note(ax: Axes, text: str) -> None:
    """Write a note below the x axis label. Very long notes are truncated."""
    remark = fill(shorten(text, LONGEST_NOTE, placeholder=" ..."), NOTE_WIDTH).replace("$", r"\$")
    ax.set_xlabel("\n".join(filter(None, (ax.get_xlabel(), remark))))


# Bars


def bars(
    ax: Axes,
    names: Sequence[str | None],
    parts: Mapping[str, Numbers],
    colours: Mapping[str, str],
    labels: Mapping[str, str | None] | None = None,
) -> None:
    """Draw one stacked horizontal bar per name, with the first bar on top.

    Parts that are zero for all names are omitted. Parts of the same colour are separated by a thin line in the
    background colour.
    """
    places = np.arange(len(names))
    reached = np.zeros(len(names))
    shown = {part: amounts for part, amounts in parts.items() if np.any(amounts)}
    line = 0.6 if len({colours[part] for part in shown}) < len(shown) else 0.0
    for part, amounts in shown.items():
        look: dict[str, Any] = {
            "color": colours[part],
            "edgecolor": scheme_of(ax).ground,
            "linewidth": line,
            "height": 0.75,
        }
        ax.barh(places, amounts, left=reached, label=part if labels is None else labels[part], **look)
        reached = reached + amounts
    ax.set_yticks(places, [short(name) for name in names])
    ax.set_ylim(len(names) - 0.4, -0.6)
    ax.tick_params(axis="y", length=0)
    # otherwise, bars of almost zero length would shift the limit
    ax.set_xlim(left=min(0.0, float(reached.min(initial=0.0))))


def bar_texts(ax: Axes, ends: Sequence[float], texts: Sequence[str]) -> None:
    size = 0.85 * letters(ax)
    for place, (end, text) in enumerate(zip(ends, texts, strict=True)):
        ax.annotate(text, (max(end, 0.0), place), (3, 0), textcoords="offset points", va="center", fontsize=size)
    low, high = min(0.0, *ends), max(0.0, *ends)
    share = min((max(map(len, texts)) * 0.6 * size + 8) / size_in_points(ax)[0], 0.6)
    ax.set_xlim(1.02 * low, high / (1 - share) if high > 0 else 1.0)


def largest_first(totals: Numbers, most: int = MOST_BARS) -> tuple[list[int], list[int]]:
    """Return the indices of the items with separate bars, largest first, and the indices of the other items."""
    order = np.argsort(-totals, kind="stable").tolist()
    return (order, []) if len(order) <= most else (order[: most - 1], order[most - 1 :])


def pooled_bars(
    ax: Axes, names: Sequence[str | None], parts: Mapping[str, tuple[Numbers, str]], scale_of: ScaleOf, label: str
) -> None:
    """Draw bars made up of parts. The largest bar is on top, and the smallest bars are combined."""
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


MOST_LINES: Final = 7
"""Maximum number of workers to draw as separate lines. With more workers, bands are drawn instead."""

GRID: Final = 300
MOST_STEPS: Final = 2000
"""Maximum number of steps in a step function. Longer step functions are drawn on a grid."""

SOLID: Final = "-"
DASHED: Final = (0, (3, 1.2))
DASHES: Final = (SOLID, SOLID, DASHED, DASHED, DASHED, DASHED, SOLID, SOLID)
"""Line styles, in order of use. Each colour in the scheme is used for two lines."""


def worker_lines(ax: Axes, series: Series, span: Span, label: str, scale: float = 1.0, *, steps: bool = False) -> None:
    """Draw one line per worker or, for many workers, the median with bands for 80 % and 100 % of workers.

    With `steps`, each value holds until the next sample.
    """
    scheme, axis, drawstyle = scheme_of(ax), time_axis(ax, *span), "steps-post" if steps else "default"
    if len(series.workers) > MOST_LINES:
        moments, rows = _gridded(series, steps=steps)
        low, tenth, middle, ninth, high = scale * np.nanquantile(rows, [0, 0.1, 0.5, 0.9, 1], axis=0)
        step: Literal["post"] | None = "post" if steps else None
        for bottom, top, alpha, name in (
            (low, high, 0.2, f"all {len(rows)} workers"),
            (tenth, ninth, 0.4, "80 % of workers"),
        ):
            look: dict[str, Any] = {"color": scheme.series[0], "alpha": alpha, "linewidth": 0, "label": name}
            ax.fill_between(axis(moments), bottom, top, step=step, **look)
        ax.plot(axis(moments), middle, color=scheme.ink, linewidth=1.4, label="median", drawstyle=drawstyle)
    else:
        for number, (name, times, values) in enumerate(zip(series.names, series.times, series.values, strict=True)):
            look = {"color": (2 * scheme.series)[number], "linestyle": DASHES[number], "drawstyle": drawstyle}
            # different widths keep overlapping lines visible
            look |= {"linewidth": 1.2 + 0.5 * (len(series.names) - 1 - number), "label": entry(name), "markersize": 4}
            ax.plot(axis(times), values * scale, marker="." if len(times) < 30 and not steps else None, **look)
    _end_of_workers(ax, label)


def worker_steps(  # noqa: PLR0917
    ax: Axes, series: Series, span: Span, label: str, there: Presence, scale: float = 1.0
) -> None:
    """Draw `worker_lines` as steps. Each value holds until the next sample, and the last value until the worker
    left."""
    series = lasting(series, there)
    times, values = ([of_worker[1:] for of_worker in every] for every in (series.times, series.values))
    worker_lines(ax, series._replace(times=times, values=values), span, label, scale, steps=True)


def worker_mean(ax: Axes, series: Series, span: Span, label: str) -> None:
    """Draw the mean over all workers present, with a band from the minimum to the maximum."""
    (grid, rows), scheme = _gridded(series), scheme_of(ax)
    x = time_axis(ax, *span)(grid)
    if len(rows) > 1:
        look: dict[str, Any] = {"color": scheme.series[0], "alpha": 0.25, "linewidth": 0, "label": "minimum to maximum"}
        ax.fill_between(x, np.nanmin(rows, axis=0), np.nanmax(rows, axis=0), **look)
    ax.plot(x, np.nanmean(rows, axis=0), color=scheme.ink, linewidth=1.4, label="mean over workers")
    _end_of_workers(ax, label)


def worker_sum(ax: Axes, series: Series, span: Span, label: str, there: Presence) -> None:
    """Draw the sum over all workers present. Each worker's first value applies from its arrival."""
    moments, rows = _gridded(lasting(series, there), steps=True)
    level(ax, time_axis(ax, *span)(moments), np.nansum(rows, axis=0))
    _end_of_workers(ax, label)


def level(ax: Axes, x: Numbers, values: Numbers) -> None:
    colour = scheme_of(ax).series[0]
    ax.step(x, values, where="post", color=colour, linewidth=1.5)
    ax.fill_between(x, values, step="post", color=colour, alpha=0.3, linewidth=0)
    ax.set_ylim(bottom=0)


def _end_of_workers(ax: Axes, label: str) -> None:
    ax.set_ylim(bottom=0)
    ax.set_ylabel(label)


def _gridded(series: Series, *, steps: bool = False) -> tuple[Numbers, Numbers]:
    """Return a grid of times, and each worker's values at these times.

    For steps, the grid consists of the sample times unless there are too many samples.
    """
    if steps:
        grid = np.unique(np.concatenate(series.times))
        if len(grid) > MOST_STEPS:
            grid = np.linspace(series.begin, series.end, MOST_STEPS)
    else:
        number = min(GRID, 2 * max(map(len, series.times)))
        grid = np.linspace(series.begin, series.end, number if series.end > series.begin else 1)
    rows = on_grid(series, grid, steps=steps)
    known = ~np.isnan(rows).all(axis=0)
    return grid[known], rows[:, known]
