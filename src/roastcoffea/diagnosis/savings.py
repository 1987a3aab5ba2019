"""Potential savings: wall time without a cause, by the replay, else by its share of thread time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from roastcoffea.diagnosis.removals import BOUND, PARTS, Part, Taken
from roastcoffea.metrics import phases
from roastcoffea.metrics.catalogue import NotMeasuredError, fact
from roastcoffea.metrics.facts import counted_chunks, elapsed_seconds
from roastcoffea.metrics.statistics import Numbers, amounts
from roastcoffea.metrics.time_ledger import TimeLedger
from roastcoffea.records.run import Run
from roastcoffea.replay.calibrated import Calibrated, Removal, Saved
from roastcoffea.replay.changes import Scenario
from roastcoffea.replay.parts import BLOCKED, LOCK
from roastcoffea.replay.recorded import Known, recorded_with
from roastcoffea.units import FRACTION, SECOND

DEVIATIONS: Final = 2.0
"""Standard deviations on each side of an interval for chance."""

MOST_ERROR: Final = 0.25
"""Relative error in replaying the recorded run above which the replay is not used for predictions."""


class Saving(NamedTuple):
    """Wall time that a run would save without a cause.

    Seconds, between `low` and `high`, or an upper bound if `at_most`; `reason` says what is assumed, or why it is a
    bound. None and NaN if unknown.
    """

    seconds: float | None
    low: float
    high: float
    at_most: bool = False
    reason: str | None = None

    @property
    def certain(self) -> bool:
        """Whether it differs from zero by more than its error."""
        return self.seconds is not None and self.low > 0

    def up_to(self, most: float) -> Saving:
        """The saving, limited to this many seconds."""
        if self.seconds is None:
            return self
        return self._replace(seconds=min(self.seconds, most), low=min(self.low, most), high=min(self.high, most))


NOT_REPLAYED: Final[Mapping[str, tuple[str, ...]]] = {
    "memory": (phases.PAUSED,),
    "other tasks": (phases.OTHER_TASKS,),
    "checkpoint": (phases.CHECKPOINT,),
}
"""Classes of causes that the replay does not model."""

SPLIT_LATER: Final = {"interpreter lock": LOCK, "blocked": BLOCKED}
"""Columns of chunks that measure them; older runs have a single column for both."""

BY_CHANCE: Final = ("core_wait_seconds", LOCK)
"""Columns of chunks' time that nobody is slow for."""

OF_EXCESS: Final = [one for one in phases.PHASES if one.time_class not in {phases.CONTENTION, phases.LOCK}]
"""Phases of chunks that somebody may be slow in."""


