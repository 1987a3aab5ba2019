"""Interactive Bokeh charts: rates, classes of thread time, and the task stream."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any, Final, NamedTuple

import bokeh
import numpy as np
import pandas as pd
import pyarrow as pa
from bokeh import models
from bokeh.document import Document
from markupsafe import Markup

from roastcoffea.metrics import TimeLedger
from roastcoffea.metrics.catalogue import RUN, NotMeasuredError, refuse_if
from roastcoffea.metrics.evaluation import Evaluator
from roastcoffea.metrics.facts import known_names
from roastcoffea.metrics.phases import FAMILIES, READING, RESIDUAL, SERIES, TOTAL
from roastcoffea.metrics.statistics import Numbers
from roastcoffea.records.arrow import give_memory_back
from roastcoffea.report.glossary import linked
from roastcoffea.report.page.figures import (
    EDGES,
    INK,
    MILLISECONDS,
    PALE,
    PALED,
    QUIET,
    Chart,
    Context,
    chunk_points,
    drawn_by_script,
    dress,
    family_of,
    painted,
    raster,
    time_figure,
    variable,
    worker_map,
)
from roastcoffea.report.page.frame import asset, packed_block
from roastcoffea.report.page.trees import flame_graph, icicle
from roastcoffea.report.tables import known
from roastcoffea.sheets.markup import rendered
from roastcoffea.sheets.sheet import Picture, Sheet
from roastcoffea.units import number
from roastcoffea.visualization.distributions import (
    FOR_CPU,
    IDLE,
    SHOWN,
    Stream,
    main_in_pixels,
    running_chunks,
)
from roastcoffea.visualization.draw import bytes_scale
from roastcoffea.visualization.plots.workers import data_rates, note_of_unknown

MOST_TASKS: Final = 100_000
"""Maximum number of tasks to store individually. If there are more, pixels are stored unless every task is requested.
"""

CONTROLS: Final = "controls"


class Charts(NamedTuple):
    """Chart sheets for a page, with pictures, data and scripts; empty if there are no data."""

    sheets: list[Sheet]
    pictures: Mapping[str, Markup]
    blocks: list[Markup]
    programs: list[str]
    absent: Mapping[str, str]
    """Titles of charts that could not be drawn, with the reasons."""


class Kind(NamedTuple):
    """Title and drawing function of a chart. The function's docstring is the caption."""

    title: str
    make: Callable[[Context], Chart]
    over_time: bool = False


def charts(inputs: Evaluator, *, every_task: bool = False) -> Charts:
    run, start = inputs.value(RUN), inputs.value("start")
    stop = max(run.stop, start)
    length = MILLISECONDS * max(stop - start, 1e-3)
    bounds = (-0.02 * length, 1.02 * length)
    window = models.Range1d(start=0, end=length, bounds=bounds, min_interval=1e-4 * length, name="window")
    context = Context(inputs, start, stop, window, every_task)
    drawn: dict[str, Chart] = {}
    absent: dict[str, str] = {}
    for name, kind in KINDS.items():
        try:
            refuse_if(stop <= start, "the start and end of the run are unknown")
            drawn[name] = kind.make(context)
        except NotMeasuredError as reason:
            absent[kind.title] = str(reason)
        give_memory_back(run.chunks)
    if not drawn:
        return Charts([], {}, [], [], absent)
    document = Document()
    with document.models.freeze():  # adding roots one by one would search all models each time
        for chart in drawn.values():
            document.add_root(chart.figure)
    content = {
        "doc": document.to_json(deferred=False),
        "roots": {chart.figure.id: f"plot-{name}" for name, chart in drawn.items()},
        "names": known_names(inputs).workers,
        **{name: chart.facts for name, chart in drawn.items()},
    }
    block = packed_block("charts", json.dumps(content, allow_nan=False, separators=(",", ":")).encode())
    pictures = {name: _picture(name, chart) for name, chart in drawn.items()} | {CONTROLS: rendered("controls.html")}
    programs = [bokeh_program(), asset("shapes.js"), asset("charts.js")]
    return Charts(_sheets(drawn), pictures, [block], programs, absent)


def _picture(name: str, chart: Chart) -> Markup:
    legend = {label: variable(colour) for label, colour in chart.legend.items()}
    return rendered("chart.html", name=name, legend=legend, linked=linked)


def _sheets(drawn: Mapping[str, Chart]) -> list[Sheet]:
    """Sheets for the charts. Charts with a time axis share one sheet; every other chart has its own sheet."""
    over_time: list[Sheet] = []
    alone: list[Sheet] = []
    for name, chart in drawn.items():
        title, make, moves = KINDS[name]
        lead = f"{' '.join(str(make.__doc__).split())} {chart.note}".strip()
        (over_time if moves else alone).append(Sheet(title=title, lead=[lead], pictures=[Picture(name)]))
    together = Sheet(title="over time", pictures=[Picture(CONTROLS)], parts=over_time)
    return [together, *alone] if over_time else alone


