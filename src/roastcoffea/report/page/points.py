"""Chunks as points: how long each took, against its events."""

from __future__ import annotations

import json
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from bokeh import models

from roastcoffea.metrics.catalogue import NotMeasuredError, refuse_if
from roastcoffea.metrics.phases import COMPUTING, TROUBLE
from roastcoffea.records.chunks import OK
from roastcoffea.report.markup import rendered
from roastcoffea.report.page.figures import Chart, Context, own_figure, painted, variable
from roastcoffea.units import SECOND, number

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
