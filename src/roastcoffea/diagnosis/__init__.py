"""What is concluded from metrics: verdict, advice, stragglers, balance of workers."""

from roastcoffea.diagnosis import stragglers

# isort: split
from roastcoffea.diagnosis import advice, balance, savings, verdict
from roastcoffea.diagnosis.evidence import Finding, Verdict

__all__ = ["Finding", "Verdict", "advice", "balance", "savings", "stragglers", "verdict"]
