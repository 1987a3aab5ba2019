"""The live page: an application of Bokeh at `/roastcoffea`, next to the other pages of Dask's dashboard.

In JupyterLab, Dask's extension lists it as `individual-roastcoffea`.
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
"""The same page without Dask's menu, as JupyterLab shows it."""

REFRESH: Final = 2000
"""Milliseconds between two states of a page that somebody looks at."""

BARS: Final = {
    **{family.label: family.light for family in FAMILIES if family is not IDLING},
    UNMETERED: "#0B6E4F",
    RUNNING: "#D5DAE3",
    IDLING.label: IDLING.light,
}
"""Colours of the bars, the lowest first: families of classes, and time of which no class is known."""


class Page:
    """The page on the web server of a scheduler.

    Parameters
    ----------
    scheduler : distributed.Scheduler
        A scheduler with a dashboard.
    observer : Observer
        What the page shows.
    """

    def __init__(self, scheduler: Any, observer: Observer) -> None:
        from bokeh.server.tornado import BokehTornado

        self._server = scheduler.http_application
        self._dasks: Any = next(one for one in self._server.applications if isinstance(one, BokehTornado))
        self._menu = template_variables(scheduler)["pages"]
        pages = {PATH: partial(_show, observer, alone=False), ALONE: partial(_show, observer, alone=True)}
        self._app = BokehApplication(pages, scheduler, self._dasks.prefix, template_variables(scheduler))
        self._loop = scheduler.loop

    def open(self) -> None:
        """Let the web server find it."""
        self._server.add_application(self._app)
        self._app.initialize(self._loop)
        self._app.start()
        # Dask's extension for JupyterLab lists only the paths of the first application
        self._dasks.applications[ALONE] = self._app.applications[ALONE]
        self._menu.append(PATH.strip("/"))

    def close(self) -> None:
        """Take it away, also from those who look at it."""
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
    """Fill a document of Bokeh that shows the state until it is closed."""
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
    """What one viewer sees: a table of runs, and the thread time of the last minutes."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._runs = Div(sizing_mode="stretch_width")
        self._classes = Div(width=300)
        self._source = ColumnDataSource({"time": [], **{name: [] for name in BARS}}, name="threads")
        self._plot = _drawn(self._source)
        self.roots = (self._runs, row(self._plot, self._classes, sizing_mode="stretch_width"))

    def refresh(self) -> None:
        """Show the state now."""
        now, observer = time.time(), self._observer
        times, threads = observer.timeline.threads()
        self._runs.text = str(page_of(observer, now))
        self._classes.text = str(classes_of(threads))
        kept = times >= observer.began - BIN
        bars = {name: np.zeros(len(times)) for name in BARS}
        for name, amounts in threads.items():
            bars[bar_of(name)] += amounts
        # the ranges are set, as Bokeh warns of bars from which it can take none, before the first ones
        self._plot.x_range.start = min((times[kept].min(initial=now) - now) / 60, -1.0)
        used = np.sum([*bars.values()], axis=0)[kept].max(initial=0.0)
        self._plot.y_range.end = 1.05 * max(used, observer.threads[0], 1)
        self._source.data = {"time": (times[kept] + BIN / 2 - now) / 60, **{name: bars[name][kept] for name in BARS}}


def _drawn(source: ColumnDataSource) -> Any:
    """Bars over time, in the colours of the page of a measurement."""
    plot: Any = figure(
        title="What worker threads did (means of 5 s)",
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
    """The bar that a class of thread time is part of."""
    family = FAMILY_OF.get(name)
    return name if family is None else family.label


HEADS: Final = ("run", "client", "state", "chunks", "left", "events", "data", "failed attempts", "bottleneck")

IN_A_MINUTE: Final = round(60 / BIN)

DONE: Final = Markup('<meter min="0" max="{}" value="{}"></meter>{} of {}')


def page_of(observer: Observer, now: float) -> Markup:
    """The page's text: workers, and a row for each run."""
    # most runs on the page, the last ones first
    runs = sorted(list(observer.runs.all.values())[::-1][:20], key=lambda run: run.ended)
    rows = [("end" if run.ended else "go", cells(run, now)) for run in runs]
    return rendered("live.html", title=workers_of(observer), heads=HEADS, rows=rows)


def workers_of(observer: Observer) -> str:
    """Workers and threads now, and what was read and failed so far."""
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
    """Cells of a run, in the order of `HEADS`."""
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
    """The classes of thread time in the last minute, largest first, without negligible ones."""
    means = {name: float(amounts[-IN_A_MINUTE:].mean()) for name, amounts in threads.items()}
    total = sum(means.values())
    # least share of thread time of a class on the page
    shown = sorted((item for item in means.items() if item[1] >= 0.005 * total > 0), key=lambda item: -item[1])
    rows = [
        ("go", (name, f"{mean:.2g}" if mean < 100 else number(mean), f"{100 * mean / total:.0f} %"))
        for name, mean in shown
    ]
    return rendered("live.html", title="", heads=("last minute", "threads", "share"), rows=rows) if rows else Markup("")


def left(rates: Rates) -> str:
    """Time that is left, and between which times it is in 90 % of runs; empty where that is not known."""
    seconds, between = rates.left, rates.left_between
    if seconds is None or between is None:
        return ""
    low, high = between
    return f"{clock(seconds)} ({clock(low)} to {clock(high)})"


def limit(run: ObservedRun) -> str:
    """What limits a run now, or limited it, in words."""
    shares = run.rates.busy(whole=run.ended)
    most, share = max(shares.items(), key=lambda item: item[1], default=("", 0.0))
    if most == IDLE and share:
        return f"threads idle {100 * share:.0f} %"
    if run.tally.chunks and not run.metered:
        return "not known: its chunks are not metered"
    return f"limited by {most}: {100 * share:.0f} % of thread time" if share else ""
