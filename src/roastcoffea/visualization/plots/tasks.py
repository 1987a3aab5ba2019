"""The task stream: which thread did what, when."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgba

from roastcoffea.metrics.phases import RESIDUAL
from roastcoffea.metrics.statistics import Numbers
from roastcoffea.visualization import draw
from roastcoffea.visualization.colours import OF_TIME
from roastcoffea.visualization.registry import TALL, plot
from roastcoffea.visualization.stream import SHOWN, Stream, main_in_pixels, stream_of

MOST_RECTANGLES: Final = 20_000
MOST_ROWS: Final = 400
COLUMNS: Final = 800
MOST_NAMED: Final = 24
WHITE: Final = "white"

UNTOLD: Final = "not recorded"


@plot("Task stream", size=TALL)
def plot_task_stream(ax: Axes, start: float, attempts: tuple[pa.Table | None, pa.Table | None]) -> None:
    """Draw what each worker thread did from moment to moment, coloured by class of the time ledger.

    A task of the processor has the colour of the class that took the most of it. Of very many tasks a pixel
    shows the class that took the most of its time; failed work wins.
    """
    stream = stream_of(*attempts)
    end = float(stream.stop.max())
    axis = draw.time_axis(ax, start, end)
    if len(stream.start) > MOST_RECTANGLES:
        _draw_raster(ax, stream, start, end, float(axis(np.array([end]))[0]))
    else:
        _draw_rectangles(ax, stream, axis(stream.start), axis(stream.stop))
    _name_lanes(ax, stream)
    for number in np.unique(stream.kind):
        name = SHOWN[number]
        ax.plot([], [], "s", color=OF_TIME[name], label=UNTOLD if name == RESIDUAL else name)
    draw.legend(ax)


def _draw_rectangles(ax: Axes, stream: Stream, left: Numbers, right: Numbers) -> None:
    low, high = stream.lane - 0.42, stream.lane + 0.42
    corners = np.stack([[left, low], [left, high], [right, high], [right, low]]).transpose(2, 0, 1)
    colours = np.array([to_rgba(OF_TIME[name]) for name in SHOWN])[stream.kind]
    many = len(left) > MOST_RECTANGLES // 20
    edge = "none" if many else "white"
    ax.add_collection(
        PolyCollection(list(corners), facecolors=colours, edgecolors=edge, linewidths=0.3, rasterized=many)
    )


def _draw_raster(ax: Axes, stream: Stream, start: float, end: float, right: float) -> None:
    """Pixels of lanes x time, each in the colour of what took the most of it; white where that is nothing."""
    picture = main_in_pixels(stream, min(len(stream.lanes), MOST_ROWS), np.linspace(start, end, COLUMNS + 1)).kind
    colours = np.array([to_rgba(colour) for colour in (*(OF_TIME[name] for name in SHOWN), WHITE)])
    extent = (0.0, right, len(stream.lanes) - 0.5, -0.5)
    ax.imshow(colours[picture], extent=extent, aspect="auto", interpolation="nearest", rasterized=True)


def _name_lanes(ax: Axes, stream: Stream) -> None:
    """Name the worker at the first of its lanes, where there is room for the names."""
    first = [place for place, worker in enumerate(stream.lanes) if place == 0 or stream.lanes[place - 1] != worker]
    ax.set_ylim(len(stream.lanes) - 0.5, -0.5)
    if len(first) > MOST_NAMED or len(stream.lanes) > 4 * MOST_NAMED:
        ax.set_ylabel(f"threads of {stream.workers} workers")
        ax.set_yticks([])
        return
    ax.set_ylabel("threads of workers")
    ax.set_yticks(first, draw.worker_names([stream.lanes[place] for place in first]))
