"""The verdict: what limits a run, and which change would save how much."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

import pyarrow as pa

from roastcoffea.diagnosis import causes_of_chunks, causes_of_cluster, causes_of_slowness  # noqa: F401  (they fill the table of causes)
from roastcoffea.diagnosis.causes import CAUSES, conclusions
from roastcoffea.diagnosis.causes_of_cluster import thread_time
from roastcoffea.diagnosis.completeness import Incompleteness
from roastcoffea.diagnosis.evidence import Evidence
from roastcoffea.diagnosis.failures import FailureEvidence
from roastcoffea.diagnosis.finding import NOTHING_READ, UNMEASURED, Verdict
from roastcoffea.diagnosis.memory import MemoryEvidence
from roastcoffea.diagnosis.savings import Savings
from roastcoffea.diagnosis.slowness import Slowness
from roastcoffea.metrics import phases
from roastcoffea.metrics.byte_ledger import ByteLedger
from roastcoffea.metrics.catalogue import TIME, NotMeasuredError, metric, refuse_if
from roastcoffea.metrics.facts import NO_NAMES, Names
from roastcoffea.metrics.profile import Profile
from roastcoffea.metrics.time_ledger import TimeLedger
from roastcoffea.records.run import NO_FILE, Run
from roastcoffea.units import STRUCTURE, WORD

NOTHING_RAN: Final = "no Runner was called, and no task ran"

of_ledger = partial(metric, group=TIME, source=TimeLedger.name)


@of_ledger(WORD, label="bottleneck", formula="cause with the most thread time")
def bound(run: Run, time_ledger: TimeLedger) -> str:
    """What used most of the thread time, in the words of findings."""
    refuse_if(not (run.calls or run.chunks or run.tasks), NOTHING_RAN)
    refuse_if(not time_ledger.total, "no worker was present")
    most = next(iter(thread_time(run, time_ledger)))
    reasons = time_ledger.certificate.reasons
    if reasons and most in CAUSES and CAUSES[most].looks_idle:
        raise NotMeasuredError(f"idle time is not interpreted: {'; '.join(reasons)}")
    return most


@of_ledger(STRUCTURE, formula="causes of lost time, and their savings by a replay")
def verdict(  # noqa: PLR0917
    run: Run,
    time_ledger: TimeLedger,
    savings: Savings,
    counted_chunks: pa.Table | None = None,
    stragglers: pa.Table | None = None,
    slowness: Slowness | None = None,
    fine_metrics_per_worker: Mapping[str, Mapping[str, float]] | None = None,
    memory_evidence: MemoryEvidence | None = None,
    incompleteness: Incompleteness | None = None,
    failure_evidence: FailureEvidence | None = None,
    hot_functions: pa.Table | None = None,
    profile: Profile | None = None,
    endpoints: pa.Table | None = None,
    byte_ledger: ByteLedger | None = None,
    place_names: Names = NO_NAMES,
    bound: str | None = None,
) -> Verdict:
    """Findings: missing data first, then the largest saving; see `Verdict`."""
    refuse_if(not (run.calls or run.chunks or run.tasks), NOTHING_RAN)
    refuse_if(not time_ledger.total, "no worker was present")
    evidence = Evidence(
        run=run,
        ledger=time_ledger,
        savings=savings,
        counted=counted_chunks,
        stragglers=stragglers,
        slow=() if slowness is None else slowness.slow,
        fine=fine_metrics_per_worker,
        memory=memory_evidence,
        incompleteness=incompleteness,
        failures=failure_evidence,
        started=time_ledger.startup,
        hot=hot_functions,
        profile=profile,
        endpoints=endpoints,
        names=place_names,
        reread=_read_again(byte_ledger),
        bytes=byte_ledger,
    )
    found, together = conclusions(evidence)
    unmeasured = NOTHING_READ if run.absent.get("chunks") == NO_FILE else UNMEASURED
    return Verdict(
        found,
        incomplete=time_ledger.certificate.reasons,
        bound=bound,
        share=None if bound is None else thread_time(run, time_ledger)[bound] / (time_ledger.total or 1.0),
        together=together,
        elapsed=evidence.elapsed,
        failed=run.ended_early,
        unmeasured=unmeasured if run.tasks and not (run.calls or run.chunks) else "",
    )


def _read_again(ledger: ByteLedger | None) -> float:
    """Share of basket bytes that chunks read again."""
    found = {} if ledger is None else ledger
    again, once = found.get(phases.REREAD) or 0, found.get(phases.PAYLOAD) or 0
    return again / (again + once) if again else 0.0
