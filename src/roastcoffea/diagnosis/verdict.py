"""The verdict: a run's bottleneck, and the findings with significant savings."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Final

from roastcoffea.diagnosis.evidence import EVIDENCE, SHORTEST, Evidence
from roastcoffea.diagnosis.finding import CAUSED_IDLE, CAUSES, NOTHING_READ, UNMEASURED, Finding, Verdict
from roastcoffea.diagnosis.findings.scheduling import thread_time
from roastcoffea.diagnosis.savings import Taken
from roastcoffea.metrics import phases
from roastcoffea.metrics.catalogue import CATALOGUE, TIME, Fact, NotMeasuredError, metric, refuse_if
from roastcoffea.metrics.time_ledger import TimeLedger
from roastcoffea.records.run import NO_FILE, Run
from roastcoffea.units import STRUCTURE, WORD

HALF: Final = 0.5
"""Minimum fraction of a saving left after fixing earlier findings; otherwise, they explain the finding.

A named culprit with at least this fraction of the largest saving ranks above a time class.
"""


def conclusions(evidence: Evidence) -> tuple[list[Finding], float | None]:
    """Select and rank findings; also return the saving from fixing all of them, or None if there are none.

    Missing data come first, followed by the findings with the largest savings. A finding is left out if the replay
    shows that it is mostly a consequence of an earlier finding.
    """
    complete = evidence.ledger.certificate.complete
    causes = [one for one in CAUSES.values() if complete or not one.looks_idle]
    every = [_judged(evidence, one) for cause in causes for one in cause.findings(evidence)]
    missing, always = [one for one in every if one.incomplete], [one for one in every if one.always]
    chosen = _chosen(
        evidence,
        [one for one in every if not one.incomplete and not one.always and _seconds(one) >= evidence.least(one.cause)],
    )
    found, together = _with_left(evidence, [*missing, *chosen, *always])
    return [_with_names(evidence, one) for one in found], together


def _with_left(evidence: Evidence, found: list[Finding]) -> tuple[list[Finding], float | None]:
    """Set each finding's remaining saving after fixing the earlier findings; also return the total saving."""
    left, before, total = dict[int, float](), list[Finding](), 0.0
    for place, one in sorted(enumerate(found), key=lambda each: each[1].of_others):
        if one.seconds is not None:
            before.append(one)
            more = max(together(evidence, before) - total, 0.0)
            total += more
            left[place] = min(more, one.seconds) if more >= 1e-3 * evidence.elapsed else 0.0
    return [replace(one, left=left.get(place)) for place, one in enumerate(found)], total if before else None


def _seconds(one: Finding) -> float:
    return one.seconds or 0.0


def _judged(evidence: Evidence, one: Finding) -> Finding:
    """Set a finding's saving, capped at the time in its rows plus the idle time added by the cause.

    If a replay without the cause saves more than the time in the rows, the excess is idle time.
    """
    taken, rows = replace(one.taken or Taken(), rows=one.rows), one.rows
    most = evidence.wall(sum(rows.values()))
    one = replace(one, taken=taken, elapsed=evidence.elapsed)
    # the rows contain too little time for a finding
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
    if caused > 1e-9:  # smaller amounts are rounding errors
        rows = {**rows, CAUSED_IDLE: caused}
    most = evidence.wall(sum(rows.values()))
    saving = saving if saving.seconds <= most else saving.up_to(most)
    interval = None if saving.at_most else (saving.low, saving.high)
    return replace(one, seconds=saving.seconds, interval=interval, at_most=saving.at_most, rows=rows)


def _chosen(evidence: Evidence, candidates: list[Finding]) -> list[Finding]:
    """Candidates still worth fixing after the earlier ones, ranked by the time they would still save.

    Other programs slow everything down. A finding about them is therefore evaluated last, but ranked by its full
    saving.
    """
    chosen: list[Finding] = []
    waiting = {number: _seconds(one) for number, one in enumerate(candidates)}
    current = set(waiting)
    while waiting:
        best = max(waiting, key=lambda place: (not candidates[place].of_others, waiting[place]))
        if best not in current:
            # earlier fixes can only reduce a saving
            left = together(evidence, [*chosen, candidates[best]]) - together(evidence, chosen)
            waiting[best] = min(waiting[best], left)
            current.add(best)
            continue
        best = _culprit_of(evidence, chosen, candidates, waiting, best)
        one, left = candidates[best], waiting.pop(best)
        # a finding about a named culprit or other programs is never a mere consequence
        if left >= max(evidence.least(one.cause), 0.0 if one.outranks or one.of_others else HALF * _seconds(one)):
            larger = (place for place, other in enumerate(chosen) if one.of_others and _seconds(other) < _seconds(one))
            chosen.insert(next(larger, len(chosen)), one)
            current.clear()
    return chosen


def _culprit_of(
    evidence: Evidence, chosen: list[Finding], candidates: list[Finding], waiting: dict[int, float], best: int
) -> int:
    """Index of the named culprit that explains the best candidate; if there is none, index of that candidate."""
    named = [place for place in waiting if candidates[place].outranks and waiting[place] >= HALF * waiting[best]]
    culprit = max(named, key=lambda place: waiting[place], default=best)
    if candidates[best].outranks or culprit == best:
        return best
    before = [*chosen, candidates[culprit]]
    left = together(evidence, [*before, candidates[best]]) - together(evidence, before)
    return culprit if left < HALF * waiting[best] else best


def together(evidence: Evidence, chosen: Iterable[Finding]) -> float:
    """Wall time saved by fixing all of these findings."""
    every = list(chosen)
    most = sum(map(_seconds, every))
    if len(every) < 2:
        return most
    return min(evidence.savings.together(one.taken or Taken() for one in every), evidence.elapsed, most)


def _with_names(evidence: Evidence, one: Finding) -> Finding:
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
    """Cause with the most thread time, named as in the findings."""
    refuse_if(not (run.calls or run.chunks or run.tasks), NOTHING_RAN)
    refuse_if(not time_ledger.total, "no worker was present")
    most = next(iter(thread_time(run, time_ledger)))
    reasons = time_ledger.certificate.reasons
    if reasons and most in CAUSES and CAUSES[most].looks_idle:
        raise NotMeasuredError(f"idle time is not interpreted: {'; '.join(reasons)}")
    return most


CATALOGUE.add(Fact(name="evidence", function=Evidence, inputs=EVIDENCE, optional=frozenset(EVIDENCE[4:])))


@of_ledger(STRUCTURE, formula="causes of lost time, and the savings from fixing them, estimated by replay")
def verdict(run: Run, evidence: Evidence, bound: str | None = None) -> Verdict:
    """Findings, with missing data first, then the largest savings; see `Verdict`."""
    ledger = evidence.ledger
    refuse_if(not (run.calls or run.chunks or run.tasks), NOTHING_RAN)
    refuse_if(not ledger.total, "no worker was present")
    found, together = conclusions(evidence)
    unmeasured = NOTHING_READ if run.absent.get("chunks") == NO_FILE else UNMEASURED
    return Verdict(
        found,
        incomplete=ledger.certificate.reasons,
        bound=bound,
        share=None if bound is None else thread_time(run, ledger)[bound] / (ledger.total or 1.0),
        together=together,
        elapsed=evidence.elapsed,
        failed=run.ended_early,
        unmeasured=unmeasured if run.tasks and not (run.calls or run.chunks) else "",
    )
