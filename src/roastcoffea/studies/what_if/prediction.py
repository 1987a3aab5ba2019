"""What a run would take elsewhere: with other workers, without this or that cost, in chunks of another size."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from statistics import median
from typing import IO, Any, Final

import numpy as np

from roastcoffea.metrics.catalogue import NotMeasuredError
from roastcoffea.replay.chunk_parts import Chunks
from roastcoffea.replay.cluster import CROWDED, Cluster, Load, Merging, Replayed, replayed
from roastcoffea.replay.inputs import Costs
from roastcoffea.replay.recorded import Recorded, recorded_run
from roastcoffea.replay.stages import Stage
from roastcoffea.studies.printed import Printed
from roastcoffea.studies.sources import Source, measurement_of, name_of
from roastcoffea.studies.what_if.chunk_sizes import ChunkLaw, NoLaw, bracket, by_law, law_of
from roastcoffea.units import FRACTION, number

FAR: Final = 2
"""So many times the largest chunk that was recorded is still near it."""

TYPICAL_ERROR: Final = 0.10
"""Relative error that is assumed, and not measured, where no other runs tell a larger one."""

SCHEDULER_LIMIT: Final = 0.7
"""Share of the time that a scheduler can be busy before tasks wait for it."""

SURPLUS_WAIT: Final = 0.15
"""How much longer than the replay says chunks may have computed for want of cores, beside what it says."""

WRONG: Final = 0.15
"""Error of replaying a recorded run itself from which on it is told."""

AS_RECORDED: Final = "as recorded"
STORAGE_FACTOR: Final = 2.0


@dataclass(frozen=True, slots=True)
class Scenario:
    """A change: what it makes of chunks, of preprocessing, of what Dask takes, and of merging."""

    chunks: Callable[[Chunks], Chunks] = lambda chunks: chunks
    preprocessing: Callable[[Load], Load] = lambda load: load
    costs: Callable[[Costs], Costs] = lambda costs: costs
    merging: Callable[[Merging], Merging] = lambda merging: merging


def _without_rereads(chunks: Chunks) -> Chunks:
    """Only the first chunk of a file opens it and builds its tree."""
    _, first = np.unique(np.column_stack([chunks.dataset, chunks.file]), axis=0, return_index=True)
    keeps = np.isin(np.arange(len(chunks)), first)
    return replace(chunks, open_cpu=chunks.open_cpu * keeps, open_wait=chunks.open_wait * keeps)


def _without_stragglers(chunks: Chunks) -> Chunks:
    """Stragglers take what is expected of their events and bytes."""
    return replace(chunks.with_each_part(lambda seconds: seconds * chunks.factor), overhead=chunks.overhead)


def _faster_storage(factor: float, chunks: Chunks) -> Chunks:
    return replace(chunks, open_wait=chunks.open_wait / factor, read=chunks.read / factor)


def _faster_opening(factor: float, load: Load) -> Load:
    """What preprocessing waits for is taken for storage."""
    return replace(load, wait=load.wait / factor)


def _without_overhead(chunks: Chunks) -> Chunks:
    return replace(chunks, overhead=np.zeros(len(chunks)))


def _free(costs: Costs) -> Costs:
    """Costs of a Dask that takes no time; processes have to begin all the same."""
    return Costs(cold_cpu=costs.cold_cpu, cold_wait=costs.cold_wait, steal=0.0, crowded=costs.crowded)


def scenarios(storage: float = STORAGE_FACTOR) -> dict[str, Scenario]:
    """Changes by name; the first is none."""
    return {
        AS_RECORDED: Scenario(),
        "no metadata re-reads": Scenario(chunks=_without_rereads),
        "no stragglers": Scenario(chunks=_without_stragglers),
        f"storage {storage:g} x faster": Scenario(
            chunks=partial(_faster_storage, storage), preprocessing=partial(_faster_opening, storage)
        ),
        "Dask's overhead gone": Scenario(
            chunks=_without_overhead, costs=_free, merging=lambda merging: replace(merging, fetch=0.0)
        ),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Wall time of the run in seconds if it were so; from `low` to `high` where one number cannot be given.

    `reason` says why there is none; `doubts` what makes it less certain than the others. `rechunked` tells that the
    files were cut into chunks of `chunksize`; else chunks are the recorded ones.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A run that was really made, and what was predicted for it from others (from itself where there was no other)."""

    name: str
    workers: int
    threads: int
    chunksize: int | None
    measured: float
    predicted: float
    from_itself: bool

    @property
    def error(self) -> float:
        """What was predicted beside what was measured, less 1."""
        return self.predicted / self.measured - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf(Printed):
    """Predictions from recorded runs, with their error.

    `checks` are runs that were really made against their predictions, `spread` is the range of repeats' wall times
    beside their median (None without repeats), `doubts` is what makes all predictions doubtful. With `same_host`
    clusters are workers that share the cores of one host, else each brings as many as the recorded ones had.
    """

    runs: list[Recorded]
    same_host: bool
    predictions: list[Prediction]
    checks: list[Check]
    spread: float | None
    doubts: list[str]

    @property
    def error(self) -> float:
        """Relative error that the ranges of predictions have."""
        return _error(self.checks, self.spread)

    def print(self, file: IO[str] | None = None) -> None:
        """Print predictions, checks and doubts as tables."""
        from roastcoffea.studies.what_if.tables import print_what_if

        print_what_if(self, file)

    def as_dict(self) -> dict[str, Any]:
        """Predictions, checks and doubts in plain types."""
        return {
            "same_host": self.same_host,
            "predictions": [asdict(prediction) for prediction in self.predictions],
            "checks": [asdict(check) | {"error": check.error} for check in self.checks],
            "error": self.error,
            "spread": self.spread,
            "doubts": self.doubts,
        }