class Savings:
    """Potential savings of a run.

    Parameters
    ----------
    run, ledger
        The records and their time ledger.
    workers
        Average number of workers.
    counted
        Attempts of chunks that counted.
    """

    def __init__(
        self, run: Run, ledger: TimeLedger | None, workers: float | None = None, counted: pa.Table | None = None
    ) -> None:
        self._run, self._ledger, self._workers, self._counted = run, ledger, workers or 0.0, counted

    @cached_property
    def replay(self) -> Calibrated | str:
        """Replay of the run, or why there is none."""
        try:
            known = Known(self._workers, self._counted, ledger=self._ledger)
            found = Calibrated(recorded_with(self._run, known, "the run", as_it_was=True))
        except NotMeasuredError as reason:
            return str(reason)
        if found.measured <= 0:
            return "the run took no time"
        error = abs(found.error)
        return found if error <= MOST_ERROR else f"a replay of the run misses its wall time by {FRACTION.text(error)}"

    @property
    def run(self) -> Run:
        """What was recorded."""
        return self._run

    @cached_property
    def counted(self) -> pa.Table | None:
        """Attempts of chunks that counted."""
        chunks = self._run.chunks
        return self._counted if self._counted is not None or chunks is None else counted_chunks(chunks)

    def changed(self, removal: Removal) -> Saving:
        """Wall time that a change of the run would save.

        Raises
        ------
        NotMeasuredError
            If the run cannot be replayed.
        """
        replay = self.replay
        if isinstance(replay, str):
            raise NotMeasuredError(replay)
        return self._made(replay.saved(removal), at_most=False, reason=None)

    def all_together(self, causes: Iterable[Taken | str]) -> Saving:
        """Wall time that the run would save without all of these causes: less than the sum of the single savings."""
        every = [Taken(cause) if isinstance(cause, str) else cause for cause in causes]
        # apply chunk sizes last: other changes are defined for the recorded chunks
        every.sort(key=lambda taken: taken.removal is not None)
        replayed, shares = Removal(), 0.0
        at_most, notes = False, []
        for taken in every:
            alone = self._part(taken)
            if isinstance(alone, Part) and not isinstance(self.replay, str):
                replayed = replayed.then(alone.removal(taken))
                at_most = at_most or alone.at_most or taken.all_of_it
            else:
                share = self._share(taken, "")
                shares, at_most = shares + (share.seconds or 0.0), True
                notes += [share.reason] if share.reason else []
        if isinstance(self.replay, str):
            shares -= self._counted_twice(every)
            seconds = min(max(shares, 0.0), self._elapsed)
            return Saving(seconds, 0.0, seconds, at_most=True, reason=self.replay)
        saved = self.replay.saved(replayed)
        most = self.replay.measured
        return self._made(saved._replace(seconds=min(saved.seconds + shares, most)), at_most=at_most, reason=None)

    # a cause

    @property
    def _elapsed(self) -> float:
        return elapsed_seconds(self._run)

    def _part(self, taken: Taken) -> Part | str:
        """How to remove a cause, or why that is impossible."""
        if taken.cause not in PARTS and taken.removal is None:
            return "the replay does not model it"
        own = taken.removal
        if own is not None:
            return Part(lambda _: own)
        column = SPLIT_LATER.get(taken.cause)
        chunks = self._run.chunks
        if column is not None and not _is_known(chunks, column):
            if column == LOCK:
                return "waiting for the interpreter was not recorded separately in this run"
            reason = "sleeps, locks and waiting for the interpreter were not recorded separately in this run"
            return PARTS[taken.cause]._replace(reason=reason)
        return PARTS[taken.cause]

    def of(self, taken: Taken) -> Saving:
        """Wall time that the run would save without the removed cause."""
        part = self._part(taken)
        if isinstance(part, str):
            return self._share(taken, part)
        if isinstance(self.replay, str):
            return self._share(taken, self.replay)
        try:
            removal = part.removal(taken)
        except NotMeasuredError as reason:
            return self._share(taken, str(reason))
        change = removal.scenario
        only_chunks = replace(removal, scenario=Scenario()) == Removal() and change == Scenario(chunks=change.chunks)
        at_most = part.at_most or taken.all_of_it
        if only_chunks and self.replay.negligible(change.chunks):
            return Saving(0.0, 0.0, 0.0, at_most, "too little of the threads' time to matter")
        assumed = BOUND if taken.all_of_it else part.reason
        return self._made(self.replay.saved(removal), at_most=at_most, reason=assumed)

    def _made(self, saved: Saved, *, at_most: bool, reason: str | None) -> Saving:
        error = float(np.hypot(saved.replay, DEVIATIONS * saved.chance))
        low, high = max(saved.seconds - error, 0.0), min(max(saved.seconds, 0.0) + error, self._elapsed)
        if low == 0.0 and saved.seconds > 0:
            within = f"not significant, with an error of {SECOND.text(error)}"
            reason = within if reason is None else f"{reason}; {within}"
        return Saving(max(saved.seconds, 0.0), low, max(high, 0.0), at_most, reason)

    # where there is no replay

    def _share(self, taken: Taken, reason: str) -> Saving:
        """Share of the wall time equal to its share of thread time."""
        found = self._thread_seconds(taken)
        total = None if self._ledger is None else self._ledger.total
        if found is None or not total:
            return Saving(None, np.nan, np.nan, at_most=True, reason=reason or "its duration is unknown")
        seconds = min(found * self._elapsed / total, self._elapsed)
        return Saving(seconds, 0.0, seconds, at_most=True, reason=f"from its share of thread time: {reason}")

    def _thread_seconds(self, taken: Taken) -> float | None:
        """Thread time of a cause."""
        if taken.seconds is not None:
            return float(np.sum(taken.seconds))
        if taken.factors is not None and self.counted is not None:
            return float(np.sum(self._excess(taken)))
        rows = NOT_REPLAYED.get(taken.cause)
        part = PARTS.get(taken.cause)
        rows = rows or (() if part is None else part.rows)
        known = {} if self._ledger is None else {name: self._ledger[name] for name in self._ledger if name in rows}
        if taken.cause == "storage" and phases.OPEN in known:
            known[phases.OPEN] = max(known[phases.OPEN] - self._opening_without_waiting(), 0.0)
        return sum(known.values()) * (1.0 if part is None else part.share(taken)) if known else None

    def _opening_without_waiting(self) -> float:
        """Thread time of opening files and building events on a core, or without a free one; 0 where it is unknown."""
        if self.counted is None:
            return 0.0
        inside = (each.column for each in phases.PHASES if each.part == "CPU")
        cpu, waited = (self._of_counted(name) for name in ("cpu_seconds", "core_wait_seconds"))
        cpu -= sum(map(self._of_counted, inside))
        return max(cpu, 0.0) + max(waited - self._of_counted("contention_seconds"), 0.0)

    def _of_counted(self, column: str) -> float:
        return 0.0 if self.counted is None else float(_known(self.counted, column).sum())

    def _excess(self, taken: Taken) -> Numbers:
        """Seconds of each chunk that counted beyond what it would take of somebody who is not slow.

        Nobody is slow for what a chunk waits for cores, or for the interpreter.
        """
        chunks, factors = self.counted, taken.factors
        if chunks is None or factors is None:
            return np.zeros(0)
        lost = sum((amounts(chunks, name) for name in BY_CHANCE if name in chunks.column_names), np.zeros(len(chunks)))
        own = np.maximum(amounts(chunks, "wall_seconds") - lost, 0.0)
        excess = own * (1 - factors)
        total = excess.sum()
        return excess * float(np.sum(taken.seconds) / total) if taken.seconds is not None and total else excess

    def _counted_twice(self, every: Sequence[Taken]) -> float:
        """Wall time of somebody slow that lies in classes of time which are taken out as well."""
        if self._ledger is None or not self._ledger.total:
            return 0.0
        slow = [taken for taken in every if taken.factors is not None]
        inside: dict[str, float] = {}
        for taken in slow:
            for name, seconds in self._by_class(taken).items():
                inside[name] = inside.get(name, 0.0) + seconds
        twice = 0.0
        for taken in every:
            part = PARTS.get(taken.cause)
            rows = () if part is None or taken.factors is not None else part.rows
            whole = sum(self._ledger[name] for name in self._ledger if name in rows)
            if whole:
                share = min(sum(inside.get(name, 0.0) for name in rows) / whole, 1.0)
                twice += share * (self._thread_seconds(taken) or 0.0)
        return twice * self._elapsed / self._ledger.total

    def _by_class(self, taken: Taken) -> dict[str, float]:
        """Excess of somebody slow by class of time: of its phase, else as all that its chunks took."""
        chunks, excess, found = self.counted, self._excess(taken), dict[str, float]()
        if chunks is None:
            return found
        phases_of = np.array(taken.phases if taken.phases is not None else [None] * len(chunks), object)
        for phase in dict.fromkeys(phases_of.tolist()):
            rows = phases_of == phase
            names = [one for one in OF_EXCESS if one.column == f"{phase}_seconds"] or OF_EXCESS
            sums = {one: float(np.sum(_known(chunks, one.column)[rows])) for one in names}
            total = sum(sums.values())
            for one, seconds in sums.items():
                if total:
                    beyond = float(excess[rows].sum()) * seconds / total
                    found[one.time_class] = found.get(one.time_class, 0.0) + beyond
        return found


def _known(chunks: pa.Table, column: str) -> Numbers:
    return amounts(chunks, column) if column in chunks.column_names else np.zeros(len(chunks))


def _is_known(chunks: pa.Table | None, column: str) -> bool:
    """Whether the chunks have this column; those of older runs lack some."""
    return chunks is not None and column in chunks.column_names and chunks[column].null_count < len(chunks)


@fact
def savings(
    run: Run, time_ledger: TimeLedger, counted_chunks: pa.Table | None = None, avg_workers: float | None = None
) -> Savings:
    """Potential savings of the run, computed on request."""
    return Savings(run, time_ledger, avg_workers, counted_chunks)
