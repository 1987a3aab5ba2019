"""Chunks as points, workers as a heat map, and pictures that do not move for browsers without scripts."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from bokeh import models
from markupsafe import Markup
from matplotlib.colors import to_rgba
from matplotlib.image import imsave

from roastcoffea.metrics.catalogue import NotMeasuredError, refuse_if
from roastcoffea.metrics.phases import COMPUTING, TROUBLE, Family
from roastcoffea.metrics.statistics import Numbers
from roastcoffea.records.chunks import OK
from roastcoffea.report.page.figures import Chart, Context, family_of, own_figure, painted, variable
from roastcoffea.sheets.markup import rendered
from roastcoffea.units import SECOND, number, three_digits
from roastcoffea.visualization.inputs import busy_in_pixels
from roastcoffea.visualization.stream import SHOWN, Stream, main_in_pixels, stream_of

MOST_POINTS: Final = 3000
"""Chunks that are drawn one by one; of more, as many, evenly chosen, and all outliers."""

MOST_OUTLIERS: Final = 500
USUAL: Final = "usual"
OUTLIERS: Final = "outliers"
ON_SLOW: Final = "on slow workers"
IN_STILL: Final = 1000
WORDS: Final = ("dataset", "file", "entry_start", "entry_stop", "worker")


def chunk_points(context: Context) -> Chart:
    """Duration of each chunk against its events. Triangles are outliers: they took much longer than their events,
    bytes, file and worker predict. Diamonds are chunks of slow workers.
    """
    attempts: pa.Table = context.inputs.value("chunk_attempts")
    whole = pc.and_(attempts["events"].is_valid(), attempts["wall_seconds"].is_valid())
    known = pc.fill_null(pc.and_(whole, pc.equal(attempts["outcome"], OK)), False).to_numpy()
    refuse_if(not known.any(), "of no chunk both events and duration are known")
    outliers = _outliers(context)
    is_outlier = known & np.isin(attempts["id"].to_numpy(), list(outliers))
    on_slow = known & ~is_outlier & pc.is_in(attempts["worker"], value_set=_slow_workers(context)).to_numpy()
    kinds = {USUAL: known & ~is_outlier & ~on_slow, ON_SLOW: on_slow, OUTLIERS: is_outlier}
    columns = attempts.select(["id", "events", "wall_seconds", *WORDS])
    points = {name: _some(columns, np.flatnonzero(here)) for name, here in kinds.items()}
    plot = _figure(pa.concat_tables(points.values()))
    for name, (colour, marker, size) in LOOKS.items():
        table = points[name]
        data = {"x": table["events"].to_numpy(), "y": table["wall_seconds"].to_numpy()}
        source = models.ColumnDataSource(data, name=f"points-{name}")
        look: Any = {"marker": marker, "size": size, "line_width": 0, "fill_alpha": 0.75}
        plot.scatter(x="x", y="y", source=source, **look, **painted(colour.name))
    words = {name: _words(table, outliers) for name, table in points.items()}
    drawn = sum(map(len, points.values()))
    of_all = int(known.sum())
    note = "" if drawn == of_all else f"{number(drawn)} of {number(of_all)} chunks are drawn, evenly chosen."
    return Chart(plot, _still(points), {}, {}, json.dumps(words).encode(), note)


LOOKS: Final = {
    USUAL: (COMPUTING, "circle", 6),
    ON_SLOW: (TROUBLE, "diamond", 12),
    OUTLIERS: (TROUBLE, "triangle", 11),
}


def _some(chunks: pa.Table, rows: Any) -> pa.Table:
    """Chunks of these rows; of too many, evenly chosen ones."""
    chosen = rows if len(rows) <= MOST_POINTS else rows[np.linspace(0, len(rows) - 1, MOST_POINTS).astype(int)]
    return chunks.take(pa.array(chosen, pa.int64()))


def _slow_workers(context: Context) -> pa.Array:
    try:
        return pa.array(list(context.inputs.value("slow_workers")), pa.string())
    except NotMeasuredError:
        return pa.array([], pa.string())


def _outliers(context: Context) -> dict[int, float]:
    """Seconds that were expected of each outlier, by the identity of its record."""
    try:
        found = context.inputs.value("stragglers")
    except NotMeasuredError:
        return {}
    rows = found.slice(0, MOST_OUTLIERS)
    return dict(zip(rows["id"].to_pylist(), rows["expected_seconds"].to_pylist(), strict=True))


def _figure(chunks: pa.Table) -> Any:
    most = {name: float(pc.max(chunks[name]).as_py()) for name in ("events", "wall_seconds")}
    plot = own_figure(
        "points",
        300,
        x_range=models.Range1d(start=0, end=1.06 * max(most["events"], 1.0)),
        y_range=models.Range1d(start=0, end=1.08 * max(most["wall_seconds"], 1e-6)),
        x_axis_label="events of the chunk",
        y_axis_label="duration (s)",
        tools=["pan", "box_zoom", "reset"],
        toolbar_location="above",
    )
    plot.xaxis.formatter = models.NumeralTickFormatter(format="0,0")
    plot.xaxis.ticker.desired_num_ticks = 4  # on narrow screens more would run into each other
    return plot


def _words(chunks: pa.Table, outliers: dict[int, float]) -> dict[str, list[Any]]:
    """What the pointer tells of each point: datasets, files and workers once, and their numbers."""
    found: dict[str, list[Any]] = {}
    for name in WORDS:
        values = chunks[name].combine_chunks()
        if pa.types.is_integer(values.type):
            found[name] = values.to_pylist()
        else:
            encoded = values.dictionary_encode()
            found[f"{name}s"], found[name] = encoded.dictionary.to_pylist(), encoded.indices.to_pylist()
    expected = [outliers.get(one) for one in chunks["id"].to_pylist()]
    found["expected"] = [None if seconds is None else SECOND.text(seconds) for seconds in expected]
    return found if any(found["expected"]) else {key: value for key, value in found.items() if key != "expected"}


def _still(points: dict[str, pa.Table]) -> Any:
    tables = [(variable(colour.name), points[name]) for name, (colour, *_) in LOOKS.items()]
    most = [max(float(pc.max(table[name]).as_py() or 0) for _, table in tables) for name in ("events", "wall_seconds")]
    dots = [
        (f"{980 * events / max(most[0], 1):.0f}", f"{290 - 280 * seconds / max(most[1], 1e-9):.0f}", colour)
        for colour, table in tables
        for events, seconds in zip(
            table["events"].to_pylist()[:IN_STILL], table["wall_seconds"].to_pylist()[:IN_STILL], strict=True
        )
    ]
    return rendered("points.svg", dots=dots, label=f"chunks up to {number(most[0])} events and {SECOND.text(most[1])}")


WIDTH: Final = 800
HEIGHT: Final = 200
MARGIN: Final = 18
"""Room for a line of text above and below."""

BINS: Final = 150
STILL_ROWS: Final = 150
STILL_COLUMNS: Final = 400


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
    pixels = main_in_pixels(stream, min(len(stream.lanes), STILL_ROWS), np.linspace(start, stop, STILL_COLUMNS + 1))
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


MOST_ROWS: Final = 250
COLUMNS: Final = 200
UNKNOWN: Final = 255
FULL: Final = 50
"""What stands for all of a worker's threads, cores or memory in a byte."""

