"""What is concluded from metrics: verdict, advice, stragglers, balance of workers."""

from __future__ import annotations

import importlib
from typing import Final

WITH_METRICS: Final = ("stragglers", "completeness", "evidence", "memory", "failures", "savings", "verdict")
"""Modules that add to the catalogue of metrics, in its order."""

for module in WITH_METRICS:
    importlib.import_module(f"{__name__}.{module}")

from roastcoffea.diagnosis.finding import Culprit, Finding, Verdict  # noqa: E402

__all__ = ["Culprit", "Finding", "Verdict"]
