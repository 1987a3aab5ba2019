"""What several plots draw: colours, units of axes, words, legends, notes, bars, and lines of workers."""

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
from roastcoffea.metrics.phases import FAMILIES, FAMILY_OF, Family
from roastcoffea.metrics.statistics import Numbers
from roastcoffea.sheets import sheet as cards
from roastcoffea.units import LARGE_PREFIXES, SECONDS_PER_HOUR, SECONDS_PER_MINUTE
from roastcoffea.visualization.inputs import Presence, Series, Span, lasting, on_grid

LETTER: Final = 0.58
"""Mean width of a letter divided by its size."""

POINTS_PER_INCH: Final = 72
GAPS: Final[dict[str, Any]] = {"columnspacing": 1.0, "handlelength": 1.4, "handletextpad": 0.5, "labelspacing": 0.3}


def letters(ax: Axes) -> float:
    """Size of the letters of labels, in points: others are in proportion to it."""
    return float(ax.xaxis.label.get_fontsize())


def size_in_points(ax: Axes) -> tuple[float, float]:
    """Width and height of axes, before a layout engine moves them."""
    box, figure = ax.get_window_extent(), ax.get_figure(root=True)
    points = POINTS_PER_INCH / (figure.dpi if figure is not None else POINTS_PER_INCH)
    return box.width * points, box.height * points


def legend(ax: Axes, most: int | None = None) -> None:
    """Legend of so many entries: above all that was drawn where it is low, for which the y axis grows, else beside."""
    if most is not None and most < 0:
        raise ValueError(f"a legend has 0 entries or more, not {most}")
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
    """Legend to the right of the axes; where nothing else makes room, these become narrower."""
    size = 0.85 * letters(ax)
    lines = [fill(label, 22) for label in labels]
    figure = ax.get_figure(root=True)
    if figure is None or figure.get_layout_engine() is None:
        longest = max(len(line) for label in lines for line in label.split("\n"))
        share = (LETTER * longest + 4) * size / size_in_points(ax)[0]
        place = ax.get_position()
        ax.set_position((place.x0, place.y0, place.width * (1 - min(share, 0.5)), place.height))
    look: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0), "fontsize": size, "frameon": False}
    ax.legend(handles, lines, **look, **GAPS | {"labelspacing": 0.6})


def _grow(ax: Axes, share: float) -> None:
    """Move the upper end of the y axis outwards by a share of its length."""
    transform = ax.yaxis.get_transform()
    low, high = transform.transform(np.array(ax.get_ylim()))
    top = transform.inverted().transform(np.array([high + share * (high - low)]))[0]
    ax.set_ylim(top=top)


# Classes


def by_family(names: Iterable[str], family_of: Mapping[str, Family] = FAMILY_OF) -> list[str]:
    """Classes, or phases, in the order in which they are stacked: those of a family next to each other."""
    return sorted(names, key=lambda name: FAMILIES.index(family_of[name]))


def family_labels(names: Mapping[str, str], family_of: Mapping[str, Family] = FAMILY_OF) -> dict[str, str | None]:
    """Labels of classes, given how each is called: the first of a family names all of it, as they look alike."""
    labels: dict[str, str | None] = {}
    for _, group in groupby(by_family(names, family_of), family_of.__getitem__):
        own = list(group)
        labels |= dict.fromkeys(own) | {own[0]: ", ".join(names[name] for name in own)}
    return labels


@dataclass(frozen=True, eq=False)
class Scheme:
    """All colours on a background."""

    dark: bool
    ground: str
    """The background itself; thin lines in it separate what has the same colour."""
    ink: str
    """Text, and lines that are no class's."""
    quiet: str
    """Axes, and lines that something is compared with."""
    series: tuple[str, ...]
    """For things without a colour of their own, such as datasets and workers: greens, which stand for no class."""
    of_time: Mapping[str, str]
    of_bytes: Mapping[str, str]
    of_phases: Mapping[str, str]

    def of(self, family: Family) -> str:
        """Colour of a family."""
        return family.dark if self.dark else family.light


