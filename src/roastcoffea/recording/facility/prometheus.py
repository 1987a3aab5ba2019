"""The counters of a scheduler among its Prometheus metrics, which Dask serves at `/metrics`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import REGISTRY
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

if TYPE_CHECKING:
    from roastcoffea.recording.facility.observer import Observer

PREFIX: Final = "roastcoffea"


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
        yield _counter("events", "Events of chunks that gave a result", sum(each.events for each in counters))
        yield _counter(
            "capacity_thread_seconds",
            "Threads of all workers times the time that they were there",
            sum(each.capacity for each in counters),
        )
        going = [run for one in self._observers for run in one.runs.going]
        yield _gauge("runs", "Runs that go on", len(going))
        yield _counter("runs_begun", "Runs that began", sum(one.runs.begun for one in self._observers))
        of_now = [(one.workers, *one.threads) for one in self._observers] or [(0, 0, 0)]
        workers, threads, busy = map(sum, zip(*of_now, strict=True))
        yield _gauge("workers", "Workers now", workers)
        yield _gauge("threads", "Threads of all workers now", threads)
        yield _gauge("threads_assigned", "Threads that have a task now", busy)
        yield _gauge(
            "chunks_pending",
            "Chunks that clients submitted and that have no result yet",
            sum(max(run.asked - run.tally.chunks, 0) for run in going),
        )
        yield _labelled("chunks", "Chunks that ended", ("outcome",), [each.chunks for each in counters])
        yield _labelled(
            "failed_attempts",
            "Attempts of tasks without a result",
            ("outcome", "kind"),
            [each.attempts for each in counters],
        )
        yield _labelled(
            "requested_bytes",
            "Bytes requested from storage by metered attempts",
            ("class", "endpoint"),
            [each.bytes for each in counters],
        )
        yield _labelled(
            "thread_seconds",
            "Time of worker threads: of attempts that ended, and of free slots sampled once a second",
            ("class",),
            [each.seconds for each in counters],
        )


def _counter(name: str, meaning: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(f"{PREFIX}_{name}", f"{meaning}.", value=value)


def _gauge(name: str, meaning: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"{PREFIX}_{name}", f"{meaning}.", value=value)


def _labelled(
    name: str, meaning: str, labels: tuple[str, ...], amounts: Sequence[Mapping[Any, float]]
) -> CounterMetricFamily:
    family = CounterMetricFamily(f"{PREFIX}_{name}", f"{meaning}.", labels=labels)
    for key in sorted({key for each in amounts for key in each}):
        family.add_metric([key] if isinstance(key, str) else list(key), sum(each.get(key, 0) for each in amounts))
    return family


EXPOSED: Final = Exposed()
"""The metrics of this process."""
