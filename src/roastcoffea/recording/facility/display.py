"""A scheduler's live page and Prometheus metrics, which collectors and the preload use."""

from __future__ import annotations

import logging
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import Any, Final

from roastcoffea.errors import reported
from roastcoffea.recording.facility.observer import NAME, TICK, Observer

debug: Final = logging.getLogger(__name__).debug


class Exposed:
    """Prometheus metrics for all schedulers in this process, served at `/metrics`.

    The metrics stay registered as long as any scheduler is observed. There is rarely more than one scheduler.
    """

    def __init__(self) -> None:
        self._observers: list[Observer] = []

    def add(self, observer: Observer) -> None:
        """Expose a scheduler's counters; raise ImportError if the Prometheus client is not installed."""
        from prometheus_client import REGISTRY

        if not self._observers:
            REGISTRY.register(self)
        self._observers.append(observer)

    def remove(self, observer: Observer) -> None:
        from prometheus_client import REGISTRY

        if observer in self._observers:
            self._observers.remove(observer)
            if not self._observers:
                REGISTRY.unregister(self)

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        counters = [observer.counters for observer in self._observers]
        runs = [observer.runs for observer in self._observers]
        going = [run for each in runs for run in each.going]
        pending = sum(max(run.asked - run.tally.chunks, 0) for run in going)
        for family, name, meaning, value in (
            (CounterMetricFamily, "events", "Events in chunks with a result", sum(one.events for one in counters)),
            (
                CounterMetricFamily,
                "capacity_thread_seconds",
                "Thread time of all workers, busy or idle",
                sum(one.capacity for one in counters),
            ),
            (GaugeMetricFamily, "runs", "Runs in progress", len(going)),
            (CounterMetricFamily, "runs_begun", "Runs started", sum(each.begun for each in runs)),
            (GaugeMetricFamily, "workers", "Current workers", sum(one.workers for one in self._observers)),
            (
                GaugeMetricFamily,
                "threads",
                "Current worker threads",
                sum(one.threads[0] for one in self._observers),
            ),
            (
                GaugeMetricFamily,
                "threads_assigned",
                "Worker threads that currently have a task",
                sum(one.threads[1] for one in self._observers),
            ),
            (GaugeMetricFamily, "chunks_pending", "Submitted chunks that have no result yet", pending),
        ):
            yield family(f"roastcoffea_{name}", f"{meaning}.", value=value)
        of_threads = "Worker thread time in finished attempts, and in free slots (sampled once a second)"
        for attribute, name, meaning, labels in (
            ("chunks", "chunks", "Finished chunks", ["outcome"]),
            ("attempts", "failed_attempts", "Task attempts without a result", ["outcome", "kind"]),
            ("bytes", "requested_bytes", "Bytes requested from storage by metered attempts", ["class", "endpoint"]),
            ("seconds", "thread_seconds", of_threads, ["class"]),
        ):
            metric = CounterMetricFamily(f"roastcoffea_{name}", f"{meaning}.", labels=labels)
            amounts: Counter[Any] = Counter()
            for each in counters:
                amounts.update(getattr(each, attribute))
            for key, amount in sorted(amounts.items()):
                metric.add_metric([key] if isinstance(key, str) else list(key), amount)
            yield metric

    describe = collect
    """The registry requests the metric names before an observer exists."""


EXPOSED: Final = Exposed()


class Shown:
    def __init__(self, scheduler: Any, make: Callable[[Any, Callable[[], None]], Observer]) -> None:
        from tornado.ioloop import PeriodicCallback

        self.observer = make(scheduler, partial(remove, scheduler))
        self._scheduler = scheduler
        scheduler.add_plugin(self.observer, name=NAME, idempotent=True)
        ticker = PeriodicCallback(lambda: self.observer.tick(time.time()), 1000 * TICK)
        ticker.start()
        self._ends: list[Any] = [ticker.stop, partial(scheduler.plugins.pop, NAME, None)]
        self.observer.tick(time.time())
        with reported(debug, "the scheduler has no roastcoffea page", Exception):
            if has_dashboard(scheduler):
                from roastcoffea.recording.facility.page import Page

                page = Page(scheduler, self.observer)
                self._ends.append(page.close)
                page.open()
        with reported(debug, "the scheduler has no roastcoffea metrics for Prometheus", Exception):
            EXPOSED.add(self.observer)
            self._ends.append(partial(EXPOSED.remove, self.observer))

    def end(self) -> None:
        for end in self._ends:
            with reported(debug, "the live view could not be removed from the scheduler", Exception):
                end()


def has_dashboard(scheduler: Any) -> bool:
    """Whether a scheduler's web server runs Dask's dashboard. If so, Bokeh is already loaded."""
    bokeh: Any = sys.modules.get("bokeh.server.tornado")
    served = getattr(getattr(scheduler, "http_application", None), "applications", ())
    return bokeh is not None and any(isinstance(one, bokeh.BokehTornado) for one in served)


def load(scheduler: Any) -> None:
    """Import the page and the metrics. The imports take seconds of CPU time, too long for the event loop."""
    if has_dashboard(scheduler):
        import_module("roastcoffea.recording.facility.page")
    with suppress(ImportError):  # the Prometheus client is optional
        import_module("prometheus_client.core")


_shown: Final[dict[Any, Shown]] = {}


def join(
    scheduler: Any, name: str, token: str, make: Callable[[Any, Callable[[], None]], Observer] = Observer
) -> Observer:
    """Show a scheduler's runs until no collector or preload needs the display.

    Parameters
    ----------
    name : str
        Name of the plugins that a collector or the preload registers.
    token : str
        Token in messages from these plugins.
    make : callable
        Creates the observer if there is none or if the current observer only displays runs.
    """
    known = {name: token}
    if scheduler in _shown and make is not Observer and type(_shown[scheduler].observer) is Observer:
        known |= _shown[scheduler].observer.tokens  # from collectors that joined before the preload
        remove(scheduler)
    if scheduler not in _shown:
        _shown[scheduler] = Shown(scheduler, make)
    observer = _shown[scheduler].observer
    observer.tokens |= known
    return observer


def leave(scheduler: Any, name: str) -> None:
    """Stop using a scheduler's display. The last user removes the page and the metrics."""
    if scheduler in _shown:
        observer = _shown[scheduler].observer
        observer.tokens.pop(name, None)
        observer.runs.collector_left(name, time.time())
        if not observer.tokens:
            remove(scheduler)


def remove(scheduler: Any) -> None:
    if scheduler in _shown:
        _shown.pop(scheduler).end()
