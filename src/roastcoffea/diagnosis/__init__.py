"""What is concluded from metrics: verdict, advice, stragglers, balance of workers."""

from roastcoffea.diagnosis import stragglers

# isort: split
from roastcoffea.diagnosis import completeness, memory
from roastcoffea.diagnosis import evidence as advice
from roastcoffea.diagnosis import stragglers as balance

# isort: split
from roastcoffea.diagnosis import failures, savings, verdict
from roastcoffea.diagnosis.finding import Culprit, Finding, Verdict

__all__ = [
    "Culprit",
    "Finding",
    "Verdict",
    "advice",
    "balance",
    "completeness",
    "failures",
    "memory",
    "savings",
    "stragglers",
    "verdict",
]