def what_if(
    run: Source,
    *others: Source,
    workers: Sequence[int] | None = None,
    threads: Sequence[int] | None = None,
    same_host: bool = False,
    chunksize: Sequence[int] = (),
    storage: float = STORAGE_FACTOR,
) -> WhatIf:
    """Wall time that a recorded run would have on other clusters, without some costs, and in other chunks.

    Parameters
    ----------
    run
        The run that is replayed, with those of `others` that have its workers, threads and chunk size.
    others
        More runs of the same analysis on the same files: repeats tell the spread, runs with other workers are predicted
        as checks, runs with another chunk size tell what a chunk costs beside its events.
    workers, threads
        Worker processes, and threads of each; by default those of the run.
    same_host
        Workers share the cores of one host; else each brings as many cores as the recorded ones had.
    chunksize
        Other chunk sizes, for the workers of the run.
    storage
        How many times faster the storage is in that scenario.

    Raises
    ------
    NotMeasuredError
        If the runs lack what a replay needs, or are not of the same analysis.
    ValueError
        If a number of workers or threads, a chunk size or `storage` is not above 0.
    """
    _refuse_none(workers=workers or (), threads=threads or (), chunksize=chunksize, storage=[storage])
    runs = [_recorded(source) for source in (run, *others)]
    _refuse_other_analyses(runs)
    study = _Study(runs, same_host, scenarios(storage))
    return WhatIf(
        runs=runs,
        same_host=same_host,
        predictions=[
            *study.of_clusters(workers or [runs[0].workers], threads or [runs[0].threads]),
            *(study.of_chunksize(size) for size in chunksize),
        ],
        checks=study.checks,
        spread=study.spread,
        doubts=study.doubts,
    )


def _recorded(source: Source) -> Recorded:
    measurement = measurement_of(source)
    return recorded_run(measurement.run, measurement.metrics, name_of(source))


def _refuse_none(**settings: Sequence[float]) -> None:
    """Refuse settings with a number that is not above 0."""
    for name, values in settings.items():
        for value in values:
            if not value > 0:
                raise ValueError(f"{name} is {value:g}; give what is above 0")


def _refuse_other_analyses(runs: Sequence[Recorded]) -> None:
    first = runs[0]
    for run in runs[1:]:
        if run.failed:
            raise NotMeasuredError(f"{run.name} failed: leave it out")
        difference = _difference(first, run)
        if difference is not None:
            raise NotMeasuredError(f"{difference}: give runs of one analysis on the same files")


def _difference(one: Recorded, other: Recorded) -> str | None:
    """How the analyses of two runs differ; None where nothing tells that they do."""
    first, second = (", ".join(processor for processor, _ in run.calls) for run in (one, other))
    if first != second:
        return f"{other.name} ran {second} and {one.name} {first}"
    files = [{before, after} - {None} for (_, before), (_, after) in zip(one.calls, other.calls, strict=True)]
    if any(len(fingerprints) > 1 for fingerprints in files):
        return f"{other.name} and {one.name} read different files"
    if one.events != other.events:
        return f"{other.name} processed {number(other.events)} events and {one.name} {number(one.events)}"
    return None


def _error(checks: Sequence[Check], spread: float | None) -> float:
    return max([TYPICAL_ERROR, (spread or 0.0) / 2, *(abs(check.error) for check in checks)])


