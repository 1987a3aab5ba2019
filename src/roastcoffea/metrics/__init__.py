"""What is computed from a run: the catalogue of metrics, complete once this package is imported."""

from roastcoffea.metrics import workflow

# Metrics of the workflow are inputs of the others, and an input is defined before it is used.
# isort: split
from roastcoffea.metrics import chunks, failures, fine, sections, workers
from roastcoffea.metrics.bytes import ByteLedger
from roastcoffea.metrics.catalogue import CATALOGUE, GROUPS, Metric
from roastcoffea.metrics.evaluation import Metrics, evaluate
from roastcoffea.metrics.time import TimeLedger

# isort: split
from roastcoffea.metrics import stragglers

# isort: split
from roastcoffea.metrics import balance
from roastcoffea.metrics.verdict import Finding, Verdict

__all__ = [
    "CATALOGUE",
    "GROUPS",
    "ByteLedger",
    "Finding",
    "Metric",
    "Metrics",
    "TimeLedger",
    "Verdict",
    "balance",
    "chunks",
    "evaluate",
    "failures",
    "fine",
    "sections",
    "stragglers",
    "workers",
    "workflow",
]
