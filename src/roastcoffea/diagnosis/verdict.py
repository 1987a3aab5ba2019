"""The verdict: what limits a run, which findings save enough, and how much."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Final

import pyarrow as pa

from roastcoffea.diagnosis.completeness import FailureEvidence, Incompleteness, MemoryEvidence
from roastcoffea.diagnosis.evidence import SHORTEST, Evidence
from roastcoffea.diagnosis.finding import CAUSED_IDLE, CAUSES, NOTHING_READ, UNMEASURED, Finding, Verdict
from roastcoffea.diagnosis.findings.scheduling import thread_time
from roastcoffea.diagnosis.savings import Savings, Taken
from roastcoffea.diagnosis.slowness import Slowness
from roastcoffea.metrics import phases
from roastcoffea.metrics.byte_ledger import ByteLedger
from roastcoffea.metrics.catalogue import TIME, NotMeasuredError, metric, refuse_if
from roastcoffea.metrics.facts import NO_NAMES, Names
from roastcoffea.metrics.profile import Profile
from roastcoffea.metrics.time_ledger import TimeLedger
from roastcoffea.records.run import NO_FILE, Run
from roastcoffea.units import STRUCTURE, WORD

HALF: Final = 0.5
"""Fraction of a saving that must remain once earlier findings are fixed; below it the finding is their consequence.

From the same fraction of the largest saving a named culprit ranks above a class of time.
"""


def conclusions(evidence: Evidence) -> tuple[list[Finding], float | None]:
    """Findings that save enough, and what fixing all of them would save (None if there is nothing to fix).

    Missing data comes first, then the largest saving. A finding that the replay shows to be mostly a consequence of an
    earlier one is left out.
    """
    complete = evidence.ledger.certificate.complete
    causes = [one for one in CAUSES.values() if complete or not one.looks_idle]
    every = [_judged(evidence, one) for cause in causes for one in cause.findings(evidence)]
    missing, always = [one for one in every if one.incomplete], [one for one in every if one.always]
    chosen = _chosen(
        evidence,
        [one for one in every if not one.incomplete and not one.always and _seconds(one) >= evidence.least(one.cause)],
    )
    return [_with_names(evidence, one) for one in (*missing, *chosen, *always)], together(
        evidence, chosen
    ) if chosen else None


def _seconds(one: Finding) -> float:
    return one.seconds or 0.0


def _judged(evidence: Evidence, one: Finding) -> Finding:
    """A finding with its saving, which is no more than its rows and the idle time that they cause.

    A replay without the cause ends earlier: what its threads save beyond the rows, they were idle for.
    """
    taken, rows = replace(one.taken or Taken(), rows=one.rows), one.rows
    most = evidence.wall(sum(rows.values()))
    one = replace(one, taken=taken, elapsed=evidence.elapsed)
    # even if all threads shared its time it would not save enough
    if one.incomplete or not (one.always or taken.known or most >= evidence.least(one.cause) / 2):
        return one
    saving = evidence.savings.of(taken)
    if isinstance(evidence.savings.replay, str):
        saving = saving.up_to(most)
    if one.always and saving.seconds < SHORTEST:
        return one
    beyond = saving.seconds * evidence.total / evidence.elapsed - sum(rows.values())
    idle = sum(seconds for name, seconds in evidence.ledger.items() if name in phases.IDLE)
    caused = min(beyond, idle - sum(seconds for name, seconds in rows.items() if name.startswith(phases.IDLE)))
    if caused > 1e-9:  # less is the rounding of sums
        rows = {**rows, CAUSED_IDLE: caused}
    most = evidence.wall(sum(rows.values()))
    saving = saving if saving.seconds <= most else saving.up_to(most)
    interval = None if saving.at_most else (saving.low, saving.high)
    return replace(one, seconds=saving.seconds, interval=interval, at_most=saving.at_most, rows=rows)


def _chosen(evidence: Evidence, candidates: list[Finding]) -> list[Finding]:
    """Candidates by what fixing each saves when those before it are fixed, without mere consequences of these."""
    chosen: list[Finding] = []
    waiting = {number: _seconds(one) for number, one in enumerate(candidates)}
    current = set(waiting)
    while waiting:
        best = max(waiting, key=lambda place: waiting[place])
        if best not in current:
            # what is fixed before can only leave less of a saving
            left = together(evidence, [*chosen, candidates[best]]) - together(evidence, chosen)
            waiting[best] = min(waiting[best], left)
            current.add(best)
            continue
        best = _culprit_of(evidence, chosen, candidates, waiting, best)
        one, left = candidates[best], waiting.pop(best)
        # a culprit with a name is no mere consequence
        if left >= max(evidence.least(one.cause), 0.0 if one.outranks else HALF * _seconds(one)):
            chosen.append(one)
            current.clear()
    return chosen


def _culprit_of(
    evidence: Evidence, chosen: list[Finding], candidates: list[Finding], waiting: dict[int, float], best: int
) -> int:
    """The named culprit that causes the best candidate, or the best candidate itself."""
    named = [place for place in waiting if candidates[place].outranks and waiting[place] >= HALF * waiting[best]]
    culprit = max(named, key=lambda place: waiting[place], default=best)
    if candidates[best].outranks or culprit == best:
        return best
    before = [*chosen, candidates[culprit]]
    left = together(evidence, [*before, candidates[best]]) - together(evidence, before)
    return culprit if left < HALF * waiting[best] else best


def together(evidence: Evidence, chosen: Iterable[Finding]) -> float:
    """Wall time that fixing all of these would save."""
    every = list(chosen)
    most = sum(map(_seconds, every))
    if len(every) < 2:
        return most
    return min(evidence.savings.together(one.taken or Taken() for one in every), evidence.elapsed, most)


def _with_names(evidence: Evidence, one: Finding) -> Finding:
    """A finding with short names of workers and hosts, but for the line to copy: Dask knows workers by address."""
    names = evidence.names
    known, culprits = {"worker": names.workers, "host": names.hosts}, []
    for culprit in one.culprits:
        label = known.get(culprit.kind, {}).get(culprit.name)
        culprits.append(culprit._replace(label=None if label == culprit.name else label))
    what, advice = names.in_text(one.what), names.in_text(one.advice)
    return replace(one, what=what, advice=advice, culprits=tuple(culprits))


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
        fine=fine_metrics_per_worker or {},
        memory=memory_evidence,
        incompleteness=incompleteness,
        failures=failure_evidence,
        started=time_ledger.startup,
        hot=hot_functions,
        profile=profile,
        endpoints=endpoints,
        names=place_names,
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
