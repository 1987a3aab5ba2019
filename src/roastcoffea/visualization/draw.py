"""What several plots draw: units of axes, words, notes and bars."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from textwrap import fill, shorten
from typing import Any, Final, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from roastcoffea.metrics.statistics import Numbers
from roastcoffea.units import LARGE_PREFIXES, SECONDS_PER_HOUR, SECONDS_PER_MINUTE
from roastcoffea.visualization.colours import scheme_of
from roastcoffea.visualization.legends import letters, size_in_points

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
        text_beside(ax, max(end, 0.0), place, text, size)
    low, high = min(0.0, *ends), max(0.0, *ends)
    share = min((max(map(len, texts)) * 0.6 * size + 8) / size_in_points(ax)[0], 0.6)
    ax.set_xlim(1.02 * low, high / (1 - share) if high > 0 else 1.0)


def text_beside(ax: Axes, x: float, y: float, text: str, size: float) -> None:
    """Write a text to the right of a point."""
    ax.annotate(text, (x, y), (3, 0), textcoords="offset points", va="center", fontsize=size)


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
