"""The verdict: what limits a run, and which change would save how much."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import pyarrow as pa

from roastcoffea.diagnosis.causes import CAUSES, findings
from roastcoffea.diagnosis.evidence import Evidence, Verdict, shares_interpreter, words
from roastcoffea.diagnosis.stragglers import SlowWorker
from roastcoffea.metrics.catalogue import TIME, NotMeasuredError, fact, metric, refuse_if
from roastcoffea.metrics.time_ledger import TimeLedger
from roastcoffea.records.run import FAILED, Run
from roastcoffea.units import STRUCTURE, WORD


@fact
def spill_seconds(fine_metrics_per_worker: Mapping[str, Mapping[str, float]]) -> float:
    """Seconds in which workers moved results to disk or back."""
    return sum(worker["spill_seconds"] for worker in fine_metrics_per_worker.values())


of_ledger = partial(metric, group=TIME, source=TimeLedger.name)


@of_ledger(WORD, label="bound by", formula="word for the classes of the time ledger that have the most thread time")
def bound(time_ledger: TimeLedger, counted_chunks: pa.Table | None = None) -> str:
    """What the run spent most of its thread time on, in one word."""
    refuse_if(not time_ledger.total, "no worker was there")
    amounts: dict[str, float] = {}
    seconds = dict(time_ledger)
    for name, word in words(shared=shares_interpreter(counted_chunks)).items():
        amounts[word] = amounts.get(word, 0.0) + seconds.get(name, 0.0)
    most = max(amounts, key=lambda word: amounts[word])
    reasons = time_ledger.certificate.reasons
    if reasons and most in CAUSES and CAUSES[most].looks_idle:
        raise NotMeasuredError(f"nothing is said of idle time: {'; '.join(reasons)}")
    return most


@of_ledger(STRUCTURE, formula="rows of the time ledger against thresholds")
def verdict(  # noqa: PLR0917
    run: Run,
    time_ledger: TimeLedger,
    counted_chunks: pa.Table | None = None,
    stragglers: pa.Table | None = None,
    slow_workers: Mapping[str, SlowWorker] | None = None,
    spill_seconds: float | None = None,
    fine_metrics_per_worker: Mapping[str, Mapping[str, float]] | None = None,
    bound: str | None = None,
) -> Verdict:
    """Potential savings, largest first: see `Verdict`."""
    refuse_if(not time_ledger.total, "no worker was there")
    spilled, fine = spill_seconds or 0.0, fine_metrics_per_worker
    evidence = Evidence(run, time_ledger, counted_chunks, stragglers, slow_workers or {}, spilled, fine)
    found = sorted(findings(evidence), key=lambda finding: finding.seconds, reverse=True)
    state: dict[str, Any] = {"elapsed": evidence.elapsed, "failed": run.outcome == FAILED}
    return Verdict(found, incomplete=time_ledger.certificate.reasons, bound=bound, **state)
