"""Predictions: the wall time a run would have elsewhere, the caveats, and the accuracy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import median
from typing import Final

from roastcoffea.replay.changes import AS_RECORDED, UNCHANGED, ChunkLaw, Scenario, bracket, by_law, law_of
from roastcoffea.replay.cluster import CROWDED, Cluster, Replayed, replayed
from roastcoffea.replay.parts import Chunks
from roastcoffea.replay.recorded import Recorded
from roastcoffea.replay.stages import Stage
from roastcoffea.units import FRACTION, number

FAR: Final = 2
"""Chunks up to this many times the largest recorded one are still near it."""

TYPICAL_ERROR: Final = 0.10
"""Relative error that is assumed, not measured, unless other runs show a larger one."""

SCHEDULER_LIMIT: Final = 0.7
"""Share of the time that a scheduler can be busy before tasks wait for it."""

SURPLUS_WAIT: Final = 0.15
"""Relative excess of recorded waiting for cores over the replay's that points to foreign load."""

WRONG: Final = 0.15
"""Error of replaying a recorded run itself above which it is reported."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """Predicted wall time of the run in seconds, or only its range from `low` to `high`.

    `reason` explains a missing number; `doubts` are caveats of this prediction alone. `rechunked` means that the files
    were split into chunks of `chunksize`; otherwise the chunks are the recorded ones.
    """

    workers: int
    threads: int
    chunksize: int | None
    scenario: str
    seconds: float | None
    low: float
    high: float
    scheduler_use: float
    rechunked: bool = False
    reason: str | None = None
    doubts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Check:
    """A measured run, and its prediction from the others (from itself if there are none)."""

    name: str
    workers: int
    threads: int
    chunksize: int | None
    measured: float
    predicted: float
    from_itself: bool

    @property
    def error(self) -> float:
        """Predicted divided by measured, minus 1."""
        return self.predicted / self.measured - 1

    @property
    def off(self) -> float:
        """Relative excess of the larger of both over the smaller."""
        ratio = self.predicted / self.measured
        return max(ratio, 1 / ratio) - 1


@dataclass
class Predictor:
    """Runs of one analysis; the first and its repeats are replayed."""

    runs: Sequence[Recorded]
    same_host: bool
    scenarios: Mapping[str, Scenario]

    @cached_property
    def repeats(self) -> list[Recorded]:
        """The first run and others with the same workers, threads and chunk size."""
        return [run for run in self.runs if run.configuration == self.runs[0].configuration]

    @cached_property
    def spread(self) -> float | None:
        """Range of the repeats' wall times, relative to their median."""
        seconds = [run.seconds for run in self.repeats]
        return (max(seconds) - min(seconds)) / median(seconds) if len(seconds) > 1 else None

    @cached_property
    def error(self) -> float:
        """Relative error to each side of predictions, wide enough to cover the checks."""
        return max([TYPICAL_ERROR, (self.spread or 0.0) / 2, *(check.off for check in self.checks)])

    @cached_property
    def chunks(self) -> list[Chunks]:
        """Chunks of all runs, by stage."""
        return [stage.chunks for run in self.runs for stage in run.stages if stage.chunks is not None]

    @cached_property
    def law(self) -> ChunkLaw | str:
        """Cost of a chunk by its events; or why it is unknown."""
        return law_of(self.chunks)

    @cached_property
    def checks(self) -> list[Check]:
        """The given runs against their predictions."""
        return [self._check(run) for run in self.runs]

    def _check(self, run: Recorded) -> Check:
        sources = self.repeats if run.chunksize == self.runs[0].chunksize else []
        others = [source for source in sources if source is not run]
        predicted = _median([_replay(source, run.own_cluster) for source in others or [run]])
        return Check(run.name, *run.configuration, run.seconds, predicted, not others)

    @cached_property
    def doubts(self) -> list[str]:
        """Caveats of all predictions."""
        found = [doubt for run in self.repeats for doubt in run.doubts]
        found += filter(None, (_other_branches(self.runs[0], run) for run in self.runs[1:]))
        found += filter(None, map(_foreign_load, self.repeats))
        found += filter(None, map(_misfit, self.checks))
        return list(dict.fromkeys(found))

    def of_cluster(self, scenario: str, workers: int, threads: int) -> Prediction:
        """Prediction for another cluster and a scenario."""
        change = self.scenarios[scenario]
        replays = self._replays(workers, threads, change)
        low = high = _median(replays)
        if 1 < threads != self.runs[0].threads:
            high = _median(self._replays(workers, threads, change, serial=True))
        made = self._prediction(low, high, replays, (*self._of_cores(workers, threads), *self._of_threads(threads)))
        return replace(made, workers=workers, threads=threads, scenario=scenario)

    def of_chunksize(self, size: int) -> Prediction:
        """Prediction for chunks of another size, on the cluster of the run."""
        law = self.law
        if isinstance(law, str):
            fixed = self._in_chunks(lambda chunks: bracket(chunks, size).fixed)
            opening = self._in_chunks(lambda chunks: bracket(chunks, size).opening)
            low, high = sorted((_median(fixed), _median(opening)))
            made = self._prediction(low, high, [*fixed, *opening], ())
            return replace(made, chunksize=size, rechunked=True, seconds=None, reason=law)
        replays = self._in_chunks(lambda chunks: by_law(chunks, law, size))
        seconds = _median(replays)
        made = self._prediction(seconds, seconds, replays, self._of_size(size))
        return replace(made, chunksize=size, rechunked=True)

    def _replays(self, workers: int, threads: int, change: Scenario, *, serial: bool = False) -> list[Replayed]:
        clusters = (run.cluster(workers, threads, same_host=self.same_host) for run in self.repeats)
        pairs = zip(self.repeats, clusters, strict=True)
        return [_replay(run, cluster, change, serial=serial) for run, cluster in pairs]

    def _in_chunks(self, other: Callable[[Chunks], Chunks]) -> list[Replayed]:
        """Replays of the repeats with other chunks."""
        return [_replay(run, run.own_cluster, Scenario(chunks=other)) for run in self.repeats]

    def _prediction(self, low: float, high: float, replays: Sequence[Replayed], doubts: Iterable[str]) -> Prediction:
        """Prediction for the cluster of the run, with the range from its error."""
        use = max(replay.scheduler_use for replay in replays)
        if use >= SCHEDULER_LIMIT:
            busy = f"beyond the scheduler's throughput: it would be busy {FRACTION.text(use)} of the time"
            doubts = (busy, *doubts)
        run, seconds, error = self.runs[0].configuration, (low * high) ** 0.5, 1 + self.error
        return Prediction(*run, AS_RECORDED, seconds, low / error, high * error, use, doubts=tuple(doubts))

    # doubts

    def _of_cores(self, workers: int, threads: int) -> Iterator[str]:
        """Caveat on threads that share a core."""
        run = self.runs[0]
        clusters = (run.own_cluster, run.cluster(workers, threads, same_host=self.same_host))
        # threads per core on the host with the most
        here, there = (max(some * each.threads / cores for some, cores in each.hosts) for each in clusters)
        if there > max(here, 1.0):
            yield (
                f"{there:.3g} threads share a core and its caches: each doubling is assumed to cost "
                f"{FRACTION.text(CROWDED)} more CPU time, as measured on one machine, and may cost less on yours"
            )

    def _of_threads(self, threads: int) -> Iterator[str]:
        """Caveat on threads that share an interpreter."""
        recorded = self.runs[0].threads
        if 1 < recorded != threads:
            yield (
                f"it was recorded with {number(recorded)} threads per process: the chunks' times include "
                "their waiting for the interpreter lock"
            )
        if 1 < threads != recorded:
            yield (
                f"threads of a process share one interpreter: at worst, {number(threads)} of them run serially; "
                "how much of their work releases the lock is unknown"
            )

    def _of_size(self, size: int) -> Iterator[str]:
        """Caveat on chunks much larger than the recorded ones."""
        largest = max(int(chunks.events.max()) for chunks in self.chunks)
        if size > FAR * largest:
            yield (
                f"chunks of {number(size)} events are far larger than the recorded {number(largest)}: costs that grow "
                "faster than events (arrays larger than the caches) are not modelled, so that it may take longer"
            )