FAMILY_OF_PHASE: Final = {phase.name: FAMILY_OF[phase.time_class] for phase in phases.PHASES}


def _scheme(dark: bool, ground: str, ink: str, quiet: str, series: tuple[str, ...]) -> Scheme:
    of = {family: family.dark if dark else family.light for family in phases.FAMILIES}
    of_time, of_bytes = (
        {name: of[FAMILY_OF[name]] for name in names} for names in (phases.TIME_NAMES, phases.BYTE_NAMES)
    )
    of_phases = {name: of[family] for name, family in FAMILY_OF_PHASE.items()}
    return Scheme(dark, ground, ink, quiet, series, of_time, of_bytes, of_phases)


LIGHT: Final = _scheme(False, "#FFFFFF", "#1C1C1E", "#5B5B60", ("#005049", "#5F9963", "#212E01", "#546F4E"))
DARK: Final = _scheme(True, "#17181A", "#E6E6E8", "#A5A5AB", ("#99C8C1", "#03892C", "#DFF7D6", "#839F84"))

OF_TIME: Final = LIGHT.of_time
OF_BYTES: Final = LIGHT.of_bytes
OF_PHASES: Final = LIGHT.of_phases


def scheme_of(ax: Axes) -> Scheme:
    """Colours for these axes: what is labelled in a light colour has a dark background, transparent or not."""
    return scheme_on(str(ax.xaxis.label.get_color()))


def scheme_on(ink: str) -> Scheme:
    """Colours beside text of this colour."""
    return DARK if luminance(ink) > cards.MIDDLE else LIGHT


def luminance(colour: str) -> float:
    """Relative luminance of a colour, from 0 (black) to 1 (white)."""
    return cards.luminance(to_rgb(colour))


MOST_BARS: Final = 20
LONGEST_NAME: Final = 30
NAMELESS: Final = "(none)"
NOTE_WIDTH: Final = 46
LONGEST_NOTE: Final = 3 * NOTE_WIDTH


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