SLOW: Final = 1.5
"""Slowness above which the axis shows it."""

BUSY: Final = "threads with a task"
CPU: Final = "CPU"
MEMORY: Final = "memory"


def worker_map(context: Context) -> Chart:
    """Threads, cores and memory of each worker in use over time; the strongest colour is 100 %. "2 x" after a name
    means that the worker is twice as slow as the others.
    """
    inputs = context.inputs
    tasks, chunks = inputs.value("attempts")
    stream = stream_of(tasks, chunks, inputs.value("worker_names"))
    workers = list(dict.fromkeys(stream.lanes))
    rows = min(len(workers), MOST_ROWS)
    edges = np.linspace(context.start, context.stop, COLUMNS + 1)
    measures = {BUSY: _busy(stream, workers, edges)} | _sampled(context, workers, edges)
    row_of = np.arange(len(workers)) * rows // len(workers)
    maps = {name: _bytes(_rows_together(values, row_of, rows)) for name, values in measures.items()}
    plot = own_figure(
        "heat",
        int(np.clip(22 * rows + 70, 130, 460)),
        x_range=models.Range1d(start=0, end=context.stop - context.start),
        y_range=models.Range1d(start=rows - 0.5, end=-0.5),
        x_axis_label="seconds since the run began",
    )
    plot.grid.visible = False
    plot.yaxis.ticker = models.FixedTicker(ticks=[])
    place = {name: name for name in ("image", "x", "y", "dw", "dh")}
    plot.image_rgba(source=models.ColumnDataSource({name: [] for name in place}, name="heat-map"), **place)
    facts = {
        "rows": rows,
        "columns": COLUMNS,
        "seconds": context.stop - context.start,
        "measures": list(maps),
        "paint": COMPUTING.name,
        "workers": workers,
        "slow": {worker: three_digits(factor) for worker, factor in _slowness(inputs).items() if factor >= SLOW},
    }
    still = shaded_picture(_rows_together(measures[BUSY], row_of, rows), COMPUTING, "workers")
    return Chart(plot, still, {}, facts, b"".join(values.tobytes() for values in maps.values()))


