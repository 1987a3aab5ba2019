"""Predictions: the wall time a run would have elsewhere, what is assumed, what is unknown, and the accuracy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import exp, hypot, inf, log, log2, sqrt
from statistics import mean, median, stdev
from typing import Final, NamedTuple

import numpy as np
from scipy.stats import t as students_t

from roastcoffea.replay.changes import AS_RECORDED, UNCHANGED, ChunkLaw, Chunks, Scenario, bracket, by_law, law_of
from roastcoffea.replay.cluster import Cluster, Replayed
from roastcoffea.replay.fitted_storage import (
    ALL,
    Interpreter,
    Storage,
    all_readers,
    interpreter_of,
    storage_of,
    with_threads,
)
from roastcoffea.replay.recorded import Recorded
from roastcoffea.studies.what_if.replays import (
    foreign_load,
    median_of,
    on_own_cores,
    other_branches,
    others_of,
    own_chunks,
    replay,
)
from roastcoffea.units import FRACTION, number

STORAGE, INTERPRETER, OTHERS, CROWDING = "storage", "interpreter", "others", "crowding"
BRACKET, SIZE, MISFIT = "fixed cost of a chunk", "chunk size", "misfit"
"""What runs may leave open."""

MOST_CROWDED: Final = 0.2
"""Largest increase of CPU time for each doubling of the jobs on a core that is assumed where no run shows it."""


class Sharing(NamedTuple):
    """Numbers of what shares something: threads of a process, and processes per core."""

    threads: int
    processes: float

    @classmethod
    def of(cls, run: Recorded) -> Sharing:
        """Those of a recorded run."""
        return cls(run.threads, run.workers_of_host / (run.cores or inf))


class Lock(NamedTuple):
    """What threads of a process cost each other: a change of their chunks, or all computing serially."""

    change: Scenario
    serial: bool = False


class Assumed(NamedTuple):
    """One set of assumptions: streams that storage serves, the interpreter lock, and cores for other programs.

    Without `others`, each run has those that were fitted to it. With `crowded`, CPU time grows by MOST_CROWDED for each
    doubling of the jobs on a core, otherwise as the runs show it.
    """

    streams: float
    lock: Lock
    others: float | None = None
    crowded: bool = False


Assumptions = tuple[Assumed, Mapping[str, Sequence[Assumed]]]
"""The likeliest assumptions, and others that differ in one of them."""


@dataclass(frozen=True, slots=True)
class LeftOpen:
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
    middle, widths = log(seconds), {}
    for name, some in others.items():
        ends = [log(each / seconds) for each in (seconds, *some)]
        middle += (min(ends) + max(ends)) / 2
        widths[name] = (max(ends) - min(ends)) / 2
    widest = max(widths, key=lambda name: widths[name]) if any(widths.values()) else None
    return LeftOpen(exp(middle), exp(hypot(*widths.values())), widest)


def _cores(run: Recorded, workers: int, threads: int, same_host: bool) -> Iterator[str]:
    """Caveat on threads that share a core."""
    clusters = (run.own_cluster, run.cluster(workers, threads, same_host=same_host))
    # threads per core on the host with the most
    here, there = (max(some * each.threads / cores for some, cores in each.hosts) for each in clusters)
    if there > max(here, 1.0) and not any(stage.costs.crowded for stage in run.stages):
        yield (
            f"{there:.3g} threads share a core and its caches: the run does not show whether that costs more CPU "
            "time, and none is assumed"
        )


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


WRONG: Final = 0.15
"""Error of a recorded run's own prediction above which it is reported."""

TYPICAL_ERROR: Final = 0.10
"""Relative error that is assumed, not measured, unless other runs show a larger one."""

SCHEDULER_LIMIT: Final = 0.7
"""Share of the time that a scheduler can be busy before tasks wait for it."""

TOO_WIDE: Final = 1.3
"""Ratio of what the runs leave open, slowest to fastest, above which there is no number: it could be off by 15 %."""

