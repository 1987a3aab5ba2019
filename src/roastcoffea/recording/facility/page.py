"""Live page: a Bokeh application at `/roastcoffea` on Dask's dashboard server.

Dask's extension for JupyterLab lists the page as `individual-roastcoffea`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from bokeh.layouts import row
from bokeh.models.annotations import Legend, LegendItem
from bokeh.models.ranges import Range1d
from bokeh.models.sources import ColumnDataSource
from bokeh.models.widgets import Div
from bokeh.plotting import figure
from distributed.dashboard.core import BokehApplication
from distributed.dashboard.scheduler import template_variables
from markupsafe import Markup

from roastcoffea.metrics.phases import FAMILIES, FAMILY_OF, IDLING
from roastcoffea.recording.facility.observer import BIN, RUNNING, UNMETERED, ObservedRun, Observer, short
from roastcoffea.report.live import IDLE, Rates, clock
from roastcoffea.sheets.markup import rendered
from roastcoffea.units import BYTE, GIGABIT_PER_SECOND, KILOHERTZ, counted, duration, number

PATH: Final = "/roastcoffea"
ALONE: Final = "/individual-roastcoffea"
"""Path of the page without Dask's menu, as shown in JupyterLab."""

REFRESH: Final = 2000
"""Milliseconds between updates of an open page."""

BARS: Final = {
    **{family.label: family.light for family in FAMILIES if family is not IDLING},
    UNMETERED: "#0B6E4F",
    RUNNING: "#D5DAE3",
    IDLING.label: IDLING.light,
}
"""Bar colours from bottom to top: families of busy classes, unclassified time, idle time."""


class Page:
    """The live page on the web server of a scheduler that has a dashboard."""

    def __init__(self, scheduler: Any, observer: Observer) -> None:
        from bokeh.server.tornado import BokehTornado

        self._server = scheduler.http_application
        self._dasks: Any = next(one for one in self._server.applications if isinstance(one, BokehTornado))
        self._menu = template_variables(scheduler)["pages"]
        pages = {PATH: partial(_show, observer, alone=False), ALONE: partial(_show, observer, alone=True)}
        self._app = BokehApplication(pages, scheduler, self._dasks.prefix, template_variables(scheduler))
        self._loop = scheduler.loop

    def open(self) -> None:
        self._server.add_application(self._app)
        self._app.initialize(self._loop)
        self._app.start()
        # Dask's extension for JupyterLab lists only the paths of the first application
        self._dasks.applications[ALONE] = self._app.applications[ALONE]
        self._menu.append(PATH.strip("/"))

    def close(self) -> None:
        """Remove the page and disconnect its viewers."""
        if self._app in self._server.applications:
            self._server.applications.remove(self._app)
            self._dasks.applications.pop(ALONE, None)
            for connection in list(self._app._clients):
                connection._socket.close()
            for path in (PATH, ALONE):
                for session in self._app.get_sessions(path):
                    session.destroy()
            self._app.stop()
        if PATH.strip("/") in self._menu:
            self._menu.remove(PATH.strip("/"))


def _show(observer: Observer, _scheduler: Any, extra: dict[str, Any], document: Any, *, alone: bool) -> None:
    """Fill a Bokeh document with the current state, and update the document until it is closed."""
    from distributed.dashboard.components.scheduler import BOKEH_THEME, env

    view = View(observer)
    view.refresh()
    for root in view.roots:
        document.add_root(root)
    document.add_periodic_callback(view.refresh, REFRESH)
    document.title = "Dask: roastcoffea"
    document.theme = BOKEH_THEME
    if not alone:
        document.template = env.get_template("simple.html")
        document.template_variables.update(extra)


