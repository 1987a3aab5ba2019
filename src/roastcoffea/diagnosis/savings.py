"""Potential savings, estimated by replaying a run without a finding's cause."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial, reduce
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from roastcoffea.metrics import phases
from roastcoffea.metrics.catalogue import NotMeasuredError, fact
from roastcoffea.metrics.facts import elapsed_seconds, on_clients_clock
from roastcoffea.metrics.statistics import Numbers
from roastcoffea.metrics.time_ledger import TimeLedger
from roastcoffea.records.arrow import give_memory_back
from roastcoffea.records.run import Run
from roastcoffea.replay.changes import UNCHANGED, Chunks, Scenario, faster_storage, ratio, with_computing
from roastcoffea.replay.cluster import Cluster, Load, Merging, Replayed, replayed
from roastcoffea.replay.fitted_storage import on_faster_storage
from roastcoffea.replay.stages import Known, Recorded, Stage, recorded_with
from roastcoffea.units import FRACTION

MOST: Final = 2000
"""Maximum number of chunks to replay."""


@dataclass(frozen=True, slots=True)
class Removal:
    """A change to a run, applied in a replay.

    `stages` lists the kinds of stages to omit. `balanced` keeps all threads busy until the end. `client` omits the
    time outside all stages.
    """

    scenario: Scenario = UNCHANGED
    stages: tuple[str, ...] = ()
    balanced: bool = False
    client: bool = False

    def then(self, other: Removal) -> Removal:
        return Removal(
            self.scenario.then(other.scenario),
            (*self.stages, *other.stages),
            self.balanced or other.balanced,
            self.client or other.client,
        )


class Calibrated:
    """Replays a run with and without changes. The unchanged replay is the baseline.

    Parameters
    ----------
    run
        The recorded run; see `recorded_with`.
    """

    def __init__(self, run: Recorded) -> None:
        self._run, self.measured, self.workers = run, run.seconds, run.workers
        self.chunks: list[Chunks] = [stage.chunks for stage in run.stages if stage.chunks is not None]
        self._whole = all(len(chunks) <= MOST for chunks in self.chunks)
        self._slots = run.workers * run.threads
        self.stages = [self._within_its_time(stage) for stage in run.stages]

    def _within_its_time(self, stage: Stage) -> Stage:
        """Cap the assumed scheduler time per task, because busy threads were not waiting for the scheduler."""
        if stage.chunks is None:
            return stage
        busy = float(stage.chunks.parts.total.sum()) / (self._slots * stage.seconds)
        most = (1.0 if busy < 0.8 else 0.5) * stage.seconds / len(stage.chunks)
        return replace(stage, costs=stage.costs._replace(scheduler=min(stage.costs.scheduler, most)))

    @cached_property
    def repeats(self) -> int:
        chunks = sum(min(len(stage.chunks or stage.load), MOST) for stage in self.stages)
        return int(np.clip(MOST // max(chunks, 1), 3, 8))

    @cached_property
    def base(self) -> Numbers:
        """Wall times from replays of the unchanged run, in seconds."""
        return self._seconds(Removal(), self.repeats)

    @cached_property
    def error(self) -> float:
        """Relative error of the unchanged replay's wall time."""
        return self._expected(self.base) / self.measured - 1

    def saved(self, removal: Removal) -> tuple[float, float]:
        """Wall time saved by a change, and its standard deviation across replays, both in seconds."""
        found = (self.base - self._seconds(removal, self.repeats)) / (1 + self.error)
        return self._expected(found), float(np.std(found, ddof=1))

    def expected(self, removal: Removal) -> float:
        """Wall time saved by a change, without its deviation, which takes several times as long."""
        repeats = 1 if self._whole else self.repeats
        return self._expected(self.base[:repeats] - self._seconds(removal, repeats)) / (1 + self.error)

    def saves_nothing(self, removal: Removal) -> bool:
        """Whether the remaining work alone would keep all threads busy for the whole run."""
        busy = 0.0 if removal.client else self._run.client
        for stage in self.stages:
            if stage.chunks is not None and stage.kind not in removal.stages:
                busy += float(removal.scenario.chunks(stage.chunks).parts.total.sum()) / self._slots
        return busy >= float(self.base.max())

    def _expected(self, repeats: Numbers) -> float:
        """Wall time from a replay of all chunks or, if there are too many, the mean over replays of samples."""
        return float(repeats[0] if self._whole else repeats.mean())

    def _seconds(self, removal: Removal, repeats: int) -> Numbers:
        total = np.full(repeats, 0.0 if removal.client else self._run.client)
        for stage in self.stages:
            if stage.kind not in removal.stages:
                change = removal.scenario
                load = change.preprocessing(stage.load) if stage.chunks is None else change.chunks(stage.chunks).load()
                total += [self._once(stage, load, removal, seed) for seed in range(repeats)]
        return total

    def _once(self, stage: Stage, load: Load, removal: Removal, seed: int) -> float:
        seconds = self._replayed(stage, load, removal.scenario, seed).seconds
        if not removal.balanced:
            return seconds
        # idle threads during merges are not a sign of imbalance
        apart = removal.scenario.then(Scenario(merging=lambda _: Merging()))
        done, costs = self._replayed(stage, load, apart, seed), apart.costs(stage.costs)
        busy = (done.busy + len(load) * costs.gap) / self._slots + costs.latency + costs.cold_wait
        return seconds - max(done.seconds - busy, 0.0)

    def _replayed(self, stage: Stage, load: Load, change: Scenario, seed: int) -> Replayed:
        # one core per thread, because chunk times already include waits for cores
        cluster = Cluster(threads=self._run.threads, hosts=[(1, float("inf"))] * self.workers)
        merging, costs = change.merging(stage.merging), change.costs(stage.costs)
        # the storage rate is constant, so a single round is enough
        return replayed(load, cluster, costs, merging, turns=1, most=MOST, seed=seed)