def note(ax: Axes, text: str) -> None:
    """Write a remark below the label of the x axis; a very long one is cut."""
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
    """Draw one horizontal bar a name, the first on top, stacked of parts; parts of nothing but zeros are left out.

    Parts of one colour are told apart by a thin line in that of the background.
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
    ax.set_xlim(left=min(0.0, float(reached.min(initial=0.0))))  # bars of almost nothing move the limit


def bar_texts(ax: Axes, ends: Sequence[float], texts: Sequence[str]) -> None:
    """Write a text beside the end of each bar, and make room for it."""
    size = 0.85 * letters(ax)
    for place, (end, text) in enumerate(zip(ends, texts, strict=True)):
        ax.annotate(text, (max(end, 0.0), place), (3, 0), textcoords="offset points", va="center", fontsize=size)
    low, high = min(0.0, *ends), max(0.0, *ends)
    share = min((max(map(len, texts)) * 0.6 * size + 8) / size_in_points(ax)[0], 0.6)
    ax.set_xlim(1.02 * low, high / (1 - share) if high > 0 else 1.0)


def largest_first(totals: Numbers, most: int = MOST_BARS) -> tuple[list[int], list[int]]:
    """Numbers of those with a bar of their own, largest first, and of the others."""
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


MOST_LINES: Final = 7
"""Workers that have a line each; of more there are bands."""

GRID: Final = 300
MOST_STEPS: Final = 2000
"""Moments of values that hold until the next one; of more those on a grid are drawn."""

SOLID: Final = "-"
DASHED: Final = (0, (3, 1.2))
DASHES: Final = (SOLID, SOLID, DASHED, DASHED, DASHED, DASHED, SOLID, SOLID)
"""Of lines whose colours are those of a scheme, twice over."""


def worker_lines(ax: Axes, series: Series, span: Span, label: str, scale: float = 1.0, *, steps: bool = False) -> None:
    """Draw each worker's line; of many workers the median, and bands of 80 % and all.

    In `steps` values hold from sample to sample.
    """
    scheme, axis, drawstyle = scheme_of(ax), time_axis(ax, *span), "steps-post" if steps else "default"
    if len(series.workers) > MOST_LINES:
        moments, rows = _gridded(series, steps=steps)
        low, tenth, middle, ninth, high = scale * np.nanquantile(rows, [0, 0.1, 0.5, 0.9, 1], axis=0)
        step: Literal["post"] | None = "post" if steps else None
        for bottom, top, alpha, name in (
            (low, high, 0.2, f"all {len(rows)} workers"),
            (tenth, ninth, 0.4, "80 % of them"),
        ):
            look: dict[str, Any] = {"color": scheme.series[0], "alpha": alpha, "linewidth": 0, "label": name}
            ax.fill_between(axis(moments), bottom, top, step=step, **look)
        ax.plot(axis(moments), middle, color=scheme.ink, linewidth=1.4, label="median", drawstyle=drawstyle)
    else:
        for number, (name, times, values) in enumerate(zip(series.names, series.times, series.values, strict=True)):
            look = {"color": (2 * scheme.series)[number], "linestyle": DASHES[number], "drawstyle": drawstyle}
            # so that lines which lie on each other are all seen
            look |= {"linewidth": 1.2 + 0.5 * (len(series.names) - 1 - number), "label": entry(name), "markersize": 4}
            ax.plot(axis(times), values * scale, marker="." if len(times) < 30 and not steps else None, **look)
    _end_of_workers(ax, label)


def worker_steps(  # noqa: PLR0917
    ax: Axes, series: Series, span: Span, label: str, there: Presence, scale: float = 1.0
) -> None:
    """Draw what `worker_lines` does of values that hold from sample to sample, the last one until the worker left."""
    series = lasting(series, there)
    times, values = ([of_worker[1:] for of_worker in every] for every in (series.times, series.values))
    worker_lines(ax, series._replace(times=times, values=values), span, label, scale, steps=True)


def worker_mean(ax: Axes, series: Series, span: Span, label: str) -> None:
    """Draw the mean over the workers present, in a band from the least to the most."""
    (grid, rows), scheme = _gridded(series), scheme_of(ax)
    x = time_axis(ax, *span)(grid)
    if len(rows) > 1:
        look: dict[str, Any] = {"color": scheme.series[0], "alpha": 0.25, "linewidth": 0, "label": "least to most"}
        ax.fill_between(x, np.nanmin(rows, axis=0), np.nanmax(rows, axis=0), **look)
    ax.plot(x, np.nanmean(rows, axis=0), color=scheme.ink, linewidth=1.4, label="mean over workers")
    _end_of_workers(ax, label)


def worker_sum(ax: Axes, series: Series, span: Span, label: str, there: Presence) -> None:
    """Draw the sum over the workers present; each has its first value from its arrival on."""
    moments, rows = _gridded(lasting(series, there), steps=True)
    level(ax, time_axis(ax, *span)(moments), np.nansum(rows, axis=0))
    _end_of_workers(ax, label)


def level(ax: Axes, x: Numbers, values: Numbers) -> None:
    """Draw values that hold until the next one, and the area below."""
    colour = scheme_of(ax).series[0]
    ax.step(x, values, where="post", color=colour, linewidth=1.5)
    ax.fill_between(x, values, step="post", color=colour, alpha=0.3, linewidth=0)
    ax.set_ylim(bottom=0)


def _end_of_workers(ax: Axes, label: str) -> None:
    ax.set_ylim(bottom=0)
    ax.set_ylabel(label)


def _gridded(series: Series, *, steps: bool = False) -> tuple[Numbers, Numbers]:
    """Moments at which anything is known of any worker, and what each had there: of steps, where any changed."""
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
