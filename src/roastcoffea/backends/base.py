"""What a backend of one's own has: five methods, of which two are needed."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any, Final

FINE_METRICS_DELAY: Final = 0.5
"""Seconds that workers have by default to report what they counted for a span."""


class AbstractMetricsBackend(ABC):
    """Where an analysis runs: its workers over time, and fine metrics where it counts them.

    A subclass with these five methods is all that `MetricsCollector(backend=MyBackend())` needs. `start_tracking` and
    `stop_tracking` must be there; without the other three there are no fine metrics. The collector opens them in this
    order: `start_tracking`, `create_span`, the analysis, `stop_tracking`, `get_span_metrics`. A method that fails
    becomes a problem of the measurement, and not of the analysis.

    `kind` is optional: the name of the backend in measurements, otherwise that of its class.
    """

    @abstractmethod
    def start_tracking(self, interval: float = 1.0) -> None:
        """Begin to sample the workers.

        Parameters
        ----------
        interval : float
            Seconds between samples.
        """

    @abstractmethod
    def stop_tracking(self) -> dict[str, Any]:
        """End sampling; it may be started again.

        Returns
        -------
        dict
            `worker_counts` {time: number of workers}, and for each of `worker_memory` [B], `worker_memory_limit` [B],
            `worker_cpu` [%, 100 is one core], `worker_cores`, `worker_active_tasks`, `worker_executing`,
            `worker_nbytes` [B], `worker_occupancy` [s] and `worker_last_seen` a mapping {worker: [(time, value), ...]}.
            Each may be left out. A time is a `datetime` (local, where it has no zone) or Unix seconds. A value of None
            was not measured.
        """

    def create_span(self, name: str) -> dict[str, Any]:
        """Create a span, in which work can be counted.

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
        """Fine metrics of a span; empty where its id is missing or unknown.

        Parameters
        ----------
        span_info : mapping
            What `create_span` returned, with the id of the span as `id`.
        delay : float
            Seconds that may pass until the workers have reported. It is an upper bound, not a sleep.

        Returns
        -------
        dict
            Amounts by tuple: ("execute", task prefix, activity, unit).
        """
        return {}

    def supports_fine_metrics(self) -> bool:
        """Whether spans have fine metrics here."""
        return False


def checked_interval(interval: Any, name: str = "interval") -> float:
    """A number of seconds between samples; ValueError for anything else."""
    number = isinstance(interval, (int, float)) and not isinstance(interval, bool)
    if not (number and math.isfinite(interval) and interval > 0):
        raise ValueError(f"{name} must be a positive number of seconds, not {interval!r}")
    return float(interval)
