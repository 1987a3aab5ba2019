"""Wall time that a run would have saved without a cause: by the replay, else the share that its thread time is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from roastcoffea.metrics import phases
from roastcoffea.metrics.catalogue import NotMeasuredError, fact, refuse_if
from roastcoffea.metrics.facts import counted_chunks
from roastcoffea.metrics.statistics import Numbers, amounts
from roastcoffea.metrics.time_ledger import TimeLedger
from roastcoffea.records import tasks as task_records
from roastcoffea.records.run import Run
from roastcoffea.replay.calibrated import Calibrated, Removal, Saved
from roastcoffea.replay.changes import (
    STORAGE_FACTOR,
    Scenario,
    faster_storage,
    opened_once,
    with_computing,
    without_dask,
)
from roastcoffea.replay.cluster import Cluster
from roastcoffea.replay.parts import BLOCKED, LOCK, Chunks
from roastcoffea.replay.recorded import Known, recorded_with
from roastcoffea.units import SECOND

DECOMPRESSION_LEFT: Final = 0.3
"""Share of the CPU time of decompression that is left with zstd or lz4 in place of LZMA: assumed."""

DEVIATIONS: Final = 2.0
"""Standard deviations to each side that an interval has for chance."""

GONE: Final = float("inf")


class Saving(NamedTuple):
    """Wall time that a run would have saved without a cause.

    Seconds between `low` and `high`, or `at_most` so many; `reason` says what is assumed, or why it is a bound. None
    and NaN where nothing is known.
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


@dataclass(frozen=True, eq=False)
class Taken:
    """A cause that is taken out of a run.

    Parameters
    ----------
    cause
        Its name, as findings have it.
    factors
        Of slow workers, hosts, files and datasets: what each chunk that counted would take of what it took.
    seconds
        Of computing and interpretation: thread seconds in each chunk that counted; of what the replay does not know,
        and wherever a run cannot be replayed, thread seconds in all.
    storage
        How many times faster storage is (`GONE`: it takes no time at all).
    removal
        Of a chunk size: chunks of that size, whatever else is changed before.
    """

    cause: str
    factors: Numbers | None = None
    seconds: Numbers | float | None = None
    storage: float = STORAGE_FACTOR
    removal: Removal | None = None


class Part(NamedTuple):
    """How a cause is taken out, and what is to be said of that."""

    removal: Callable[[Taken], Removal]
    rows: tuple[str, ...] = ()
    """Classes of the time ledger that it would give back where a run cannot be replayed."""
    share: Callable[[Taken], float] = lambda _: 1.0
    """Part of them that it would give back."""
    at_most: bool = False
    reason: str | None = None


def _of_chunks(change: Callable[[Chunks], Chunks]) -> Removal:
    return Removal(Scenario(chunks=change))


def _emptied(*names: str) -> Removal:
    """Parts of chunks that take no time."""
    return _of_chunks(lambda chunks: chunks.with_parts(**{name: np.zeros(len(chunks)) for name in names}))


def _of_merging(**costs: Any) -> Removal:
    """Merges that take this."""
    return Removal(Scenario(merging=lambda old: replace(old, **costs)))


def _storage(taken: Taken) -> Removal:
    return Removal(faster_storage(taken.storage))


def _decompression(_: Taken) -> Removal:
    return _of_chunks(lambda old: with_computing(old, decompress=DECOMPRESSION_LEFT * old.parts.decompress))


def _start_up(_: Taken) -> Removal:
    scenario = _emptied("first").scenario
    return Removal(replace(scenario, costs=lambda costs: costs._replace(cold_cpu=0.0, cold_wait=0.0)))


def _contention(_: Taken) -> Removal:
    return Removal(replace(_emptied("contention").scenario, cores=_enough_cores))


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
    """Values of the chunks that counted, in the order of these; 0 for failed attempts."""
    if values is None or isinstance(values, float):
        return otherwise
    return np.where(chunks.row >= 0, values[np.maximum(chunks.row, 0)], 0.0)


def _slow(taken: Taken) -> Removal:
    refuse_if(taken.factors is None, f"it is not known which chunks a {taken.cause} made slow")

    def change(chunks: Chunks) -> Chunks:
        ones = np.ones(len(chunks))
        factor = np.where(chunks.row >= 0, _in_order(taken.factors, chunks, ones), ones)
        old = chunks.parts
        faster = old.each(lambda seconds: seconds * factor)
        return chunks.with_parts(**faster._replace(first=old.first, overhead=old.overhead)._asdict())

    return _of_chunks(change)


