"""What a scheduler shows of runs while a collector or the preload is there: the live page and Prometheus metrics."""

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
    """Metrics of all observed schedulers of this process (there is hardly ever more than one), served at `/metrics`.

    It is registered while there is one.
    """

    def __init__(self) -> None:
        self._observers: list[Observer] = []

    def add(self, observer: Observer) -> None:
        """Show the counters of a scheduler; ImportError without the client of Prometheus."""
        from prometheus_client import REGISTRY

        if not self._observers:
            REGISTRY.register(self)
        self._observers.append(observer)

    def remove(self, observer: Observer) -> None:
        """Show them no longer."""
        from prometheus_client import REGISTRY

        if observer in self._observers:
            self._observers.remove(observer)
            if not self._observers:
                REGISTRY.unregister(self)

    def collect(self) -> Iterator[Any]:
        """All metrics now."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        counters = [observer.counters for observer in self._observers]
        runs = [observer.runs for observer in self._observers]
        going = [run for each in runs for run in each.going]
        pending = sum(max(run.asked - run.tally.chunks, 0) for run in going)
        for family, name, meaning, value in (
            (CounterMetricFamily, "events", "Events of chunks that gave a result", sum(one.events for one in counters)),
            (
                CounterMetricFamily,
                "capacity_thread_seconds",
                "Threads of all workers times the time that they were there",
                sum(one.capacity for one in counters),
            ),
            (GaugeMetricFamily, "runs", "Runs that go on", len(going)),
            (CounterMetricFamily, "runs_begun", "Runs that began", sum(each.begun for each in runs)),
            (GaugeMetricFamily, "workers", "Workers now", sum(one.workers for one in self._observers)),
            (
                GaugeMetricFamily,
                "threads",
                "Threads of all workers now",
                sum(one.threads[0] for one in self._observers),
            ),
            (
                GaugeMetricFamily,
                "threads_assigned",
                "Threads that have a task now",
                sum(one.threads[1] for one in self._observers),
            ),
            (GaugeMetricFamily, "chunks_pending", "Chunks that clients submitted and that have no result yet", pending),
        ):
            yield family(f"roastcoffea_{name}", f"{meaning}.", value=value)
        of_threads = "Time of worker threads: of attempts that ended, and of free slots sampled once a second"
        for attribute, name, meaning, labels in (
            ("chunks", "chunks", "Chunks that ended", ["outcome"]),
            ("attempts", "failed_attempts", "Attempts of tasks without a result", ["outcome", "kind"]),
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
    """Names of the metrics: it is asked for them before there is any observer."""


EXPOSED: Final = Exposed()
"""The metrics of this process."""


class Shown:
    """The observer of a scheduler, with all that shows it."""

    def __init__(self, scheduler: Any, make: Callable[[Any, Callable[[], None]], Observer]) -> None:
        from tornado.ioloop import PeriodicCallback

        self.observer = make(scheduler, partial(remove, scheduler))
        self._scheduler = scheduler
        scheduler.add_plugin(self.observer, name=NAME, idempotent=True)
        ticker = PeriodicCallback(lambda: self.observer.tick(time.time()), 1000 * TICK)
        ticker.start()
        self._ends: list[Any] = [ticker.stop, partial(scheduler.plugins.pop, NAME, None)]
        self.observer.tick(time.time())
        with reported(debug, "the scheduler has no live page of roastcoffea", Exception):
            if has_dashboard(scheduler):
                from roastcoffea.recording.facility.page import Page

                page = Page(scheduler, self.observer)
                self._ends.append(page.close)
                page.open()
        with reported(debug, "the scheduler has no Prometheus metrics of roastcoffea", Exception):
            EXPOSED.add(self.observer)
            self._ends.append(partial(EXPOSED.remove, self.observer))

    def end(self) -> None:
        """Take everything away."""
        for end in self._ends:
            with reported(debug, "the live view stayed on the scheduler", Exception):
                end()


def has_dashboard(scheduler: Any) -> bool:
    """Whether Dask's dashboard is on the web server of a scheduler; Bokeh is imported then."""
    bokeh: Any = sys.modules.get("bokeh.server.tornado")
    served = getattr(getattr(scheduler, "http_application", None), "applications", ())
    return bokeh is not None and any(isinstance(one, bokeh.BokehTornado) for one in served)


def load(scheduler: Any) -> None:
    """Import what shows runs, which takes seconds of CPU time: not on the scheduler's event loop."""
    if has_dashboard(scheduler):
        import_module("roastcoffea.recording.facility.page")
    with suppress(ImportError):  # it is optional
        import_module("prometheus_client.core")


_shown: Final[dict[Any, Shown]] = {}
"""What each scheduler of this process shows."""


def join(
    scheduler: Any, name: str, token: str, make: Callable[[Any, Callable[[], None]], Observer] = Observer
) -> Observer:
    """Have a scheduler show its runs until everybody who joined has left.

    Parameters
    ----------
    name : str
        Name of the plugins of a collector, or of the preload.
    token : str
        Mark of the messages of these plugins.
    make : callable
        Makes the observer, if there is none, or if the present one only shows runs.
    """
    known = {name: token}
    if scheduler in _shown and make is not Observer and type(_shown[scheduler].observer) is Observer:
        known |= _shown[scheduler].observer.tokens  # of collectors that came before the preload
        remove(scheduler)
    if scheduler not in _shown:
        _shown[scheduler] = Shown(scheduler, make)
    observer = _shown[scheduler].observer
    observer.tokens |= known
    return observer


def leave(scheduler: Any, name: str) -> None:
    """Leave a scheduler; the last one takes page and metrics away."""
    if scheduler in _shown:
        observer = _shown[scheduler].observer
        observer.tokens.pop(name, None)
        observer.runs.collector_left(name, time.time())
        if not observer.tokens:
            remove(scheduler)


def remove(scheduler: Any) -> None:
    """Take page and metrics away from a scheduler."""
    if scheduler in _shown:
        _shown.pop(scheduler).end()
