"""Charts that move: rates, classes of thread time, and the task stream, drawn by Bokeh from what is in the page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any, Final, NamedTuple

import bokeh
import numpy as np
from bokeh import models
from bokeh.document import Document
from bokeh.plotting import figure
from markupsafe import Markup

from roastcoffea.metrics import TimeLedger
from roastcoffea.metrics.catalogue import RUN, NotMeasuredError
from roastcoffea.metrics.evaluation import Evaluator
from roastcoffea.metrics.phases import READING, RESIDUAL, TOTAL
from roastcoffea.metrics.statistics import Integers, Numbers
from roastcoffea.report.markup import rendered
from roastcoffea.report.page.frame import asset, data_block, packed_block
from roastcoffea.report.page.packing import MOST_GROUPS, groups_of, packed_pixels, packed_tasks
from roastcoffea.report.page.stills import classes_picture, stacked, stream_picture
from roastcoffea.report.sheets import Picture, Sheet
from roastcoffea.report.tables import not_measured
from roastcoffea.units import SECOND, SECONDS_PER_HOUR, SECONDS_PER_MINUTE, number, three_digits
from roastcoffea.visualization.colours import LIGHT, OF_TIME
from roastcoffea.visualization.draw import bytes_scale
from roastcoffea.visualization.plots.workers import data_rates, note_of_unknown
from roastcoffea.visualization.stream import SHOWN, Stream, stream_of

ORANGE: Final = LIGHT.of(READING)
GREY: Final = LIGHT.quiet

MOST_TASKS: Final = 100_000
"""Tasks up to which the page holds every one of them; of more it holds pixels, unless every task is asked for."""

BINS: Final = 600
RATE_BINS: Final = 400
MILLISECONDS: Final = 1e3
CLOSEST: Final = 1e-4
"""Share of the run that a window shows at least."""

NOT_RECORDED: Final = "not recorded"
NOTHING: Final = "nothing"
BORDER: Final = 84
"""Pixels beside a chart; charts.js has it as well."""

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


class _Chart(NamedTuple):
    """A figure, what is shown without scripts, the legend, facts for scripts, and data that they unpack."""

    figure: Any
    still: Markup
    legend: Mapping[str, str]
    facts: Mapping[str, Any]
    packed: bytes | None = None
    note: str = ""


class _Context(NamedTuple):
    """What all charts of a page have in common."""

    inputs: Evaluator
    start: float
    stop: float
    window: Any
    """The range of time that all figures show; people move it."""

    every_task: bool


def charts(inputs: Evaluator, *, every_task: bool = False) -> Charts:
    """Charts of what was measured, with the reason in place of one that was not."""
    context = _context(inputs, every_task)
    drawn: dict[str, _Chart] = {}
    sheets = []
    for name, (title, make) in KINDS.items():
        try:
            if not context.stop > context.start:
                raise NotMeasuredError("it is not known when the run began and ended")
            drawn[name] = make(context)
        except NotMeasuredError as reason:
            sheets.append(not_measured(str(reason), title))
        else:
            lead = f"{' '.join(str(make.__doc__).split())} {drawn[name].note}".strip()
            sheets.append(Sheet(title=title, lead=[lead], pictures=[Picture(name)]))
    if not drawn:
        return Charts(sheets, {}, [], [])
    pictures = {name: rendered("chart.html", name=name, chart=chart) for name, chart in drawn.items()}
    packed = [packed_block(f"packed-{name}", chart.packed) for name, chart in drawn.items() if chart.packed is not None]
    blocks = [data_block("charts", _content(context, drawn)), *packed]
    pictures[CONTROLS] = rendered("controls.html")
    return Charts(sheets, pictures, blocks, [bokeh_program(), asset("charts.js")])


@cache
def bokeh_program() -> str:
    """The core of BokehJS."""
    file = Path(bokeh.__file__).parent / "server" / "static" / "js" / "bokeh.min.js"
    return file.read_text(encoding="utf-8").replace("\r", "")


def _context(inputs: Evaluator, every_task: bool) -> _Context:
    start = inputs.value("start")
    stop = max(inputs.value(RUN).stop, start)
    length = MILLISECONDS * max(stop - start, 1e-3)
    bounds = (-0.02 * length, 1.02 * length)
    window = models.Range1d(start=0, end=length, bounds=bounds, min_interval=CLOSEST * length, name="window")
    return _Context(inputs, start, stop, window, every_task)


def _content(context: _Context, drawn: Mapping[str, _Chart]) -> dict[str, Any]:
    """What the script draws: the figures as Bokeh has them, where they stand, and what they hold."""
    document = Document()
    with document.models.freeze():  # each root that is added alone looks through all models
        for chart in drawn.values():
            document.add_root(chart.figure)
    return {
        "doc": document.to_json(deferred=False),
        "roots": {chart.figure.id: f"plot-{name}" for name, chart in drawn.items()},
        "start": context.start,
        **{name: dict(chart.facts) for name, chart in drawn.items()},
    }


# Charts


def _rates(context: _Context) -> _Chart:
    """Bytes requested from storage for chunks and preprocessing, those of each attempt spread over its own time;
    dashed: workers.
    """
    requests = context.inputs.value("requests")
    edges, rates = data_rates(requests, context.start, RATE_BINS)
    scale = bytes_scale(float(rates.max()), "bit/s")
    x, amounts = _since(context, edges), rates * scale.factor
    plot = _figure("rates", context, scale.unit, (0, 1.05 * max(float(amounts.max()), 1e-9)), 210)
    source = models.ColumnDataSource({"x": x, "rate": np.append(amounts, amounts[-1:])})
    plot.varea_step(x="x", y1=0, y2="rate", source=source, step_mode="after", fill_color=ORANGE, fill_alpha=0.45)
    plot.step(x="x", y="rate", source=source, mode="after", line_color=ORANGE)
    _add_workers(plot, context)
    most = f"{number(three_digits(float(amounts.max())))} {scale.unit}"
    still = stacked(x, {"rate": amounts}, {"rate": ORANGE}, most, SECOND.text(float(edges[-1] - context.start)))
    left_out = note_of_unknown(requests)
    return _Chart(plot, still, {}, {"unit": scale.unit}, note=f"{left_out.capitalize()}." if left_out else "")


def _add_workers(plot: Any, context: _Context) -> None:
    """Add the number of workers, on an axis of its own."""
    try:
        times, counts = context.inputs.value("worker_counts")
    except NotMeasuredError:
        return
    source = models.ColumnDataSource({"x": _since(context, times), "workers": counts}, name="workers")
    plot.extra_y_ranges = {"workers": models.Range1d(start=0, end=1.15 * max(float(counts.max()), 1.0))}
    plot.step("x", "workers", source=source, y_range_name="workers", mode="after", line_color=GREY, line_dash="dashed")
    axis = models.LinearAxis(y_range_name="workers", axis_label="workers", ticker=models.BasicTicker(min_interval=1))
    _dress(axis)
    plot.add_layout(axis, "right")


def _classes(context: _Context) -> _Chart:
    """How many threads were in which class of the time ledger: means over bins, whose areas are its sums.
    The line is the threads that there were.
    """
    ledger: TimeLedger = context.inputs.value("time_ledger")
    lines = ledger.timeline(BINS)
    edges = np.append(lines.index.to_numpy(), lines.index[-1] + lines["seconds"].iloc[-1])
    threads = {name: lines[name].to_numpy() for name in ledger if name != RESIDUAL and lines[name].any()}
    if not threads:
        raise NotMeasuredError("there were no threads")
    offered = lines[TOTAL].to_numpy()
    plot = _figure("classes", context, "threads", (0, 1.05 * max(float(offered.max()), 1.0)), 300)
    source = models.ColumnDataSource({"x": _since(context, edges), **_stack(threads, offered)})
    for below, name in zip((NOTHING, *threads), threads, strict=False):
        plot.varea_step(x="x", y1=below, y2=name, source=source, step_mode="after", fill_color=OF_TIME[name])
    plot.step(x="x", y=TOTAL, source=source, mode="after", line_width=1.5)
    legend = {name: OF_TIME[name] for name in threads}
    facts = {"names": list(threads), "colours": list(legend.values())}
    return _Chart(plot, classes_picture(edges, threads, context.stop - context.start), legend, facts)


def _stack(threads: Mapping[str, Numbers], offered: Numbers) -> dict[str, Numbers]:
    """Upper edge of each class, the last bin twice so that there is an end to its step; floats of 32 bits will do."""
    reached = np.cumsum([np.zeros(len(offered)), *threads.values()], axis=0)
    rows = dict(zip((NOTHING, *threads), reached, strict=True)) | {TOTAL: offered}
    return {name: np.append(row, row[-1:]).astype(np.float32) for name, row in rows.items()}


def _stream(context: _Context) -> _Chart:
    """What each worker thread did. A chunk's task has the colour of the class that took the most of it."""
    stream = stream_of(*context.inputs.value("attempts"))
    legend = {_named(SHOWN[kind]): OF_TIME[SHOWN[kind]] for kind in np.unique(stream.kind)}
    single = context.every_task or len(stream.start) <= MOST_TASKS
    facts, packed = _tasks(stream, context) if single else packed_pixels(stream, context.start, context.stop)
    facts["classes"] = [[_named(name), OF_TIME[name]] for name in SHOWN]
    facts["workers"] = [[worker, len(list(lanes))] for worker, lanes in groupby(stream.lanes)]
    note = "" if single else PIXELS.format(tasks=number(len(stream.start)))
    still = stream_picture(stream, context.start, context.stop)
    return _Chart(_stream_figure(context, len(stream.lanes)), still, legend, facts, packed, note)