@cache
def bokeh_program() -> str:
    file = Path(bokeh.__file__).parent / "server" / "static" / "js" / "bokeh.min.js"
    return file.read_text(encoding="utf-8").replace("\r", "")


# Charts


def _rates(context: Context) -> Chart:
    """Bytes requested from storage; each attempt's bytes are spread evenly over its duration. The dashed line is the
    number of workers.
    """
    requests = context.inputs.value("requests")
    edges, rates = data_rates(requests, context.start, 400)
    scale = bytes_scale(float(rates.max()), "bit/s")
    amounts = rates * scale.factor
    plot = time_figure("rates", context, scale.unit, (0, 1.05 * max(float(amounts.max()), 1e-9)), 210)
    source = models.ColumnDataSource({"x": context.since_start(edges), "rate": np.append(amounts, amounts[-1:])})
    plot.varea_step(x="x", y1=0, y2="rate", source=source, step_mode="after", fill_alpha=0.45, **painted(READING.name))
    plot.step(x="x", y="rate", source=source, mode="after", **painted(READING.name))
    _add_workers(plot, context)
    left_out = note_of_unknown(requests)
    return Chart(plot, {"unit": scale.unit}, note=f"{left_out.capitalize()}." if left_out else "")


def _add_workers(plot: Any, context: Context) -> None:
    found = known(context.inputs, "worker_counts")
    if found is None:
        return
    times, counts = found
    source = models.ColumnDataSource({"x": context.since_start(times), "workers": counts}, name="workers")
    plot.extra_y_ranges = {"workers": models.Range1d(start=0, end=1.15 * max(float(counts.max()), 1.0))}
    plot.step("x", "workers", source=source, y_range_name="workers", mode="after", line_dash="dashed", **painted(QUIET))
    axis = models.LinearAxis(y_range_name="workers", axis_label="workers", ticker=models.BasicTicker(min_interval=1))
    dress(axis)
    plot.add_layout(axis, "right")


def _classes(context: Context) -> Chart:
    """What the worker threads were doing. The line is the number of threads. Faded areas are threads waiting for a core
    or the GIL. Drag to pan in time; hover for details.
    """
    ledger: TimeLedger = context.inputs.value("time_ledger")
    lines = ledger.timeline(600)
    edges = np.append(lines.index.to_numpy(), lines.index[-1] + lines["seconds"].iloc[-1])
    names = sorted((name for name in ledger if name != RESIDUAL), key=lambda name: FAMILIES.index(family_of(name)))
    threads = {name: lines[name].to_numpy() for name in names if lines[name].any()}
    refuse_if(not threads, "there were no threads")
    offered = lines[TOTAL].to_numpy()
    plot = time_figure("classes", context, "threads", (0, 1.05 * max(float(offered.max()), 1.0)), 260)
    plot.yaxis.ticker = models.BasicTicker(min_interval=1.0)
    colours = [family_of(name).name for name in threads]
    pales = [PALE if name in FOR_CPU else 1.0 for name in threads]
    source = _stacked(plot, context.since_start(edges), {TOTAL: offered}, list(threads.values()), colours, pales)
    plot.step(x="x", y=TOTAL, source=source, mode="after", line_width=1.5, **painted(INK))
    return Chart(plot, {"names": list(threads), "colours": colours}, _legend(threads))


def _stacked(  # noqa: PLR0917
    plot: Any,
    edges: Numbers,
    others: Mapping[str, Numbers],
    layers: Sequence[Numbers],
    colours: Sequence[str],
    opacities: Sequence[float],
) -> Any:
    """Draw stacked steps; return the data source, whose columns are numbered by layer."""
    reached = np.cumsum([np.zeros(len(edges) - 1), *layers], axis=0)
    rows = dict(zip(("nothing", *map(str, range(len(layers)))), reached, strict=True), **others)
    # repeat the last value to end its step; 32-bit floats suffice
    data = {name: np.append(row, row[-1:]).astype(np.float32) for name, row in rows.items()}
    source = models.ColumnDataSource({"x": edges, **data})
    for place, (below, colour, opacity) in enumerate(zip(rows, colours, opacities, strict=False)):
        look = {"step_mode": "after", "fill_alpha": opacity, **painted(colour)}
        plot.varea_step(x="x", y1=below, y2=str(place), source=source, **look)
    return source


def _datasets(context: Context) -> Chart:
    """Number of chunks running at each moment, by dataset. The data rate is shown below."""
    edges, counts = running_chunks(context.inputs.value("chunk_attempts"), context.start, 200)
    most = max(float(np.sum(list(counts.values()), axis=0).max()), 1.0)
    plot = time_figure("datasets", context, "chunks", (0, 1.05 * most), 180)
    plot.yaxis.ticker = models.BasicTicker(min_interval=1.0)
    colours = [paint.name for paint in SERIES[: len(counts)]]
    _stacked(plot, context.since_start(edges), {}, list(counts.values()), colours, [1.0] * len(counts))
    return Chart(plot, {"names": list(counts), "colours": colours}, dict(zip(counts, colours, strict=True)))


