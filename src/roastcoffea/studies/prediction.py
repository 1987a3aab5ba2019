"""Prediction of the wall time under other conditions: assumptions, calibration and accuracy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import exp, hypot, log, log1p, log2, sqrt
from statistics import mean, median, stdev
from typing import NamedTuple

import numpy as np
from scipy.stats import t as students_t

from roastcoffea.replay.changes import AS_RECORDED, UNCHANGED, ChunkLaw, Chunks, Scenario, bracket, by_law, law_of
from roastcoffea.replay.cluster import Cluster, Interpreter, Replayed, replayed
from roastcoffea.replay.fitted_storage import ALL, Readers, Storage, storage_of, with_own_storage
from roastcoffea.replay.stages import Recorded, Stage
from roastcoffea.studies.corrections import MOST_CROWDED, at_one_speed, on_own_cores, relative_cpu, with_outside
from roastcoffea.studies.interpreter import interpreter_of, with_interpreter
from roastcoffea.units import FRACTION, number

# Replays of whole runs, with shared storage and with cores also used by other programs


def replay(run: Recorded, cluster: Cluster, change: Scenario = UNCHANGED) -> Replayed:
    """Replay a run's stages one after another, and add the time spent outside the stages."""
    seconds, stretches, uses, busy = zip(*(_replayed(stage, cluster, change) for stage in run.stages), strict=True)
    return Replayed(run.client + sum(seconds), max(stretches), max(uses), sum(busy))


def _replayed(stage: Stage, cluster: Cluster, change: Scenario) -> Replayed:
    chunks, shared = own_chunks(stage, cluster.streams), cluster.streams < ALL
    load = change.preprocessing(stage.load) if chunks is None else change.chunks(chunks).load(shared=shared)
    if stage.chunks is None or chunks is None:
        costs = change.costs(stage.costs)._replace(interpreter=Interpreter())  # unknown for other tasks
    else:
        costs = change.costs(with_outside(stage.costs, stage.chunks, chunks))
    return replayed(load, cluster, costs, change.merging(stage.merging))


def own_chunks(stage: Stage, streams: float) -> Chunks | None:
    """Correct a stage's chunk times for shared storage that can serve `streams` streams at full rate."""
    return None if stage.chunks is None else with_own_storage(stage.chunks, stage.activity, streams)


def median_of(replays: Sequence[Replayed]) -> float:
    return median(replay.seconds for replay in replays)


def others_of(run: Recorded) -> float:
    """Fit the share of a host's cores used by other programs to the recorded waits for cores."""
    waited, cores = run.core_wait, run.cores
    if waited is None or cores is None:
        return 0.0
    if waited <= 1.02 * replay(run, run.own_cluster).stretch:
        return 0.0
    low, high = 0.0, waited
    for _ in range(8):  # bisect
        middle = (low + high) / 2
        explained = replay(run, replace(run.own_cluster, others=middle)).stretch
        low, high = (middle, high) if explained < waited else (low, middle)
    return (low + high) / 2


def foreign_load(run: Recorded, others: float) -> str | None:
    """Warn about other programs if chunks waited longer for cores than their own run can explain."""
    if run.core_wait is None or not others:
        return None
    explained = replay(run, run.own_cluster).stretch
    if run.core_wait < 1.15 * explained:
        return None
    return (
        f"other programs used the cores while {run.name} was recorded: its chunks took {run.core_wait:.2f} times their "
        f"CPU time, but its own threads explain only a factor of {explained:.2f}; predictions assume the "
        "same load and are less certain"
    )


def other_branches(one: Recorded, other: Recorded) -> str | None:
    """Warn about branches that only one of two runs read, because the analysis parameters may differ."""
    by_one = sorted(one.branches ^ other.branches)
    if not by_one or not one.branches or not other.branches:
        return None
    named = f"{by_one[0]}{f' and {len(by_one) - 1} more' if len(by_one) > 1 else ''}"
    return f"only one of {one.name} and {other.name} read {named}; both are treated as runs of the same analysis"


# Assumptions

STORAGE, INTERPRETER, OTHERS, CROWDING = "storage", "interpreter", "others", "crowding"
"""Quantities that the runs may not determine."""


