"""What a collector of 0.1.2 had beside its measurement."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Final

OLD_OUTPUT_KEY: Final = "__roastcoffea_metrics__"


class CollectorOf012(ABC):
    """Methods and attributes of collectors of 0.1.2, by their names, made of the measurement."""

    @property
    @abstractmethod
    def measurement(self) -> Any:
        """What was measured."""

    def get_metrics(self) -> Mapping[str, Any]:
        """Values of the metrics under their names; one that is missing raises a KeyError with the reason."""
        metrics: Mapping[str, Any] = self.measurement.metrics
        return metrics

    metrics = property(get_metrics)

    @property
    def chunk_metrics(self) -> list[dict[str, Any]]:
        """One dict for each chunk that gave a result; `measurement.chunks` has every attempt."""
        return list(self.metrics["raw_chunk_metrics"])

    @property
    def tracking_data(self) -> Mapping[str, Any] | None:
        """Samples of the workers by field and worker; None where they were not sampled."""
        data: Mapping[str, Any] | None = self.metrics.get("tracking_data")
        return data

    @property
    def span_metrics(self) -> Mapping[tuple[Any, ...], float]:
        """The span's cumulative metrics under tuple keys; empty where there are none."""
        return self.measurement.run.span_metrics or {}

    def extract_metrics_from_output(self, output: Any) -> None:
        """Take what older versions left in an output out of it, in place."""
        if isinstance(output, dict):
            output.pop(OLD_OUTPUT_KEY, None)
