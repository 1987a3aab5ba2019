"""The causes of lost time: what each claims, how a replay removes it, and which of them become findings.

Each row of the time ledger belongs to one cause: its class's word. The excess of a slow worker or file, spilling and
the cost of a chunk size are no rows of the ledger: fixing another cause may save them too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from roastcoffea.diagnosis.evidence import Evidence
from roastcoffea.diagnosis.finding import Culprit, Finding, Rows
from roastcoffea.diagnosis.removals import PARTS, Taken
from roastcoffea.diagnosis.savings import Saving

ENOUGH: Final = 0.5
"""Fraction of the largest saving from which a named culprit ranks above a class of time."""

LEFT: Final = 0.5
"""Fraction of a saving that must remain once earlier findings are fixed; below it the finding is their consequence."""


class Draft(NamedTuple):
    """What a cause says, before its saving is known."""

    what: str
    advice: str
    culprits: tuple[Culprit, ...] = ()
    remedy: str | None = None
    rows: Rows | None = None
    """Evidence, unless it is the classes that carry the cause's name as their word."""
    taken: Taken | None = None
    """How a replay removes the cause, if its name is not enough."""
    saving: Saving | None = None
    """The saving, if it is already known."""


Says = Callable[[Evidence], Draft | Iterable[Draft] | None]


class Cause(NamedTuple):
    """A cause of lost time."""

    name: str
    says: Says
    looks_idle: bool
    """Whether missing task rows would look like this cause."""
    names_culprit: bool
    """Whether a named culprit or an event enlarges other classes of time."""

    def drafts(self, evidence: Evidence) -> Iterator[Draft]:
        """Drafts of findings for a run."""
        said = self.says(evidence)
        drafts = [said] if isinstance(said, Draft) else said or ()
        yield from drafts


CAUSES: Final[dict[str, Cause]] = {}


def cause(name: str, *, looks_idle: bool = False, names_culprit: bool = False) -> Callable[[Says], Says]:
    """Register a function that says what is slow and what to change."""

    def add(says: Says) -> Says:
        CAUSES[name] = Cause(name, says, looks_idle, names_culprit)
        return says

    return add


class _Candidate(NamedTuple):
    cause: Cause
    draft: Draft
    taken: Taken
    saving: Saving
    rows: Rows

    @property
    def seconds(self) -> float:
        return self.saving.seconds or 0.0


def conclusions(evidence: Evidence) -> tuple[list[Finding], float | None]:
    """Findings that save enough, and what fixing all of them would save (None if there is nothing to fix).

    Missing data comes first, then the largest saving. A finding that the replay shows to be mostly a consequence of an
    earlier one is left out.
    """
    complete = evidence.ledger.certificate.complete
    found = [_finding(evidence, one) for one in _lacking(evidence)]
    candidates = list(_candidates(evidence, (one for one in CAUSES.values() if complete or not one.looks_idle)))
    chosen: list[_Candidate] = []
    while candidates:
        best = _first(evidence, candidates)
        candidates.remove(best)
        if not chosen or _left(evidence, chosen, best) >= max(LEFT * best.seconds, evidence.least(best.cause.name)):
            chosen.append(best)
    return [*found, *(_finding(evidence, one) for one in chosen)], together(evidence, chosen) if chosen else None


def _lacking(evidence: Evidence) -> Iterator[_Candidate]:
    """Missing data is a finding whatever it costs."""
    lacking = CAUSES["missing data"]
    for draft in lacking.drafts(evidence):
        nothing = Saving(None, 0.0, 0.0)
        yield _Candidate(lacking, draft, Taken(lacking.name), nothing, draft.rows or {})


def _candidates(evidence: Evidence, causes: Iterable[Cause]) -> Iterator[_Candidate]:
    for one in causes:
        if one.name == "missing data":
            continue
        for draft in one.drafts(evidence):
            rows = evidence.rows_of(one.name) if draft.rows is None else draft.rows
            seconds = sum(rows.values())
            # all threads share what the replay does not model
            taken = draft.taken or Taken(one.name, seconds=None if one.name in PARTS else seconds)
            saving = draft.saving or _saving(evidence, taken, seconds)
            if (saving.seconds or 0.0) >= evidence.least(one.name):
                yield _Candidate(one, draft, taken, saving, rows)


def _saving(evidence: Evidence, taken: Taken, thread_seconds: float) -> Saving:
    """Saving by a replay; skipped if even sharing the time among all threads could not save enough."""
    if evidence.wall(thread_seconds) < evidence.least(taken.cause) / 2:
        return Saving(0.0, 0.0, 0.0)
    return evidence.savings.of(taken)


def _first(evidence: Evidence, candidates: list[_Candidate]) -> _Candidate:
    """The candidate with the largest saving, unless it is a consequence of a named culprit: then that culprit."""
    most = max(candidates, key=lambda one: one.seconds)
    named = [one for one in candidates if one.cause.names_culprit and one.seconds >= ENOUGH * most.seconds]
    best = max(named, key=lambda one: one.seconds, default=most)
    return best if best is most or _left(evidence, [best], most) < LEFT * most.seconds else most


def _left(evidence: Evidence, chosen: list[_Candidate], one: _Candidate) -> float:
    """Extra seconds that fixing one would save once the chosen ones are fixed."""
    before = together(evidence, chosen)
    after = together(evidence, [*chosen, one])
    return after - before


def together(evidence: Evidence, chosen: Iterable[_Candidate]) -> float:
    """Wall time that fixing all of these would save."""
    every = list(chosen)
    if len(every) == 1:
        return float(every[0].saving.seconds or 0.0)
    saved = evidence.savings.all_together(one.taken for one in every).seconds or 0.0
    return min(saved, evidence.elapsed)


def _finding(evidence: Evidence, one: _Candidate) -> Finding:
    saving, draft = one.saving, one.draft
    known = saving.seconds is not None
    return Finding(
        cause=one.cause.name,
        what=draft.what,
        advice=draft.advice,
        seconds=saving.seconds,
        interval=(saving.low, saving.high) if known and not saving.at_most else None,
        at_most=saving.at_most,
        culprits=draft.culprits,
        remedy=draft.remedy,
        rows=one.rows,
        elapsed=evidence.elapsed,
        incomplete=one.cause.name == "missing data",
    )
