"""What chunks share: storage with its streams and rate, cores with their caches, and the interpreter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import scipy

from roastcoffea.metrics.statistics import OF_90_PERCENT, Flags, Integers, Numbers, amounts, moments
from roastcoffea.replay.changes import Chunks, Parts, Scenario, datasets_of, ratio

FEWEST: Final = 4
"""Fewest chunks of a part."""

STEPS: Final = 40
"""Numbers of streams that are tried, in equal ratios."""

COMPARED: Final = 32
"""Numbers of active chunks for which the number of readers is worked out; others lie between them."""


ALL: Final = float("inf")
"""Streams of storage that is never saturated."""


class Activity(NamedTuple):
    """What went on during each chunk.

    `seconds` is what its task took, `amount` its bytes (or events, if unknown), `active` how many chunks that read were
    active at moments of it. `doublings` is how often the jobs on its core had doubled, from its wait in the run queue:
    NaN for first tasks of processes.
    """

    seconds: Numbers
    amount: Numbers
    active: Integers
    doublings: Numbers


def activity_of(chunks: pa.Table, tasks: pa.Table, doublings: Numbers, reads: Flags) -> Activity:
    """Activity of chunks, each with its task; those from checkpoints, which read nothing, are in nobody's way."""
    start, stop = moments(tasks, "start"), moments(tasks, "stop")
    stop = np.where(np.isnan(stop), start, stop)
    # at four moments of each
    at = start[:, None] + (stop - start)[:, None] * np.array([0.125, 0.375, 0.625, 0.875])
    begun, ended = (np.searchsorted(np.sort(some[reads]), at, side="right") for some in (start, stop))
    amount = amounts(chunks, "events" if chunks["bytes_requested"].null_count else "bytes_requested")
    return Activity(stop - start, np.maximum(amount, 1.0), np.maximum(begun - ended, 1), doublings)


def reading_seconds(chunks: Chunks) -> Numbers:
    """Waiting for storage of each chunk."""
    return chunks.parts.open_wait + chunks.parts.read


