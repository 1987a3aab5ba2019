"""Conclusions from metrics: verdict, advice, stragglers, worker balance."""

# importing these modules adds their metrics to the catalogue, in this order
from roastcoffea.diagnosis import completeness, findings, verdict  # noqa: F401, I001
from roastcoffea.diagnosis import slowness  # noqa: F401
from roastcoffea.diagnosis.finding import Culprit, Finding, Verdict

__all__ = ["Culprit", "Finding", "Verdict"]