# Replays


def _replay(run: Recorded, cluster: Cluster, change: Scenario = UNCHANGED, *, serial: bool = False) -> Replayed:
    """Replay of a whole run: seconds outside all stages, then the stages in sequence."""
    stages = (_replayed(stage, cluster, change, serial) for stage in run.stages)
    seconds, stretches, uses, busy = zip(*stages, strict=True)
    return Replayed(run.client + sum(seconds), max(stretches), max(uses), sum(busy))


def _replayed(stage: Stage, cluster: Cluster, change: Scenario, serial: bool) -> Replayed:
    load = change.preprocessing(stage.load) if stage.chunks is None else change.chunks(stage.chunks).load()
    return replayed(load, cluster, change.costs(stage.costs), change.merging(stage.merging), serial=serial)


def _median(replays: Sequence[Replayed]) -> float:
    return median(replay.seconds for replay in replays)


# Doubts of runs


def _foreign_load(run: Recorded) -> str | None:
    """Foreign load, if chunks waited for cores longer than the run itself explains."""
    if run.core_wait is None:
        return None
    explained = _replay(run, run.own_cluster).stretch
    if run.core_wait < (1 + SURPLUS_WAIT) * explained:
        return None
    return (
        f"other programs used the cores while {run.name} was recorded: with CPU contention its chunks took "
        f"{run.core_wait:.2f} times their CPU time, where the run alone explains {explained:.2f} times; what "
        "the chunks themselves cost is less certain"
    )


def _other_branches(one: Recorded, other: Recorded) -> str | None:
    """Branches that only one of two runs of a processor read, a sign that its parameters differ."""
    by_one = sorted(one.branches ^ other.branches)
    if not by_one or not one.branches or not other.branches:
        return None
    named = f"{by_one[0]}{f' and {len(by_one) - 1} more' if len(by_one) > 1 else ''}"
    return f"only one of {one.name} and {other.name} read {named}: they are treated as runs of one analysis"


def _misfit(check: Check) -> str | None:
    if abs(check.error) < WRONG:
        return None
    what = "the replay" if check.from_itself else "the prediction from the other runs"
    off = f"{FRACTION.text(abs(check.error))} {'more' if check.error > 0 else 'less'}"
    return f"{what} of {check.name} gives {off} than the {check.measured:.3g} s that were measured"