def _stream(context: Context) -> Chart:
    """What each worker thread was doing. A chunk's colour shows the work that took most of its time. The longer the
    chunk waited for a core or the GIL, the more faded it is.
    """
    tasks, chunks = context.inputs.value("attempts")
    stream: Stream = context.inputs.value("stream")
    single = context.every_task or len(stream.start) <= MOST_TASKS
    facts = {
        "classes": [["not recorded" if name == RESIDUAL else name, family_of(name).name] for name in SHOWN],
        "workers": [[worker, len(list(lanes))] for worker, lanes in groupby(stream.lanes)],
        **(_tasks(stream, context, tasks, chunks) if single else pixels(stream, context)),
    }
    note = (
        f"Each pixel summarises its share of the {number(len(stream.start))} tasks. It shows a failure if there is "
        "one; otherwise, it shows what took most of the time. `roastcoffea report --every-task` keeps every task."
    )
    legend = _legend(SHOWN[kind] for kind in np.unique(stream.kind))
    return Chart(_stream_figure(context, len(stream.lanes)), facts, legend, "" if single else note)


def _stream_figure(context: Context, lanes: int) -> Any:
    """Figure that a script fills with an image or, if there are few tasks, with bars."""
    height = int(np.clip(26 * lanes + 90, 180, 460))
    plot = time_figure("stream", context, f"{number(lanes)} threads", (lanes - 0.5, -0.5), height, "box_zoom")
    plot.ygrid.visible = False
    raster(plot, "picture")
    drawn_by_script(plot.quad, "bars", EDGES, fill_color="colour", line_color=None)
    return plot


def _tasks(stream: Stream, context: Context, tasks: pa.Table | None, chunks: pa.Table | None) -> dict[str, Any]:
    """Every task, ordered by lane and time.

    `steps` contains the intervals between successive starts and stops, in integer units. `kind` encodes a task's class
    and paleness. `group` is the index of a task's labels: its prefix, its chunk's dataset and, if there is room, the
    file.
    """
    unit = max((context.stop - context.start) / 4_000_000, 1e-6)
    order = np.lexsort((stream.start, stream.lane))
    moments = np.rint((np.stack([stream.start, stream.stop])[:, order] - context.start) / unit).astype(np.int64)
    known_of_chunks = ["dataset", "file"] if len(order) <= MOST_TASKS else ["dataset"]
    words = pd.DataFrame(
        {
            name: None
            if table is None
            else table[name].take(pa.array(rows[order], mask=rows[order] < 0)).to_pandas().astype(object)
            for table, rows, names in ((tasks, stream.task, ["prefix"]), (chunks, stream.chunk, known_of_chunks))
            for name in names
        },
        range(len(order)),
    )
    groups = words.groupby(list(words), sort=False, dropna=False).ngroup()
    return {
        "unit": unit,
        "tasks": np.bincount(stream.lane, minlength=len(stream.lanes)).tolist(),
        "steps": np.diff(moments.T.ravel(), prepend=0).tolist(),
        "kind": (stream.kind + len(SHOWN) * stream.pale)[order].tolist(),
        "group": groups.tolist(),
        "groups": [[word for word in row if isinstance(word, str)] for row in words.drop_duplicates().to_numpy()],
    }


def pixels(stream: Stream, context: Context) -> dict[str, Any]:
    """Class and paleness of each pixel (-1 if idle), with the time in that class and the total busy time.

    Times are in thousandths of a pixel's thread time.
    """
    rows, columns = min(len(stream.lanes), 400), 800
    found = main_in_pixels(stream, rows, np.linspace(context.start, context.stop, columns + 1))
    lanes = np.bincount(np.arange(len(stream.lanes)) * rows // len(stream.lanes))
    seconds = (context.stop - context.start) / columns
    most, busy = (np.rint(1e3 * np.clip(part / seconds / lanes[:, None], 0, 1)) for part in (found.most, found.busy))
    kind = np.where(found.kind == IDLE, -1, found.kind + len(SHOWN) * found.pale)
    parts = {"kind": kind, "most": most, "busy": busy}
    facts: dict[str, Any] = {"rows": rows, "columns": columns, "seconds": seconds}
    return facts | {name: part.ravel().astype(int).tolist() for name, part in parts.items()}


def _legend(classes: Iterable[str]) -> dict[str, str]:
    """Maps family labels to colours, in family order. Pale classes are keyed by their own names."""
    shown = list(classes)
    found = {family_of(name) for name in shown if name not in FOR_CPU}
    pale = ", ".join(name for name in FOR_CPU if name in shown)
    return {family.label: family.name for family in FAMILIES if family in found} | ({pale: PALED} if pale else {})


KINDS: Final[Mapping[str, Kind]] = {
    "classes": Kind("threads by class", _classes, over_time=True),
    "stream": Kind("task stream", _stream, over_time=True),
    "datasets": Kind("chunks by dataset", _datasets, over_time=True),
    "rates": Kind("data rate and workers", _rates, over_time=True),
    "flame": Kind("flame graph", flame_graph),
    "icicle": Kind("thread time", icicle),
    "points": Kind("chunks", chunk_points),
    "heat": Kind("workers", worker_map),
}
