"""Replays of a recorded run on its own cluster, unchanged and changed: the wall time saved by a change.

Long runs are replayed in samples: fewer workers with their chunks, and then fewer chunks each. Each replay is repeated
with other samples, or with slightly reordered chunks, which shows how much of a saving is chance.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np

from roastcoffea.metrics.statistics import Integers, Numbers
from roastcoffea.replay.changes import UNCHANGED, Chunks, Scenario
from roastcoffea.replay.cluster import Cluster, Load, Merging, Replayed, replayed
from roastcoffea.replay.recorded import Recorded
from roastcoffea.replay.stages import Stage

MOST: Final = 2000
"""Most chunks of a replay: these take 40 ms, without anything to compile."""

FEWEST_WORKERS: Final = 8
"""Fewest workers of a sample, if there are as many."""

MOST_REPEATS: Final = 8
FEWEST_REPEATS: Final = 3
"""Replays that determine the scatter of a saving."""

NEGLIGIBLE: Final = 0.005
"""Share of the wall time below which a change of chunks is not replayed: no schedule saves more than that."""


BUSY: Final = 0.8
"""Least share of thread time in chunks for which the scheduler was not the limit."""

UNHURRIED: Final = 0.5
"""Largest share of time that the scheduler is then busy: tasks wait for it long before it is always busy."""


class Size(NamedTuple):
    """Sample of a stage: `chunks` on `workers`, representing `rounds` times as many chunks per worker."""

    chunks: int
    workers: int
    rounds: float


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


class Saved(NamedTuple):
    """Wall time saved by a change in seconds, its standard deviation by chance, and the error of the replay."""

    seconds: float
    chance: float
    replay: float


class Calibrated:
    """A run with its own replay.

    Parameters
    ----------
    run
        The unchanged run: see `recorded_with`.
    """

    def __init__(self, run: Recorded) -> None:
        self._run = run

    @property
    def chunks(self) -> list[Chunks]:
        """Chunks of each stage with any."""
        return [stage.chunks for stage in self._run.stages if stage.chunks is not None]

    @property
    def measured(self) -> float:
        """Wall time of the run."""
        return self._run.seconds

    @property
    def workers(self) -> int:
        """Worker processes."""
        return self._run.workers

    @cached_property
    def slots(self) -> int:
        """Threads of all workers."""
        return self._run.workers * self._run.threads

    @cached_property
    def own_share(self) -> float:
        """Share of the waiting for cores explained by the run's own threads; the rest is due to others."""
        cluster, waited = self._run.own_cluster, self._run.core_wait
        if waited is None or waited <= 1 or not _crowded(cluster):
            return 0.0
        stretches = [
            self._replayed(stage, stage.chunks.with_cores(1.0, stage.costs.crowded).load(), UNCHANGED, 0, 1.0).stretch
            for stage in self._run.stages
            if stage.chunks is not None
        ]
        return min((max(stretches) - 1) / (waited - 1), 1.0)

    @cached_property
    def stages(self) -> list[Stage]:
        """Stages whose chunks wait for cores only as far as others used them."""
        return [self._fitted(stage) for stage in self._run.stages]

    def _fitted(self, stage: Stage) -> Stage:
        chunks, own = stage.chunks, self.own_share
        if chunks is None:
            return stage
        # a scheduler's time per task is assumed: it cannot have been the limit if threads were busy
        busy = float(chunks.parts.total.sum()) / (self.slots * stage.seconds)
        most = (1.0 if busy < BUSY else UNHURRIED) * stage.seconds / len(chunks)
        costs = stage.costs._replace(scheduler=min(stage.costs.scheduler, most))
        return replace(stage, costs=costs, chunks=chunks.with_cores(own, costs.crowded) if own else chunks)

    @cached_property
    def repeats(self) -> int:
        """Number of replays of each change."""
        chunks = sum(self._size(len(stage.chunks or stage.load)).chunks for stage in self._run.stages)
        return int(np.clip(MOST // max(chunks, 1), FEWEST_REPEATS, MOST_REPEATS))

    @cached_property
    def base(self) -> Numbers:
        """Seconds of each replay of the unchanged run."""
        return self._seconds(Removal())

    @cached_property
    def error(self) -> float:
        """Relative error of replaying the unchanged run."""
        return self._expected(self.base) / self.measured - 1

    def saved(self, removal: Removal) -> Saved:
        """Wall time saved by a change."""
        found = (self.base - self._seconds(removal)) / (1 + self.error)
        return Saved(self._expected(found), float(np.std(found, ddof=1)), abs(self.error) * self.measured)

    def negligible(self, change: Callable[[Chunks], Chunks]) -> bool:
        """Whether a change of chunks saves next to nothing under any schedule."""
        most = 0.0
        for stage in self.stages:
            if stage.chunks is not None:
                less = stage.chunks.parts.total - change(stage.chunks).parts.total
                most += float(np.abs(less).sum()) / self.slots + float(np.abs(less).max(initial=0.0))
        return most < NEGLIGIBLE * self.measured

    def saves_nothing(self, removal: Removal) -> bool:
        """Whether the threads would be busy for as long as the run is, whatever the schedule."""
        busy = 0.0 if removal.client else self._run.client
        for stage in self.stages:
            if stage.chunks is not None and stage.kind not in removal.stages:
                busy += removal.scenario.chunks(stage.chunks).load().seconds / self.slots
        return busy >= float(self.base.max())

    # replays

    def _expected(self, repeats: Numbers) -> float:
        """Result of replaying the run's own chunks; the mean of samples."""
        return float(repeats[0] if self._whole else repeats.mean())

    @cached_property
    def _whole(self) -> bool:
        """Whether all chunks are replayed."""
        return all(self._size(len(chunks)).chunks == len(chunks) for chunks in self.chunks)

    def _size(self, chunks: int) -> Size:
        """Numbers of chunks and workers that represent a stage."""
        workers = self._run.workers
        if chunks <= MOST:
            return Size(chunks, workers, 1.0)
        fewer = min(workers, max(FEWEST_WORKERS, -(-workers * MOST // chunks)))
        of_these = chunks * fewer / workers
        taken = min(round(of_these), MOST)
        return Size(taken, fewer, of_these / taken)

    def _seconds(self, removal: Removal) -> Numbers:
        """Seconds of the whole run with a change, in each repeat."""
        total = np.full(self.repeats, 0.0 if removal.client else self._run.client)
        for stage in self.stages:
            if stage.kind not in removal.stages:
                total += self._of_stage(stage, removal)
        return total

    def _of_stage(self, stage: Stage, removal: Removal) -> Numbers:
        change = removal.scenario
        chunks = None if stage.chunks is None else change.chunks(stage.chunks)
        load = change.preprocessing(stage.load) if chunks is None else chunks.load()
        return np.array([self._once(stage, load, removal, seed) for seed in range(self.repeats)])

    def _once(self, stage: Stage, load: Load, removal: Removal, seed: int) -> float:
        seconds = self._replayed(stage, load, removal.scenario, seed, self.own_share).seconds
        if not removal.balanced:
            return seconds
        # threads idle during merges are not a matter of balance
        apart = removal.scenario.then(Scenario(merging=lambda _: Merging()))
        done = self._replayed(stage, load, apart, seed, self.own_share)
        costs = apart.costs(stage.costs)
        busy = (done.busy + len(load) * costs.gap) / self.slots + costs.latency + costs.cold_wait
        return seconds - max(done.seconds - busy, 0.0)

    def _replayed(self, stage: Stage, load: Load, change: Scenario, seed: int, own: float) -> Replayed:
        """A stage on the workers of its sample, in seconds of the whole."""
        run, size = self._run, self._size(len(load))
        merging, costs = change.merging(stage.merging), change.costs(stage.costs)
        fewer = run.workers / size.workers
        costs = costs._replace(
            # one scheduler has the tasks of all workers
            scheduler=costs.scheduler * fewer,
            cold_before=costs.cold_before / size.rounds,
            cold_wait=costs.cold_wait / size.rounds,
            cold_after=costs.cold_after / size.rounds,
        )
        cluster = change.cores(run.cluster(size.workers, run.threads, same_host=run.hosts == 1))
        some = _picked(load, size.chunks, size.workers * run.threads, seed)
        # what storage serves does not change: one turn is enough
        done = replayed(some, _apart(cluster, own), costs, merging, turns=1, compiled=False)
        return done._replace(seconds=done.seconds * size.rounds, busy=done.busy * size.rounds * fewer)


def _picked(load: Load, chunks: int, slots: int, seed: int) -> Load:
    """Chunks to replay: a regular sample or all of them, reordered after the first repeat."""
    every, random = len(load), np.random.default_rng(seed)
    if chunks == every:
        order = np.arange(every)
        return _taken(load, np.argsort(order + 2 * slots * random.random(every)) if seed else order)
    edges = np.arange(chunks + 1) * every // chunks
    rows = edges[:-1] + (random.random(chunks) * np.diff(edges)).astype(np.int64)
    some = _taken(load, rows)
    # scaled to the mean of all, so that rare chunks do not distort samples
    return Load(
        before=some.before * _as_long(some.before, load.before),
        wait=some.wait * _as_long(some.wait, load.wait),
        after=some.after * _as_long(some.after, load.after),
    )


def _taken(load: Load, rows: Integers) -> Load:
    return Load(before=load.before[rows], wait=load.wait[rows], after=load.after[rows])


def _as_long(some: Numbers, every: Numbers) -> float:
    """Factor that gives some numbers the mean of all."""
    mean = float(some.mean())
    return float(every.mean()) / mean if mean else 1.0


def _crowded(cluster: Cluster) -> bool:
    """Whether tasks' threads and the scheduler may share cores."""
    scheduler = 1 if cluster.scheduler_here else 0
    return any(workers * cluster.threads + scheduler > cores for workers, cores in cluster.hosts)


def _apart(cluster: Cluster, own: float) -> Cluster:
    """The cluster with a core for each thread, if chunks include their waiting for cores."""
    if own:
        return cluster
    hosts = [(1, float("inf"))] * sum(workers for workers, _ in cluster.hosts)
    return Cluster(threads=cluster.threads, hosts=hosts, scheduler_here=False)
