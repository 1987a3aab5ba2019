"""Everything computed from a run. Conclusions extend the catalogue (see `diagnosis`)."""

# ruff: noqa: F401
import importlib
from typing import TYPE_CHECKING, Any

from roastcoffea.metrics import workflow

# Other metrics take workflow metrics as inputs, and an input has to be defined first.
# isort: split
from roastcoffea.metrics import byte_ledger as file_reads

# isort: split
from roastcoffea.metrics import central, chunks, endpoints, failures, fine, profile, sections
from roastcoffea.metrics import chunks as custom
from roastcoffea.metrics.byte_ledger import ByteLedger
from roastcoffea.metrics.catalogue import CATALOGUE, GROUPS, Metric
from roastcoffea.metrics.evaluation import Metrics, evaluate
from roastcoffea.metrics.time_ledger import TimeLedger

# isort: split
from roastcoffea.metrics import facts as worker_names
from roastcoffea.metrics import memory, older

# isort: split
from roastcoffea.metrics import allocation
from roastcoffea.metrics import central as client
from roastcoffea.metrics import fine as merges

__all__ = ["CATALOGUE", "GROUPS", "ByteLedger", "Metric", "Metrics", "TimeLedger", "evaluate"]


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Names that moved to `roastcoffea.diagnosis`, imported on request because that room imports this one."""
        if name not in {"Finding", "Verdict"}:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module("roastcoffea.diagnosis"), name)
