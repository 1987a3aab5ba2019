"""How values of many chunks are distributed: histograms, clouds of points and their density, layers of areas."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from textwrap import fill
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, LogNorm
from matplotlib.figure import Figure
from matplotlib.patches import StepPatch

from roastcoffea.metrics.statistics import Numbers
from roastcoffea.units import number, three_digits
from roastcoffea.visualization.draw import NAMELESS, entry, legend, scheme_of, whole_numbers

MOST_GROUPS: Final = 4
"""Datasets that are told apart; of more the smallest are drawn together."""

MOST_POINTS: Final = 3000
"""Points that are drawn one by one; more are drawn as a density."""


NARROW: Final = 0.01
"""Spread of values, divided by the largest, below which they count as one."""


Bins = int | Sequence[float] | None
"""Number of bins, or their edges; None for as many as the values ask for."""


class Group(NamedTuple):
    """Values that belong together."""

    name: str
    here: npt.NDArray[np.bool_]
    colour: str
    marker: str


def groups_of(ax: Axes, names: Sequence[str | None]) -> list[Group]:
    """Groups by name, largest first; the smallest of many are one."""
    named = np.array([NAMELESS if name is None else str(name) for name in names], dtype=object)
    kinds, sizes = np.unique(named, return_counts=True)
    ordered = kinds[np.argsort(-sizes, kind="stable")].tolist()
    own = ordered if len(ordered) <= MOST_GROUPS else ordered[: MOST_GROUPS - 1]
    masks = {entry(kind): named == kind for kind in own}
    if len(own) < len(ordered):
        masks[f"{len(ordered) - len(own)} others"] = ~np.isin(named, own)
    looks = zip(masks.items(), scheme_of(ax).series, "os^D", strict=False)
    return [Group(name, here, colour, marker) for (name, here), colour, marker in looks]


def distribution(
    ax: Axes,
    values: Numbers,
    names: Sequence[str | None],
    things: str,
    label: str,
    *,
    bins: Bins = None,
    whole: bool = False,
    colour: str | None = None,
) -> None:
    """Draw how values are distributed, stacked of groups; values that are one and the same are a sentence.

    Parameters
    ----------
    whole
        Whether values are whole numbers, which get bins of their own.
    colour
        That of a single group.
    """
    ax.set(xlabel=label, ylabel=things)
    if bins is None and np.ptp(values) <= (0 if whole else NARROW * np.abs(values).max()):
        sentence(ax, f"{label}: {_one_value(values)} for {_all_of(len(values), things)}")
        return
    edges = _edges(values, whole) if bins is None else np.histogram_bin_edges(values, bins)
    groups = groups_of(ax, names)
    if len(groups) == 1:
        groups = [groups[0]._replace(colour=colour or groups[0].colour)]
    counts = [(group.name if len(groups) > 1 else None, np.histogram(values[group.here], edges)[0]) for group in groups]
    stacked(ax, edges, [(name, count, group.colour) for (name, count), group in zip(counts, groups, strict=True)])
    if whole:
        ax.set_xlim(edges[0] - 1, edges[-1] + 1)
        whole_numbers(ax.xaxis)
    whole_numbers(ax.yaxis)
    ax.set_ylim(bottom=0)
    legend(ax)


def sentence(ax: Axes, text: str) -> None:
    """Say in words, in place of a picture, what has but one value."""
    ax.set_axis_off()
    words = fill(text, 46).replace("$", r"\$")
    ax.text(0.5, 0.5, words, ha="center", va="center", transform=ax.transAxes, linespacing=1.6)


def _one_value(values: Numbers) -> str:
    spread = "" if np.ptp(values) == 0 else f" (within {NARROW:.0%})".replace("%", " %")
    return f"{number(three_digits(float(np.median(values))))}{spread}"


def _all_of(amount: int, things: str) -> str:
    return f"the only {things.removesuffix('s')}" if amount == 1 else f"all {number(amount)} {things}"


def stacked(
    ax: Axes, edges: Numbers, layers: Iterable[tuple[str | None, Numbers, str]], **look: Any
) -> list[tuple[Numbers, Numbers]]:
    """Draw steps on top of each other: label, heights and colour of each layer; give both its lines.

    Layers of one colour are told apart by a thin line in that of the background.
    """
    below, last, lines = np.zeros(len(edges) - 1), None, []
    for label, heights, colour in layers:
        above = below + heights
        steps(ax, above, edges, below, facecolor=colour, linewidth=0, label=label, **look)
        if colour == last:
            between = np.where((below > 0) & (heights > 0), below, np.nan)
            steps(ax, between, edges, edgecolor=scheme_of(ax).ground, linewidth=0.6)
        lines.append((below, above))
        below, last = above, colour
    return lines


def steps(ax: Axes, values: Numbers, edges: Numbers, baseline: Numbers | None = None, **look: Any) -> None:
    """Draw a line in steps, or the area down to a baseline.

    `Axes.stairs` looks for the extremes of each segment as of a curve, which takes a tenth of a second for 1000 bins.
    """
    flat: Any = baseline  # matplotlib's types know no arrays
    patch = StepPatch(values, edges, baseline=flat, fill=baseline is not None, **look)
    heights = values if baseline is None else np.append(values, baseline)
    ax.add_artist(patch)
    if np.isfinite(heights).any():
        ax.update_datalim([(edges[0], np.nanmin(heights)), (edges[-1], np.nanmax(heights))])
    if baseline is not None:
        patch.sticky_edges.y.append(float(np.min(baseline)))
    ax.autoscale_view()


def _edges(values: Numbers, whole: bool) -> Numbers:
    low, high = float(values.min()), float(values.max())
    if whole and high - low < 2 * MOST_POINTS**0.5:
        step = max(1, round((high - low) / 50))
        return np.arange(low - 0.5, high + step + 0.5, step)
    return np.linspace(low, high, int(np.clip(2 * len(values) ** 0.5, 8, 60)) + 1)


# Clouds


def cloud(ax: Axes, x: Numbers, y: Numbers, names: Sequence[str | None], things: str) -> None:
    """Draw points in groups; of many points their density."""
    for values, set_scale in ((x, ax.set_xscale), (y, ax.set_yscale)):
        if 0 < 100 * values.min() < values.max():
            set_scale("log")
    if len(x) > MOST_POINTS:
        _density(ax, x, y, things)
        return
    groups = groups_of(ax, names)
    for group in groups:
        look: dict[str, Any] = {"color": group.colour, "markersize": 4, "alpha": 0.75, "markeredgewidth": 0}
        label = group.name if len(groups) > 1 else None
        ax.plot(x[group.here], y[group.here], group.marker, linestyle="none", label=label, **look)


def _density(ax: Axes, x: Numbers, y: Numbers, things: str) -> None:
    across, up = _axis_bins(x, ax.get_xscale() == "log"), _axis_bins(y, ax.get_yscale() == "log")
    counts = np.histogram2d(x, y, (across, up))[0].T
    filled, norm = np.ma.masked_equal(counts, 0), LogNorm(1, max(counts.max(), 2))
    least, most = scheme_of(ax).series[1], scheme_of(ax).series[2]
    colours = LinearSegmentedColormap.from_list("density", [least, most])
    mesh = ax.pcolormesh(across, up, filled, norm=norm, cmap=colours, rasterized=True)
    if isinstance(ax.figure, Figure):
        ax.figure.colorbar(mesh, ax=ax, label=things, pad=0.02)


def _axis_bins(values: Numbers, log: bool) -> Numbers:
    low, high = float(values.min()), float(values.max())
    if log:
        return np.geomspace(low, high * 1.001, 101)
    margin = 0.01 * (high - low) or 0.01 * abs(high) or 0.5
    return np.linspace(low - margin, high + margin, 101)
