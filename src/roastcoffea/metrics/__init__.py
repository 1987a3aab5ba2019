"""Metrics computed from a run. The `diagnosis` package adds conclusions to the catalogue."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

WITH_METRICS: Final = (
    *("workflow", "byte_ledger", "scheduler_and_client", "chunks", "endpoints", "outputs", "failures", "profile"),
    *("time_ledger", "memory", "arrivals", "facts"),
)
"""Modules that define metrics, ordered so that every metric comes after its inputs."""

for module in WITH_METRICS:
    importlib.import_module(f"{__name__}.{module}")

from roastcoffea.metrics.byte_ledger import ByteLedger  # noqa: E402
from roastcoffea.metrics.catalogue import CATALOGUE, GROUPS, Metric  # noqa: E402
from roastcoffea.metrics.evaluation import Metrics, evaluate  # noqa: E402
from roastcoffea.metrics.outputs import WriteLedger  # noqa: E402
from roastcoffea.metrics.time_ledger import TimeLedger  # noqa: E402

__all__ = ["CATALOGUE", "GROUPS", "ByteLedger", "Metric", "Metrics", "TimeLedger", "WriteLedger", "evaluate"]


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Names that moved to `roastcoffea.diagnosis`, which imports this package and is therefore imported lazily."""
        if name not in {"Finding", "Verdict"}:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module("roastcoffea.diagnosis"), name)