class _Replays(list[Replayed]):
    """Replays of the stages of a run."""

    @property
    def seconds(self) -> float:
        return sum(replay.seconds for replay in self)

    @property
    def scheduler_use(self) -> float:
        return max((replay.scheduler_use for replay in self), default=0.0)


@dataclass
class _Study:
    """Runs of one analysis; the first and its repeats are replayed."""

    runs: Sequence[Recorded]
    same_host: bool
    scenarios: Mapping[str, Scenario]
    repeats: list[Recorded] = field(init=False)

    def __post_init__(self) -> None:
        self.repeats = [run for run in self.runs if run.configuration == self.runs[0].configuration]

    @cached_property
    def spread(self) -> float | None:
        """Range of the repeats' wall times, beside their median."""
        seconds = [run.seconds for run in self.repeats]
        return (max(seconds) - min(seconds)) / median(seconds) if len(seconds) > 1 else None

    @cached_property
    def law(self) -> ChunkLaw | NoLaw:
        """What a chunk of so many events takes."""
        return law_of([stage.chunks for run in self.runs for stage in run.stages if stage.chunks is not None])

    @cached_property
    def checks(self) -> list[Check]:
        """The given runs against their predictions."""
        return [self._check(run) for run in self.runs]

    def _check(self, run: Recorded) -> Check:
        sources = [source for source in self.repeats if source is not run]
        if run.chunksize != self.runs[0].chunksize:
            sources = []
        predicted = [source.client + _replays(source, run.own_cluster).seconds for source in sources or [run]]
        return Check(
            name=run.name,
            workers=run.workers,
            threads=run.threads,
            chunksize=run.chunksize,
            measured=run.seconds,
            predicted=median(predicted),
            from_itself=not sources,
        )

    @cached_property
    def doubts(self) -> list[str]:
        """What makes all predictions doubtful."""
        found = dict.fromkeys(doubt for run in self.repeats for doubt in run.doubts)
        return [
            *found,
            *filter(None, (_other_branches(self.runs[0], run) for run in self.runs[1:])),
            *filter(None, map(_foreign_load, self.repeats)),
            *filter(None, map(_misfit, self.checks)),
        ]

    def of_clusters(self, workers: Sequence[int], threads: Sequence[int]) -> list[Prediction]:
        """Predictions for all these clusters and scenarios."""
        return [
            self._of_cluster(number_of, each, name)
            for name in self.scenarios
            for number_of in workers
            for each in threads
        ]

    def _of_cluster(self, workers: int, threads: int, scenario: str) -> Prediction:
        replays = partial(self._totals, workers, threads, self.scenarios[scenario])
        totals, use = replays(serial=False)
        low = high = median(totals)
        if 1 < threads != self.runs[0].threads:
            high = median(replays(serial=True)[0])
        doubts = [*self._of_scheduler(use), *self._of_cores(workers, threads), *self._of_threads(threads)]
        return self._prediction(workers, threads, scenario, low, high, use, doubts)

    def _totals(self, workers: int, threads: int, scenario: Scenario, *, serial: bool) -> tuple[list[float], float]:
        """Wall time from each repeat, and the most that the scheduler was busy."""
        totals, use = [], 0.0
        for run in self.repeats:
            cluster = run.cluster(workers, threads, same_host=self.same_host)
            replays = _replays(run, cluster, scenario, serial=serial)
            totals.append(run.client + replays.seconds)
            use = max(use, replays.scheduler_use)
        return totals, use

    def _prediction(  # noqa: PLR0917
        self, workers: int, threads: int, scenario: str, low: float, high: float, use: float, doubts: list[str]
    ) -> Prediction:
        error = _error(self.checks, self.spread)
        return Prediction(
            workers=workers,
            threads=threads,
            chunksize=self.runs[0].chunksize,
            scenario=scenario,
            seconds=(low * high) ** 0.5,
            low=low / (1 + error),
            high=high * (1 + error),
            scheduler_use=use,
            doubts=tuple(doubts),
        )

    def _of_scheduler(self, use: float) -> list[str]:
        if use < SCHEDULER_LIMIT:
            return []
        return [f"past the scheduler's throughput: it would be busy for {FRACTION.text(use)} of the time"]

    def _of_cores(self, workers: int, threads: int) -> list[str]:
        """What is not known of threads that share a core."""
        run = self.runs[0]
        here, there = (
            max(number_of * cluster.threads / cores for number_of, cores in cluster.hosts)
            for cluster in (run.own_cluster, run.cluster(workers, threads, same_host=self.same_host))
        )
        if there <= max(here, 1.0):
            return []
        return [
            (
                f"{there:.3g} threads share a core, and take each other's caches: that each doubling costs "
                f"{FRACTION.text(CROWDED)} more CPU time was measured on one machine, and may be less on yours"
            )
        ]

    def _of_threads(self, threads: int) -> list[str]:
        """What is not known of threads that share an interpreter."""
        recorded = self.runs[0].threads
        if threads == recorded:
            return []
        found = []
        if recorded > 1:
            found.append(
                f"it was recorded with {number(recorded)} threads in a process: that they waited for their one "
                "interpreter is in the times of chunks"
            )
        if threads > 1:
            found.append(
                f"threads of a process share one interpreter: {number(threads)} of them take as long as one after the "
                "other at worst, and it is not known how much of their work releases it"
            )
        return found

    def of_chunksize(self, size: int) -> Prediction:
        """Prediction for chunks of another size, on the cluster of the run."""
        law = self.law
        run = self.runs[0]
        if not isinstance(law, NoLaw):
            seconds, use = self._in_chunks(lambda chunks: by_law(chunks, law, size))
            doubts = [*self._of_scheduler(use), *self._of_size(size)]
            made = self._prediction(run.workers, run.threads, AS_RECORDED, seconds, seconds, use, doubts)
            return replace(made, chunksize=size, rechunked=True)
        ends = [
            self._in_chunks(lambda chunks: bracket(chunks, size)[0]),
            self._in_chunks(lambda chunks: bracket(chunks, size)[1]),
        ]
        low, high = sorted(seconds for seconds, _ in ends)
        use = max(use for _, use in ends)
        made = self._prediction(run.workers, run.threads, AS_RECORDED, low, high, use, self._of_scheduler(use))
        return replace(made, chunksize=size, rechunked=True, seconds=None, reason=law.reason)

    def _of_size(self, size: int) -> list[str]:
        """What is not known of chunks that are much larger than any that was seen."""
        seen = [
            int((stage.chunks.stop - stage.chunks.start).max())
            for run in self.runs
            for stage in run.stages
            if stage.chunks is not None
        ]
        if size <= FAR * max(seen):
            return []
        return [
            (
                f"chunks of {number(size)} events are far beyond the {number(max(seen))} that were recorded: what "
                "grows faster than events (arrays that outgrow the caches) is not in the law: it may take longer"
            )
        ]

    def _in_chunks(self, other: Callable[[Chunks], Chunks]) -> tuple[float, float]:
        """Wall time with other chunks, and how busy the scheduler was."""
        scenario = Scenario(chunks=other)
        replays = [_replays(run, run.own_cluster, scenario) for run in self.repeats]
        totals = [run.client + each.seconds for run, each in zip(self.repeats, replays, strict=True)]
        return median(totals), max(each.scheduler_use for each in replays)


