"""Charts that move, drawn by Bokeh: rates, classes of thread time, and the task stream from few bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any, Final, NamedTuple

import bokeh
import numpy as np
import pyarrow as pa
from bokeh import models
from bokeh.document import Document
from markupsafe import Markup

from roastcoffea.metrics import TimeLedger
from roastcoffea.metrics.catalogue import RUN, NotMeasuredError
from roastcoffea.metrics.evaluation import Evaluator
from roastcoffea.metrics.facts import known_names
from roastcoffea.metrics.phases import FAMILIES, READING, RESIDUAL, TOTAL
from roastcoffea.metrics.statistics import Integers, Numbers
from roastcoffea.report.glossary import linked
from roastcoffea.report.page import figures
from roastcoffea.report.page.figures import INK, MILLISECONDS, QUIET, Chart, Context, dress, family_of, painted
from roastcoffea.report.page.frame import asset, data_block, packed_block
from roastcoffea.report.page.trees import flame_graph, icicle
from roastcoffea.report.page.worker_map import chunk_points, classes_picture, stacked, stream_picture, worker_map
from roastcoffea.sheets.markup import rendered
from roastcoffea.sheets.sheet import Picture, Sheet
from roastcoffea.units import SECOND, number, three_digits
from roastcoffea.visualization.draw import bytes_scale
from roastcoffea.visualization.plots.workers import data_rates, note_of_unknown
from roastcoffea.visualization.stream import SHOWN, Stream, main_in_pixels, stream_of

ESCAPE: Final = 0xFFFF
UNITS_IN_RUN: Final = 4_000_000
MOST_GROUPS: Final = 0xFFFF
PIXEL_ROWS: Final = 400
PIXEL_COLUMNS: Final = 800


class Packed(NamedTuple):
    """Bytes, and what a script needs to read them."""

    facts: dict[str, Any]
    content: bytes


def packed_tasks(stream: Stream, start: float, stop: float, groups: Integers) -> Packed:
    """Every task; `groups` has a number below `MOST_GROUPS` for each."""
    unit = max((stop - start) / UNITS_IN_RUN, 1e-6)
    order = np.lexsort((stream.start, stream.lane))
    begins = np.rint((stream.start[order] - start) / unit).astype(np.int64)
    ends = np.rint((stream.stop[order] - start) / unit).astype(np.int64)
    of_lane = np.bincount(stream.lane, minlength=len(stream.lanes))
    before = np.concatenate([[0], ends[:-1]])
    before[np.cumsum(of_lane)[:-1]] = 0
    gaps, far_gaps = _short(begins - before)
    durations, far_durations = _short(ends - begins)
    parts = [of_lane.astype("<u4"), far_gaps, far_durations, *_planes(gaps), *_planes(durations)]
    parts += [stream.kind[order].astype("u1"), *_planes(groups[order])]
    facts: dict[str, Any] = {"tasks": len(order), "unit": unit, "gaps": len(far_gaps), "durations": len(far_durations)}
    return Packed(facts, b"".join(part.tobytes() for part in parts))


def packed_pixels(stream: Stream, start: float, stop: float) -> Packed:
    """Class, its seconds and all busy seconds of each pixel; seconds are in parts of 65535 of what fits into it."""
    rows = min(len(stream.lanes), PIXEL_ROWS)
    pixels = main_in_pixels(stream, rows, np.linspace(start, stop, PIXEL_COLUMNS + 1))
    lanes = np.bincount(np.arange(len(stream.lanes)) * rows // len(stream.lanes))
    room = (stop - start) / PIXEL_COLUMNS * lanes[:, None]
    parts = [pixels.kind.astype("u1"), *_planes(_shares(pixels.most, room)), *_planes(_shares(pixels.busy, room))]
    facts: dict[str, Any] = {"rows": rows, "columns": PIXEL_COLUMNS, "seconds": (stop - start) / PIXEL_COLUMNS}
    return Packed(facts, b"".join(part.tobytes() for part in parts))


def groups_of(parts: list[tuple[pa.Table | None, Integers, list[str]]], tasks: int) -> tuple[Integers, list[list[Any]]]:
    """Number of the group of each task, and the groups: what tasks have in common in these columns.

    Each table comes with the row in it of each task, -1 where there is none.
    """
    groups: Integers = np.zeros(tasks, np.int64)
    found: list[list[Any]] = [[]]
    for table, rows, names in parts:
        for name in names:
            codes, values = _coded(table, rows, name)
            pairs, groups = np.unique(groups * len(values) + codes, return_inverse=True)
            found = [[*found[one // len(values)], values[one % len(values)]] for one in pairs.tolist()]
    return groups, found


def _coded(table: pa.Table | None, rows: Integers, name: str) -> tuple[Integers, list[Any]]:
    """Number of the value of each row, the last of which stands for none."""
    if table is None or not len(table):
        return np.zeros(len(rows), np.int64), [None]
    encoded = table[name].combine_chunks().dictionary_encode()
    values = encoded.dictionary.to_pylist()
    codes = np.append(encoded.indices.fill_null(len(values)).to_numpy(), len(values)).astype(np.int64)
    return codes[rows], [*values, None]


def _short(amounts: Integers) -> tuple[Integers, Any]:
    """Amounts in 16 bits, and in full those that do not fit, which have `ESCAPE` in their place."""
    far = (amounts < 0) | (amounts >= ESCAPE)
    return np.where(far, ESCAPE, amounts), amounts[far].astype("<i4")


def _planes(amounts: Integers) -> tuple[Any, Any]:
    """Low and high bytes."""
    return (amounts & 0xFF).astype("u1"), (amounts >> 8).astype("u1")


def _shares(seconds: Numbers, room: Any) -> Integers:
    shares: Numbers = np.clip(seconds / room, 0, 1)
    return np.rint(shares * 0xFFFF).astype(np.int64)


MOST_TASKS: Final = 100_000
"""Tasks up to which the page holds every one of them; of more it holds pixels, unless every task is asked for."""

BINS: Final = 600
RATE_BINS: Final = 400
CLOSEST: Final = 1e-4
"""Share of the run that a window shows at least."""

NOT_RECORDED: Final = "not recorded"
NOTHING: Final = "nothing"
PIXELS: Final = (
    "Of {tasks} tasks this page has the sums in pixels: a failure wins its pixel, else what took the most time in it. "
    "`roastcoffea report --every-task` makes one that has each task."
)
CONTROLS: Final = "controls"
"""The picture with which people move the window of time."""


class Charts(NamedTuple):
    """Sheets of a page, their pictures, and data and programs that draw them; none where there is nothing to draw."""

    sheets: list[Sheet]
    pictures: Mapping[str, Markup]
    blocks: list[Markup]
    programs: list[str]
    absent: Mapping[str, str]
    """Titles of charts that could not be drawn, with the reason."""


class Kind(NamedTuple):
    """A kind of chart: its title, and the function that makes it, whose text says what it shows."""

    title: str
    make: Callable[[Context], Chart]
    over_time: bool = False


def charts(inputs: Evaluator, *, every_task: bool = False) -> Charts:
    """Charts of what was measured."""
    context = _context(inputs, every_task)
    drawn: dict[str, Chart] = {}
    absent: dict[str, str] = {}
    for name, kind in KINDS.items():
        try:
            if not context.stop > context.start:
                raise NotMeasuredError("it is not known when the run began and ended")
            drawn[name] = kind.make(context)
        except NotMeasuredError as reason:
            absent[kind.title] = str(reason)
    if not drawn:
        return Charts([], {}, [], [], absent)
    pictures = {name: _picture(name, chart) for name, chart in drawn.items()}
    packed = [packed_block(f"packed-{name}", chart.packed) for name, chart in drawn.items() if chart.packed is not None]
    blocks = [data_block("charts", _content(context, drawn)), *packed]
    pictures[CONTROLS] = rendered("controls.html")
    programs = [bokeh_program(), asset("shapes.js"), asset("charts.js")]
    return Charts(_sheets(drawn), pictures, blocks, programs, absent)


def _picture(name: str, chart: Chart) -> Markup:
    legend = {label: figures.variable(colour) for label, colour in chart.legend.items()}
    return rendered("chart.html", name=name, still=chart.still, legend=legend, linked=linked)


def _sheets(drawn: Mapping[str, Chart]) -> list[Sheet]:
    """Charts over time in one section, each other one in its own."""
    over_time = [_sheet(name, chart) for name, chart in drawn.items() if KINDS[name].over_time]
    alone = [_sheet(name, chart) for name, chart in drawn.items() if not KINDS[name].over_time]
    together = Sheet(title="over time", pictures=[Picture(CONTROLS)], parts=over_time)
    return [*([together] if over_time else []), *alone]


def _sheet(name: str, chart: Chart) -> Sheet:
    lead = f"{' '.join(str(KINDS[name].make.__doc__).split())} {chart.note}".strip()
    return Sheet(title=KINDS[name].title, lead=[lead], pictures=[Picture(name)])


@cache
def bokeh_program() -> str:
    """The core of BokehJS."""
    file = Path(bokeh.__file__).parent / "server" / "static" / "js" / "bokeh.min.js"
    return file.read_text(encoding="utf-8").replace("\r", "")


def _context(inputs: Evaluator, every_task: bool) -> Context:
    start = inputs.value("start")
    stop = max(inputs.value(RUN).stop, start)
    length = MILLISECONDS * max(stop - start, 1e-3)
    bounds = (-0.02 * length, 1.02 * length)
    window = models.Range1d(start=0, end=length, bounds=bounds, min_interval=CLOSEST * length, name="window")
    return Context(inputs, start, stop, window, every_task)


def _content(context: Context, drawn: Mapping[str, Chart]) -> dict[str, Any]:
    """What the script draws: the figures as Bokeh has them, where they stand, and what they hold."""
    document = Document()
    with document.models.freeze():  # each root that is added alone looks through all models
        for chart in drawn.values():
            document.add_root(chart.figure)
    return {
        "doc": document.to_json(deferred=False),
        "roots": {chart.figure.id: f"plot-{name}" for name, chart in drawn.items()},
        "start": context.start,
        "names": known_names(context.inputs).workers,
        **{name: dict(chart.facts) for name, chart in drawn.items()},
    }


# Charts


def _rates(context: Context) -> Chart:
    """Bytes requested from storage, spread evenly over each attempt. The dashed line is the number of workers."""
    requests = context.inputs.value("requests")
    edges, rates = data_rates(requests, context.start, RATE_BINS)
    scale = bytes_scale(float(rates.max()), "bit/s")
    x, amounts = context.since_start(edges), rates * scale.factor
    plot = figures.time_figure("rates", context, scale.unit, (0, 1.05 * max(float(amounts.max()), 1e-9)), 210)
    source = models.ColumnDataSource({"x": x, "rate": np.append(amounts, amounts[-1:])})
    plot.varea_step(x="x", y1=0, y2="rate", source=source, step_mode="after", fill_alpha=0.45, **painted(READING.name))
    plot.step(x="x", y="rate", source=source, mode="after", **painted(READING.name))
    _add_workers(plot, context)
    most = f"{number(three_digits(float(amounts.max())))} {scale.unit}"
    still = stacked(
        x,
        {"rate": amounts},
        {"rate": figures.variable(READING.name)},
        most,
        SECOND.text(float(edges[-1] - context.start)),
    )
    left_out = note_of_unknown(requests)
    return Chart(plot, still, {}, {"unit": scale.unit}, note=f"{left_out.capitalize()}." if left_out else "")


def _add_workers(plot: Any, context: Context) -> None:
    """Add the number of workers, on an axis of its own."""
    try:
        times, counts = context.inputs.value("worker_counts")
    except NotMeasuredError:
        return
    source = models.ColumnDataSource({"x": context.since_start(times), "workers": counts}, name="workers")
    plot.extra_y_ranges = {"workers": models.Range1d(start=0, end=1.15 * max(float(counts.max()), 1.0))}
    plot.step("x", "workers", source=source, y_range_name="workers", mode="after", line_dash="dashed", **painted(QUIET))
    axis = models.LinearAxis(y_range_name="workers", axis_label="workers", ticker=models.BasicTicker(min_interval=1))
    dress(axis)
    plot.add_layout(axis, "right")


def _classes(context: Context) -> Chart:
    """What the worker threads did; the line is the number of threads. Drag to move in time, hover for details."""
    ledger: TimeLedger = context.inputs.value("time_ledger")
    lines = ledger.timeline(BINS)
    edges = np.append(lines.index.to_numpy(), lines.index[-1] + lines["seconds"].iloc[-1])
    order = {family.name: place for place, family in enumerate(FAMILIES)}
    names = sorted((name for name in ledger if name != RESIDUAL), key=lambda name: order[family_of(name).name])
    threads = {name: lines[name].to_numpy() for name in names if lines[name].any()}
    if not threads:
        raise NotMeasuredError("there were no threads")
    offered = lines[TOTAL].to_numpy()
    plot = figures.time_figure("classes", context, "threads", (0, 1.05 * max(float(offered.max()), 1.0)), 260)
    plot.yaxis.ticker = models.BasicTicker(min_interval=1.0)
    source = models.ColumnDataSource({"x": context.since_start(edges), **_stack(threads, offered)})
    for below, name in zip((NOTHING, *threads), threads, strict=False):
        plot.varea_step(x="x", y1=below, y2=name, source=source, step_mode="after", **painted(family_of(name).name))
    plot.step(x="x", y=TOTAL, source=source, mode="after", line_width=1.5, **painted(INK))
    legend = _legend(threads)
    facts = {"names": list(threads), "colours": [family_of(name).name for name in threads]}
    return Chart(plot, classes_picture(edges, threads, context.stop - context.start), legend, facts)


def _stack(threads: Mapping[str, Numbers], offered: Numbers) -> dict[str, Numbers]:
    """Upper edge of each class, the last bin twice so that there is an end to its step; floats of 32 bits will do."""
    reached = np.cumsum([np.zeros(len(offered)), *threads.values()], axis=0)
    rows = dict(zip((NOTHING, *threads), reached, strict=True)) | {TOTAL: offered}
    return {name: np.append(row, row[-1:]).astype(np.float32) for name, row in rows.items()}


def _stream(context: Context) -> Chart:
    """What each worker thread did. A chunk's task has the colour of the class that took most of it."""
    tasks, chunks = context.inputs.value("attempts")
    stream = stream_of(tasks, chunks, context.inputs.value("worker_names"))
    legend = _legend(SHOWN[kind] for kind in np.unique(stream.kind))
    single = context.every_task or len(stream.start) <= MOST_TASKS
    facts, packed = _tasks(stream, context) if single else packed_pixels(stream, context.start, context.stop)
    facts["classes"] = [[_named(name), family_of(name).name] for name in SHOWN]
    facts["workers"] = [[worker, len(list(lanes))] for worker, lanes in groupby(stream.lanes)]
    note = "" if single else PIXELS.format(tasks=number(len(stream.start)))
    still = stream_picture(stream, context.start, context.stop)
    return Chart(_stream_figure(context, len(stream.lanes)), still, legend, facts, packed, note)


