"""Potential savings: how each cause is removed from a run, and its wall time then, by the replay."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from roastcoffea.metrics import phases
from roastcoffea.metrics.catalogue import NotMeasuredError, fact, refuse_if
from roastcoffea.metrics.facts import counted_chunks, elapsed_seconds
from roastcoffea.metrics.statistics import Integers, Numbers, amounts
from roastcoffea.metrics.time_ledger import TimeLedger
from roastcoffea.records import tasks as task_records
from roastcoffea.records.run import Run
from roastcoffea.replay.calibrated import Calibrated, Removal, Saved
from roastcoffea.replay.changes import (
    BLOCKED,
    LOCK,
    STORAGE_FACTOR,
    Chunks,
    Scenario,
    faster_storage,
    opened_once,
    ratio,
    with_computing,
    without_dask,
)
from roastcoffea.replay.cluster import Cluster
from roastcoffea.replay.recorded import Known, recorded_with
from roastcoffea.units import FRACTION, SECOND

DECOMPRESSION_LEFT: Final = 0.3
"""Assumed fraction of the decompression CPU time left with zstd or lz4 instead of LZMA."""

GONE: Final = float("inf")


@dataclass(frozen=True, eq=False)
class Taken:
    """A cause to be removed from a run.

    Parameters
    ----------
    cause
        Its name in findings.
    factors
        For slow workers, hosts, files and datasets: factor on the duration of each counted chunk.
    phases
        Of them as well: phase in which each of these chunks took the most beyond the others, as `Slow.phase` has it.
        Where there is none, all that a chunk does is taken to be slow alike.
    seconds
        For computing and interpretation: thread seconds in each counted chunk; for causes that the replay does not
        and wherever a run cannot be replayed, thread seconds in all, such as the sum of `Slow.seconds`.
    storage
        Factor by which storage is faster (`GONE`: reading takes no time).
    removal
        For a chunk size: chunks of that size, after all other changes.
    outputs
        Whether chunks have large outputs: task overhead is then mostly their compression, which belongs to merging,
        not to scheduling.
    all_of_it
        Whether to remove all of it even though any remedy removes less: the saving is an upper bound.
    """

    cause: str
    factors: Numbers | None = None
    phases: Sequence[str | None] | None = None
    seconds: Numbers | float | None = None
    storage: float = STORAGE_FACTOR
    removal: Removal | None = None
    outputs: bool = False
    all_of_it: bool = False


class Part(NamedTuple):
    """How to remove a cause, and its caveats."""

    removal: Callable[[Taken], Removal]
    rows: tuple[str, ...] = ()
    """Classes of the time ledger that it would free, for runs that cannot be replayed."""
    share: Callable[[Taken], float] = lambda _: 1.0
    """Fraction of these classes that it would free."""
    at_most: bool = False
    reason: str | None = None


def _of_chunks(change: Callable[[Chunks], Chunks]) -> Removal:
    return Removal(Scenario(chunks=change))


def _without_parts(*names: str) -> Removal:
    """Remove these parts of chunks."""
    return _of_chunks(lambda chunks: chunks.with_parts(**{name: np.zeros(len(chunks)) for name in names}))


def _of_merging(**costs: Any) -> Removal:
    """Merges with these costs."""
    return Removal(Scenario(merging=lambda old: replace(old, **costs)))


def _storage(taken: Taken) -> Removal:
    return Removal(faster_storage(taken.storage))


def _decompression(_: Taken) -> Removal:
    return _of_chunks(lambda old: with_computing(old, decompress=DECOMPRESSION_LEFT * old.parts.decompress))


def _start_up(_: Taken) -> Removal:
    scenario = _without_parts("first").scenario
    return Removal(
        replace(scenario, costs=lambda costs: costs._replace(cold_before=0.0, cold_wait=0.0, cold_after=0.0))
    )


def _metadata(taken: Taken) -> Removal:
    return _without_parts("open_cpu", "open_wait") if taken.all_of_it else _of_chunks(opened_once)


def _scheduler(taken: Taken) -> Removal:
    return Removal(without_dask(outputs=taken.outputs))


def _merge(taken: Taken) -> Removal:
    # fetching small results is "transfer"
    if not taken.outputs:
        return _of_merging(cpu=0.0, wait=0.0)
    return _without_parts("overhead").then(_of_merging(cpu=0.0, wait=0.0, fetch=0.0))


def _contention(_: Taken) -> Removal:
    return Removal(replace(_without_parts("contention").scenario, cores=_enough_cores))


def _enough_cores(cluster: Cluster) -> Cluster:
    """A core for each job."""
    hosts = [(1, float("inf"))] * sum(workers for workers, _ in cluster.hosts)
    return replace(cluster, hosts=hosts, scheduler_here=False)


def _compute(taken: Taken) -> Removal:
    def change(chunks: Chunks) -> Chunks:
        cpu = chunks.parts.cpu
        return with_computing(chunks, cpu=np.clip(cpu - _in_order(taken.seconds, chunks, cpu), 0.0, None))

    return _of_chunks(change)


def _in_order(values: Numbers | float | None, chunks: Chunks, otherwise: Numbers) -> Numbers:
    """Values of the counted chunks, matched to these chunks; 0 for failed attempts."""
    if values is None or isinstance(values, float):
        return otherwise
    return np.where(chunks.row >= 0, values[np.maximum(chunks.row, 0)], 0.0)


CPU_PARTS: Final = ("open_cpu", "decompress", "cpu")
SLOW_PARTS: Final[Mapping[str, tuple[str, ...]]] = {
    "open": ("open_cpu", "open_wait"),
    "build": ("open_cpu", "open_wait"),
    "read": ("read",),
    "blocked": ("wait",),
    "checkpoint": ("wait",),
}
"""Parts of chunks that are slow, by the phase that takes the most of the excess; where that is another one, the CPU."""

PARTS_BY_CHANCE: Final = ("lock", "contention", "first", "failed", "overhead")
"""Parts that no slow worker or file is blamed for; waiting for cores and the interpreter goes with CPU time."""


def _slow(taken: Taken) -> Removal:
    refuse_if(taken.factors is None, f"it is unknown which chunks a {taken.cause} slowed down")

    def change(chunks: Chunks) -> Chunks:
        ones, old = np.ones(len(chunks)), chunks.parts
        own = {name: seconds for name, seconds in old._asdict().items() if name not in PARTS_BY_CHANCE}
        factor = np.where(chunks.row >= 0, _in_order(taken.factors, chunks, ones), ones)
        excess = sum(own.values(), 0 * ones) * (1 - factor)
        for phase, rows in _rows_by_phase(taken, chunks):
            names = SLOW_PARTS.get(phase, CPU_PARTS) if phase else tuple(own)
            # what the slow parts do not have is the others'
            for some in (names, tuple(own)):
                total = sum((own[name][rows] for name in some), 0 * excess[rows])
                less = np.minimum(excess[rows], total)
                left = 1 - ratio(less, total)
                for name in some:
                    own[name] = own[name].copy()
                    own[name][rows] *= left
                excess[rows] -= less
        return with_computing(chunks, **own)

    return _of_chunks(change)


def _rows_by_phase(taken: Taken, chunks: Chunks) -> Iterator[tuple[str | None, Integers]]:
    """Slow chunks by phase; None is the phase where it is unknown."""
    slow = np.flatnonzero(chunks.row >= 0)
    if taken.phases is None:
        yield None, slow
        return
    phase = np.array(taken.phases, object)[chunks.row[slow]]
    for name in dict.fromkeys(taken.phases):
        yield name, slow[phase == name]


WAITS: Final = (phases.OPEN, phases.READ)
AROUND: Final = (phases.OVERHEAD, "worker overhead", "in flight", "idle: queued", "idle: misplaced")
AROUND_BEFORE: Final = ("worker", "on the way", "idle: placement")
"""Older names of these classes."""

BOUND: Final = "all of it is removed, because what would replace it is unknown"
PARTS: Final[Mapping[str, Part]] = {
    "storage": Part(
        _storage, WAITS, lambda taken: 1 - 1 / taken.storage, reason="assumes storage that is twice as fast"
    ),
    "decompression": Part(
        _decompression,
        (phases.DECOMPRESS,),
        lambda _: 1 - DECOMPRESSION_LEFT,
        reason=f"assumes that zstd or lz4 needs {DECOMPRESSION_LEFT:g} of the CPU time",
    ),
    "metadata": Part(_metadata, (phases.OPEN,), reason="assumes that each file is opened once"),
    "start-up": Part(_start_up, ("start-up",)),
    "contention": Part(_contention, ("contention",)),
    "interpreter lock": Part(lambda _: _without_parts("lock"), ("interpreter lock",), at_most=True, reason=BOUND),
    "blocked": Part(lambda _: _without_parts("wait"), ("blocked", "wait"), at_most=True, reason=BOUND),
    **dict.fromkeys(("compute", "repeated work"), Part(_compute, (phases.COMPUTE,), at_most=True, reason=BOUND)),
    "scheduler": Part(
        _scheduler, (*AROUND, *AROUND_BEFORE), at_most=True, reason="an upper bound: nothing runs without Dask"
    ),
    "transfer": Part(lambda _: _of_merging(fetch=0.0), (phases.TRANSFER,), at_most=True, reason=BOUND),
    "merge": Part(_merge, (phases.MERGE,), at_most=True, reason=BOUND),
    "preprocessing": Part(
        lambda _: Removal(stages=(task_records.PREPROCESSING,)),
        (phases.PREPROCESSING,),
        reason="assumes metadata from an earlier run",
    ),
    "tail": Part(
        lambda _: Removal(balanced=True),
        (phases.TAIL,),
        at_most=True,
        reason="assumes that all threads work until the end",
    ),
    "interpretation": Part(_compute, (phases.INTERPRET,), at_most=True, reason=BOUND),
    "client": Part(lambda _: Removal(client=True), (phases.CLIENT,), at_most=True, reason=BOUND),
    "failures": Part(
        lambda _: _without_parts("failed"), (phases.FAILED,), reason="assumes that failed attempts take no time"
    ),
    **dict.fromkeys(
        ("slow worker", "slow host", "slow endpoint", "slow file", "slow dataset", "slow chunk"), Part(_slow)
    ),
}
"""How to remove each cause."""


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
