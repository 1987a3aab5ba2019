"""Figures in page colours, and the charts of chunks and workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from bokeh import models
from bokeh.plotting import figure

from roastcoffea.metrics.catalogue import refuse_if
from roastcoffea.metrics.evaluation import Evaluator
from roastcoffea.metrics.facts import known_names, rows_where, with_outcome
from roastcoffea.metrics.phases import COMPUTING, FAMILY_OF, IDLING, TROUBLE, Family
from roastcoffea.metrics.statistics import Numbers, amounts, integers, moments, one_of, places
from roastcoffea.records.arrow import pairs, rows_in
from roastcoffea.records.chunks import OK
from roastcoffea.records.columns import Row
from roastcoffea.report.tables import known
from roastcoffea.units import SECOND, SECONDS_PER_DAY, SECONDS_PER_HOUR, SECONDS_PER_MINUTE, number, three_digits
from roastcoffea.visualization.distributions import Stream
from roastcoffea.visualization.inputs import busy_in_pixels

MILLISECONDS: Final = 1e3
INK: Final = "ink"
QUIET: Final = "quiet"
PALE: Final = 0.55
"""Opacity of pale colours. shapes.js uses the same value."""

PALED: Final = f"color-mix(in srgb, var(--rc-{TROUBLE.name}) {100 * PALE:.0f}%, var(--paper))"
"""Colour of time spent waiting for a core or the GIL."""


class Chart(NamedTuple):
    """A figure, the data that scripts draw in it, and its legend."""

    figure: Any
    facts: Mapping[str, Any]
    legend: Mapping[str, str] = {}
    note: str = ""


class Context(NamedTuple):
    inputs: Evaluator
    start: float
    stop: float
    window: Any
    """Time range shared by all figures with a time axis. Users can move it."""

    every_task: bool

    def since_start(self, moments: Numbers) -> Numbers:
        """Convert times to milliseconds since the run began."""
        return (moments - self.start) * MILLISECONDS


def family_of(name: str) -> Family:
    return FAMILY_OF.get(name, IDLING)


def variable(colour: str) -> str:
    """CSS for a family's colour, `INK`, `QUIET` or `PALED`."""
    return colour if colour == PALED else f"var(--{colour})" if colour in {INK, QUIET} else f"var(--rc-{colour})"


def painted(colour: str) -> dict[str, str]:
    """Arguments for a glyph that scripts paint in the page's colours, light or dark."""
    return {"name": f"paint-{colour}"}


def own_figure(name: str, pixels: int, **options: Any) -> Any:
    """Figure as wide as the page, with a grid and axes that suit any background."""
    look: dict[str, Any] = {
        "sizing_mode": "stretch_width",
        "output_backend": "canvas",
        "min_border_left": 100,  # charts.js uses the same value; equal margins align the time axes
        "min_border_right": 100,
        "lod_threshold": None,
        "toolbar_location": None,
        "tools": [],
    }
    plot = figure(name=name, height=pixels, **look | options)
    plot.toolbar.logo = None
    plot.grid.grid_line_color = "#808080"
    plot.grid.grid_line_alpha = 0.25
    for axis in plot.axis:
        dress(axis)
    return plot


def time_figure(  # noqa: PLR0917
    name: str, context: Context, label: str, heights: tuple[float, float], pixels: int, zoom: str = "xbox_zoom"
) -> Any:
    length = context.stop - context.start
    has_durations = hasattr(models, "TimedeltaTickFormatter")  # available since Bokeh 3.8
    plot = own_figure(
        name,
        pixels,
        x_range=context.window,
        y_range=models.Range1d(start=heights[0], end=heights[1], bounds=(min(heights), max(heights))),
        x_axis_type="timedelta" if has_durations else "datetime" if length < SECONDS_PER_DAY else "linear",
        y_axis_label=label,
        toolbar_location="above",
        tools=["xpan", zoom, "xwheel_zoom", "reset"],
        active_drag="xpan",
        active_scroll=None,  # otherwise, the mouse wheel would not scroll the page
    )
    # short, so that labels on narrow screens do not overlap
    unit, clock = (" s", "%s") if length < SECONDS_PER_MINUTE else ("", "%m:%S")
    if length >= SECONDS_PER_HOUR:
        clock = "%h:%M:%S"
    forms: dict[str, Any] = {"microseconds": f"{clock}.%MS%US{unit}", "milliseconds": f"{clock}.%MS{unit}"}
    forms |= dict.fromkeys(("seconds", "minsec", "minutes", "hourmin", "hours"), f"{clock}{unit}")
    forms |= {"days": "%d days"}
    if has_durations:
        plot.xaxis.formatter = models.TimedeltaTickFormatter(**forms)
    elif length < SECONDS_PER_DAY:  # times of day represent elapsed times
        formats = {name: form.replace("%MS", "%3N").replace("%US", "") for name, form in forms.items()}
        formats = {name: form.replace("%m", "%M").replace("%h", "%H") for name, form in formats.items()}
        formats["days"] = "0 s"
        plot.xaxis.formatter = models.DatetimeTickFormatter(**formats)
    else:
        plot.xaxis.formatter = models.PrintfTickFormatter(format="%.0f ms")
    return plot