WAITS: Final = (phases.OPEN, phases.READ)
AROUND: Final = (phases.OVERHEAD, "worker overhead", "in flight", "idle: queued", "idle: misplaced")
AROUND_BEFORE: Final = ("worker", "on the way", "idle: placement")
"""Names of the same classes in older ledgers."""

BOUND: Final = "all of it is taken out: what would be in its place is not known"
PARTS: Final[Mapping[str, Part]] = {
    "storage": Part(
        _storage, WAITS, lambda taken: 1 - 1 / taken.storage, reason="storage that answers at twice the rate"
    ),
    "decompression": Part(
        _decompression,
        (phases.DECOMPRESS,),
        lambda _: 1 - DECOMPRESSION_LEFT,
        reason=f"zstd or lz4 are taken to need {DECOMPRESSION_LEFT:g} of the CPU time",
    ),
    "metadata": Part(
        lambda _: _of_chunks(opened_once), (phases.OPEN,), at_most=False, reason="each file is opened once"
    ),
    "start-up": Part(_start_up, ("start-up",)),
    "contention": Part(_contention, ("contention",)),
    "interpreter lock": Part(lambda _: _emptied("lock"), ("interpreter lock",), at_most=True, reason=BOUND),
    "blocked": Part(lambda _: _emptied("wait"), ("blocked", "wait"), at_most=True, reason=BOUND),
    "compute": Part(_compute, (phases.COMPUTE,), at_most=True, reason=BOUND),
    "scheduler": Part(
        lambda _: Removal(without_dask()), (*AROUND, *AROUND_BEFORE), at_most=True, reason="nothing runs without Dask"
    ),
    "transfer": Part(lambda _: _of_merging(fetch=0.0), (phases.TRANSFER,), at_most=True, reason=BOUND),
    # fetching what is merged is "transfer"
    "merge": Part(lambda _: _of_merging(cpu=0.0, wait=0.0), (phases.MERGE,), at_most=True, reason=BOUND),
    "preprocessing": Part(
        lambda _: Removal(stages=(task_records.PREPROCESSING,)),
        (phases.PREPROCESSING,),
        reason="metadata are kept from an earlier run",
    ),
    "tail": Part(
        lambda _: Removal(balanced=True), (phases.TAIL,), at_most=True, reason="all threads work until the end"
    ),
    "interpretation": Part(_compute, (phases.INTERPRET,), at_most=True, reason=BOUND),
    "client": Part(lambda _: Removal(client=True), (phases.CLIENT,), at_most=True, reason=BOUND),
    "failures": Part(lambda _: _emptied("failed"), (phases.FAILED,), reason="failed attempts take no time"),
    **dict.fromkeys(("slow worker", "slow host", "slow file", "slow dataset"), Part(_slow)),
}
"""How causes are taken out."""

NOT_REPLAYED: Final[Mapping[str, tuple[str, ...]]] = {
    "memory": (phases.PAUSED,),
    "other tasks": (phases.OTHER_TASKS,),
    "checkpoint": (phases.CHECKPOINT,),
}
"""Classes of causes that a replay does not know."""

SPLIT_LATER: Final = {"interpreter lock": LOCK, "blocked": BLOCKED}
"""Columns of chunks that tell them; older runs have one for both."""


