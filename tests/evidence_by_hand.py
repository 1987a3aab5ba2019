"""Evidence of the run by hand."""

from __future__ import annotations

from typing import Any

from handmade import handmade_run

from roastcoffea.diagnosis.evidence import Evidence
from roastcoffea.measurement import Measurement
from roastcoffea.metrics.facts import counted_chunks
from roastcoffea.records.run import Run


def evidence_of(run: Run | None = None, **changes: Any) -> Evidence:
    """What a run, else the one by hand, is judged by."""
    run = run or handmade_run()
    measurement = Measurement(run)
    fields: dict[str, Any] = {
        "run": run,
        "ledger": measurement.time_ledger,
        "counted": None if run.chunks is None else counted_chunks(run.chunks),
        "stragglers": None,
        "slow_workers": {},
        "spilled": 0.25,
        "fine": measurement.metrics.get("fine_metrics_per_worker"),
    }
    return Evidence(**fields | changes)
