"""What is computed from a run: the catalogue of metrics, complete once this package is imported."""

from roastcoffea.metrics import workflow

# Metrics of the workflow are inputs of the others, and an input is defined before it is used.
# isort: split
from roastcoffea.metrics import chunks, fine, sections, workers
from roastcoffea.metrics.bytes import ByteLedger
from roastcoffea.metrics.catalogue import CATALOGUE, GROUPS, Metric
from roastcoffea.metrics.evaluation import Metrics, evaluate
from roastcoffea.metrics.time import TimeLedger

__all__ = [
    "CATALOGUE",
    "GROUPS",
    "ByteLedger",
    "Metric",
    "Metrics",
    "TimeLedger",
    "chunks",
    "evaluate",
    "fine",
    "sections",
    "workers",
    "workflow",
]
