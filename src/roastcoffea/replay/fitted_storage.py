"""Storage as a resource that chunks share: how many streams it serves at their full rate, fitted from recorded chunks.

Up to `streams` readers at a time, each has the rate of one alone; more of them share what these get together. Chunks do
not record when they read: the number of readers is expected from the number of active chunks, and from the share of
their time in which they read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np
import pyarrow as pa
import scipy

from roastcoffea.metrics.statistics import Flags, Integers, Numbers, amounts, moments
from roastcoffea.replay.parts import Chunks

MOMENTS: Final = 4
"""Moments of a chunk at which active ones are counted."""

NEGLIGIBLE: Final = 0.01
"""Share of thread time in reading below which sharing it changes nothing."""

BLOCKS: Final = 8
"""Parts of a run, in order of time, whose rates are compared: chunks that follow each other are not independent."""

FEWEST: Final = 4
"""Fewest chunks of a part."""

STEPS: Final = 40
"""Numbers of streams that are tried, in equal ratios."""

COMPARED: Final = 32
"""Numbers of active chunks for which the number of readers is worked out; others lie between them."""

HALVINGS: Final = 40
"""Steps in which the demand of chunks is found."""

CONFIDENCE: Final = 0.90

ALL: Final = float("inf")
"""Streams of storage that is never saturated."""


@dataclass(frozen=True, slots=True)
class Activity:
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
    at = start[:, None] + (stop - start)[:, None] * (np.arange(MOMENTS) + 0.5) / MOMENTS
    begun, ended = (np.searchsorted(np.sort(some[reads]), at, side="right") for some in (start, stop))
    known = not chunks["bytes_requested"].null_count
    amount = amounts(chunks, "bytes_requested" if known else "events")
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
        for _ in range(HALVINGS):
            middle = (low * high) ** 0.5
            readers, _ = _readers(numbers, streams, middle)
            low, high = (middle, high) if times @ readers < self.share * (times @ numbers) else (low, middle)
        return float((low * high) ** 0.5)

    def alone(self, streams: float) -> Chunks:
        """Chunks whose reading takes as long as with storage of their own."""
        rate, parts = 1 / self.stretch(streams), self.chunks.parts
        return self.chunks.with_parts(open_wait=parts.open_wait * rate, read=parts.read * rate)

    def blocks(self) -> list[Integers]:
        """Chunks of each part of the run that read, in order of time."""
        rows = self._rows
        return np.array_split(rows, int(np.clip(len(rows) // FEWEST, 1, BLOCKS))) if len(rows) else []


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


UNSHARED: Final = Storage(ALL, ALL, ALL, 1)


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
    if not runs or max(run.share for run in runs) < NEGLIGIBLE:
        return UNSHARED
    most = max(run.most for run in runs)
    # storage that serves as many streams as ever read at once was not saturated: more would look the same
    tried = [*np.geomspace(1.0, most, STEPS if most > 1 else 1).tolist()]
    rates = _rates(runs)
    misfits = [_misfit(rates, runs, streams) for streams in tried]
    freedom = max(len(rates) - 2, 1)
    limit = min(misfits) * (1 + scipy.stats.t.ppf((1 + CONFIDENCE) / 2, freedom) ** 2 / freedom) + 1e-12
    possible = [streams for streams, misfit in zip(tried, misfits, strict=True) if misfit <= limit]
    best = tried[int(np.argmin(misfits))] if len(tried) > 1 else ALL
    unsaturated, step = tried[-1] in possible, most ** (1 / max(STEPS - 1, 1))
    low, high = max(possible[0] / step, 1.0), ALL if unsaturated else possible[-1] * step
    return Storage(ALL if best == tried[-1] else best, low, high, most)


def _rates(runs: Sequence[Readers]) -> Numbers:
    """Logarithm of the seconds of a byte in each part of the runs, relative to the usual of its datasets."""
    names = np.concatenate([np.asarray(run.chunks.datasets, object)[run.chunks.dataset] for run in runs])
    seconds, usual = (
        np.concatenate(some) for some in zip(*((run.seconds, run.activity.amount) for run in runs), strict=True)
    )
    for name in dict.fromkeys(names):
        own = names == name
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


def all_readers(pairs: Sequence[tuple[Chunks, Activity]]) -> Readers | None:
    """Reading of several stages as one; None without any."""
    if not pairs:
        return None
    if len(pairs) == 1:
        return Readers(*pairs[0])
    names = tuple(dict.fromkeys(name for chunks, _ in pairs for name in chunks.datasets))
    own = [replace(chunks, dataset=_renamed(chunks, names)) for chunks, _ in pairs]
    parts = type(own[0].parts)(*(np.concatenate(some) for some in zip(*(one.parts for one in own), strict=True)))
    columns = ("dataset", "file", "start", "stop", "factor", "row")
    every = {name: np.concatenate([getattr(one, name) for one in own]) for name in columns}
    names_of_activity = ("seconds", "amount", "active", "doublings")
    activity = Activity(*(np.concatenate([getattr(each, name) for _, each in pairs]) for name in names_of_activity))
    return Readers(Chunks(datasets=names, parts=parts, **every), activity)


def _renamed(chunks: Chunks, names: Sequence[str]) -> Integers:
    """Index of each chunk's dataset among these names."""
    return np.array([names.index(name) for name in chunks.datasets])[chunks.dataset]