@dataclass(frozen=True, eq=False)
class Taken:
    """The part of a run that fixing a finding would remove.

    Parameters
    ----------
    removal
        The change to replay; if None, the freed time is spread over all threads.
    seconds
        Seconds of thread time freed; used if the run cannot be replayed.
    rows
        Seconds of thread time in the finding's rows, by time class.
    inside
        Seconds of thread time lost to a slow worker, host, file or chunk, by time class.
    last
        Whether to apply the removal last. Chunks are resized last, because other changes apply to the recorded chunks.
    at_most
        Whether the saving is an upper bound, because real remedies remove less.
    known
        The saving, if already known.
    others
        Alternative removals, such as those of a slow host's shortest and longest likely delay. Their savings widen the
        interval.
    """

    removal: Removal | None = None
    seconds: float | None = None
    rows: Mapping[str, float] = field(default_factory=dict)
    inside: Mapping[str, float] = field(default_factory=dict)
    last: bool = False
    at_most: bool = False
    known: Saving | None = None
    others: tuple[Removal, ...] = ()

    @property
    def freed(self) -> float:
        return sum(self.rows.values()) if self.seconds is None else self.seconds + self.rows.get(WAITS, 0.0)


WAITS: Final = "waiting for a core or the interpreter"
"""Row in findings about CPU time, for the waits that shrink in proportion to it."""


# Changes to chunks


def of_chunks(change: Callable[[Chunks], Chunks]) -> Removal:
    return Removal(Scenario(chunks=change))


def without_parts(*names: str) -> Removal:
    return of_chunks(lambda chunks: chunks.with_parts(**{name: np.zeros(len(chunks)) for name in names}))


def without_cpu(seconds: Numbers) -> Removal:
    """Subtract this much CPU time in process(), in seconds, from each counted chunk."""

    def change(chunks: Chunks) -> Chunks:
        return with_computing(chunks, cpu=np.maximum(chunks.parts.cpu - in_order(seconds, chunks, 0.0), 0.0))

    return of_chunks(change)


def in_order(values: Numbers, chunks: Chunks, failed: float) -> Numbers:
    """Map the counted chunks' values to a replay's chunks. Failed attempts get the value `failed`."""
    return np.where(chunks.row >= 0, values[np.maximum(chunks.row, 0)], failed)


OF_CPU: Final = ("open_cpu", "decompress", "cpu")
OPENING: Final = ("open_cpu", "open_wait")
SLOW_PARTS: Final = {
    "open": OPENING,
    "build": OPENING,
    "read": ("read",),
    "blocked": ("wait",),
    "write_wait": ("wait",),
    "checkpoint": ("wait",),
}
"""Maps each slow phase to the parts of the chunk to shorten first. Other phases use OF_CPU."""

BY_CHANCE: Final = ("lock", "contention", "first", "failed", "overhead")
"""Parts not attributed to a slow worker or file. Waits for cores and the GIL scale with CPU time."""


def without_excess(factors: Numbers, phases: Sequence[str | None]) -> Removal:
    """Scale the durations of counted chunks. If the slow phase is known, its parts are shortened first."""

    def change(chunks: Chunks) -> Chunks:
        own = {name: seconds for name, seconds in chunks.parts._asdict().items() if name not in BY_CHANCE}
        excess = sum(own.values(), np.zeros(len(chunks))) * (1 - in_order(factors, chunks, 1.0))
        # failed attempts have row -1
        phase = np.array([*phases, None], object)[chunks.row]
        for one in dict.fromkeys(phases):
            rows = phase == one
            # the other parts share the remaining excess
            for names in (SLOW_PARTS.get(one, OF_CPU) if one else (), tuple(own)):
                total = sum((own[name] for name in names), np.zeros(len(chunks)))
                less = np.where(rows, np.minimum(excess, total), 0.0)
                own |= {name: own[name] * (1 - ratio(less, total)) for name in names}
                excess = excess - less
        return with_computing(chunks, **own)

    return of_chunks(change)


