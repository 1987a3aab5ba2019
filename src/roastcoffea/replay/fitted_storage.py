"""Fit models of shared resources (storage streams and cores) to recorded runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import scipy

from roastcoffea.metrics.statistics import Flags, Integers, Numbers, amounts, moments
from roastcoffea.replay.changes import Chunks, Parts, datasets_of, faster_storage, ratio

FEWEST: Final = 4
"""Minimum number of chunks in each block of a run."""

STEPS: Final = 40

COMPARED: Final = 32
"""Maximum number of distinct active-chunk counts. If there are more, each is replaced with the nearest one kept."""


ALL: Final = float("inf")
"""Number of streams for storage that is never saturated."""


OF_AMOUNT: Final = ("events", "bytes_requested")


class Activity(NamedTuple):
    """Load on shared resources while each chunk was running.

    `seconds` is the duration of the chunk's task. `amount` is the number of bytes requested or, if unknown, the number
    of events. `active` is the number of active chunks that read from storage, sampled several times during the task.
    `doublings` is the base-2 logarithm of the number of jobs per core, derived from the chunk's wait in the run queue.
    It is NaN for the first tasks of each process.
    """

    seconds: Numbers
    amount: Numbers
    active: Integers
    doublings: Numbers


def activity_of(
    chunks: pa.Table, tasks: pa.Table, doublings: Numbers, reads: Flags, rows: Integers | slice = slice(None)
) -> Activity:
    """Compute the load from the tasks. Chunks loaded from checkpoints are excluded, because they do not read.

    `chunks` and `doublings` are those of the tasks in `rows`; by default, of all tasks.
    """
    start, stop = moments(tasks, "start"), moments(tasks, "stop")
    stop = np.where(np.isnan(stop), start, stop)
    # sample each task at four points
    at = start[rows, None] + (stop - start)[rows, None] * np.array([0.125, 0.375, 0.625, 0.875])
    begun, ended = (np.searchsorted(np.sort(some[reads]), at, side="right") for some in (start, stop))
    amount = amounts(chunks, "events" if chunks["bytes_requested"].null_count else "bytes_requested")
    return Activity((stop - start)[rows], np.maximum(amount, 1.0), np.maximum(begun - ended, 1), doublings)


@dataclass(frozen=True)
class Readers:
    """Read times of a run's chunks, and how many chunks were reading at the same time."""

    chunks: Chunks
    activity: Activity

    @cached_property
    def seconds(self) -> Numbers:
        return self.chunks.parts.reading

    @cached_property
    def _rows(self) -> Integers:
        return np.flatnonzero(self.seconds)

    @cached_property
    def share(self) -> float:
        """Fraction of the reading chunks' duration (including waits for cores) that was spent reading."""
        total = float(self.activity.seconds[self._rows].sum())
        return min(float(self.seconds.sum()) / total, 1.0) if total else 0.0

    @property
    def most(self) -> int:
        return int(self.activity.active[self._rows].max(initial=1))

    def stretch(self, streams: float) -> Numbers:
        """Compute the factor by which sharing the storage is expected to slow down each chunk's reads."""
        numbers, _ = self._numbers
        readers, served = _readers(numbers, streams, self._demand(streams))
        each = np.interp(self.activity.active, numbers, served / readers)
        # a chunk's read rate is the mean over its sampling points
        return np.asarray(1 / each.mean(axis=1))

    @cached_property
    def _numbers(self) -> tuple[Numbers, Numbers]:
        """Distinct active-chunk counts (thinned out if there are many) and their frequencies."""
        active = self.activity.active[self._rows]
        found = np.unique(active)
        if len(found) > COMPARED:
            found = np.unique(np.quantile(found, np.linspace(0, 1, COMPARED)).round())
        place = np.rint(np.interp(active.ravel(), found, np.arange(len(found)))).astype(np.int64)
        return found.astype(np.float64), np.bincount(place, minlength=len(found)).astype(np.float64)

    def _demand(self, streams: float) -> float:
        """Find the ratio of unshared read time to all other time that reproduces the recorded `share`."""
        numbers, times = self._numbers
        low, high = 1e-6, 1e6
        for _ in range(40):
            middle = (low * high) ** 0.5
            readers, _ = _readers(numbers, streams, middle)
            low, high = (middle, high) if times @ readers < self.share * (times @ numbers) else (low, middle)
        return float(middle)

    def alone(self, streams: float) -> Chunks:
        """Replace each chunk's read time with the time it would take if no other chunk were reading."""
        rate, parts = 1 / self.stretch(streams), self.chunks.parts
        return self.chunks.with_parts(open_wait=parts.open_wait * rate, read=parts.read * rate)

    def shortened(self, streams: float, times: float) -> float:
        """Compute the ratio of the read times on storage that is `times` as fast to the present ones.

        If chunks share the storage, fewer of them then read at the same time, so the ratio is less than 1 / `times`.
        """
        if streams == ALL:
            return 1 / times
        (numbers, shares), demand = self._numbers, self._demand(streams)
        before, after = (shares @ _readers(numbers, streams, each)[0] for each in (demand, demand / times))
        whole = shares @ numbers
        # read time relative to all other time, which stays the same
        return float(after / (whole - after) / (before / (whole - before)))

    def blocks(self) -> list[Integers]:
        rows = self._rows
        # use at most eight blocks, because consecutive chunks are not independent
        return np.array_split(rows, int(np.clip(len(rows) // FEWEST, 1, 8))) if len(rows) else []


@dataclass(frozen=True, slots=True)
class Storage:
    """Number of streams that storage can serve at full rate.

    `streams` is the best fit, and `low` and `high` bound the range consistent with the runs. `high` is ALL if storage
    may not have been saturated. `most` is the maximum number of reading chunks that were active at the same time.
    """

    streams: float
    low: float
    high: float
    most: int

    @property
    def range(self) -> tuple[float, ...]:
        return tuple(dict.fromkeys((self.streams, self.low, self.high)))


def _readers(active: Numbers, streams: float, demand: float) -> tuple[Numbers, Numbers]:
    """Compute the mean number of readers among active chunks, and how many of them storage serves at full rate.

    The probabilities are those of a closed queueing network with one shared station. They hold for any distribution of
    the service times.
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
    """Fit the number of storage streams to the read time per byte in all runs."""
    runs = [run for run in runs if run.seconds.any()]
    # with so little thread time spent reading, sharing the storage has no effect
    if not runs or max(run.share for run in runs) < 0.01:
        return Storage(ALL, ALL, ALL, 1)
    most = max(run.most for run in runs)
    # with at least as many streams as readers, storage is not saturated, so more streams need not be tried
    tried = np.geomspace(1.0, most, STEPS if most > 1 else 1).tolist()
    rates = _rates(runs)
    misfits = [_misfit(rates, runs, streams) for streams in tried]
    freedom = max(len(rates) - 2, 1)
    limit = min(misfits) * (1 + scipy.special.stdtrit(freedom, 0.95) ** 2 / freedom) + 1e-12
    possible = [streams for streams, misfit in zip(tried, misfits, strict=True) if misfit <= limit]
    best = tried[int(np.argmin(misfits))] if len(tried) > 1 else ALL
    unsaturated, step = tried[-1] in possible, most ** (1 / max(STEPS - 1, 1))
    low, high = max(possible[0] / step, 1.0), ALL if unsaturated else possible[-1] * step
    return Storage(ALL if best == tried[-1] else best, low, high, most)


def _rates(runs: Sequence[Readers]) -> Numbers:
    """Compute the logarithm of each block's read time per byte, relative to the average for its datasets."""
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
    """Compute the sum of squared residuals for the given number of streams.

    Receiving data also needs a core, so CPU contention may have slowed down part of the reading.
    """
    stretches = [(run.stretch(streams), run.blocks()) for run in runs]
    left = rates - np.array([np.log(stretch[rows].mean()) for stretch, blocks in stretches for rows in blocks])
    longer = np.log(2) * np.array([_mean(run.activity.doublings[rows]) for run in runs for rows in run.blocks()])
    left, longer = left - left.mean(), longer - longer.mean()
    part = float(np.clip(left @ longer / max(longer @ longer, 1e-12), 0.0, 1.0))
    return float(np.sum((left - part * longer) ** 2))


def _mean(values: Numbers) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else 0.0


def with_own_storage(chunks: Chunks, activity: Activity | None, streams: float) -> Chunks:
    """Replace each chunk's read time with its time on unshared storage, if storage was saturated."""
    if activity is None or streams == ALL or not chunks.parts.reading.any():
        return chunks
    return Readers(chunks, activity).alone(streams)


MOST_FITTED, MOST_READERS = 5000, 200
"""Maximum number of chunks, and of readers at the same time, to which `on_faster_storage` fits the storage.

Twice as many readers of twice as many streams find nearly the same share of them reading.
"""


def on_faster_storage(chunks: Chunks, counted: pa.Table, times: float) -> Chunks:
    """Make storage `times` as fast, and let chunks share it as fits their read times best.

    `counted` is the table of counted chunks, with times on a common clock.
    """
    own = np.flatnonzero(chunks.row >= 0)
    rows = np.linspace(0, len(own) - 1, min(len(own), MOST_FITTED)).astype(np.int64)
    some = counted.select(OF_AMOUNT).take(pa.array(chunks.row[own[rows]]))
    tasks = counted.select(["start", "stop"]).take(pa.array(chunks.row[own]))
    activity = activity_of(some, tasks, np.zeros(len(rows)), chunks.parts.reading[own] > 0, rows)
    larger = max(int(activity.active.max(initial=1)) / MOST_READERS, 1.0)
    active = np.maximum(np.rint(activity.active / larger), 1).astype(np.int64)
    readers = Readers(chunks.take(own[rows]), activity._replace(active=active))
    factor = readers.shortened(storage_of([readers]).streams, times)
    return faster_storage(1 / factor).chunks(chunks)


RUN_SCATTER: Final = 0.02
"""Minimum relative scatter assumed for CPU time between runs, because a few runs may agree by chance."""

UNUSUAL: Final = 0.1
"""Standard deviation assumed for the relative increase in CPU time per doubling."""


def doublings_of(parts: Parts, early: Flags) -> Numbers:
    """Estimate the base-2 logarithm of the number of jobs on each chunk's core.

    If a chunk waits in the run queue for as long as it computes, it gets half a core. That is one doubling. Early tasks
    are NaN, because they also import modules.
    """
    doublings = np.log2(1 + ratio(parts.contention, parts.computing))
    return np.where(early | (parts.computing <= 0), np.nan, doublings)


def crowding_of(runs: Sequence[Sequence[tuple[Chunks, Numbers]]]) -> float:
    """Fit the relative increase in CPU time per doubling of the number of jobs on a core (0 if there is none).

    Parameters
    ----------
    runs
        Runs of the same analysis over the same files. Each run lists its stages' chunks and doublings.
    """
    pairs = [pair for run in runs for pair in run]
    if not pairs:
        return 0.0
    every = np.concatenate([doublings for _, doublings in pairs])
    relative = np.concatenate([ratio(chunks.parts.computing, chunks.events) for chunks, _ in pairs])
    names, dataset = datasets_of([chunks for chunks, _ in pairs])
    number = np.repeat(np.arange(len(runs)), [sum(len(doublings) for _, doublings in run) for run in runs])
    usable = np.isfinite(every) & (relative > 0)
    # the effect is measurable only if CPU contention differs by at least half a doubling between chunks
    if np.count_nonzero(usable) < 20 or np.ptp(np.quantile(every[usable], [0.05, 0.95])) < 0.5:
        return 0.0
    every, relative, dataset = every[usable], relative[usable], dataset[usable]
    for place in range(len(names)):
        own = dataset == place
        relative[own] /= np.median(relative[own]) if own.any() else 1.0
    of_runs = _of_runs(every, relative, number[usable])
    return _slope(every, relative) if of_runs is None else of_runs


def _of_runs(doublings: Numbers, relative: Numbers, number: Integers) -> float | None:
    """Fit the increase to each run's medians, or return None if there are too few runs or they are too similar.

    A machine's speed varies, so runs differ by more than the scatter of their chunks suggests. The slope is therefore
    shrunk towards zero, assuming a normal prior with standard deviation UNUSUAL.
    """
    rows = [number == each for each in np.unique(number)]
    crowded, longer = (np.array([np.median(some[own]) for own in rows]) for some in (doublings, relative))
    spread = float(np.ptp(crowded))
    # with fewer runs, the scatter cannot be estimated
    if len(rows) < 3 or spread < 0.25:
        return None
    line = scipy.stats.linregress(crowded, longer)
    if not (line.slope > 0 and line.intercept > 0):
        return 0.0
    slope, error = line.slope / line.intercept, np.hypot(line.stderr / line.intercept, RUN_SCATTER / spread)
    return float(slope * UNUSUAL**2 / (UNUSUAL**2 + error**2))


def _slope(doublings: Numbers, relative: Numbers) -> float:
    """Fit a robust line to the chunks (Theil-Sen). Its relative slope is 0 if the trend is not significant."""
    # limit the number of chunks, because the fit compares all pairs
    some = slice(None, None, -(-len(doublings) // 500))
    doublings, relative = doublings[some], relative[some]
    together = scipy.stats.kendalltau(doublings, relative)
    if not (together.statistic > 0 and together.pvalue < 0.05):
        return 0.0
    slope, alone, *_ = scipy.stats.theilslopes(relative, doublings, method="joint")
    return float(slope / alone) if slope > 0 and alone > 0 else 0.0
