"""The live page: an application of Bokeh at `/roastcoffea`, next to the other pages of Dask's dashboard.

In JupyterLab, Dask's extension lists it as `individual-roastcoffea`.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any, Final

import numpy as np
from bokeh.layouts import row
from bokeh.models.annotations import Legend, LegendItem
from bokeh.models.ranges import Range1d
from bokeh.models.sources import ColumnDataSource
from bokeh.models.widgets import Div
from bokeh.plotting import figure
from distributed.dashboard.core import BokehApplication
from distributed.dashboard.scheduler import template_variables

from roastcoffea.metrics.phases import FAMILIES, FAMILY_OF, IDLING
from roastcoffea.recording.facility.observer import BIN, RUNNING, UNMETERED, Observer
from roastcoffea.recording.facility.sentences import classes_of, page_of

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
