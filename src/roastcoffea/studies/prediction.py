"""Predictions: the wall time a run would have elsewhere, what is assumed, what is unknown, and the accuracy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import exp, hypot, log, log2, sqrt
from statistics import mean, median, stdev
from typing import Final, NamedTuple

import numpy as np
from scipy.stats import t as students_t

from roastcoffea.replay.changes import AS_RECORDED, UNCHANGED, ChunkLaw, Chunks, Scenario, bracket, by_law, law_of
from roastcoffea.replay.cluster import Cluster, Replayed, replayed
from roastcoffea.replay.fitted_storage import (
    ALL,
    Interpreter,
    Readers,
    Storage,
    blocked_per_event,
    crowding_of,
    interpreter_of,
    storage_of,
    with_least_lock,
    with_own_storage,
    with_threads,
)
from roastcoffea.replay.stages import Recorded, Stage
from roastcoffea.units import FRACTION, number

# Replays of whole recorded runs, with what they share: storage, and cores that other programs use as well


def replay(run: Recorded, cluster: Cluster, change: Scenario = UNCHANGED) -> Replayed:
    """Replay of a whole run: seconds outside all stages, then the stages in sequence."""
    seconds, stretches, uses, busy = zip(*(_replayed(stage, cluster, change) for stage in run.stages), strict=True)
    return Replayed(run.client + sum(seconds), max(stretches), max(uses), sum(busy))


def _replayed(stage: Stage, cluster: Cluster, change: Scenario) -> Replayed:
    chunks, shared = own_chunks(stage, cluster.streams), cluster.streams < ALL
    load = change.preprocessing(stage.load) if chunks is None else change.chunks(chunks).load(shared=shared)
    return replayed(load, cluster, change.costs(stage.costs), change.merging(stage.merging))


def own_chunks(stage: Stage, streams: float) -> Chunks | None:
    """Chunks of a stage as if each had storage of its own, which serves this many streams."""
    return None if stage.chunks is None else with_own_storage(stage.chunks, stage.activity, streams)


def on_own_cores(runs: Sequence[Recorded], crowded: float | None = None) -> list[Recorded]:
    """Runs whose chunks compute, and wait for the interpreter, as if each had a core of its own.

    Without `crowded`, the increase of CPU time on crowded cores is that of the runs with chunks of the same size.
    """
    if crowded is None:
        alike = [run.stages for run in runs if run.chunksize == runs[0].chunksize]
        crowded = crowding_of(
            [
                [(one.chunks, one.activity.doublings) for one in stages if one.chunks and one.activity]
                for stages in alike
            ]
        )
    return [_on_own_cores(run, crowded, runs) for run in runs]


def _on_own_cores(run: Recorded, crowded: float, runs: Sequence[Recorded]) -> Recorded:
    stages = []
    for place, stage in enumerate(run.stages):
        chunks, activity = stage.chunks, stage.activity
        if chunks is not None and activity is not None:
            # first tasks of processes have the usual doublings: their parts are those of usual tasks as well
            known = np.isfinite(activity.doublings)
            usual = np.median(activity.doublings[known]) if known.any() else 0.0
            doublings = np.where(known, activity.doublings, usual)
            # the same stage in runs with one thread per process shows how long an event neither computed nor read
            wanted = (1, run.chunksize, len(run.stages))
            alike = [one.stages[place] for one in runs if (one.threads, one.chunksize, len(one.stages)) == wanted]
            alone = [each.chunks for each in alike if each.chunks is not None]
            blocked = None if run.threads == 1 else blocked_per_event(alone)
            chunks = with_least_lock(chunks.uncrowded(doublings, crowded), blocked)
            # threads that hold the interpreter hold it for less time as well
            chunks = chunks.with_parts(lock=chunks.parts.lock / 2**doublings)
        stages.append(replace(stage, costs=stage.costs._replace(crowded=crowded), chunks=chunks))
    return replace(run, stages=tuple(stages))


def median_of(replays: Sequence[Replayed]) -> float:
    """Median wall time."""
    return median(replay.seconds for replay in replays)


def others_of(run: Recorded) -> float:
    """Cores that other programs needed, divided by those of a host, for which chunks waited as long as recorded."""
    waited, cores = run.core_wait, run.cores
    if waited is None or cores is None:
        return 0.0
    if waited <= 1.02 * replay(run, run.own_cluster).stretch:
        return 0.0
    low, high = 0.0, waited
    for _ in range(8):  # each halves the range
        middle = (low + high) / 2
        explained = replay(run, replace(run.own_cluster, others=middle)).stretch
        low, high = (middle, high) if explained < waited else (low, middle)
    return (low + high) / 2


def foreign_load(run: Recorded, others: float) -> str | None:
    """Foreign load, as a share of the cores, for which chunks waited longer than for the run itself."""
    if run.core_wait is None or not others:
        return None
    explained = replay(run, run.own_cluster).stretch
    if run.core_wait < 1.15 * explained:
        return None
    return (
        f"other programs used the cores while {run.name} was recorded: with CPU contention its chunks took "
        f"{run.core_wait:.2f} times their CPU time, where the run alone explains {explained:.2f} times; "
        "predictions assume as much load of others, and are less certain"
    )


def other_branches(one: Recorded, other: Recorded) -> str | None:
    """Branches that only one of two runs of a processor read, a sign that its parameters differ."""
    by_one = sorted(one.branches ^ other.branches)
    if not by_one or not one.branches or not other.branches:
        return None
    named = f"{by_one[0]}{f' and {len(by_one) - 1} more' if len(by_one) > 1 else ''}"
    return f"only one of {one.name} and {other.name} read {named}: they are treated as runs of one analysis"


# Assumptions

STORAGE, INTERPRETER, OTHERS, CROWDING = "storage", "interpreter", "others", "crowding"
"""What runs may leave open."""

MOST_CROWDED: Final = 0.2
"""Largest increase of CPU time for each doubling of the jobs on a core that is assumed where no run shows it."""


def processes_per_core(cluster: Cluster) -> float:
    """Processes that share a core, on the most crowded host."""
    return max(workers / cores for workers, cores in cluster.hosts)


class Assumed(NamedTuple):
    """One set of assumptions: streams that storage serves, the interpreter lock, and cores for other programs.

    Threads of a process cost each other a change of their chunks. Without `others`, each run has those that were fitted
    to it. With `crowded`, CPU time grows by MOST_CROWDED for each doubling of the jobs on a core, otherwise as the runs
    show it.
    """

    streams: float
    lock: Scenario = UNCHANGED
    others: float | None = None
    crowded: bool = False


class LeftOpen(NamedTuple):
    """Range of a prediction that the runs leave open.

    `middle` is its centre in logarithms, `factor` the ratio of its ends to that, `widest` what opens it the most.
    """

    middle: float
    factor: float
    widest: str | None


def left_open(seconds: float, others: Mapping[str, Sequence[float]]) -> LeftOpen:
    """Range from the seconds of the likeliest assumptions, and those of others that differ in one of them.

    Assumptions are independent: each moves the centre, and their widths add up in quadrature.
    """
    ends = {name: [log(each / seconds) for each in (seconds, *some)] for name, some in others.items()}
    widths = {name: (max(each) - min(each)) / 2 for name, each in ends.items()}
    middle = sum((min(each) + max(each)) / 2 for each in ends.values())
    widest = max(widths, key=lambda name: widths[name]) if any(widths.values()) else None
    return LeftOpen(seconds * exp(middle), exp(hypot(*widths.values())), widest)


def _threads(run: Recorded, known: Interpreter | None, threads: int) -> Iterator[str]:
    """Caveats on threads that share an interpreter, on another number of them."""
    if threads == run.threads:
        return
    if run.threads > 1 and not run.knows_lock:
        yield (
            f"the run had {number(run.threads)} threads per process: its chunks waited for their interpreter, for "
            "which no time was recorded, and are assumed to wait as long"
        )
    if threads > 1:
        how = f"at worst, {number(threads)} of them run serially; how much of their work releases the lock is unknown"
        if known is not None:
            share = FRACTION.text(known.share)
            how = f"for {share} of their CPU time, according to the time for which recorded chunks waited for it"
        yield f"threads of a process share one interpreter: {how}"


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
        return max(self.error, 1 / (1 + self.error) - 1)


@dataclass
class Predictor:
    """Runs of one analysis; the first and its repeats are replayed."""

    runs: Sequence[Recorded]
    same_host: bool
    scenarios: Mapping[str, Scenario]

    def __post_init__(self) -> None:
        self._recorded = self.runs
        self.runs = on_own_cores(self._recorded)
        self.repeats = [run for run in self.runs if run.configuration == self.runs[0].configuration]
        """The first run and others with the same workers, threads and chunk size."""
        self.others = {id(run): others_of(run) for run in self.runs}
        """Share of the cores that other programs needed during each run, by its identity: names may be equal."""
        self._scales = {ALL: 1.0}

    @cached_property
    def spread(self) -> float | None:
        """Range of the repeats' wall times, relative to their median."""
        seconds = [run.seconds for run in self.repeats]
        return (max(seconds) - min(seconds)) / median(seconds) if len(seconds) > 1 else None

    @cached_property
    def error(self) -> float:
        """Relative error to each side of predictions.

        It covers chance, as repeats show it, together with the misfit of replaying them, and all checks.
        """
        seconds, chance = [run.seconds for run in self.repeats], 0.0
        if len(seconds) > 1:  # between their mean and another run, in 1 of 10 cases
            times = float(students_t.ppf(0.95, len(seconds) - 1))
            chance = times * stdev(seconds) / mean(seconds) * sqrt(1 + 1 / len(seconds))
        misfit = exp(abs(log(self._calibration))) - 1
        # a tenth is assumed unless other runs show a larger one
        return max([0.1, hypot(chance, misfit), *(check.off for check in self.checks)])

    @cached_property
    def _calibration(self) -> float:
        """Ratio of the repeats' wall times to those of replaying them."""
        return median(run.seconds / self._seconds(run, run) for run in self.repeats)

    @cached_property
    def storage(self) -> Storage:
        """Storage that the chunks share, from all runs with the same chunk size."""
        alike = [run for run in self.runs if run.chunksize == self.runs[0].chunksize]
        stages = (stage for run in alike for stage in run.stages)
        return storage_of([Readers(one.chunks, one.activity) for one in stages if one.chunks and one.activity])

    @cached_property
    def interpreter(self) -> Interpreter | None:
        """Share of CPU time that needs the interpreter; None if no run tells, or replayed chunks have waited for it and
        that was not recorded."""
        if any(run.threads > 1 and not run.knows_lock for run in self.repeats):
            return None
        known = [run for run in self.runs if run.knows_lock]
        return interpreter_of([(stage.chunks, run.threads) for run in known for stage in run.stages if stage.chunks])

    def chunks(self, streams: float = ALL) -> list[Chunks]:
        """Chunks of all runs, by stage, as if each had storage of its own."""
        own = (own_chunks(stage, streams) for run in self.runs for stage in run.stages)
        return [chunks for chunks in own if chunks is not None]

    def law(self, streams: float = ALL) -> ChunkLaw | str:
        """Cost of a chunk by its events; or why it is unknown."""
        return law_of(self.chunks(streams))

    @cached_property
    def checks(self) -> list[Check]:
        """The given runs against their predictions."""
        found = []
        for run in self.runs:
            alike = self.repeats if run.chunksize == self.runs[0].chunksize else []
            others = [source for source in alike if source is not run]
            predicted = median(self._seconds(source, run) for source in others or [run])
            found.append(Check(run.name, *run.configuration, run.seconds, predicted, not others))
        return found

    def _seconds(self, source: Recorded, run: Recorded) -> float:
        """Middle of the range of a run, predicted from another one."""
        cluster = run.own_cluster
        base, others = self._assumptions(source, cluster)
        ranges = {
            name: [self._made(source, cluster, assumed).seconds for assumed in some] for name, some in others.items()
        }
        return left_open(self._made(source, cluster, base).seconds, ranges).middle

    @cached_property
    def doubts(self) -> list[str]:
        """Caveats of all predictions."""
        found = [doubt for run in self.repeats for doubt in run.doubts]
        found += filter(None, (other_branches(self.runs[0], run) for run in self.runs[1:]))
        found += filter(None, (foreign_load(run, self.others[id(run)]) for run in self.repeats))
        for one in self.checks:
            if abs(one.error) >= 0.15:
                what = "the replay" if one.from_itself else "the prediction from the other runs"
                off = f"{FRACTION.text(abs(one.error))} {'more' if one.error > 0 else 'less'}"
                found.append(f"{what} of {one.name} gives {off} than the {one.measured:.3g} s that were measured")
        return list(dict.fromkeys(found))

    def of_cluster(self, scenario: str, workers: int, threads: int) -> Prediction:
        """Prediction for another cluster and a scenario."""
        change = self.scenarios[scenario]
        clusters = [run.cluster(workers, threads, same_host=self.same_host) for run in self.repeats]

        def replays(assumed: Assumed) -> list[Replayed]:
            return [self._made(*each, assumed, change) for each in zip(self.repeats, clusters, strict=True)]

        doubts = _threads(self.runs[0], self.interpreter, threads)
        made = self._prediction(replays, clusters[0], doubts)
        return replace(made, workers=workers, threads=threads, scenario=scenario)

    def of_chunksize(self, size: int) -> Prediction:
        """Prediction for chunks of another size, on the cluster of the run."""
        base = Assumed(self.storage.streams)
        law_or_reason = self.law(base.streams)

        def replays(assumed: Assumed) -> list[Replayed]:
            law = self.law(assumed.streams)
            if isinstance(law, str):
                return self._in_chunks(lambda chunks: bracket(chunks, size).opening, assumed)
            return self._in_chunks(lambda chunks: by_law(chunks, law, size), assumed)

        cluster, chunks = self.runs[0].own_cluster, self.chunks()
        if isinstance(law_or_reason, str):
            fixed = self._in_chunks(lambda chunks: bracket(chunks, size).fixed, base)
            made = self._prediction(replays, cluster, (), fixed)
            return replace(made, chunksize=size, rechunked=True, seconds=None, reason=law_or_reason)
        # doublings between the size and the nearest recorded one
        sizes = [max(float(np.median(each.events)), 1.0) for each in chunks]
        sizes += [float(run.chunksize) for run in self.runs if run.chunksize is not None]
        beyond = max(log2(size / max(sizes)), log2(min(sizes) / size), 0.0)
        largest = max(int(each.events.max()) for each in chunks)
        doubt = (
            f"chunks of {number(size)} events are far larger than the recorded {number(largest)}: costs that grow "
            "faster than events (arrays larger than the caches) are not modelled: it may take longer"
        )
        made = self._prediction(replays, cluster, [doubt] * (size > 2 * largest), beyond=beyond)
        return replace(made, chunksize=size, rechunked=True)

    def _assumptions(self, run: Recorded, cluster: Cluster) -> tuple[Assumed, Mapping[str, Sequence[Assumed]]]:
        """The likeliest assumptions, and others that the runs allow as well, which differ in one of them."""
        storage, threads, known, locks = self.storage, cluster.threads, self.interpreter, [UNCHANGED]
        if 1 < threads != run.threads and known is None:
            locks.append(with_threads(1.0, threads))
        elif threads != run.threads:
            shares = (known.share, known.low, known.high) if threads > 1 and known is not None else (0.0,)
            locks = [with_threads(share, threads) for share in dict.fromkeys(shares)]
        base, jobs = Assumed(storage.streams, locks[0]), {min(self.others.values()), max(self.others.values())}
        return base, {
            STORAGE: [base._replace(streams=streams) for streams in storage.range[1:]],
            INTERPRETER: [base._replace(lock=lock) for lock in locks[1:]],
            OTHERS: [base._replace(others=some) for some in sorted(jobs)] if len(jobs) > 1 else [],
            CROWDING: [base._replace(crowded=True)] if self._crowding(cluster) else [],
        }

    @cached_property
    def _most_crowded(self) -> dict[int, Recorded]:
        """The runs, if CPU time grows as much as is assumed at most, by the identity of those as they are."""
        return dict(zip(map(id, self.runs), on_own_cores(self._recorded, MOST_CROWDED), strict=True))

    def _crowding(self, cluster: Cluster) -> str:
        """How much CPU time may grow where more processes share a core than in any run; empty where they do not."""
        shared, crowded = processes_per_core(cluster), max(stage.costs.crowded for stage in self.runs[0].stages)
        # threads of one process share its memory as well
        if shared <= max(1.0, *(processes_per_core(run.own_cluster) for run in self.runs)) or crowded >= MOST_CROWDED:
            return ""
        low = f"{FRACTION.text(crowded)} to" if crowded else "up to"
        more = f"{low} {FRACTION.text(MOST_CROWDED)} more CPU time"
        return f"{shared:.3g} processes share a core and its caches, more than in any run: {more}"

    def _made(self, run: Recorded, cluster: Cluster, assumed: Assumed, change: Scenario = UNCHANGED) -> Replayed:
        """Replay of a run on a cluster with storage and cores that are shared as assumed.

        A factor makes the repeats take as long as with the reading that they recorded.
        """
        if assumed.streams not in self._scales:
            self._scales[assumed.streams] = 1.0
            recorded, shared = (
                median_of([self._made(one, one.own_cluster, Assumed(streams)) for one in self.repeats])
                for streams in (ALL, assumed.streams)
            )
            self._scales[assumed.streams] = recorded / shared
        others = self.others[id(run)] if assumed.others is None else assumed.others
        own = self._most_crowded[id(run)] if assumed.crowded else run
        made = replay(own, replace(cluster, streams=assumed.streams, others=others), assumed.lock.then(change))
        return made._replace(seconds=made.seconds * self._scales[assumed.streams])

    def _in_chunks(self, other: Callable[[Chunks], Chunks], assumed: Assumed) -> list[Replayed]:
        """Replays of the repeats with other chunks."""
        return [self._made(run, run.own_cluster, assumed, Scenario(chunks=other)) for run in self.repeats]

    def _unknown(self, widest: str | None, cluster: Cluster) -> str:
        """Why there is no number."""
        run, known, storage = self.runs[0], self.interpreter, self.storage
        threads = f"{number(cluster.threads)} threads"
        if widest == OTHERS:
            jobs = self.others.values()
            low, high = (number(some * (run.cores or 1)) for some in (min(jobs), max(jobs)))
            return f"other programs needed {low} to {high} cores, which differed too much between the runs"
        if widest == CROWDING:
            return f"{self._crowding(cluster)} may be needed for each doubling; add a run with more workers on a host"
        if widest == INTERPRETER and known is not None:
            low, high = (FRACTION.text(share) for share in (known.low, known.high))
            return f"{low} to {high} of the CPU time needs the interpreter: too uncertain for {threads}"
        if widest == INTERPRETER and run.threads > 1 and not run.knows_lock:
            return f"chunks of {run.name} waited for their interpreter, and how long was not recorded; use a new run"
        if widest == INTERPRETER:
            return (
                f"no run tells how long {threads} of a process wait for its interpreter; add one with several threads"
            )
        why = f"storage is saturated by {number(storage.low)} to {number(storage.high)} readers"
        if storage.high == ALL:
            most = f"at most {number(storage.most)} chunks that read were active at a time while recording"
            why = f"{most}, which does not show how many readers saturate storage"
        return f"{why}; add a run with another number of threads or workers"

    def _prediction(
        self,
        replays: Callable[[Assumed], list[Replayed]],
        cluster: Cluster,
        doubts: Iterable[str],
        instead: Sequence[Replayed] = (),
        *,
        beyond: float = 0.0,
    ) -> Prediction:
        """Prediction for a cluster; its range has its error, and what the runs leave open.

        `instead` are replays with chunks that are as likely, `beyond` the doublings from recorded chunk sizes.
        """
        base, others = self._assumptions(self.runs[0], cluster)
        if others[CROWDING]:
            doubts = (f"{self._crowding(cluster)} is assumed for each doubling", *doubts)
        made = {name: [replays(assumed) for assumed in some] for name, some in others.items()}
        made |= {"fixed cost of a chunk": [[*instead]]} if instead else {}
        usual = replays(base)
        every = [one for some in (*made.values(), [usual]) for each in some for one in each]
        use = max(one.scheduler_use for one in every)
        if use >= 0.7:  # tasks wait long before it is busy all the time
            busy = f"beyond the scheduler's throughput: it would be busy {FRACTION.text(use)} of the time"
            doubts = (busy, *doubts)
        seconds = median_of(usual)
        ranges = {name: [*map(median_of, some)] for name, some in made.items()}
        told = left_open(seconds, ranges)
        # what the replay of the recorded run misses may belong to its cluster, or to the replay
        # each doubling beyond the recorded sizes may cost a tenth: arrays that outgrow the caches, or a fixed cost
        ranges |= {"misfit": [seconds * self._calibration], "chunk size": [seconds * (1 + 0.1 * beyond)]}
        found = left_open(seconds, ranges)
        wide, reason = found.factor * (1 + self.error), None
        if told.factor**2 > 1.3 and not instead:  # a number could be off by 15 %
            reason = self._unknown(told.widest, cluster)
        return Prediction(
            *self.runs[0].configuration,
            AS_RECORDED,
            None if reason else found.middle,
            found.middle / wide,
            found.middle * wide,
            use,
            reason=reason,
            doubts=tuple(doubts),
        )
