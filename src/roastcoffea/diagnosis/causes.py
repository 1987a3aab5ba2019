"""The causes of lost time: what each claims, how a replay removes it, and which of them become findings.

Each row of the time ledger belongs to one cause: its class's word. The excess of a slow worker or file, spilling and
the cost of a chunk size are no rows of the ledger: fixing another cause may save them too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from roastcoffea.diagnosis.evidence import ENOUGH, LEFT, Evidence
from roastcoffea.diagnosis.finding import CAUSED_IDLE, Culprit, Finding, Rows
from roastcoffea.diagnosis.savings import PARTS, Saving, Taken
from roastcoffea.metrics import phases


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
    names_culprit: bool = False
    """Whether it names a culprit, though others of its cause do not."""
    always: bool = False
    """Whether it is a finding whatever time it saves."""


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

    @property
    def names_culprit(self) -> bool:
        return self.cause.names_culprit or self.draft.names_culprit


def conclusions(evidence: Evidence) -> tuple[list[Finding], float | None]:
    """Findings that save enough, and what fixing all of them would save (None if there is nothing to fix).

    Missing data comes first, then the largest saving. A finding that the replay shows to be mostly a consequence of an
    earlier one is left out.
    """
    complete = evidence.ledger.certificate.complete
    found = [_finding(evidence, one) for one in _lacking(evidence)]
    candidates = _candidates(evidence, (one for one in CAUSES.values() if complete or not one.looks_idle))
    every = list(candidates)
    chosen = _chosen(evidence, [one for one in every if not one.draft.always])
    told = [*chosen, *(one for one in every if one.draft.always)]
    saved = together(evidence, chosen) if chosen else None
    return [*found, *(_finding(evidence, one) for one in told)], saved


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
            saving, rows = _supported(evidence, draft.saving or _saving(evidence, taken, seconds), rows)
            if draft.always or (saving.seconds or 0.0) >= evidence.least(one.name):
                yield _Candidate(one, draft, taken, saving, rows)


def _supported(evidence: Evidence, saving: Saving, rows: Rows) -> tuple[Saving, Rows]:
    """A saving that is no more than its rows and the idle time that they cause, and the rows with that idle time.

    A replay without the cause ends earlier: what its threads save beyond the rows, they were idle for.
    """
    if saving.seconds is None or not evidence.elapsed:
        return saving, rows
    beyond = saving.seconds * evidence.total / evidence.elapsed - sum(rows.values())
    counted = sum(seconds for name, seconds in rows.items() if name.startswith(phases.IDLE))
    idle = sum(seconds for name, seconds in evidence.ledger.items() if name in phases.IDLE) - counted
    caused = min(beyond, idle)
    if caused > 1e-9:  # less is the rounding of sums
        rows = {**rows, CAUSED_IDLE: caused}
    most = evidence.wall(sum(rows.values()))
    return saving if saving.seconds <= most else saving.up_to(most), rows


def _saving(evidence: Evidence, taken: Taken, thread_seconds: float) -> Saving:
    """Saving by a replay; skipped if even sharing the time among all threads could not save enough.

    Without a replay it is no more than the share of the finding's own rows: a class may hold what other causes take.
    """
    most = evidence.wall(thread_seconds)
    if most < evidence.least(taken.cause) / 2:
        return Saving(0.0, 0.0, 0.0)
    found = evidence.savings.of(taken)
    return found.up_to(most) if isinstance(evidence.savings.replay, str) else found


def _chosen(evidence: Evidence, candidates: list[_Candidate]) -> list[_Candidate]:
    """Candidates by what fixing each saves when those before it are fixed, without mere consequences of these."""
    chosen: list[_Candidate] = []
    waiting = {number: one.seconds for number, one in enumerate(candidates)}
    current = set(waiting)
    while waiting:
        number = max(waiting, key=lambda place: waiting[place])
        if number not in current:
            # what is fixed before can only leave less of a saving
            waiting[number] = min(waiting[number], _left(evidence, chosen, candidates[number]))
            current.add(number)
            continue
        number = _culprit_of(evidence, chosen, candidates, waiting, number)
        best, left = candidates[number], waiting.pop(number)
        if left >= _enough(evidence, best):
            chosen.append(best)
            current.clear()
    return chosen


def _enough(evidence: Evidence, one: _Candidate) -> float:
    """Saving that must be left of a candidate: a culprit with a name is no mere consequence."""
    least = evidence.least(one.cause.name)
    return least if one.names_culprit else max(LEFT * one.seconds, least)


def _culprit_of(
    evidence: Evidence, chosen: list[_Candidate], candidates: list[_Candidate], waiting: dict[int, float], best: int
) -> int:
    """The culprit with a name of which the best candidate is a consequence; else the best itself."""
    if candidates[best].names_culprit:
        return best
    named = [
        place for place, left in waiting.items() if candidates[place].names_culprit and left >= ENOUGH * waiting[best]
    ]
    culprit = max(named, key=lambda place: waiting[place], default=best)
    if culprit == best:
        return best
    left = _left(evidence, [*chosen, candidates[culprit]], candidates[best])
    return culprit if left < LEFT * waiting[best] else best


def _left(evidence: Evidence, chosen: list[_Candidate], one: _Candidate) -> float:
    """Extra seconds that fixing one would save once the chosen ones are fixed."""
    return together(evidence, [*chosen, one]) - together(evidence, chosen)


def together(evidence: Evidence, chosen: Iterable[_Candidate]) -> float:
    """Wall time that fixing all of these would save."""
    every = list(chosen)
    if not every:
        return 0.0
    if len(every) == 1:
        return float(every[0].saving.seconds or 0.0)
    saved = evidence.savings.all_together(one.taken for one in every).seconds or 0.0
    return min(saved, evidence.elapsed, sum(one.seconds for one in every))


def _finding(evidence: Evidence, one: _Candidate) -> Finding:
    saving, draft = one.saving, one.draft
    known = saving.seconds is not None
    return Finding(
        cause=one.cause.name,
        what=evidence.names.in_text(draft.what),
        advice=_advice(evidence, draft),
        seconds=saving.seconds,
        interval=(saving.low, saving.high) if known and not saving.at_most else None,
        at_most=saving.at_most,
        culprits=tuple(_labelled(evidence, culprit) for culprit in draft.culprits),
        remedy=draft.remedy,
        rows=one.rows,
        elapsed=evidence.elapsed,
        incomplete=one.cause.name == "missing data",
    )


def _labelled(evidence: Evidence, culprit: Culprit) -> Culprit:
    """A culprit with its short name, if it has one."""
    of_kind = {"worker": evidence.names.workers, "host": evidence.names.hosts}.get(culprit.kind, {})
    name = of_kind.get(culprit.name, culprit.name)
    return culprit if name == culprit.name else culprit._replace(label=name)


def _advice(evidence: Evidence, draft: Draft) -> str:
    """Advice with short names, but for the line to copy: Dask knows workers by address."""
    before, line, after = draft.advice.partition(draft.remedy) if draft.remedy else (draft.advice, "", "")
    return f"{evidence.names.in_text(before)}{line}{evidence.names.in_text(after)}"
