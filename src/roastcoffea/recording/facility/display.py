"""What a scheduler shows of runs while a collector or the preload is there: the live page and Prometheus metrics."""

from __future__ import annotations

import logging
import sys
import time
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import Any, Final

from roastcoffea.errors import reported
from roastcoffea.recording.facility.observer import NAME, TICK, Observer


class Shown:
    """The observer of a scheduler, with all that shows it.

    Parameters
    ----------
    scheduler : distributed.Scheduler
        The scheduler.
    """

    def __init__(self, scheduler: Any) -> None:
        from tornado.ioloop import PeriodicCallback

        self.observer = Observer(scheduler, partial(remove, scheduler))
        self._scheduler = scheduler
        self._ends: list[Any] = []
        scheduler.add_plugin(self.observer, name=NAME, idempotent=True)
        self._ticker = PeriodicCallback(self._tick, 1000 * TICK)
        self._ticker.start()
        self._tick()
        for what, begin in (("live page", self._show_page), ("Prometheus metrics", self._show_metrics)):
            with reported(logging.getLogger(__name__).debug, f"the scheduler has no {what} of roastcoffea", Exception):
                begin()

    def end(self) -> None:
        """Take everything away."""
        self._ticker.stop()
        self._scheduler.plugins.pop(NAME, None)
        while self._ends:
            with reported(logging.getLogger(__name__).debug, "the live view stayed on the scheduler", Exception):
                self._ends.pop()()

    def _tick(self) -> None:
        self.observer.tick(time.time())

    def _show_page(self) -> None:
        if not has_dashboard(self._scheduler):
            return
        from roastcoffea.recording.facility.page import Page

        page = Page(self._scheduler, self.observer)
        self._ends.append(page.close)
        page.open()

    def _show_metrics(self) -> None:
        from roastcoffea.recording.facility.prometheus import EXPOSED

        EXPOSED.add(self.observer)
        self._ends.append(lambda: EXPOSED.remove(self.observer))


def has_dashboard(scheduler: Any) -> bool:
    """Whether Dask's dashboard is on the web server of a scheduler; Bokeh is imported then."""
    bokeh: Any = sys.modules.get("bokeh.server.tornado")
    served = getattr(getattr(scheduler, "http_application", None), "applications", ())
    return bokeh is not None and any(isinstance(one, bokeh.BokehTornado) for one in served)


def load(scheduler: Any) -> None:
    """Import what shows runs, which takes seconds of CPU time: not on the scheduler's event loop."""
    if has_dashboard(scheduler):
        import_module("roastcoffea.recording.facility.page")
    with suppress(ImportError):  # prometheus_client is optional
        import_module("roastcoffea.recording.facility.prometheus")


_shown: Final[dict[Any, Shown]] = {}
"""What each scheduler of this process shows."""


def join(scheduler: Any, name: str, token: str) -> Observer:
    """Have a scheduler show its runs until everybody who joined has left.

    Parameters
    ----------
    name : str
        Name of the plugins of a collector, or of the preload.
    token : str
        Mark of the messages of these plugins.
    """
    shown = _shown.get(scheduler)
    if shown is None:
        shown = _shown[scheduler] = Shown(scheduler)
    shown.observer.tokens[name] = token
    return shown.observer


def leave(scheduler: Any, name: str) -> None:
    """Leave a scheduler; the last one takes page and metrics away."""
    shown = _shown.get(scheduler)
    if shown is not None:
        shown.observer.tokens.pop(name, None)
        shown.observer.runs.collector_left(name, time.time())
        if not shown.observer.tokens:
            remove(scheduler)


def remove(scheduler: Any) -> None:
    """Take page and metrics away from a scheduler."""
    shown = _shown.pop(scheduler, None)
    if shown is not None:
        shown.end()
