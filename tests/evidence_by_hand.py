"""Evidence of the run by hand, and of what is said of it."""

from __future__ import annotations

from typing import Any

from handmade import handmade_run

from roastcoffea.diagnosis.evidence import Evidence
from roastcoffea.diagnosis.memory import Fit, MemoryEvidence
from roastcoffea.diagnosis.savings import Savings
from roastcoffea.measurement import Measurement
from roastcoffea.metrics.facts import counted_chunks
from roastcoffea.records.run import Run


def evidence_of(run: Run | None = None, **changes: Any) -> Evidence:
    """What a run, else the one by hand, is judged by: its ledger and its replay, and what is given."""
    run = run or handmade_run()
    metrics = Measurement(run).metrics
    ledger = metrics["time_ledger"]
    fields: dict[str, Any] = {
        "run": run,
        "ledger": ledger,
        "savings": Savings(run, ledger, metrics.get("avg_workers")),
        "counted": None if run.chunks is None else counted_chunks(run.chunks),
        "fine": metrics.get("fine_metrics_per_worker"),
    }
    return Evidence(**fields | changes)


def memory_of(fits: int | None, chunk_events: float, paused: float = 50.0, lost: float = 0.0) -> MemoryEvidence:
    """A worker of 1 GB that was paused, and lost an attempt of so long; `fits` events of a chunk would fit."""
    row: dict[str, Any] = {
        "worker": "w0",
        "threads": 1,
        "killed_by": None,
        "killed_memory": None,
        "lost_seconds": lost,
        "lost_attempts": int(lost > 0),
        "paused_seconds": paused,
        "spilled": 0,
        "spill_seconds": 0.0,
        "results": 0,
        "memory_peak": 900_000_000,
        "memory_limit": 1_000_000_000,
    }
    each = None if fits is None else 600e6 / fits
    fit = None if each is None or fits is None else Fit(fits, "data", 1_000_000_000, 1, 0.0, each, at_most=False)
    absent = None if fits is not None else "the memory per event could not be measured for any chunk"
    return MemoryEvidence(workers=[row], datasets=[], fit=fit, fit_absent=absent, chunk_events=chunk_events)