def _stream_figure(context: _Context, lanes: int) -> Any:
    """Figure that a script fills: with a picture, or with bars where they are few enough to be seen."""
    height = int(np.clip(26 * lanes + 90, 180, 460))
    plot = _figure("stream", context, f"{number(lanes)} threads", (lanes - 0.5, -0.5), height)
    plot.ygrid.visible = False
    plot.yaxis.ticker = models.FixedTicker(ticks=[])
    place = ("x", "y", "dw", "dh")
    picture = models.ColumnDataSource({name: [] for name in ("image", *place)}, name="picture")
    plot.image_rgba(image="image", source=picture, **{name: name for name in place})
    edges = ("left", "right", "top", "bottom")
    bars = models.ColumnDataSource({name: [] for name in (*edges, "colour")}, name="bars")
    plot.quad(source=bars, fill_color="colour", line_color=None, **{name: name for name in edges})
    return plot


def _tasks(stream: Stream, context: _Context) -> tuple[dict[str, Any], bytes]:
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


KINDS: Final[Mapping[str, tuple[str, Callable[[_Context], _Chart]]]] = {
    "rates": ("Data rate and workers", _rates),
    "classes": ("Threads by class", _classes),
    "stream": ("Task stream", _stream),
}
"""Charts of a page, with their titles; what a chart means is the text of the function that makes it."""


