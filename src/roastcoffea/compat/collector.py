"""What a collector of 0.1.2 had beside its measurement."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Final

from roastcoffea.compat.shapes import sections_of
from roastcoffea.metrics import Metrics, evaluate
from roastcoffea.metrics.catalogue import RUN
from roastcoffea.records.run import Run

OLD_OUTPUT_KEY: Final = "__roastcoffea_metrics__"


class OlderMetrics(Metrics):
    """Metrics of a run, whose `sections` are those of 0.1.2: by name alone, over chunks that gave a result."""

    def __getitem__(self, name: str) -> Any:
        found = super().__getitem__(name)
        return sections_of(self["raw_chunk_metrics"]) if name == "sections" else found

    def __reduce__(self) -> tuple[Callable[[Run], OlderMetrics], tuple[Run]]:
        return _older_metrics, (self.evaluator.value(RUN),)


def _older_metrics(run: Run) -> OlderMetrics:
    return OlderMetrics(evaluate(run).evaluator)


class CollectorOf012(ABC):
    """Methods and attributes of collectors of 0.1.2, by their names, made of the measurement."""

    processor_instance: Any
    t_end: float | None

    @property
    @abstractmethod
    def measurement(self) -> Any:
        """What was measured."""

    def get_metrics(self) -> Metrics:
        """Values of the metrics under their names; one that is missing raises a KeyError with the reason.

        They are those of `measurement.metrics`, but for `sections`, which has the shape of 0.1.2:
        {section: {amount: value}}, over chunks that gave a result.
        """
        return OlderMetrics(self.measurement.metrics.evaluator)

    metrics = property(get_metrics)

    @property
    def processor_name(self) -> str | None:
        """Name of the processor's class: of the one that was handed over, else, after the end, of the last that ran."""
        if self.processor_instance is not None:
            return type(self.processor_instance).__name__
        calls = () if self.t_end is None else self.measurement.run.calls
        return calls[-1].processor if calls else None

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