BEYOND_SIZES: Final = 0.1
"""Relative excess over the law of chunks, for each doubling beyond the recorded sizes, that is possible: arrays that
outgrow the caches, or a fixed cost from large chunks."""


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
        return max([TYPICAL_ERROR, hypot(chance, misfit), *(check.off for check in self.checks)])

    @cached_property
    def _calibration(self) -> float:
        """Ratio of the repeats' wall times to those of replaying them."""
        return median(run.seconds / self._seconds(run, run) for run in self.repeats)

    @cached_property
    def storage(self) -> Storage:
        """Storage that the chunks share, from all runs with the same chunk size."""
        alike = [run for run in self.runs if run.chunksize == self.runs[0].chunksize]
        pairs = [[(one.chunks, one.activity) for one in run.stages if one.chunks and one.activity] for run in alike]
        return storage_of([readers for some in pairs if (readers := all_readers(some)) is not None])

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
        base, others = self._assumptions(source, Sharing.of(run))
        made = partial(self._made, source, run.own_cluster)
        ranges = {name: [made(assumed).seconds for assumed in some] for name, some in others.items()}
        return left_open(made(base).seconds, ranges).middle

    @cached_property
    def doubts(self) -> list[str]:
        """Caveats of all predictions."""
        found = [doubt for run in self.repeats for doubt in run.doubts]
        found += filter(None, (other_branches(self.runs[0], run) for run in self.runs[1:]))
        found += filter(None, (foreign_load(run, self.others[id(run)]) for run in self.repeats))
        for one in self.checks:
            if abs(one.error) >= WRONG:
                what = "the replay" if one.from_itself else "the prediction from the other runs"
                off = f"{FRACTION.text(abs(one.error))} {'more' if one.error > 0 else 'less'}"
                found.append(f"{what} of {one.name} gives {off} than the {one.measured:.3g} s that were measured")
        return list(dict.fromkeys(found))

    def of_cluster(self, scenario: str, workers: int, threads: int) -> Prediction:
        """Prediction for another cluster and a scenario."""
        run, change = self.runs[0], self.scenarios[scenario]

        def replays(assumed: Assumed) -> list[Replayed]:
            clusters = [(one, one.cluster(workers, threads, same_host=self.same_host)) for one in self.repeats]
            return [self._made(*each, assumed, change) for each in clusters]

        on_host = workers if self.same_host else min(workers, run.workers_of_host)
        sharing = Sharing(threads, on_host / (run.cores or inf))
        doubts = [*_cores(run, workers, threads, self.same_host)]
        if self._leaves_crowding_open(sharing):
            doubts = [f"{self._crowding(sharing)} is assumed for each doubling"]
        doubts += _threads(run, self.interpreter, threads)
        made = self._prediction(replays, self._assumptions(run, sharing), sharing, doubts)
        return replace(made, workers=workers, threads=threads, scenario=scenario)

    def of_chunksize(self, size: int) -> Prediction:
        """Prediction for chunks of another size, on the cluster of the run."""
        sharing = Sharing.of(self.runs[0])
        base, others = self._assumptions(self.runs[0], sharing)
        law_or_reason = self.law(base.streams)

        def replays(assumed: Assumed) -> list[Replayed]:
            law = self.law(assumed.streams)
            if isinstance(law, str):
                return self._in_chunks(lambda chunks: bracket(chunks, size).opening, assumed)
            return self._in_chunks(lambda chunks: by_law(chunks, law, size), assumed)

        fixed, doubts, beyond, chunks = [], [], 0.0, self.chunks()
        if isinstance(law_or_reason, str):
            fixed = self._in_chunks(lambda chunks: bracket(chunks, size).fixed, base)
        else:
            # doublings between the size and the nearest recorded one
            sizes = [max(float(np.median(each.events)), 1.0) for each in chunks]
            sizes += [float(run.chunksize) for run in self.runs if run.chunksize is not None]
            beyond = max(log2(size / max(sizes)), log2(min(sizes) / size), 0.0)
            largest = max(int(each.events.max()) for each in chunks)
            if size > 2 * largest:
                doubts.append(
                    f"chunks of {number(size)} events are far larger than the recorded {number(largest)}: costs that "
                    "grow faster than events (arrays larger than the caches) are not modelled: it may take longer"
                )
        made = self._prediction(replays, (base, others), sharing, doubts, fixed, beyond=beyond)
        made = replace(made, chunksize=size, rechunked=True)
        return replace(made, seconds=None, reason=law_or_reason) if isinstance(law_or_reason, str) else made

    def _assumptions(self, run: Recorded, sharing: Sharing) -> Assumptions:
        """The likeliest assumptions, and others that the runs allow as well."""
        storage, locks = self.storage, self._locks(run, sharing.threads)
        base = Assumed(storage.streams, locks[0])
        jobs = {min(self.others.values()), max(self.others.values())}
        return base, {
            STORAGE: [base._replace(streams=streams) for streams in storage.range[1:]],
            INTERPRETER: [base._replace(lock=lock) for lock in locks[1:]],
            OTHERS: [base._replace(others=some) for some in sorted(jobs)] if len(jobs) > 1 else [],
            CROWDING: [base._replace(crowded=True)] if self._leaves_crowding_open(sharing) else [],
        }

    @cached_property
    def _most_crowded(self) -> dict[int, Recorded]:
        """The runs, if CPU time grows as much as is assumed at most, by the identity of those as they are."""
        return dict(zip(map(id, self.runs), on_own_cores(self._recorded, MOST_CROWDED), strict=True))

    @property
    def _crowded(self) -> float:
        """Increase of CPU time for each doubling of the jobs on a core, as the runs show it."""
        return max(stage.costs.crowded for stage in self.runs[0].stages)

    def _leaves_crowding_open(self, sharing: Sharing) -> bool:
        """Whether more processes share a core than in any run: threads of one process share its memory as well."""
        most = max(1.0, *(Sharing.of(run).processes for run in self.runs))
        return sharing.processes > most and self._crowded < MOST_CROWDED

    def _crowding(self, sharing: Sharing) -> str:
        low = f"{FRACTION.text(self._crowded)} to" if self._crowded else "up to"
        shared = f"{sharing.processes:.3g} processes share a core and its caches, more than in any run"
        return f"{shared}: {low} {FRACTION.text(MOST_CROWDED)} more CPU time"

    def _replayed(self, run: Recorded, cluster: Cluster, assumed: Assumed, change: Scenario = UNCHANGED) -> Replayed:
        """Replay of a run on a cluster with storage and cores that are shared as assumed."""
        others = self.others[id(run)] if assumed.others is None else assumed.others
        shared = replace(cluster, streams=assumed.streams, others=others)
        own = self._most_crowded[id(run)] if assumed.crowded else run
        return replay(own, shared, assumed.lock.change.then(change), serial=assumed.lock.serial)

    def _made(self, run: Recorded, cluster: Cluster, assumed: Assumed, change: Scenario = UNCHANGED) -> Replayed:
        """The same, with the factor that makes the repeats take as long as with the reading that they recorded."""
        if assumed.streams not in self._scales:
            base = Assumed(ALL, Lock(UNCHANGED))
            recorded, shared = (
                median_of([self._replayed(one, one.own_cluster, each) for one in self.repeats])
                for each in (base, base._replace(streams=assumed.streams))
            )
            self._scales[assumed.streams] = recorded / shared
        made = self._replayed(run, cluster, assumed, change)
        return made._replace(seconds=made.seconds * self._scales[assumed.streams])

    def _in_chunks(self, other: Callable[[Chunks], Chunks], assumed: Assumed) -> list[Replayed]:
        """Replays of the repeats with other chunks."""
        return [self._made(run, run.own_cluster, assumed, Scenario(chunks=other)) for run in self.repeats]

    def _locks(self, run: Recorded, threads: int) -> list[Lock]:
        """What threads of a process may cost each other, on another number of them."""
        if threads == run.threads:
            return [Lock(UNCHANGED)]
        if threads == 1:
            return [Lock(with_threads(0.0, 1))]
        if self.interpreter is None:
            return [Lock(UNCHANGED), Lock(UNCHANGED, serial=True)]
        shares = dict.fromkeys((self.interpreter.share, self.interpreter.low, self.interpreter.high))
        return [Lock(with_threads(share, threads)) for share in shares]

    def _unknown(self, widest: str | None, sharing: Sharing) -> str:
        """Why there is no number."""
        run, known, storage = self.runs[0], self.interpreter, self.storage
        threads = number(sharing.threads)
        if widest == OTHERS:
            jobs = self.others.values()
            low, high = (number(some * (run.cores or 1)) for some in (min(jobs), max(jobs)))
            return f"other programs needed {low} to {high} cores, which differed too much between the runs"
        if widest == CROWDING:
            return f"{self._crowding(sharing)} may be needed for each doubling; add a run with more workers on a host"
        if widest == INTERPRETER and known is not None:
            low, high = (FRACTION.text(share) for share in (known.low, known.high))
            return f"{low} to {high} of the CPU time needs the interpreter: too uncertain for {threads} threads"
        if widest == INTERPRETER:
            unknown = f"no run tells how long {threads} threads of a process wait for its interpreter"
            way_out = "add a run with several threads per process"
            if run.threads > 1 and not run.knows_lock:
                unknown = f"chunks of {run.name} waited for their interpreter, and how long was not recorded"
                way_out = "predict from a new run"
            return f"{unknown}; {way_out}"
        another = "add a run with another number of threads or workers"
        if storage.high == ALL:
            most = f"at most {number(storage.most)} chunks that read were active at a time while recording"
            return f"{most}, which does not show how many readers saturate storage; {another}"
        low, high = number(storage.low), number(storage.high)
        return f"storage is saturated by {low} to {high} readers, and the runs do not tell more exactly; {another}"

    def _prediction(
        self,
        replays: Callable[[Assumed], list[Replayed]],
        assumptions: Assumptions,
        sharing: Sharing,
        doubts: Iterable[str],
        instead: Sequence[Replayed] = (),
        *,
        beyond: float = 0.0,
    ) -> Prediction:
        """Prediction for the cluster of the run; its range has its error, and what the runs leave open.

        `instead` are replays with chunks that are as likely, `beyond` the doublings from recorded chunk sizes.
        """
        base, others = assumptions
        made = {name: [replays(assumed) for assumed in some] for name, some in others.items()}
        made |= {BRACKET: [[*instead]]} if instead else {}
        usual = replays(base)
        every = [one for some in (*made.values(), [usual]) for each in some for one in each]
        use = max(one.scheduler_use for one in every)
        if use >= SCHEDULER_LIMIT:
            busy = f"beyond the scheduler's throughput: it would be busy {FRACTION.text(use)} of the time"
            doubts = (busy, *doubts)
        seconds = median_of(usual)
        ranges = {name: [*map(median_of, some)] for name, some in made.items()}
        told = left_open(seconds, ranges)
        # what the replay of the recorded run misses may belong to its cluster, or to the replay
        ranges |= {MISFIT: [seconds * self._calibration], SIZE: [seconds * (1 + BEYOND_SIZES * beyond)]}
        found = left_open(seconds, ranges)
        wide, reason = found.factor * (1 + self.error), None
        if told.factor**2 > TOO_WIDE and not instead:
            reason = self._unknown(told.widest, sharing)
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