def per_core(cluster: Cluster) -> dict[str, float]:
    """Largest number of processes and of threads per core of a host."""
    processes = max(workers / cores for workers, cores in cluster.hosts)
    return {"processes": processes, "threads": processes * cluster.threads}


class Assumed(NamedTuple):
    """Assumptions about storage streams, waits for the GIL, and CPU use by other programs.

    `lock` replaces the chunks' waits for the GIL. If `others` is None, the load from other programs is fitted to each
    run. If `crowded` is true, CPU time increases by MOST_CROWDED per doubling of the number of jobs on a core.
    Otherwise, the increase is fitted to the runs.
    """

    streams: float
    lock: Scenario = UNCHANGED
    others: float | None = None
    crowded: bool = False


class LeftOpen(NamedTuple):
    """Range of a prediction, due to quantities that the runs do not determine.

    `middle` is the geometric mean of the two limits, `factor` is the ratio of the upper limit to `middle`, and `widest`
    is the quantity that contributes most to the range.
    """

    middle: float
    factor: float
    widest: str | None


def left_open(seconds: float, others: Mapping[str, Sequence[float]]) -> LeftOpen:
    """Compute the range spanned by the most likely assumptions and the alternatives to each assumption.

    Assumptions are treated as independent. Shifts of the centre are summed, and widths are added in quadrature.
    """
    ends = {name: [log(each / seconds) for each in (seconds, *some)] for name, some in others.items()}
    widths = {name: (max(each) - min(each)) / 2 for name, each in ends.items()}
    middle = sum((min(each) + max(each)) / 2 for each in ends.values())
    widest = max(widths, key=lambda name: widths[name]) if any(widths.values()) else None
    return LeftOpen(seconds * exp(middle), exp(hypot(*widths.values())), widest)


def _threads(run: Recorded, known: Sequence[Interpreter], threads: int) -> Iterator[str]:
    """Warn if the number of threads per process changes."""
    if threads == run.threads:
        return
    if run.threads > 1 and not run.knows_lock:
        yield (
            f"the run had {number(run.threads)} threads per process and did not record how long its chunks waited for "
            "the GIL; this wait is assumed to stay the same"
        )
    if threads > 1:
        how = f"at worst, only one of {number(threads)} runs at a time; how often they need the GIL is unknown"
        if known:
            how = f"{_shares(known)} of their CPU time needs the GIL, judging by how long recorded chunks waited for it"
        yield f"threads in a process share one interpreter: {how}"


def _shares(known: Sequence[Interpreter]) -> str:
    return " to ".join(dict.fromkeys(FRACTION.text(each.share) for each in known))


