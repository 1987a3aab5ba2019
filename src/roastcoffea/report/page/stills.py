"""Pictures that do not move, for browsers without scripts."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Mapping
from typing import Final

import numpy as np
from matplotlib.colors import to_rgba
from matplotlib.image import imsave

from roastcoffea.metrics.statistics import Numbers
from roastcoffea.report.html import Html
from roastcoffea.visualization.colours import OF_TIME
from roastcoffea.visualization.stream import SHOWN, Stream, main_in_pixels

WIDTH: Final = 800
HEIGHT: Final = 200
MARGIN: Final = 18
"""Room for a line of text above and below."""

MOST_ROWS: Final = 150
COLUMNS: Final = 400


def stacked(edges: Numbers, layers: Mapping[str, Numbers], colours: Mapping[str, str], top: str, length: str) -> Html:
    """Layers on top of each other, in steps: what the highest point is, and how long it is from left to right."""
    sums = np.cumsum(list(layers.values()), axis=0)
    highest = max(float(sums[-1].max()), 1e-12)
    x = (edges - edges[0]) / (edges[-1] - edges[0]) * WIDTH
    y = MARGIN + HEIGHT * (1 - np.vstack([np.zeros(len(sums[0])), sums]) / highest)
    paths = [
        f'<path fill="{colours[name]}" d="M{_steps(x, y[place + 1])}L{_steps(x[::-1], y[place][::-1])}Z"/>'
        for place, name in enumerate(layers)
    ]
    texts = _word(0, MARGIN - 5, "start", top) + _word(0, HEIGHT + 2 * MARGIN - 4, "start", "0")
    texts += _word(WIDTH, HEIGHT + 2 * MARGIN - 4, "end", length)
    size = f"0 0 {WIDTH} {HEIGHT + 2 * MARGIN}"
    return Html(f'<svg viewBox="{size}" role="img" aria-label="{html.escape(top)}">{"".join(paths)}{texts}</svg>')


def stream_picture(stream: Stream, start: float, stop: float) -> Html:
    """Lanes x time, in the colours of classes."""
    pixels = main_in_pixels(stream, min(len(stream.lanes), MOST_ROWS), np.linspace(start, stop, COLUMNS + 1))
    colours = np.array([to_rgba(colour) for colour in (*(OF_TIME[name] for name in SHOWN), "white")])
    file = io.BytesIO()
    imsave(file, colours[pixels.kind], format="png")
    data = base64.b64encode(file.getvalue()).decode()
    return Html(f'<img class="still" alt="task stream" src="data:image/png;base64,{data}">')


def _steps(x: Numbers, y: Numbers) -> str:
    """Points of a line in steps; there is one x more than there are y."""
    points = zip(x[:-1], x[1:], y, strict=True)
    return " ".join(f"{left:.0f},{at:.1f} {right:.0f},{at:.1f}" for left, right, at in points)


def _word(x: int, y: int, anchor: str, content: str) -> str:
    where = f'x="{x}" y="{y}" text-anchor="{anchor}" font-size="13"'
    return f'<text {where} fill="currentColor">{html.escape(content)}</text>'
