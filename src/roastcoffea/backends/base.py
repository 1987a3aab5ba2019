"""The interface of a custom backend: five methods, of which two are required."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any, Final

FINE_METRICS_DELAY: Final = 0.5
"""Default seconds for workers to report their counts for a span."""


class AbstractMetricsBackend(ABC):
    """Where an analysis runs: its workers over time, and fine metrics if it counts them.

    `MetricsCollector(backend=MyBackend())` needs only a subclass with these five methods. `start_tracking` and
    `stop_tracking` are required; without the other three there are no fine metrics. The collector calls them in this
    order: `start_tracking`, `create_span`, the analysis, `stop_tracking`, `get_span_metrics`. An error in a method
    becomes a problem of the measurement, not of the analysis.

    `kind` is optional: the name of the backend in measurements, by default that of its class.
    """

    @abstractmethod
    def start_tracking(self, interval: float = 1.0) -> None:
        """Start sampling the workers.

        Parameters
        ----------
        interval : float
            Seconds between samples.
        """

    @abstractmethod
    def stop_tracking(self) -> dict[str, Any]:
        """Stop sampling; it may be started again.

        Returns
        -------
        dict
            `worker_counts` {time: number of workers}, and for each of `worker_memory` [B], `worker_memory_limit` [B],
            `worker_cpu` [%, 100 is one core], `worker_cores`, `worker_active_tasks`, `worker_executing`,
            `worker_nbytes` [B], `worker_occupancy` [s] and `worker_last_seen` a mapping {worker: [(time, value), ...]}.
            Each is optional. A time is a `datetime` (local if it has no zone) or Unix seconds. A value of None was not
            measured.
        """

    def create_span(self, name: str) -> dict[str, Any]:
        """Create a span in which work is counted.

        Returns
        -------
        dict
            `context`, a context manager whose `__enter__` returns the span's id, and `name`.
        """
        return {"context": nullcontext(), "name": name}

    def get_span_metrics(
        self,
        span_info: Mapping[str, Any],  # noqa: ARG002  (for those that count)
        delay: float = FINE_METRICS_DELAY,  # noqa: ARG002
    ) -> dict[tuple[Any, ...], float]:
        """Fine metrics of a span; empty if its id is missing or unknown.

        Parameters
        ----------
        span_info : mapping
            Result of `create_span`, with the id of the span as `id`.
        delay : float
            Most seconds to wait for the workers' reports: a timeout, not a sleep.

        Returns
        -------
        dict
            Amounts by tuple: ("execute", task prefix, activity, unit).
        """
        return {}

    def supports_fine_metrics(self) -> bool:
        """Whether spans have fine metrics in this backend."""
        return False


def checked_interval(interval: Any, name: str = "interval") -> float:
    """A number of seconds between samples; ValueError for anything else."""
    number = isinstance(interval, (int, float)) and not isinstance(interval, bool)
    if not (number and math.isfinite(interval) and interval > 0):
        raise ValueError(f"{name} must be a positive number of seconds, not {interval!r}")
    return float(interval)