def dress(axis: Any) -> None:
    axis.axis_label_text_font_style = "normal"
    axis.minor_tick_line_color = None


def drawn_by_script(glyph: Callable[..., Any], name: str, columns: Sequence[str], **look: Any) -> None:
    """Add glyphs whose colours and positions (in these columns) are set by a script."""
    source = models.ColumnDataSource({column: [] for column in (*columns, "colour")}, name=name)
    glyph(source=source, **{column: column for column in columns}, **look)


EDGES: Final = ("left", "right", "top", "bottom")


def raster(plot: Any, name: str) -> None:
    """Let a script draw an image in a figure. The y axis gets no ticks."""
    plot.yaxis.ticker = models.FixedTicker(ticks=[])
    drawn_by_script(plot.image_rgba, name, ("image", "x", "y", "dw", "dh"))


# Chunks

MOST_POINTS: Final = 3000
"""Maximum number of chunks to draw of each kind. If there are more, they are sampled evenly."""


def chunk_points(context: Context) -> Chart:
    """Duration of each chunk against its number of events. Triangles mark outliers, which took much longer than
    predicted for their size, file and worker. Diamonds mark chunks on slow workers.
    """
    inputs = context.inputs
    chunks = inputs.value("chunk_attempts")
    names = ["id", "events", "wall_seconds", "dataset", "file", "entry_start", "entry_stop", "worker", "outcome"]
    chunks = with_outcome(chunks.select(names), (OK,))
    chunks = rows_where(chunks, pc.and_(chunks["events"].is_valid(), chunks["wall_seconds"].is_valid()))
    refuse_if(not len(chunks), "no chunk has both events and a duration")
    events, wall = amounts(chunks, "events"), amounts(chunks, "wall_seconds")
    late = pairs(known(inputs, "stragglers"), "id", "expected_seconds")
    is_late = np.isin(integers(chunks["id"], -1), [*late])
    on_slow = one_of(chunks["worker"], pa.array(known(inputs, "slow_workers") or (), pa.string()))
    plot = own_figure(
        "points",
        300,
        x_range=models.Range1d(start=0, end=1.06 * max(float(events.max()), 1.0)),
        y_range=models.Range1d(start=0, end=1.08 * max(float(wall.max()), 1e-6)),
        x_axis_label="events in the chunk",
        y_axis_label="duration (s)",
        tools=["pan", "box_zoom", "reset"],
        toolbar_location="above",
    )
    plot.xaxis.formatter = models.NumeralTickFormatter(format="0,0")
    plot.xaxis.ticker.desired_num_ticks = 4  # more ticks would overlap on narrow screens
    workers, tips, drawn = known_names(inputs).workers, {}, 0
    kinds = {
        "usual": (~is_late & ~on_slow, COMPUTING, "circle", 6),
        "on slow workers": (~is_late & on_slow, TROUBLE, "diamond", 12),
        "outliers": (is_late, TROUBLE, "triangle", 11),
    }
    for kind, (here, family, marker, size) in kinds.items():
        rows = np.flatnonzero(here)
        rows = rows[np.linspace(0, len(rows) - 1, min(len(rows), MOST_POINTS)).astype(int)]
        tips[kind] = [_told(row, late, workers) for row in rows_in(chunks.take(pa.array(rows)))]
        points = {"x": events[rows], "y": wall[rows]}
        source = models.ColumnDataSource(points, name=f"points-{kind}")
        look: Any = {"marker": marker, "size": size, "line_width": 0, "fill_alpha": 0.75}
        plot.scatter(x="x", y="y", source=source, **look, **painted(family.name))
        drawn += len(rows)
    note = "" if drawn == len(wall) else f"{number(drawn)} of {number(len(wall))} chunks are drawn, sampled evenly."
    return Chart(plot, tips, note=note)


