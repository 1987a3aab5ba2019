"""What is concluded from metrics: verdict, stragglers, balance of workers."""

from roastcoffea.diagnosis import stragglers

# isort: split
from roastcoffea.diagnosis import balance
from roastcoffea.diagnosis.verdict import Finding, Verdict

__all__ = ["Finding", "Verdict", "balance", "stragglers"]
