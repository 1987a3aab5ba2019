"""What is computed from a run; conclusions add to the catalogue (see `diagnosis`)."""

# ruff: noqa: F401
from roastcoffea.metrics import workflow

# Metrics of the workflow are inputs of the others, and an input is defined before it is used.
# isort: split
from roastcoffea.metrics import file_reads

# isort: split
from roastcoffea.metrics import chunks, custom, failures, fine, sections
from roastcoffea.metrics.byte_ledger import ByteLedger
from roastcoffea.metrics.catalogue import CATALOGUE, GROUPS, Metric
from roastcoffea.metrics.evaluation import Metrics, evaluate
from roastcoffea.metrics.time_ledger import TimeLedger

# isort: split
from roastcoffea.metrics import older

__all__ = ["CATALOGUE", "GROUPS", "ByteLedger", "Metric", "Metrics", "TimeLedger", "evaluate"]
