"""The counters of a scheduler among its Prometheus metrics, which Dask serves at `/metrics`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import REGISTRY
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

if TYPE_CHECKING:
    from roastcoffea.recording.facility.observer import Observer

PREFIX: Final = "roastcoffea"
OF_THREADS: Final = "Time of worker threads: of attempts that ended, and of free slots sampled once a second"


class Exposed:
    """Metrics of all observed schedulers of this process: there is hardly ever more than one.

    It is registered while there is one.
    """

    def __init__(self) -> None:
        self._observers: list[Observer] = []

    def add(self, observer: Observer) -> None:
        """Show the counters of a scheduler."""
        if not self._observers:
            REGISTRY.register(self)
        self._observers.append(observer)

    def remove(self, observer: Observer) -> None:
        """Show them no longer."""
        if observer in self._observers:
            self._observers.remove(observer)
            if not self._observers:
                REGISTRY.unregister(self)

    def describe(self) -> Iterator[Any]:
        """Names of the metrics, without amounts."""
        return self.collect()

    def collect(self) -> Iterator[Any]:
        """All metrics now."""
        counters = [observer.counters for observer in self._observers]
        runs = [observer.runs for observer in self._observers]
        going = [run for each in runs for run in each.going]
        of_now = [(one.workers, *one.threads) for one in self._observers] or [(0, 0, 0)]
        workers, threads, busy = map(sum, zip(*of_now, strict=True))
        pending = sum(max(run.asked - run.tally.chunks, 0) for run in going)
        capacity = "Threads of all workers times the time that they were there"
        for family, name, meaning, value in (
            (
                CounterMetricFamily,
                "events",
                "Events of chunks that gave a result",
                sum(each.events for each in counters),
            ),
            (CounterMetricFamily, "capacity_thread_seconds", capacity, sum(each.capacity for each in counters)),
            (GaugeMetricFamily, "runs", "Runs that go on", len(going)),
            (CounterMetricFamily, "runs_begun", "Runs that began", sum(each.begun for each in runs)),
            (GaugeMetricFamily, "workers", "Workers now", workers),
            (GaugeMetricFamily, "threads", "Threads of all workers now", threads),
            (GaugeMetricFamily, "threads_assigned", "Threads that have a task now", busy),
            (GaugeMetricFamily, "chunks_pending", "Chunks that clients submitted and that have no result yet", pending),
        ):
            yield family(f"{PREFIX}_{name}", f"{meaning}.", value=value)
        for attribute, name, meaning, labels in LABELLED:
            metric = CounterMetricFamily(f"{PREFIX}_{name}", f"{meaning}.", labels=labels)
            amounts: Counter[Any] = Counter()
            for each in counters:
                amounts.update(getattr(each, attribute))
            for key, amount in sorted(amounts.items()):
                metric.add_metric([key] if isinstance(key, str) else list(key), amount)
            yield metric


LABELLED: Final = (
    ("chunks", "chunks", "Chunks that ended", ["outcome"]),
    ("attempts", "failed_attempts", "Attempts of tasks without a result", ["outcome", "kind"]),
    ("bytes", "requested_bytes", "Bytes requested from storage by metered attempts", ["class", "endpoint"]),
    ("seconds", "thread_seconds", OF_THREADS, ["class"]),
)
"""Attributes of the counters, with name, meaning and labels of the metric."""

EXPOSED: Final = Exposed()
"""The metrics of this process."""