def _busy(stream: Stream, workers: Sequence[str], edges: Numbers) -> Numbers:
    """Share of the threads of each worker that had a task."""
    number = {worker: place for place, worker in enumerate(workers)}
    of_lane = np.array([number[worker] for worker in stream.lanes])
    seconds = busy_in_pixels(of_lane[stream.lane], stream.start, stream.stop, (len(workers), COLUMNS), edges)
    return np.asarray(seconds / (np.bincount(of_lane)[:, None] * (edges[1] - edges[0])))


def _sampled(context: Context, workers: Sequence[str], edges: Numbers) -> dict[str, Numbers]:
    """CPU of each thread and share of the memory, from what workers reported."""
    try:
        samples: pa.Table = context.inputs.value("worker_samples")
    except NotMeasuredError:
        return {}
    number = {worker: place for place, worker in enumerate(workers)}
    rows = np.array([number.get(worker, -1) for worker in samples["worker"].to_pylist()], np.int64)
    bins = ((samples["time"].to_numpy() - edges[0]) / (edges[1] - edges[0])).astype(np.int64)
    shares = {
        CPU: pc.divide(samples["cpu_percent"], 100.0),
        MEMORY: pc.divide(pc.cast(samples["memory"], pa.float64()), _positive(samples["memory_limit"])),
    }
    threads = _threads(context, workers)
    found = {}
    for name, column in shares.items():
        values = column.to_numpy(zero_copy_only=False).astype(np.float64)
        here = (rows >= 0) & (bins >= 0) & (bins < COLUMNS) & np.isfinite(values)
        if here.any():
            filled = _held(rows[here], bins[here], values[here], len(workers))
            found[name] = filled / threads[:, None] if name == CPU else filled
    return found


def _positive(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.if_else(pc.greater(column, 0), pc.cast(column, pa.float64()), pa.scalar(None, pa.float64()))


def _threads(context: Context, workers: Sequence[str]) -> Numbers:
    lifetimes = context.inputs.value("worker_lifetimes").select(["worker", "threads"]).to_pylist()
    known = {row["worker"]: row["threads"] or 1 for row in lifetimes}
    return np.array([known.get(worker, 1) for worker in workers], np.float64)


def _held(rows: Any, bins: Any, values: Numbers, workers: int) -> Numbers:
    """Values in bins, each held until the next one of its worker; NaN before the first and after the last."""
    grid = np.full((workers, COLUMNS), np.nan)
    grid[rows, bins] = values
    for row in grid:
        known = np.flatnonzero(~np.isnan(row))
        if len(known):
            inside = np.arange(known[0], known[-1] + 1)
            row[inside] = row[known[np.searchsorted(known, inside, side="right") - 1]]
    return grid


def _rows_together(values: Numbers, row_of: Any, rows: int) -> Numbers:
    """Means of the workers that share a row."""
    known = ~np.isnan(values)
    sums, counts = np.zeros((2, rows, values.shape[1]))
    np.add.at(sums, row_of, np.where(known, values, 0.0))
    np.add.at(counts, row_of, known)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def _bytes(values: Numbers) -> Any:
    scaled = np.rint(FULL * np.clip(np.nan_to_num(values), 0, 1))
    return np.where(np.isnan(values), UNKNOWN, scaled).astype("u1")


def _slowness(inputs: Any) -> Mapping[str, float]:
    try:
        balance = inputs.value("worker_balance")
    except NotMeasuredError:
        return {}
    pairs = zip(balance["worker"].to_pylist(), balance["slowness"].to_pylist(), strict=True)
    return {worker: factor for worker, factor in pairs if factor is not None}
