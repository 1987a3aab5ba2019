"""Attributes of 0.1.2's collector in addition to the measurement."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from roastcoffea.metrics import Metrics

OLD_OUTPUT_KEY: Final = "__roastcoffea_metrics__"


class CollectorOf012(ABC):
    """Methods and attributes of 0.1.2's collector, by their names, derived from the measurement."""

    processor_instance: Any
    t_end: float | None

    @property
    @abstractmethod
    def measurement(self) -> Any:
        """The measurement."""

    def get_metrics(self) -> Metrics:
        """Values of the metrics by name; a missing one raises a KeyError with the reason.

        They are those of `measurement.metrics`, except `sections`, which has the shape of 0.1.2: {section: {amount:
        value}}, over chunks with a result.
        """
        from roastcoffea.metrics.older import OlderMetrics

        return OlderMetrics(self.measurement.metrics.evaluator)

    metrics = property(get_metrics)

    @property
    def processor_name(self) -> str | None:
        """Name of the given processor's class; otherwise, at the end, that of the last one that ran."""
        if self.processor_instance is not None:
            return type(self.processor_instance).__name__
        calls = () if self.t_end is None else self.measurement.run.calls
        return calls[-1].processor if calls else None

    @property
    def chunk_metrics(self) -> list[dict[str, Any]]:
        """One dict for each chunk with a result; `measurement.chunks` has every attempt."""
        return list(self.metrics["raw_chunk_metrics"])

    @property
    def tracking_data(self) -> Mapping[str, Any] | None:
        """Samples of the workers by field and worker; None if they were not sampled."""
        data: Mapping[str, Any] | None = self.metrics.get("tracking_data")
        return data

    @property
    def span_metrics(self) -> Mapping[tuple[Any, ...], float]:
        """The span's cumulative metrics by tuple; empty if there are none."""
        return self.measurement.run.span_metrics or {}

    def extract_metrics_from_output(self, output: Any) -> None:
        """Remove from an output what older versions left in it, in place."""
        if isinstance(output, dict):
            output.pop(OLD_OUTPUT_KEY, None)

    def save_measurement(
        self, output_dir: str | Path, measurement_name: str | None = None, overwrite: bool = False
    ) -> Path:
        """Save the measurement as a folder in `output_dir`, and return the folder's path.

        Without a name it gets a new one: that of the run and a number, or the time. An existing measurement is
        overwritten only with `overwrite`.
        """
        path: Path = self.measurement.save(output_dir, measurement_name, overwrite)
        return path

    def print_summary(self, *, all: bool = False, group: str | None = None) -> None:  # noqa: A002
        """Print what ran, where time and bytes went and what to change; or all tables, or those of a group."""
        self.measurement.print_summary(all=all, group=group)