class View:
    """A single viewer's page, with a table of runs and a chart of recent thread time."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._runs = Div(sizing_mode="stretch_width")
        self._classes = Div(width=300)
        self._source = ColumnDataSource({"time": [], **{name: [] for name in BARS}}, name="threads")
        self._plot = _drawn(self._source)
        self.roots = (self._runs, row(self._plot, self._classes, sizing_mode="stretch_width"))

    def refresh(self) -> None:
        now, observer = time.time(), self._observer
        times, threads = observer.timeline.threads()
        self._runs.text = str(page_of(observer, now))
        self._classes.text = str(classes_of(threads))
        kept = times >= observer.began - BIN
        bars = {name: np.zeros(len(times)) for name in BARS}
        for name, amounts in threads.items():
            bars[bar_of(name)] += amounts
        # set the ranges before the first bars, because Bokeh warns about bars without ranges
        self._plot.x_range.start = min((times[kept].min(initial=now) - now) / 60, -1.0)
        used = np.sum([*bars.values()], axis=0)[kept].max(initial=0.0)
        self._plot.y_range.end = 1.05 * max(used, observer.threads[0], 1)
        self._source.data = {"time": (times[kept] + BIN / 2 - now) / 60, **{name: bars[name][kept] for name in BARS}}


def _drawn(source: ColumnDataSource) -> Any:
    plot: Any = figure(
        title="Worker thread activity (5 s means)",
        height=340,
        sizing_mode="stretch_width",
        tools="",
        toolbar_location=None,
        x_range=Range1d(start=-1, end=0),
        y_range=Range1d(start=0, end=1),
    )
    plot.yaxis.axis_label = "threads"
    plot.xaxis.axis_label = "minutes from now"
    look: dict[str, Any] = {"width": BIN / 60, "color": list(BARS.values()), "line_color": None}
    drawn = plot.vbar_stack(list(BARS), x="time", source=source, **look)
    legend = [LegendItem(label=label, renderers=[bars]) for label, bars in zip(BARS, drawn, strict=True)]
    plot.add_layout(Legend(items=legend[::-1], spacing=0, label_text_font_size="11px"), "right")
    return plot


def bar_of(name: str) -> str:
    family = FAMILY_OF.get(name)
    return name if family is None else family.label


HEADS: Final = ("run", "client", "state", "chunks", "left", "events", "data", "failed attempts", "bottleneck")

IN_A_MINUTE: Final = round(60 / BIN)

DONE: Final = Markup('<meter min="0" max="{}" value="{}"></meter>{} of {}')


def page_of(observer: Observer, now: float) -> Markup:
    # the page shows only the latest 20 runs
    runs = sorted(list(observer.runs.all.values())[::-1][:20], key=lambda run: run.ended)
    rows = [("end" if run.ended else "go", cells(run, now)) for run in runs]
    return rendered("live.html", title=workers_of(observer), heads=HEADS, rows=rows)


def workers_of(observer: Observer) -> str:
    total, busy = observer.threads
    counters = observer.counters
    parts = [
        counted(observer.workers, "worker"),
        f"{number(busy)} of {counted(total, 'thread')} with a task" if total else "no threads",
        f"{observer.paused} paused for memory" if observer.paused else "",
        f"{number(counters.events)} events" if counters.events else "",
        f"{BYTE.text(sum(counters.bytes.values()))} requested" if counters.bytes else "",
        counted(sum(counters.attempts.values()), "failed attempt") if counters.attempts else "",
    ]
    return ", ".join(filter(None, parts))


def cells(run: ObservedRun, now: float) -> list[str]:
    tally, rates, over = run.tally, run.rates, run.ended
    events, size = rates.in_a_second(whole=over)
    done = min(tally.chunks, run.asked)
    state = f"{'ended after' if over else 'running'} {duration(round((run.stop or now) - run.start))}"
    files = f"{number(min(tally.files, run.files))} of {counted(run.files, 'file')} opened" if run.files else "none yet"
    return [
        run.name,
        short(run.client),
        state,
        DONE.format(max(run.asked, 1), done, number(done), number(run.asked)) if run.asked else files,
        "" if over else left(rates),
        KILOHERTZ.text(events / 1000) if tally.chunks else "",
        GIGABIT_PER_SECOND.text(8e-9 * size) if tally.chunks and size is not None else "",
        number(tally.failed) if tally.failed else "",
        limit(run),
    ]


def classes_of(threads: Mapping[str, npt.NDArray[np.float64]]) -> Markup:
    """Classes with a significant share of the last minute's thread time, largest first."""
    means = {name: float(amounts[-IN_A_MINUTE:].mean()) for name, amounts in threads.items()}
    total = sum(means.values())
    # classes with a smaller share of thread time are not shown
    shown = sorted((item for item in means.items() if item[1] >= 0.005 * total > 0), key=lambda item: -item[1])
    rows = [
        ("go", (name, f"{mean:.2g}" if mean < 100 else number(mean), f"{100 * mean / total:.0f} %"))
        for name, mean in shown
    ]
    return rendered("live.html", title="", heads=("last minute", "threads", "share"), rows=rows) if rows else Markup("")


def left(rates: Rates) -> str:
    """Text for the remaining time and its 90 % prediction interval; empty if unknown."""
    seconds, between = rates.left, rates.left_between
    if seconds is None or between is None:
        return ""
    low, high = between
    return f"{clock(seconds)} ({clock(low)} to {clock(high)})"


def limit(run: ObservedRun) -> str:
    shares = run.rates.busy(whole=run.ended)
    most, share = max(shares.items(), key=lambda item: item[1], default=("", 0.0))
    if most == IDLE and share:
        return f"threads idle {100 * share:.0f} %"
    if run.tally.chunks and not run.metered:
        return "unknown: chunks are not metered"
    return f"limited by {most}: {100 * share:.0f} % of thread time" if share else ""