class Savings:
    """Wall time that a run would have saved without this or that.

    Parameters
    ----------
    run, ledger
        What was recorded, and what went into the threads' time.
    workers
        How many there were on average.
    counted
        Attempts of chunks that counted.
    """

    def __init__(
        self, run: Run, ledger: TimeLedger | None, workers: float | None = None, counted: pa.Table | None = None
    ) -> None:
        self._run, self._ledger, self._workers, self._counted = run, ledger, workers or 0.0, counted

    @cached_property
    def replay(self) -> Calibrated | str:
        """The run with its replay; or why there is none."""
        try:
            known = Known(self._workers, self._counted, ledger=self._ledger)
            found = Calibrated(recorded_with(self._run, known, "the run", as_it_was=True))
        except NotMeasuredError as reason:
            return str(reason)
        return found if found.measured > 0 else "the run took no time"

    def without(
        self,
        cause: str,
        *,
        factors: Numbers | None = None,
        seconds: Numbers | float | None = None,
        storage: float = STORAGE_FACTOR,
    ) -> Saving:
        """Wall time that the run would have saved without a cause; see `Taken`."""
        return self._saving(Taken(cause, factors, seconds, storage))

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
        """Wall time that a change of the run would have saved.

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
        """Wall time that the run would have saved without any of these causes: less than the sum of each."""
        every = [Taken(cause) if isinstance(cause, str) else cause for cause in causes]
        # other changes are known for the chunks that there were
        every.sort(key=lambda taken: taken.removal is not None)
        replayed, shares = Removal(), 0.0
        at_most, notes = False, []
        for taken in every:
            alone = self._part(taken)
            if isinstance(alone, Part) and not isinstance(self.replay, str):
                replayed = replayed.then(alone.removal(taken))
                at_most = at_most or alone.at_most
            else:
                share = self._share(taken, "")
                shares, at_most = shares + (share.seconds or 0.0), True
                notes += [share.reason] if share.reason else []
        if isinstance(self.replay, str):
            seconds = min(shares, self._elapsed)
            return Saving(seconds, 0.0, seconds, at_most=True, reason=self.replay)
        saved = self.replay.saved(replayed)
        most = self.replay.measured
        return self._made(saved._replace(seconds=min(saved.seconds + shares, most)), at_most=at_most, reason=None)

    # a cause

    @property
    def _elapsed(self) -> float:
        return self._run.stop - self._run.start

    def _part(self, taken: Taken) -> Part | str:
        """How a cause is taken out; or why that cannot be."""
        if taken.cause not in PARTS and taken.removal is None:
            return "the replay does not know of it"
        own = taken.removal
        if own is not None:
            return Part(lambda _: own)
        column = SPLIT_LATER.get(taken.cause)
        chunks = self._run.chunks
        if column is not None and not _is_known(chunks, column):
            if column == LOCK:
                return "waiting for the interpreter was not told apart when this was recorded"
            reason = "sleeps, locks and waiting for the interpreter were not told apart when this was recorded"
            return PARTS[taken.cause]._replace(reason=reason)
        return PARTS[taken.cause]

    def _saving(self, taken: Taken) -> Saving:
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
        if only_chunks and self.replay.negligible(change.chunks):
            return Saving(0.0, 0.0, 0.0, part.at_most, "too little of the threads' time to matter")
        return self._made(self.replay.saved(removal), at_most=part.at_most, reason=part.reason)

    def _made(self, saved: Saved, *, at_most: bool, reason: str | None) -> Saving:
        error = float(np.hypot(saved.replay, DEVIATIONS * saved.chance))
        low, high = max(saved.seconds - error, 0.0), min(max(saved.seconds, 0.0) + error, self._elapsed)
        if low == 0.0 and saved.seconds > 0:
            within = f"within its error of {SECOND.text(error)} of nothing"
            reason = within if reason is None else f"{reason}; {within}"
        return Saving(max(saved.seconds, 0.0), low, max(high, 0.0), at_most, reason)

    # where there is no replay

    def _share(self, taken: Taken, reason: str) -> Saving:
        """The share of the wall time that its thread time is."""
        found = self._thread_seconds(taken)
        total = None if self._ledger is None else self._ledger.total
        if found is None or not total:
            return Saving(None, np.nan, np.nan, at_most=True, reason=reason or "nothing tells how long it took")
        seconds = min(found * self._elapsed / total, self._elapsed)
        return Saving(seconds, 0.0, seconds, at_most=True, reason=f"a share of the threads' time: {reason}")

    def _thread_seconds(self, taken: Taken) -> float | None:
        """Thread time that a cause took."""
        if taken.seconds is not None:
            return float(np.sum(taken.seconds))
        if taken.factors is not None and self.counted is not None:
            return float(np.sum(amounts(self.counted, "wall_seconds") * (1 - taken.factors)))
        rows = NOT_REPLAYED.get(taken.cause)
        part = PARTS.get(taken.cause)
        rows = rows or (() if part is None else part.rows)
        known = [] if self._ledger is None else [self._ledger[name] for name in self._ledger if name in rows]
        return sum(known) * (1.0 if part is None else part.share(taken)) if known else None


def _is_known(chunks: pa.Table | None, column: str) -> bool:
    """Whether chunks tell of a column, as those of older runs do not."""
    return chunks is not None and column in chunks.column_names and chunks[column].null_count < len(chunks)


@fact
def savings(
    run: Run, time_ledger: TimeLedger, counted_chunks: pa.Table | None = None, avg_workers: float | None = None
) -> Savings:
    """What the run would have saved without this or that, each computed when it is asked for."""
    return Savings(run, time_ledger, avg_workers, counted_chunks)
