"""Savings of runs that are written down by hand."""

from __future__ import annotations

from roastcoffea.diagnosis.savings import Savings
from roastcoffea.measurement import Measurement
from roastcoffea.records.run import Run


def savings_of(run: Run) -> Savings:
    measured = Measurement(run).metrics
    return Savings(run, measured.get("time_ledger"), measured.get("avg_workers"))
