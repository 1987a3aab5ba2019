"""The causes of lost time: what each claims, how it is taken out of a replay, and which of them are findings.

A row of the time ledger belongs to one cause: the one that is its class's word. What a slow worker or file takes beyond
the others, what is spilled, and what a chunk size costs are no rows of it: they may be saved along with others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from roastcoffea.diagnosis.evidence import Evidence
from roastcoffea.diagnosis.finding import Culprit, Finding, Rows
from roastcoffea.diagnosis.removals import PARTS, Taken
from roastcoffea.diagnosis.savings import Saving

ENOUGH: Final = 0.5
"""Share of the largest saving at which a culprit with a name comes before a class of time."""

LEFT: Final = 0.5
"""Share of a saving that must be left when the findings before it are fixed: else it is a consequence of these."""


class Draft(NamedTuple):
    """What a cause has to say, before it is known what fixing it would save."""

    what: str
    advice: str
    culprits: tuple[Culprit, ...] = ()
    remedy: str | None = None
    rows: Rows | None = None
    """Evidence, where that is not the classes that have the cause's name as their word."""
    taken: Taken | None = None
    """How the cause is taken out, where that needs more than its name."""
    saving: Saving | None = None
    """What fixing it saves, where that is known already."""


Says = Callable[[Evidence], Draft | Iterable[Draft] | None]


class Cause(NamedTuple):
    """A cause of lost time."""

    name: str
    says: Says
    looks_idle: bool
    """Whether a missing row of a task would look like it."""
    names_culprit: bool
    """Whether it is somebody with a name, or an event, that makes classes of time larger."""

    def drafts(self, seen: Evidence) -> Iterator[Draft]:
        """What it has to say of a run."""
        said = self.says(seen)
        drafts = [said] if isinstance(said, Draft) else said or ()
        yield from drafts


CAUSES: Final[dict[str, Cause]] = {}


def cause(name: str, *, looks_idle: bool = False, names_culprit: bool = False) -> Callable[[Says], Says]:
    """Make a function that says what is slow, and what to change, a cause."""

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


def conclusions(seen: Evidence) -> tuple[list[Finding], float | None]:
    """Bottlenecks whose fixing would save enough: first what the result lacks, then the largest saving.

    A bottleneck that is for the most part a consequence of one before it, as the replay tells, is left out. Also what
    fixing all of them would save, where there are any to be fixed.
    """
    complete = seen.ledger.certificate.complete
    found = [_finding(seen, one) for one in _lacking(seen)]
    candidates = _candidates(seen, (one for one in CAUSES.values() if complete or not one.looks_idle))
    chosen = _chosen(seen, list(candidates))
    return [*found, *(_finding(seen, one) for one in chosen)], together(seen, chosen) if chosen else None


def _lacking(seen: Evidence) -> Iterator[_Candidate]:
    """What the result lacks is a finding whatever it costs."""
    lacking = CAUSES["missing data"]
    for draft in lacking.drafts(seen):
        nothing = Saving(None, 0.0, 0.0)
        yield _Candidate(lacking, draft, Taken(lacking.name), nothing, draft.rows or {})


def _candidates(seen: Evidence, causes: Iterable[Cause]) -> Iterator[_Candidate]:
    for one in causes:
        if one.name == "missing data":
            continue
        for draft in one.drafts(seen):
            rows = seen.rows_of(one.name) if draft.rows is None else draft.rows
            seconds = sum(rows.values())
            # what the replay does not know is shared by all threads
            taken = draft.taken or Taken(one.name, seconds=None if one.name in PARTS else seconds)
            saving = draft.saving or _saving(seen, taken, seconds)
            if (saving.seconds or 0.0) >= seen.least(one.name):
                yield _Candidate(one, draft, taken, saving, rows)


def _saving(seen: Evidence, taken: Taken, thread_seconds: float) -> Saving:
    """What a replay tells; none is made for what could not save enough if all threads shared it."""
    if seen.wall(thread_seconds) < seen.least(taken.cause) / 2:
        return Saving(0.0, 0.0, 0.0)
    return seen.savings.of(taken)


def _chosen(seen: Evidence, candidates: list[_Candidate]) -> list[_Candidate]:
    """Candidates by what fixing each saves when those before it are fixed, without mere consequences of these."""
    chosen: list[_Candidate] = []
    waiting = {number: one.seconds for number, one in enumerate(candidates)}
    current = set(waiting)
    while waiting:
        number = max(waiting, key=lambda place: waiting[place])
        if number not in current:
            # what is fixed before can only leave less of a saving
            waiting[number] = min(waiting[number], _left(seen, chosen, candidates[number]))
            current.add(number)
            continue
        number = _culprit_of(seen, chosen, candidates, waiting, number)
        best, left = candidates[number], waiting.pop(number)
        if left >= _enough(seen, best):
            chosen.append(best)
            current.clear()
    return chosen


def _enough(seen: Evidence, one: _Candidate) -> float:
    """Saving that must be left of a candidate: a culprit with a name is no mere consequence."""
    least = seen.least(one.cause.name)
    return least if one.cause.names_culprit else max(LEFT * one.seconds, least)


def _culprit_of(
    seen: Evidence, chosen: list[_Candidate], candidates: list[_Candidate], waiting: dict[int, float], best: int
) -> int:
    """The culprit with a name of which the best candidate is a consequence; else the best itself."""
    if candidates[best].cause.names_culprit:
        return best
    named = [
        place
        for place, left in waiting.items()
        if candidates[place].cause.names_culprit and left >= ENOUGH * waiting[best]
    ]
    culprit = max(named, key=lambda place: waiting[place], default=best)
    if culprit == best:
        return best
    left = _left(seen, [*chosen, candidates[culprit]], candidates[best])
    return culprit if left < LEFT * waiting[best] else best


def _left(seen: Evidence, chosen: list[_Candidate], one: _Candidate) -> float:
    """Seconds that fixing one would save when the chosen ones are fixed."""
    return together(seen, [*chosen, one]) - together(seen, chosen)


def together(seen: Evidence, chosen: Iterable[_Candidate]) -> float:
    """Wall time that fixing all of these would save."""
    every = list(chosen)
    if not every:
        return 0.0
    if len(every) == 1:
        return float(every[0].saving.seconds or 0.0)
    saved = seen.savings.all_together(one.taken for one in every).seconds or 0.0
    return min(saved, seen.elapsed)


def _finding(seen: Evidence, one: _Candidate) -> Finding:
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
        elapsed=seen.elapsed,
        incomplete=one.cause.name == "missing data",
    )
