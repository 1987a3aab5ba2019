"""What is computed from a run; conclusions add to the catalogue (see `diagnosis`)."""

# ruff: noqa: F401
import importlib
from typing import TYPE_CHECKING, Any

from roastcoffea.metrics import workflow

# Metrics of the workflow are inputs of the others, and an input is defined before it is used.
# isort: split
from roastcoffea.metrics import file_reads

# isort: split
from roastcoffea.metrics import chunks, custom, failures, fine, profile, sections
from roastcoffea.metrics.byte_ledger import ByteLedger
from roastcoffea.metrics.catalogue import CATALOGUE, GROUPS, Metric
from roastcoffea.metrics.evaluation import Metrics, evaluate
from roastcoffea.metrics.time_ledger import TimeLedger

# isort: split
from roastcoffea.metrics import memory, older, worker_names

__all__ = ["CATALOGUE", "GROUPS", "ByteLedger", "Metric", "Metrics", "TimeLedger", "evaluate"]


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """What is in `roastcoffea.diagnosis` now; imported when it is asked for, as that imports this room."""
        if name not in {"Finding", "Verdict"}:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module("roastcoffea.diagnosis"), name)
