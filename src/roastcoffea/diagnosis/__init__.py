"""What is concluded from metrics: verdict, advice, stragglers, balance of workers."""

# these add to the catalogue of metrics, in its order
from roastcoffea.diagnosis import completeness, findings, verdict  # noqa: F401, I001
from roastcoffea.diagnosis import slowness  # noqa: F401
from roastcoffea.diagnosis.finding import Culprit, Finding, Verdict

__all__ = ["Culprit", "Finding", "Verdict"]