def _figure(name: str, context: _Context, label: str, heights: tuple[float, float], pixels: int) -> Any:
    """Figure over time, as wide as the page."""
    plot = figure(
        name=name,
        x_range=context.window,
        y_range=models.Range1d(start=heights[0], end=heights[1], bounds=(min(heights), max(heights))),
        x_axis_type="timedelta",
        y_axis_label=label,
        height=pixels,
        sizing_mode="stretch_width",
        toolbar_location="above",
        tools=["xpan", "box_zoom" if name == "stream" else "xbox_zoom", "xwheel_zoom", "reset"],
        active_drag="xpan",
        active_scroll=None,  # else the wheel would no longer move the page
        output_backend="canvas",
        min_border_left=BORDER,
        min_border_right=BORDER,  # each has as much, so that moments are above each other
        lod_threshold=None,
    )
    plot.toolbar.logo = None
    plot.xaxis.formatter = _formatter(context.stop - context.start)
    plot.yaxis.ticker = models.BasicTicker(min_interval=1.0 if name == "classes" else 0.0)
    for axis in plot.axis:
        _dress(axis)
    return plot


def _dress(axis: Any) -> None:
    """Have an axis look as all do: the light ground that pictures have in the dark as well is none of it."""
    axis.axis_label_text_font_style = "normal"
    axis.minor_tick_line_color = None
    axis.stylesheets = [":host { --bk-background-fill-color: transparent }"]


def _formatter(length: float) -> models.TimedeltaTickFormatter:
    """How moments in a run of so many seconds are written."""
    seconds = "%s" if length < SECONDS_PER_MINUTE else "%m min %S"
    minutes = "%m min"
    if length >= SECONDS_PER_HOUR:
        seconds, minutes = "%h h %M min %S", "%h h %M min"
    forms: dict[str, Any] = {"microseconds": f"{seconds}.%MS%US s", "milliseconds": f"{seconds}.%MS s"}
    forms |= dict.fromkeys(("seconds", "minsec"), f"{seconds} s") | dict.fromkeys(("minutes", "hourmin"), minutes)
    return models.TimedeltaTickFormatter(**forms, hours="%h h", days="%d days")


def _since(context: _Context, moments: Numbers) -> Numbers:
    return (moments - context.start) * MILLISECONDS