NO_CHANGE: Final = Scenario()


def _replays(run: Recorded, cluster: Cluster, scenario: Scenario = NO_CHANGE, *, serial: bool = False) -> _Replays:
    """Replay all stages of a run, one after the other."""
    return _Replays(_replay(stage, cluster, scenario, serial) for stage in run.stages)


def _replay(stage: Stage, cluster: Cluster, scenario: Scenario, serial: bool) -> Replayed:
    load = scenario.preprocessing(stage.load) if stage.chunks is None else scenario.chunks(stage.chunks).load()
    costs, merging = scenario.costs(stage.costs), scenario.merging(stage.merging)
    return replayed(load, cluster, costs, merging, serial=serial)


def _foreign_load(run: Recorded) -> str | None:
    """Whether chunks waited for cores longer than the run itself explains."""
    if run.core_wait is None:
        return None
    explained = max(replay.stretch for replay in _replays(run, run.own_cluster))
    if run.core_wait < (1 + SURPLUS_WAIT) * explained:
        return None
    return (
        f"foreign load while recording {run.name}: for want of cores its chunks took {run.core_wait:.2f} times their "
        f"CPU time, of which the run itself explains {explained:.2f}; what they really need is less certain"
    )


def _other_branches(one: Recorded, other: Recorded) -> str | None:
    """Whether runs of one processor read different branches: its parameters may differ, which nothing else shows."""
    by_one = sorted(one.branches ^ other.branches)
    if not by_one or not one.branches or not other.branches:
        return None
    named = f"{by_one[0]}{f' and {len(by_one) - 1} more' if len(by_one) > 1 else ''}"
    return f"only one of {one.name} and {other.name} read {named}: they are taken for runs of one analysis"


def _misfit(check: Check) -> str | None:
    if abs(check.error) < WRONG:
        return None
    what = "replaying it" if check.from_itself else "predicting it from the others"
    return f"{what} misses the {check.measured:.3g} s of {check.name} by {FRACTION.text(check.error)}"