def _told(row: Row, late: Mapping[int, float], workers: Mapping[str, str]) -> list[str]:
    """Lines of a chunk's tooltip."""
    expected = f", expected {SECOND.text(late[row['id']])}" if row["id"] in late else ""
    first, last, worker = row["entry_start"], row["entry_stop"], row["worker"] or ""
    entries = "" if first is None or last is None else f", entries {number(first)} to {number(last)}"
    return [
        f"{SECOND.text(row['wall_seconds'])}{expected}",
        f"{number(row['events'])} events of {row['dataset'] or ''}",
        f"{row['file'] or ''}{entries}",
        f"{workers[worker]}, {worker}" if worker in workers else worker,
    ]


# Workers

MOST_ROWS: Final = 250
COLUMNS: Final = 200


def worker_map(context: Context) -> Chart:
    """Threads, CPU and memory used by each worker over time. Full colour means 100 %. "x2" after a name marks a worker
    that takes twice as long as the others.
    """
    inputs, length = context.inputs, context.stop - context.start
    stream: Stream = inputs.value("stream")
    workers = list(dict.fromkeys(stream.lanes))
    rows = min(len(workers), MOST_ROWS)
    row_of = np.arange(len(workers)) * rows // len(workers)
    measures = {"threads with a task": _busy(stream, workers, context)} | _sampled(context, workers)
    # mean of the workers that share a row
    maps = {name: pd.DataFrame(values).groupby(row_of).mean().clip(0, 1) for name, values in measures.items()}
    plot = own_figure(
        "heat",
        int(np.clip(22 * rows + 70, 130, 460)),
        x_range=models.Range1d(start=0, end=length),
        y_range=models.Range1d(start=rows - 0.5, end=-0.5),
        x_axis_label="seconds since the run began",
    )
    plot.grid.visible = False
    raster(plot, "heat-map")
    slowness = pairs(known(inputs, "worker_balance"), "worker", "slowness")
    facts = {
        "rows": rows,
        "columns": COLUMNS,
        "seconds": length,
        "maps": [
            [name, (100 * values).round().fillna(-1).astype(int).to_numpy().ravel().tolist()]
            for name, values in maps.items()
        ],
        "paint": COMPUTING.name,
        "workers": workers,
        "slow": {worker: three_digits(factor) for worker, factor in slowness.items() if (factor or 0) >= 1.5},
    }
    return Chart(plot, facts)


def _busy(stream: Stream, workers: Sequence[str], context: Context) -> Numbers:
    place = {worker: number for number, worker in enumerate(workers)}
    of_lane = np.array([place[worker] for worker in stream.lanes])
    edges = np.linspace(context.start, context.stop, COLUMNS + 1)
    seconds = busy_in_pixels(of_lane[stream.lane], stream.start, stream.stop, (len(workers), COLUMNS), edges)
    return np.asarray(seconds / (np.bincount(of_lane)[:, None] * (edges[1] - edges[0])))


def _sampled(context: Context, workers: Sequence[str]) -> dict[str, Numbers]:
    """CPU use per thread and memory share. Each value holds until the worker's next report."""
    samples = known(context.inputs, "worker_samples")
    if samples is None:
        return {}
    worker, since = places(samples["worker"], workers), moments(samples, "time") - context.start
    bins = COLUMNS * since / (context.stop - context.start)
    here = (worker >= 0) & (bins > -1)
    # a report may arrive at the very end
    place = worker[here] * COLUMNS + np.minimum(bins[here].astype(int), COLUMNS - 1)
    threads_of = pairs(context.inputs.value("worker_lifetimes"), "worker", "threads")
    threads = np.array([threads_of.get(name) or 1 for name in workers])
    limit = moments(samples, "memory_limit")
    measures = {
        "CPU": moments(samples, "cpu_percent") / 100 / threads[worker],
        "memory": moments(samples, "memory") / np.where(limit > 0, limit, np.nan),
    }
    found = {}
    for name, values in measures.items():
        grid, measured = np.full((len(workers), COLUMNS), np.nan), ~np.isnan(values[here])
        grid.flat[place[measured]] = values[here][measured]  # of several reports, the last one counts
        if measured.any():
            found[name] = pd.DataFrame(grid).ffill(axis=1, limit_area="inside").to_numpy()
    return found
