"""Workers as a heat map: how busy each one was over time, what CPU it used, and how full its memory was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from bokeh import models

from roastcoffea.metrics.catalogue import NotMeasuredError
from roastcoffea.metrics.phases import COMPUTING
from roastcoffea.metrics.statistics import Numbers
from roastcoffea.report.page.figures import Chart, Context, own_figure
from roastcoffea.report.page.stills import shaded_picture
from roastcoffea.units import three_digits
from roastcoffea.visualization.series import busy_in_pixels
from roastcoffea.visualization.stream import Stream, stream_of

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