@dataclass(frozen=True, slots=True)
class Prediction:
    """Predicted wall time in seconds, or only its range from `low` to `high`.

    If `seconds` is None, `reason` explains why. `doubts` are caveats that apply only to this prediction. If `rechunked`
    is true, the files are split into new chunks of `chunksize` events. Otherwise, the recorded chunks are used.
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
    """A measured wall time, and its prediction from other runs (or from the same run if it is the only one)."""

    name: str
    workers: int
    threads: int
    chunksize: int | None
    measured: float
    predicted: float
    from_itself: bool

    @property
    def error(self) -> float:
        """Relative error of the prediction."""
        return self.predicted / self.measured - 1

    @property
    def off(self) -> float:
        """Ratio of the larger to the smaller of the two wall times, minus 1."""
        return max(self.error, 1 / (1 + self.error) - 1)


@dataclass
class Predictor:
    """Predicts wall times from runs of the same analysis by replaying the first run and its repeats."""

    runs: Sequence[Recorded]
    same_host: bool
    scenarios: Mapping[str, Scenario]

    def __post_init__(self) -> None:
        self._recorded = self.runs
        self.runs = on_own_cores(self._recorded)
        self.repeats = [run for run in self.runs if run.configuration == self.runs[0].configuration]
        """Runs with the same configuration as the first run, including the first run itself."""
        self.others = {id(run): others_of(run) for run in self.runs}
        """Share of the cores used by other programs in each run, keyed by id() because names may not be unique."""
        self._scales = {ALL: 1.0}

    @cached_property
    def spread(self) -> float | None:
        """Difference between the slowest and the fastest repeat, relative to their median wall time."""
        seconds = [run.seconds for run in self.repeats]
        return (max(seconds) - min(seconds)) / median(seconds) if len(seconds) > 1 else None

    @cached_property
    def error(self) -> float:
        """Relative error of predictions in either direction.

        The error is the largest of three values: 7 % (10 % without repeats), the largest error of any check, and the
        spread of the repeats combined with the replay's residual.
        """
        seconds, chance, least = [run.seconds for run in self.repeats], 0.0, 0.1
        if len(seconds) > 1:
            least = 0.07
            # half-width of the 90 % prediction interval for another run
            times = float(students_t.ppf(0.95, len(seconds) - 1))
            chance = times * stdev(seconds) / mean(seconds) * sqrt(1 + 1 / len(seconds))
        misfit = exp(abs(log(self._calibration))) - 1
        return max([least, hypot(chance, misfit), *(check.off for check in self.checks)])

    @cached_property
    def _calibration(self) -> float:
        """Median ratio of measured to replayed wall time for the repeats."""
        return median(run.seconds / self._seconds(run, run) for run in self.repeats)

    @cached_property
    def storage(self) -> Storage:
        """Storage streams, fitted to all runs with the same chunk size as the first run."""
        alike = [run for run in self.runs if run.chunksize == self.runs[0].chunksize]
        stages = (stage for run in alike for stage in run.stages)
        return storage_of([Readers(one.chunks, one.activity) for one in stages if one.chunks and one.activity])

    @cached_property
    def interpreter(self) -> list[Interpreter]:
        """How threads wait for the GIL, with the smallest and the largest share of CPU time that may need it.

        It is empty if it cannot be fitted to any run, or if a replayed run with several threads per process did not
        record waits for the GIL.
        """
        if any(run.threads > 1 and not run.knows_lock for run in self.repeats):
            return []
        # only runs with the same number of threads can be pooled
        known = [run for run in self.runs if run.threads > 1 and run.knows_lock]
        most = max((run.threads for run in known), default=1)
        alike = (run for run in known if run.threads == most)
        return interpreter_of([stage.chunks for run in alike for stage in run.stages if stage.chunks], most)

    def chunks(self, streams: float = ALL) -> list[Chunks]:
        """Chunks of all runs and stages, with CPU times as if the cores of all runs were equally fast."""
        return at_one_speed(self._by_run(streams))

    def _by_run(self, streams: float) -> list[list[Chunks]]:
        own = ([own_chunks(stage, streams) for stage in run.stages] for run in self.runs)
        return [[chunks for chunks in of_run if chunks is not None] for of_run in own]

    def law(self, streams: float = ALL) -> ChunkLaw | str:
        return law_of(self.chunks(streams))

    @cached_property
    def checks(self) -> list[Check]:
        found = []
        for run in self.runs:
            alike = self.repeats if run.chunksize == self.runs[0].chunksize else []
            others = [source for source in alike if source is not run]
            predicted = median(self._seconds(source, run) for source in others or [run])
            found.append(Check(run.name, *run.configuration, run.seconds, predicted, not others))
        return found

    def _seconds(self, source: Recorded, run: Recorded) -> float:
        """Predict the wall time of `run` from `source`, as the middle of the predicted range."""
        cluster = run.own_cluster
        base, others = self._assumptions(source, cluster)
        ranges = {
            name: [self._made(source, cluster, assumed).seconds for assumed in some] for name, some in others.items()
        }
        return left_open(self._made(source, cluster, base).seconds, ranges).middle

    @cached_property
    def doubts(self) -> list[str]:
        """Caveats that apply to all predictions."""
        found = [doubt for run in self.repeats for doubt in run.doubts]
        found += filter(None, (other_branches(self.runs[0], run) for run in self.runs[1:]))
        found += filter(None, (foreign_load(run, self.others[id(run)]) for run in self.repeats))
        for one in self.checks:
            if abs(one.error) >= 0.15:
                what = "the replay" if one.from_itself else "the prediction from the other runs"
                off = f"{FRACTION.text(abs(one.error))} {'longer' if one.error > 0 else 'shorter'}"
                found.append(f"{what} of {one.name} is {off} than the measured {one.measured:.3g} s")
        return list(dict.fromkeys(found))

    def of_cluster(self, scenario: str, workers: int, threads: int) -> Prediction:
        change = self.scenarios[scenario]
        clusters = [run.cluster(workers, threads, same_host=self.same_host) for run in self.repeats]

        def replays(assumed: Assumed) -> list[Replayed]:
            return [self._made(*each, assumed, change) for each in zip(self.repeats, clusters, strict=True)]

        doubts = _threads(self.runs[0], self.interpreter, threads)
        made = self._prediction(replays, clusters[0], doubts)
        return replace(made, workers=workers, threads=threads, scenario=scenario)

    def of_chunksize(self, size: int) -> Prediction:
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
        # distance to the nearest recorded chunk size, in doublings
        sizes = [max(float(np.median(each.events)), 1.0) for each in chunks]
        sizes += [float(run.chunksize) for run in self.runs if run.chunksize is not None]
        beyond = max(log2(size / max(sizes)), log2(min(sizes) / size), 0.0)
        largest = max(int(each.events.max()) for each in chunks)
        doubt = (
            f"chunks of {number(size)} events are far larger than the recorded {number(largest)}, and may take longer "
            "than predicted: costs that grow faster than the number of events, e.g. when arrays outgrow the caches, "
            "are not modelled"
        )
        doubts = [doubt] * (size > 2 * largest)
        times = relative_cpu(self._by_run(ALL))
        if (apart := max(times) / min(times) - 1) >= 0.1:
            slower = f"the same work took up to {FRACTION.text(apart)} more CPU time in some runs than in others"
            doubts.append(f"{slower}; predictions for other chunk sizes assume the mean")
        made = self._prediction(replays, cluster, doubts, beyond=beyond)
        return replace(made, chunksize=size, rechunked=True)

    def _assumptions(self, run: Recorded, cluster: Cluster) -> tuple[Assumed, Mapping[str, Sequence[Assumed]]]:
        """Choose the most likely assumptions, and the alternatives to each assumption that the runs do not rule out."""
        storage, threads, locks = self.storage, cluster.threads, [UNCHANGED]
        if threads != run.threads:
            known = self.interpreter if threads > 1 else [Interpreter()]
            # If it is unknown, at worst only one thread runs at a time. The largest share is first. With it, the fewest
            # threads run at once, which makes the ranges of other assumptions narrow.
            held = map(with_interpreter, known[::-1] or [Interpreter(1.0)])
            locks = [*held] if known else [*locks, *held]
        base, jobs = Assumed(storage.streams, locks[0]), {min(self.others.values()), max(self.others.values())}
        return base, {
            STORAGE: [base._replace(streams=streams) for streams in storage.range[1:]],
            INTERPRETER: [base._replace(lock=lock) for lock in locks[1:]],
            OTHERS: [base._replace(others=some) for some in sorted(jobs)] if len(jobs) > 1 else [],
            CROWDING: [base._replace(crowded=True)] if self._crowding(cluster) else [],
        }

    @cached_property
    def _most_crowded(self) -> dict[int, Recorded]:
        """Runs corrected with MOST_CROWDED. Keys are id() values of the runs in `runs`."""
        return dict(zip(map(id, self.runs), on_own_cores(self._recorded, MOST_CROWDED), strict=True))

    def _crowding(self, cluster: Cluster) -> str:
        """Warn if more processes or threads would share a core than in any run; otherwise, return an empty string."""
        known = [per_core(run.own_cluster) for run in self.runs]
        crowded = max(stage.costs.crowded for stage in self.runs[0].stages)
        for what, shared in per_core(cluster).items():
            if shared > max(1.0, *(each[what] for each in known)) and crowded < MOST_CROWDED:
                low = f"{FRACTION.text(crowded)} to" if crowded else "up to"
                more = f"{low} {FRACTION.text(MOST_CROWDED)} more CPU time"
                return f"{shared:.3g} {what} share a core and its caches, more than in any run, and may need {more}"
        return ""

    def _made(self, run: Recorded, cluster: Cluster, assumed: Assumed, change: Scenario = UNCHANGED) -> Replayed:
        """Replay a run on a cluster under the given assumptions.

        The wall time is scaled so that replays of the repeats on their own cluster agree with replays that use the
        recorded read times.
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
        """Replay the repeats with different chunks. Stages without events keep their chunks."""
        scenario = Scenario(chunks=lambda chunks: other(chunks) if chunks.events.any() else chunks)
        return [self._made(run, run.own_cluster, assumed, scenario) for run in self.repeats]

    def _unknown(self, widest: str | None, cluster: Cluster) -> str:
        run, known, storage = self.runs[0], self.interpreter, self.storage
        threads = f"{number(cluster.threads)} threads"
        if widest == OTHERS:
            jobs = self.others.values()
            low, high = (number(some * (run.cores or 1)) for some in (min(jobs), max(jobs)))
            return f"other programs used {low} to {high} cores, depending on the run; this range is too wide"
        if widest == CROWDING:
            return f"{self._crowding(cluster)} for each doubling; add a run with as many"
        if widest == INTERPRETER and known:
            wide = f"{_shares(known)} of the CPU time needs the GIL: too wide a range for {threads}"
            return f"{wide}; add a run with {threads} per process"
        if widest == INTERPRETER and run.threads > 1 and not run.knows_lock:
            return f"{run.name} did not record how long its chunks waited for the GIL; record a new run"
        if widest == INTERPRETER:
            return (
                f"no run shows how long {threads} in a process wait for the GIL; add a run with several "
                "threads per process"
            )
        why = f"storage is saturated by {number(storage.low)} to {number(storage.high)} readers"
        if storage.high == ALL:
            most = f"at most {number(storage.most)} chunks were reading at a time"
            why = f"{most}, too few to show how many readers saturate storage"
        return f"{why}; add a run with a different number of threads or workers"

    def _prediction(
        self,
        replays: Callable[[Assumed], list[Replayed]],
        cluster: Cluster,
        doubts: Iterable[str],
        instead: Sequence[Replayed] = (),
        *,
        beyond: float = 0.0,
    ) -> Prediction:
        """Predict the wall time on a cluster, and its range.

        The range combines the error with the effect of quantities that the runs do not determine. `instead` holds
        replays with alternative chunks that are equally likely. `beyond` is the distance to the nearest recorded chunk
        size, in doublings.
        """
        base, others = self._assumptions(self.runs[0], cluster)
        if others[CROWDING]:
            doubts = (f"{self._crowding(cluster)} for each doubling", *doubts)
        made = {name: [replays(assumed) for assumed in some] for name, some in others.items()}
        made |= {"fixed cost of a chunk": [[*instead]]} if instead else {}
        usual = replays(base)
        every = [one for some in (*made.values(), [usual]) for each in some for one in each]
        use = max(one.scheduler_use for one in every)
        if use >= 0.7:  # tasks queue up long before the scheduler is fully busy
            busy = f"more than the scheduler can handle: it would be busy for {FRACTION.text(use)} of the time"
            doubts = (busy, *doubts)
        seconds = median_of(usual)
        ranges = {name: [*map(median_of, some)] for name, some in made.items()}
        told = left_open(seconds, ranges)
        # the residual may be due to the cluster or to the replay; each doubling beyond the recorded sizes may add 10 %,
        # because arrays outgrow the caches or because of a fixed cost
        ranges |= {"misfit": [seconds * self._calibration], "chunk size": [seconds * (1 + 0.1 * beyond)]}
        found = left_open(seconds, ranges)
        # in a wide range (beyond about 12 % in either direction), each case may be the truth; a narrow range is like an
        # error, and with 7 % more, a number is then within about 15 %
        is_wide = bool(instead) or told.factor**2 > 1.25
        wide = found.factor * (1 + self.error) if is_wide else exp(hypot(log(found.factor), log1p(self.error)))
        reason = self._unknown(told.widest, cluster) if is_wide and not instead else None
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