class Saving(NamedTuple):
    """Wall time saved by a change: between `low` and `high`, or at most `seconds` if `at_most` is true."""

    seconds: float
    low: float
    high: float
    at_most: bool = False

    def up_to(self, most: float) -> Saving:
        return self._replace(seconds=min(self.seconds, most), low=min(self.low, most), high=min(self.high, most))


@dataclass(frozen=True, eq=False)
class Savings:
    """A run's potential savings.

    Parameters
    ----------
    run, ledger
        The run's records and time ledger.
    workers
        Average number of workers.
    counted
        Chunk attempts whose results were used.
    """

    run: Run
    ledger: TimeLedger | None
    workers: float | None = None
    counted: pa.Table | None = None

    @cached_property
    def replay(self) -> Calibrated | str:
        """The run's replay, or the reason why it cannot be replayed."""
        give_memory_back(self.run.chunks)
        try:
            known = Known(self.workers or 0.0, self.counted, ledger=self.ledger)
            found = Calibrated(recorded_with(self.run, known, "the run", as_it_was=True))
        except NotMeasuredError as reason:
            return str(reason)
        if found.measured <= 0:
            return "the run took no time"
        # a replay that does not reproduce the run itself has no predictive power
        if (error := abs(found.error)) > 0.25:
            return f"a replay of the run is off by {FRACTION.text(error)} in wall time"
        return found

    @cached_property
    def _elapsed(self) -> float:
        return elapsed_seconds(self.run)

    def changed(self, removal: Removal, others: Sequence[Removal] = (), *, at_most: bool = False) -> Saving:
        """Estimate the wall time that a change to the run would save. The savings of `others` widen the interval.

        Raises
        ------
        NotMeasuredError
            If the run cannot be replayed.
        """
        if isinstance(self.replay, str):
            raise NotMeasuredError(self.replay)
        saved, chance = self.replay.saved(removal)
        # combine the replay's error with two standard deviations between replays
        error, seconds = float(np.hypot(self.replay.error * self.replay.measured, 2 * chance)), max(saved, 0.0)
        beyond = [0.0, *(self.replay.saved(other)[0] - saved for other in others)]
        low, high = saved - np.hypot(error, min(beyond)), seconds + np.hypot(error, max(beyond))
        return Saving(seconds, max(float(low), 0.0), min(float(high), self._elapsed), at_most)

    def of(self, taken: Taken) -> Saving:
        """Estimate a removal's saving by replay or, if that is not possible, from its share of thread time."""
        if taken.known is not None:
            return taken.known
        if taken.removal is None or isinstance(self.replay, str):
            seconds = min(self._wall(taken.freed), self._elapsed)
            return Saving(seconds, 0.0, seconds, at_most=True)
        return self.changed(taken.removal, taken.others, at_most=taken.at_most)

    def faster_storage(self, times: float) -> Taken:
        """Make storage `times` as fast. The interval also covers storage that chunks share."""
        alone = faster_storage(times)
        if self.counted is None:
            return Taken(Removal(alone))
        counted = on_clients_clock(self.run, self.counted, "start", "stop")
        shared = partial(on_faster_storage, counted=counted, times=times)
        return Taken(Removal(alone), others=(Removal(replace(alone, chunks=shared)),))

    def together(self, every: Iterable[Taken]) -> float:
        ordered = sorted(every, key=lambda taken: taken.last)
        if isinstance(self.replay, str):
            return self._wall(sum(taken.freed for taken in ordered) - counted_twice(ordered))
        removals = [taken.removal for taken in ordered if taken.removal is not None]
        shares = sum(taken.freed for taken in ordered if taken.removal is None)
        return max(self.replay.saved(reduce(Removal.then, removals, Removal()))[0] + self._wall(shares), 0.0)

    def _wall(self, thread_seconds: float) -> float:
        total = self.ledger and self.ledger.total
        return thread_seconds * self._elapsed / total if total else 0.0


def counted_twice(every: Iterable[Taken]) -> float:
    """Thread time counted twice: once for a slow culprit or CPU time, and once for its time class."""
    inside, twice = defaultdict[str, float](float), 0.0
    for taken in every:
        for name, seconds in (*taken.inside.items(), (phases.CONTENTION, taken.rows.get(WAITS, 0.0))):
            inside[name] += seconds
    for taken in every:
        own = {} if taken.inside else taken.rows
        lies = sum(inside[name] for name in own)
        twice += min(lies / (sum(own.values()) or 1.0), 1.0) * taken.freed if lies else 0.0
    return twice


@fact
def savings(
    run: Run, time_ledger: TimeLedger, counted_chunks: pa.Table | None = None, avg_workers: float | None = None
) -> Savings:
    return Savings(run, time_ledger, avg_workers, counted_chunks)
