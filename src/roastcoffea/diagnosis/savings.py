"""Potential savings: what a finding takes out of a run, and its wall time then, by the replay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from roastcoffea.metrics.catalogue import NotMeasuredError, fact
from roastcoffea.metrics.facts import elapsed_seconds
from roastcoffea.metrics.statistics import Numbers
from roastcoffea.metrics.time_ledger import TimeLedger
from roastcoffea.records.run import Run
from roastcoffea.replay.changes import UNCHANGED, Chunks, Scenario, ratio, with_computing
from roastcoffea.replay.cluster import Cluster, Load, Merging, Replayed, replayed
from roastcoffea.replay.stages import Known, Recorded, Stage, recorded_with
from roastcoffea.units import FRACTION

MOST: Final = 2000
"""Most chunks of a replay."""


@dataclass(frozen=True, slots=True)
class Removal:
    """A change of a whole run.

    `stages` are the kinds left out entirely. `balanced` keeps all threads busy to the end, `client` leaves out time
    outside all stages.
    """

    scenario: Scenario = UNCHANGED
    stages: tuple[str, ...] = ()
    balanced: bool = False
    client: bool = False

    def then(self, other: Removal) -> Removal:
        """Both changes, in sequence."""
        return Removal(
            self.scenario.then(other.scenario),
            (*self.stages, *other.stages),
            self.balanced or other.balanced,
            self.client or other.client,
        )


class Calibrated:
    """A run with its own replay.

    Parameters
    ----------
    run
        The unchanged run: see `recorded_with`.
    """

    def __init__(self, run: Recorded) -> None:
        self._run, self.measured, self.workers = run, run.seconds, run.workers
        self.chunks: list[Chunks] = [stage.chunks for stage in run.stages if stage.chunks is not None]
        self._slots = run.workers * run.threads
        self.stages = [self._within_its_time(stage) for stage in run.stages]

    def _within_its_time(self, stage: Stage) -> Stage:
        """A scheduler's time for each task is assumed: it cannot have been the limit if threads were busy."""
        if stage.chunks is None:
            return stage
        busy = float(stage.chunks.parts.total.sum()) / (self._slots * stage.seconds)
        most = (1.0 if busy < 0.8 else 0.5) * stage.seconds / len(stage.chunks)
        return replace(stage, costs=stage.costs._replace(scheduler=min(stage.costs.scheduler, most)))

    @cached_property
    def repeats(self) -> int:
        """Number of replays of each change."""
        chunks = sum(min(len(stage.chunks or stage.load), MOST) for stage in self.stages)
        return int(np.clip(MOST // max(chunks, 1), 3, 8))

    @cached_property
    def base(self) -> Numbers:
        """Seconds of each replay of the unchanged run."""
        return self._seconds(Removal())

    @cached_property
    def error(self) -> float:
        """Relative error of replaying the unchanged run."""
        return self._expected(self.base) / self.measured - 1

    def saved(self, removal: Removal) -> tuple[float, float]:
        """Wall time saved by a change in seconds, and its standard deviation by chance."""
        found = (self.base - self._seconds(removal)) / (1 + self.error)
        return self._expected(found), float(np.std(found, ddof=1))

    def saves_nothing(self, removal: Removal) -> bool:
        """Whether the threads would be busy for as long as the run is, whatever the schedule."""
        busy = 0.0 if removal.client else self._run.client
        for stage in self.stages:
            if stage.chunks is not None and stage.kind not in removal.stages:
                busy += float(removal.scenario.chunks(stage.chunks).parts.total.sum()) / self._slots
        return busy >= float(self.base.max())

    def _expected(self, repeats: Numbers) -> float:
        """Result of replaying the run's own chunks; the mean of samples."""
        whole = all(len(chunks) <= MOST for chunks in self.chunks)
        return float(repeats[0] if whole else repeats.mean())

    def _seconds(self, removal: Removal) -> Numbers:
        """Seconds of the whole run with a change, in each repeat."""
        total = np.full(self.repeats, 0.0 if removal.client else self._run.client)
        for stage in self.stages:
            if stage.kind not in removal.stages:
                change = removal.scenario
                load = change.preprocessing(stage.load) if stage.chunks is None else change.chunks(stage.chunks).load()
                total += [self._once(stage, load, removal, seed) for seed in range(self.repeats)]
        return total

    def _once(self, stage: Stage, load: Load, removal: Removal, seed: int) -> float:
        seconds = self._replayed(stage, load, removal.scenario, seed).seconds
        if not removal.balanced:
            return seconds
        # threads idle during merges are not a matter of balance
        apart = removal.scenario.then(Scenario(merging=lambda _: Merging()))
        done, costs = self._replayed(stage, load, apart, seed), apart.costs(stage.costs)
        busy = (done.busy + len(load) * costs.gap) / self._slots + costs.latency + costs.cold_wait
        return seconds - max(done.seconds - busy, 0.0)

    def _replayed(self, stage: Stage, load: Load, change: Scenario, seed: int) -> Replayed:
        # a core for each thread: what chunks waited for cores is in their time
        cluster = Cluster(threads=self._run.threads, hosts=[(1, float("inf"))] * self.workers)
        merging, costs = change.merging(stage.merging), change.costs(stage.costs)
        # what storage serves does not change: one turn is enough
        return replayed(load, cluster, costs, merging, turns=1, most=MOST, seed=seed)


@dataclass(frozen=True, eq=False)
class Taken:
    """What a finding takes out of a run.

    Parameters
    ----------
    removal
        The change for the replay; without one, all threads share the time.
    seconds
        Thread seconds that it frees, for runs without a replay.
    rows
        Thread seconds of the finding's rows, by class of the time ledger.
    inside
        For a slow worker, host, file or chunk: its thread seconds by class of the time ledger.
    last
        Whether it comes after all others: a chunk size, as other changes are those of the recorded chunks.
    at_most
        Whether any remedy removes less: the saving is an upper bound.
    known
        The saving, where it is known already.
    """

    removal: Removal | None = None
    seconds: float | None = None
    rows: Mapping[str, float] = field(default_factory=dict)
    inside: Mapping[str, float] = field(default_factory=dict)
    last: bool = False
    at_most: bool = False
    known: Saving | None = None

    @property
    def freed(self) -> float:
        """Thread seconds that it frees."""
        return sum(self.rows.values()) if self.seconds is None else self.seconds


# Changes of chunks


def of_chunks(change: Callable[[Chunks], Chunks]) -> Removal:
    """Change the chunks."""
    return Removal(Scenario(chunks=change))


def without_parts(*names: str) -> Removal:
    """Remove these parts of chunks."""
    return of_chunks(lambda chunks: chunks.with_parts(**{name: np.zeros(len(chunks)) for name in names}))


def without_cpu(seconds: Numbers) -> Removal:
    """Remove CPU time in process(), in seconds of each counted chunk."""

    def change(chunks: Chunks) -> Chunks:
        return with_computing(chunks, cpu=np.maximum(chunks.parts.cpu - in_order(seconds, chunks, 0.0), 0.0))

    return of_chunks(change)


def in_order(values: Numbers, chunks: Chunks, failed: float) -> Numbers:
    """Values of the counted chunks for the chunks of a replay, which also has failed attempts."""
    return np.where(chunks.row >= 0, values[np.maximum(chunks.row, 0)], failed)


OF_CPU: Final = ("open_cpu", "decompress", "cpu")
OPENING: Final = ("open_cpu", "open_wait")
SLOW_PARTS: Final = {
    "open": OPENING,
    "build": OPENING,
    "read": ("read",),
    "blocked": ("wait",),
    "checkpoint": ("wait",),
}
"""Parts of chunks that are slow, by the phase that takes the most of the excess; where that is another one, the CPU."""

BY_CHANCE: Final = ("lock", "contention", "first", "failed", "overhead")
"""Parts that no slow worker or file is blamed for; waiting for cores and the interpreter goes with CPU time."""


def without_excess(factors: Numbers, phases: Sequence[str | None]) -> Removal:
    """Multiply the durations of counted chunks by factors: first in the parts of their slow phase, if that is known."""

    def change(chunks: Chunks) -> Chunks:
        own = {name: seconds for name, seconds in chunks.parts._asdict().items() if name not in BY_CHANCE}
        excess = sum(own.values(), np.zeros(len(chunks))) * (1 - in_order(factors, chunks, 1.0))
        # failed attempts are in row -1
        phase = np.array([*phases, None], object)[chunks.row]
        for one in dict.fromkeys(phases):
            rows = phase == one
            # what the slow parts do not have is the others'
            for names in (SLOW_PARTS.get(one, OF_CPU) if one else (), tuple(own)):
                total = sum((own[name] for name in names), np.zeros(len(chunks)))
                less = np.where(rows, np.minimum(excess, total), 0.0)
                own |= {name: own[name] * (1 - ratio(less, total)) for name in names}
                excess = excess - less
        return with_computing(chunks, **own)

    return of_chunks(change)


class Saving(NamedTuple):
    """Wall time that a run would save, between `low` and `high`, or an upper bound."""

    seconds: float
    low: float
    high: float
    at_most: bool = False

    def up_to(self, most: float) -> Saving:
        """The saving, limited to this many seconds."""
        return self._replace(seconds=min(self.seconds, most), low=min(self.low, most), high=min(self.high, most))


@dataclass(frozen=True, eq=False)
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

    run: Run
    ledger: TimeLedger | None
    workers: float | None = None
    counted: pa.Table | None = None

    @cached_property
    def replay(self) -> Calibrated | str:
        """Replay of the run, or why there is none."""
        try:
            known = Known(self.workers or 0.0, self.counted, ledger=self.ledger)
            found = Calibrated(recorded_with(self.run, known, "the run", as_it_was=True))
        except NotMeasuredError as reason:
            return str(reason)
        if found.measured <= 0:
            return "the run took no time"
        # a replay that misses the run itself predicts nothing
        if (error := abs(found.error)) > 0.25:
            return f"a replay of the run misses its wall time by {FRACTION.text(error)}"
        return found

    @cached_property
    def _elapsed(self) -> float:
        return elapsed_seconds(self.run)

    def changed(self, removal: Removal, *, at_most: bool = False) -> Saving:
        """Wall time that a change of the run would save.

        Raises
        ------
        NotMeasuredError
            If the run cannot be replayed.
        """
        if isinstance(self.replay, str):
            raise NotMeasuredError(self.replay)
        saved, chance = self.replay.saved(removal)
        # the error of the replay, and two standard deviations of chance
        error, seconds = float(np.hypot(self.replay.error * self.replay.measured, 2 * chance)), max(saved, 0.0)
        return Saving(seconds, max(saved - error, 0.0), min(seconds + error, self._elapsed), at_most)

    def of(self, taken: Taken) -> Saving:
        """Wall time that the run would save without this; without a replay the share that its thread time is."""
        if taken.known is not None:
            return taken.known
        if taken.removal is None or isinstance(self.replay, str):
            seconds = min(self._wall(taken.freed), self._elapsed)
            return Saving(seconds, 0.0, seconds, at_most=True)
        return self.changed(taken.removal, at_most=taken.at_most)

    def together(self, every: Iterable[Taken]) -> float:
        """Wall time that the run would save without all of these: less than the sum of the single savings."""
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
    """Thread time of a slow culprit in classes of time that are removed as well."""
    inside, twice = Counter[str](), 0.0
    for taken in every:
        inside.update(taken.inside)
    for taken in every:
        own = {} if taken.inside else taken.rows
        lies = sum(inside[name] for name in own)
        twice += min(lies / (sum(own.values()) or 1.0), 1.0) * taken.freed if lies else 0.0
    return twice


@fact
def savings(
    run: Run, time_ledger: TimeLedger, counted_chunks: pa.Table | None = None, avg_workers: float | None = None
) -> Savings:
    """Potential savings of the run, computed on request."""
    return Savings(run, time_ledger, avg_workers, counted_chunks)
