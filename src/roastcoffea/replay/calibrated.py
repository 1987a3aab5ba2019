"""Replays of a recorded run on its own cluster, unchanged and changed: the wall time saved by a change.

Each chunk takes as long as it did, with its waiting for cores; long runs are replayed in samples. Each replay is
repeated with other samples, or with slightly reordered chunks, which shows how much of a saving is chance.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np

from roastcoffea.metrics.statistics import Numbers
from roastcoffea.replay.changes import UNCHANGED, Chunks, Scenario
from roastcoffea.replay.cluster import Cluster, Load, Merging, Replayed, replayed
from roastcoffea.replay.recorded import Recorded
from roastcoffea.replay.stages import Stage

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
        self._run, self.stages, self.measured, self.workers = run, run.stages, run.seconds, run.workers
        self.chunks: list[Chunks] = [stage.chunks for stage in run.stages if stage.chunks is not None]
        self._slots = run.workers * run.threads

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

    def saved(self, removal: Removal) -> Saved:
        """Wall time saved by a change."""
        found = (self.base - self._seconds(removal)) / (1 + self.error)
        return Saved(self._expected(found), float(np.std(found, ddof=1)), abs(self.error) * self.measured)

    def negligible(self, change: Callable[[Chunks], Chunks]) -> bool:
        """Whether a change of chunks saves next to nothing under any schedule."""
        most = 0.0
        for chunks in self.chunks:
            less = np.abs(chunks.parts.total - change(chunks).parts.total)
            most += float(less.sum()) / self._slots + float(less.max(initial=0.0))
        return most < 0.005 * self.measured

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