def _stream_figure(context: Context, lanes: int) -> Any:
    """Figure that a script fills: with a picture, or with bars where they are few enough to be seen."""
    height = int(np.clip(26 * lanes + 90, 180, 460))
    plot = figures.time_figure(
        "stream", context, f"{number(lanes)} threads", (lanes - 0.5, -0.5), height, zooms_both=True
    )
    plot.ygrid.visible = False
    plot.yaxis.ticker = models.FixedTicker(ticks=[])
    place = ("x", "y", "dw", "dh")
    picture = models.ColumnDataSource({name: [] for name in ("image", *place)}, name="picture")
    plot.image_rgba(image="image", source=picture, **{name: name for name in place})
    edges = ("left", "right", "top", "bottom")
    bars = models.ColumnDataSource({name: [] for name in (*edges, "colour")}, name="bars")
    plot.quad(source=bars, fill_color="colour", line_color=None, **{name: name for name in edges})
    return plot


def _tasks(stream: Stream, context: Context) -> tuple[dict[str, Any], bytes]:
    groups, names = _groups(stream, context.inputs, [["dataset", "file"], ["dataset"], []])
    packed = packed_tasks(stream, context.start, context.stop, groups)
    return packed.facts | {"groups": names}, packed.content


def _groups(stream: Stream, inputs: Evaluator, choices: Iterable[list[str]]) -> tuple[Integers, list[list[Any]]]:
    """What is known of each task, as much of it as there is room for: its prefix, and these columns of its chunk."""
    tasks, chunks = inputs.value("attempts")
    for columns in choices:
        entries = [(tasks, stream.task, ["prefix"]), (chunks, stream.chunk, columns)]
        groups, found = groups_of(entries, len(stream.start))
        if len(found) < MOST_GROUPS and (len(columns) < 2 or len(stream.start) <= MOST_TASKS):
            break
    return groups, found


def _named(name: str) -> str:
    return NOT_RECORDED if name == RESIDUAL else name


def _legend(classes: Iterable[str]) -> dict[str, str]:
    """Colours of classes by the label of their family, in the order of families."""
    found = {family_of(name) for name in classes}
    return {family.label: family.name for family in FAMILIES if family in found}


KINDS: Final[Mapping[str, Kind]] = {
    "classes": Kind("threads by class", _classes, over_time=True),
    "stream": Kind("task stream", _stream, over_time=True),
    "rates": Kind("data rate and workers", _rates, over_time=True),
    "flame": Kind("flame graph", flame_graph),
    "icicle": Kind("thread time", icicle),
    "points": Kind("chunks", chunk_points),
    "heat": Kind("workers", worker_map),
}
"""Charts of a page, in their order."""
