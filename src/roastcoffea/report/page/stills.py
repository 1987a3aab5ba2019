"""Pictures that do not move, for browsers without scripts."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from typing import Final

import numpy as np
from markupsafe import Markup
from matplotlib.colors import to_rgba
from matplotlib.image import imsave

from roastcoffea.metrics.phases import Family
from roastcoffea.metrics.statistics import Numbers
from roastcoffea.report.markup import rendered
from roastcoffea.report.page.figures import family_of, variable
from roastcoffea.units import SECOND, number, three_digits
from roastcoffea.visualization.stream import SHOWN, Stream, main_in_pixels

WIDTH: Final = 800
HEIGHT: Final = 200
MARGIN: Final = 18
"""Room for a line of text above and below."""

BINS: Final = 150
MOST_ROWS: Final = 150
COLUMNS: Final = 400


def stacked(edges: Numbers, layers: Mapping[str, Numbers], colours: Mapping[str, str], top: str, length: str) -> Markup:
    """Layers on top of each other, in steps: what the highest point is, and how long it is from left to right."""
    sums = np.cumsum(list(layers.values()), axis=0)
    highest = max(float(sums[-1].max()), 1e-12)
    x = (edges - edges[0]) / (edges[-1] - edges[0]) * WIDTH
    y = MARGIN + HEIGHT * (1 - np.vstack([np.zeros(len(sums[0])), sums]) / highest)
    outlines = [f"{_steps(x, y[place + 1])}L{_steps(x[::-1], y[place][::-1])}" for place in range(len(layers))]
    paths = [(colours[name], outline) for name, outline in zip(layers, outlines, strict=True)]
    foot = HEIGHT + 2 * MARGIN - 4
    texts = [(0, MARGIN - 5, "start", top), (0, foot, "start", "0"), (WIDTH, foot, "end", length)]
    return rendered("stacked.svg", width=WIDTH, height=HEIGHT + 2 * MARGIN, top=top, paths=paths, texts=texts)


def classes_picture(edges: Numbers, threads: Mapping[str, Numbers], seconds: float) -> Markup:
    """Threads by class over time, some bins together."""
    together = max(len(edges) // BINS, 1)
    starts = np.arange(0, len(edges) - 1, together)
    counts = np.diff(np.append(starts, len(edges) - 1))
    means = {name: np.add.reduceat(row, starts) / counts for name, row in threads.items()}
    most = f"{number(three_digits(float(np.sum(list(means.values()), axis=0).max())))} threads"
    return stacked(
        np.append(edges[starts], edges[-1]),
        means,
        {name: variable(family_of(name).name) for name in means},
        most,
        SECOND.text(seconds),
    )


def stream_picture(stream: Stream, start: float, stop: float) -> Markup:
    """Lanes x time, in the colours of classes."""
    pixels = main_in_pixels(stream, min(len(stream.lanes), MOST_ROWS), np.linspace(start, stop, COLUMNS + 1))
    families = [family_of(name) for name in SHOWN]
    shown = {
        scheme: np.array([to_rgba(colour) for colour in (*(getattr(one, scheme) for one in families), "none")])
        for scheme in ("light", "dark")
    }
    return _picture({scheme: colours[pixels.kind] for scheme, colours in shown.items()}, "task stream")


def _steps(x: Numbers, y: Numbers) -> str:
    """Points of a line in steps; there is one x more than there are y."""
    points = zip(x[:-1], x[1:], y, strict=True)
    return " ".join(f"{left:.0f},{at:.1f} {right:.0f},{at:.1f}" for left, right, at in points)


def shaded_picture(shares: Numbers, family: Family, name: str) -> Markup:
    """Shares from 0 to 1 as strengths of a colour."""
    images = {}
    for scheme in ("light", "dark"):
        images[scheme] = np.tile(to_rgba(getattr(family, scheme)), (*shares.shape, 1))
        images[scheme][..., 3] = np.clip(np.nan_to_num(shares), 0, 1)
    return _picture(images, name)


def _picture(images: Mapping[str, Numbers], name: str) -> Markup:
    """A picture in light, on paper as well, and in dark where the system prefers that."""
    return rendered("still.html", name=name, **{scheme: _as_png(rgba) for scheme, rgba in images.items()})


def _as_png(rgba: Numbers) -> str:
    file = io.BytesIO()
    imsave(file, rgba, format="png")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