@dataclass(frozen=True)
class Readers:
    """Reading of a run's chunks, and other chunks that read and were active meanwhile."""

    chunks: Chunks
    activity: Activity

    @cached_property
    def seconds(self) -> Numbers:
        """Waiting for storage of each chunk."""
        return reading_seconds(self.chunks)

    @cached_property
    def _rows(self) -> Integers:
        """Chunks that read."""
        return np.flatnonzero(self.seconds)

    @cached_property
    def share(self) -> float:
        """Share of the time of chunks that read in reading; that time includes their waiting for cores."""
        total = float(self.activity.seconds[self._rows].sum())
        return min(float(self.seconds.sum()) / total, 1.0) if total else 0.0

    @property
    def most(self) -> int:
        """Most chunks that were active at a time."""
        return int(self.activity.active[self._rows].max(initial=1))

    def stretch(self, streams: float) -> Numbers:
        """Expected factor by which sharing made the reading of each chunk longer."""
        numbers, _ = self._numbers
        readers, served = _readers(numbers, streams, self._demand(streams))
        each = np.interp(self.activity.active, numbers, served / readers)
        # chunks read at the mean rate of their moments
        return np.asarray(1 / each.mean(axis=1))

    @cached_property
    def _numbers(self) -> tuple[Numbers, Numbers]:
        """Numbers of active chunks, and how often each occurred; if there are many, some of them."""
        active = self.activity.active[self._rows]
        found = np.unique(active)
        if len(found) > COMPARED:
            found = np.unique(np.quantile(found, np.linspace(0, 1, COMPARED)).round())
        place = np.rint(np.interp(active.ravel(), found, np.arange(len(found)))).astype(np.int64)
        return found.astype(np.float64), np.bincount(place, minlength=len(found)).astype(np.float64)

    def _demand(self, streams: float) -> float:
        """Ratio of reading alone to other time, for which chunks read for the recorded share of their time."""
        numbers, times = self._numbers
        low, high = 1e-6, 1e6
        for _ in range(40):
            middle = (low * high) ** 0.5
            readers, _ = _readers(numbers, streams, middle)
            low, high = (middle, high) if times @ readers < self.share * (times @ numbers) else (low, middle)
        return float(middle)

    def alone(self, streams: float) -> Chunks:
        """Chunks whose reading takes as long as with storage of their own."""
        rate, parts = 1 / self.stretch(streams), self.chunks.parts
        return self.chunks.with_parts(open_wait=parts.open_wait * rate, read=parts.read * rate)

    def blocks(self) -> list[Integers]:
        """Chunks of each part of the run that read, in order of time."""
        rows = self._rows
        # rates of up to eight parts are compared: chunks that follow each other are not independent
        return np.array_split(rows, int(np.clip(len(rows) // FEWEST, 1, 8))) if len(rows) else []


@dataclass(frozen=True, slots=True)
class Storage:
    """Streams that storage serves at their full rate: the most likely number, and the range that the runs leave open.

    `most` is the largest number of active chunks that read in these runs. Storage that is not known to be saturated has
    ALL as `high`.
    """

    streams: float
    low: float
    high: float
    most: int

    @property
    def range(self) -> tuple[float, ...]:
        """Different numbers to be tried."""
        return tuple(dict.fromkeys((self.streams, self.low, self.high)))


def _readers(active: Numbers, streams: float, demand: float) -> tuple[Numbers, Numbers]:
    """Mean number of readers among active chunks, and how many of them storage serves at their full rate.

    The chances of each number are those of a closed queue with one station that is shared, whatever the distributions.
    """
    number = np.arange(int(active.max()) + 1)
    served = np.minimum(number, streams)
    turns = np.concatenate([[0.0], np.cumsum(np.log(served[1:]))])
    left = active[:, None] - number
    weight = (
        scipy.special.gammaln(active + 1)[:, None]
        - scipy.special.gammaln(np.maximum(left, 0.0) + 1)
        + number * np.log(demand)
        - turns
    )
    weight = np.where(left >= 0, weight, -np.inf)
    chance = np.exp(weight - weight.max(axis=1, keepdims=True))
    chance /= chance.sum(axis=1, keepdims=True)
    return chance @ number, chance @ served


def storage_of(runs: Sequence[Readers]) -> Storage:
    """Storage that these runs shared, from the seconds of a byte next to the number of readers."""
    runs = [run for run in runs if run.seconds.any()]
    # sharing so little of the thread time changes nothing
    if not runs or max(run.share for run in runs) < 0.01:
        return Storage(ALL, ALL, ALL, 1)
    most = max(run.most for run in runs)
    # storage that serves as many streams as ever read at once was not saturated: more would look the same
    tried = np.geomspace(1.0, most, STEPS if most > 1 else 1).tolist()
    rates = _rates(runs)
    misfits = [_misfit(rates, runs, streams) for streams in tried]
    freedom = max(len(rates) - 2, 1)
    limit = min(misfits) * (1 + scipy.stats.t.ppf(0.95, freedom) ** 2 / freedom) + 1e-12
    possible = [streams for streams, misfit in zip(tried, misfits, strict=True) if misfit <= limit]
    best = tried[int(np.argmin(misfits))] if len(tried) > 1 else ALL
    unsaturated, step = tried[-1] in possible, most ** (1 / max(STEPS - 1, 1))
    low, high = max(possible[0] / step, 1.0), ALL if unsaturated else possible[-1] * step
    return Storage(ALL if best == tried[-1] else best, low, high, most)


def _rates(runs: Sequence[Readers]) -> Numbers:
    """Logarithm of the seconds of a byte in each part of the runs, relative to the usual of its datasets."""
    names, dataset = datasets_of([run.chunks for run in runs])
    seconds, usual = (
        np.concatenate(some) for some in zip(*((run.seconds, run.activity.amount) for run in runs), strict=True)
    )
    for place in range(len(names)):
        own = dataset == place
        if (of_dataset := usual[own].sum()) > 0:
            usual[own] *= float(seconds[own].sum() / of_dataset)
    edges = np.cumsum([0, *(len(run.chunks) for run in runs)])
    parts = [first + rows for run, first in zip(runs, edges[:-1], strict=True) for rows in run.blocks()]
    return np.log([max(seconds[rows].sum() / usual[rows].sum(), 1e-9) for rows in parts])


def _misfit(rates: Numbers, runs: Sequence[Readers], streams: float) -> float:
    """Sum of squared residuals if storage serves this many streams.

    Threads that receive what is read need cores as well: a part of reading may have become longer as computing did.
    """
    stretches = [(run.stretch(streams), run.blocks()) for run in runs]
    left = rates - np.array([np.log(stretch[rows].mean()) for stretch, blocks in stretches for rows in blocks])
    longer = np.log(2) * np.array([_mean(run.activity.doublings[rows]) for run in runs for rows in run.blocks()])
    left, longer = left - left.mean(), longer - longer.mean()
    part = float(np.clip(left @ longer / max(longer @ longer, 1e-12), 0.0, 1.0))
    return float(np.sum((left - part * longer) ** 2))


def _mean(values: Numbers) -> float:
    """Mean of what is known; 0 if nothing is."""
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else 0.0


def with_own_storage(chunks: Chunks, activity: Activity | None, streams: float) -> Chunks:
    """Chunks as if each had storage of its own."""
    if activity is None or streams == ALL or not reading_seconds(chunks).any():
        return chunks
    return Readers(chunks, activity).alone(streams)


RUN_SCATTER: Final = 0.02
"""Relative scatter of the CPU time of runs that is assumed at least, as a few runs may agree by chance."""

UNUSUAL: Final = 0.1
"""Increase for a doubling that is no longer usual."""


def doublings_of(parts: Parts, early: Flags) -> Numbers:
    """How often the jobs on each chunk's core had doubled; NaN for early tasks, which import and compile.

    A chunk that waited in the run queue as long as it computed had half a core: one doubling.
    """
    doublings = np.log2(1 + ratio(parts.contention, parts.computing))
    return np.where(early | (parts.computing <= 0), np.nan, doublings)


def crowding_of(runs: Sequence[Sequence[tuple[Chunks, Numbers]]]) -> float:
    """Increase of a chunk's CPU time for each doubling of the jobs on its core; 0 if the runs do not show any.

    Parameters
    ----------
    runs
        Runs of the same analysis on the same files: chunks of each stage, and the doublings of each.
    """
    pairs = [pair for run in runs for pair in run]
    if not pairs:
        return 0.0
    every = np.concatenate([doublings for _, doublings in pairs])
    relative = np.concatenate([ratio(chunks.parts.computing, chunks.events) for chunks, _ in pairs])
    names, dataset = datasets_of([chunks for chunks, _ in pairs])
    number = np.repeat(np.arange(len(runs)), [sum(len(doublings) for _, doublings in run) for run in runs])
    usable = np.isfinite(every) & (relative > 0)
    # the effect shows from half a doubling between the least and the most crowded chunks
    if np.count_nonzero(usable) < 20 or np.ptp(np.quantile(every[usable], [0.05, 0.95])) < 0.5:
        return 0.0
    every, relative, dataset = every[usable], relative[usable], dataset[usable]
    for place in range(len(names)):
        own = dataset == place
        relative[own] /= np.median(relative[own]) if own.any() else 1.0
    of_runs = _of_runs(every, relative, number[usable])
    return _slope(every, relative) if of_runs is None else of_runs


def _of_runs(doublings: Numbers, relative: Numbers, number: Integers) -> float | None:
    """Increase according to the medians of runs; None if these are too few, or their contention differs too little.

    Runs scatter more than their chunks tell, because a machine is not always as fast: a slope that may be chance is
    reduced as if UNUSUAL were the standard deviation of true ones about 0.
    """
    rows = [number == each for each in np.unique(number)]
    crowded, longer = (np.array([np.median(some[own]) for own in rows]) for some in (doublings, relative))
    spread = float(np.ptp(crowded))
    # fewer do not show how much they scatter
    if len(rows) < 3 or spread < 0.25:
        return None
    line = scipy.stats.linregress(crowded, longer)
    if not (line.slope > 0 and line.intercept > 0):
        return 0.0
    slope, error = line.slope / line.intercept, np.hypot(line.stderr / line.intercept, RUN_SCATTER / spread)
    return float(slope * UNUSUAL**2 / (UNUSUAL**2 + error**2))


def _slope(doublings: Numbers, relative: Numbers) -> float:
    """Relative slope of a line through most chunks (Theil and Sen), if both grow together beyond chance."""
    # each is compared with each
    some = slice(None, None, -(-len(doublings) // 500))
    doublings, relative = doublings[some], relative[some]
    together = scipy.stats.kendalltau(doublings, relative)
    if not (together.statistic > 0 and together.pvalue < 0.05):
        return 0.0
    slope, alone, *_ = scipy.stats.theilslopes(relative, doublings, method="joint")
    return float(slope / alone) if slope > 0 and alone > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Interpreter:
    """Share of CPU time that needs the interpreter: the most likely one, and the range that the runs leave open."""

    share: float
    low: float
    high: float


def interpreter_of(runs: Sequence[tuple[Chunks, int]]) -> Interpreter | None:
    """Share of runs with several threads per process; None without any that recorded waiting for the interpreter."""
    shares = [
        share_of(chunks.take(rows).parts, threads)
        for chunks, threads in runs
        if threads > 1 and chunks.parts.computing.any()
        for rows in np.array_split(np.arange(len(chunks)), min(4, len(chunks)))
    ]
    if not shares:
        return None
    mean, spread = float(np.mean(shares)), OF_90_PERCENT * float(np.std(shares, ddof=1) if len(shares) > 1 else 0.0)
    return Interpreter(mean, max(mean - spread, 0.0), min(mean + spread, 1.0))


def share_of(parts: Parts, threads: int) -> float:
    """Share of CPU time that needs the interpreter, for which threads wait as long as recorded."""
    computing, lock, other = _sums(parts)
    if not lock:
        return 0.0

    def surplus(share: float) -> float:
        return waited(share, computing, other, threads) - lock

    return 1.0 if surplus(1.0) <= 0 else float(scipy.optimize.brentq(surplus, 0.0, 1.0, xtol=1e-4))


def blocked_per_event(runs: Sequence[Chunks]) -> float | None:
    """Seconds of an event in which chunks neither computed nor read; None without any."""
    events = sum(float(chunks.events.sum()) for chunks in runs)
    return sum(_blocked(chunks.parts) for chunks in runs) / events if events else None


def _blocked(parts: Parts) -> float:
    return float(parts.lock.sum() + parts.wait.sum())


def with_least_lock(chunks: Chunks, alone: float | None) -> Chunks:
    """Chunks that wait for the interpreter no longer than they wait more than with one thread per process.

    What is recorded is the longest that it can have been: a thread that sleeps while others compute waits as well.
    """
    parts = chunks.parts
    if alone is None or not parts.lock.any():
        return chunks
    more = max(_blocked(parts) - alone * float(chunks.events.sum()), 0.0)
    lock = parts.lock * min(more / float(parts.lock.sum()), 1.0)
    return chunks.with_parts(lock=lock, wait=parts.wait + parts.lock - lock)


def _sums(parts: Parts) -> tuple[float, float, float]:
    """Seconds of computing, of waiting for the interpreter, and of everything else."""
    computing, lock = float(parts.computing.sum()), float(parts.lock.sum())
    return computing, lock, max(float(parts.total.sum()) - computing - lock, 0.0)


def waited(share: float, computing: float, other: float, threads: int) -> float:
    """Waiting for the interpreter in the time that a thread computes this long."""
    demand, apart = share * computing, (1 - share) * computing + other
    if not demand:
        return 0.0
    queue = took = 0.0
    for number in range(1, threads + 1):
        took = demand * (1 + queue)
        queue = number * took / (took + apart)
    return took - demand


def with_threads(share: float, threads: int) -> Scenario:
    """Chunks that wait for the interpreter as long as this many threads make them."""

    def changed(chunks: Chunks) -> Chunks:
        computing, _, other = _sums(chunks.parts)
        each = waited(share, computing, other, threads) / computing if computing else 0.0
        return chunks.with_parts(lock=chunks.parts.computing * each)

    return Scenario(chunks=changed)
