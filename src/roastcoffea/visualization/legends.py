"""Names of what is drawn: legends above or beside it, by family of classes, and names within areas."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from textwrap import fill
from typing import Any, Final, NamedTuple

import numpy as np
from matplotlib.axes import Axes

from roastcoffea.metrics.phases import FAMILIES, FAMILY_OF, Family
from roastcoffea.metrics.statistics import Numbers
from roastcoffea.report.cards import ink_on

MOST_ABOVE: Final = 0.15
"""Share of the height of axes that a legend within them takes at most; a higher one stands beside them."""

MOST_BESIDE: Final = 0.5
"""Share of the width that axes give up for a legend beside them, where no layout engine makes room."""

LABEL_WIDTH: Final = 22
LETTER: Final = 0.58
"""Mean width of a letter divided by its size."""

POINTS_PER_INCH: Final = 72
GAPS: Final[dict[str, Any]] = {"columnspacing": 1.0, "handlelength": 1.4, "handletextpad": 0.5, "labelspacing": 0.3}


class Layer(NamedTuple):
    """An area between two lines in steps."""

    name: str
    below: Numbers
    above: Numbers
    colour: str


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
    if share > MOST_ABOVE:
        _beside(ax, handles, labels)
        return
    _grow(ax, share / (1 - share))
    look: dict[str, Any] = {"loc": "upper center", "fontsize": size, "frameon": False, "borderaxespad": 0.1}
    ax.legend(handles, labels, ncols=math.ceil(len(labels) / rows), **look, **GAPS)


def _beside(ax: Axes, handles: Sequence[Any], labels: Sequence[str]) -> None:
    """Legend to the right of the axes; where nothing else makes room, these become narrower."""
    size = 0.85 * letters(ax)
    lines = [fill(label, LABEL_WIDTH) for label in labels]
    figure = ax.get_figure(root=True)
    if figure is None or figure.get_layout_engine() is None:
        longest = max(len(line) for label in lines for line in label.split("\n"))
        share = (LETTER * longest + 4) * size / size_in_points(ax)[0]
        place = ax.get_position()
        ax.set_position((place.x0, place.y0, place.width * (1 - min(share, MOST_BESIDE)), place.height))
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


def name_layers(ax: Axes, edges: Numbers, layers: Iterable[Layer]) -> None:
    """Write the names of layers into them, where there is room."""
    size, (width, height) = 0.8 * letters(ax), size_in_points(ax)
    (left, right), (bottom, top) = ax.get_xlim(), ax.get_ylim()
    needed = 1.5 * size * (top - bottom) / height
    for layer in layers:
        # axes become narrower by labels and legend once they are laid out
        span = 1.5 * (LETTER * size * len(layer.name) + size) * (right - left) / width
        bins = math.ceil(span / (edges[1] - edges[0]))
        if bins > len(layer.above):
            continue
        low, high = (
            extreme(np.lib.stride_tricks.sliding_window_view(line, bins), axis=1)
            for extreme, line in ((np.max, layer.below), (np.min, layer.above))
        )
        best = int(np.argmax(high - low))
        if high[best] - low[best] >= needed:
            look: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": size, "color": ink_on(layer.colour)}
            ax.text((edges[best] + edges[best + bins]) / 2, (low[best] + high[best]) / 2, layer.name, **look)
