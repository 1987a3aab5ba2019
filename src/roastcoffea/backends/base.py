"""What a collector asks of a backend."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any


class AbstractMetricsBackend(ABC):
    """Where an analysis runs, as seen by a collector: workers over time, and fine metrics of a span."""

    @abstractmethod
    def start_tracking(self, interval: float) -> None:
        """Begin to sample the workers each `interval` seconds."""

    @abstractmethod
    def stop_tracking(self) -> dict[str, Any]:
        """End sampling.

        Returns
        -------
        dict
            `worker_counts` {datetime: int}, and for each worker field {worker address: [(datetime, value), ...]}.
        """

    @abstractmethod
    def create_span(self, name: str) -> Mapping[str, Any]:
        """Give a span in which work can be counted.

        Returns
        -------
        mapping
            `context`, a context manager whose `__enter__` returns the span's id, and `name`.
        """

    @abstractmethod
    def get_span_metrics(self, span: Mapping[str, Any]) -> dict[tuple[Any, ...], float]:
        """Fine metrics of a span under tuple keys; empty where its `id` is missing or unknown."""

    @abstractmethod
    def supports_fine_metrics(self) -> bool:
        """Whether spans have fine metrics here."""
