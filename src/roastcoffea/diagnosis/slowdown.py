"""Runs that slow down: when, in which class of time, by how much, and where; at constant workers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import scipy

from roastcoffea.diagnosis.slowness import DATASET, ENDPOINT, HOST, SMALLEST, WORKER, Slowness
from roastcoffea.metrics import phases
from roastcoffea.metrics.catalogue import fact, refuse_if
from roastcoffea.metrics.statistics import Flags, Integers, Numbers, amounts, integers, moments
from roastcoffea.metrics.trends import fitted

FEWEST: Final = 64
"""Minimum number of chunks in a run."""

MOST: Final = 10_000
"""Maximum number of chunks that are examined, on at most 200 workers drawn at random."""

BLOCKS: Final = 40
"""Blocks of equally many chunks between which the run may change; also the minimum number of chunks of a place."""

BY_CHANCE: Final = 1e-3
"""Probability that a run at constant speed seems to slow down."""

LEAST: Final = 1.05
"""Smallest factor by which chunks take longer."""

FEWEST_TO_COMPARE: Final = 5
"""Minimum number of independent chunks for estimating a factor."""

RIDGE: Final = 1e-3

CONSTANT: Final = "the run does not slow down"

STORAGE: Final = frozenset({phases.READ, phases.OPEN})
"""Classes of time that are due to a server rather than a host."""


@dataclass(frozen=True, eq=False)
class Slowdown:
    """When, where and by how much a run slows down."""

    time_class: str
    onset: float
    """Start of the first slow chunk (Unix time); of the run, if it slows down gradually."""
    gradual: bool
    """Whether it slows down all the time: the factor is that between the ends of the run."""
    factor: float
    """Ratio of the class's time after the onset to that before, for the same work on the same workers."""
    interval: tuple[float, float]
    """90 % interval of the factor."""
    kind: str | None
    """Kind of place that slows down; None if all places do."""
    name: str | None
    ids: Integers
    """Identities of the slow chunks."""
    excess: Numbers
    """Seconds of each of them beyond what the class took before."""


class _Fit(NamedTuple):
    """Factors by which changes multiply the time of chunks."""

    factor: Numbers
    error: Numbers
    """Standard error of the logarithm."""
    chunks: Numbers
    """Number of independent chunks that a factor is based on: none if datasets or workers change at the same time."""
    before: Numbers
    """Seconds that each chunk would have taken without the changes."""


class _Change(NamedTuple):
    """A rise in some class of time."""

    significance: float
    """Above 1, chance does not explain it."""
    since: float
    gradual: bool
    kind: str | None
    place: int
    part: Flags
    """Chunks of this place; all chunks if it has no kind."""


class _Work:
    """Chunks with a start time, in this order, except the first ones of threads.

    Time is a product of factors: events by dataset, worker, server, concurrency.
    """

    def __init__(self, slowness: Slowness) -> None:
        chunks, table = slowness.coded, slowness.coded.table
        start, workers = moments(table, "start"), chunks.levels[WORKER]
        drawn = np.random.default_rng(1).permutation(len(workers.sizes))[:200]
        known = chunks.counts & ~chunks.first & np.isin(workers.codes, drawn) & np.isfinite(start)
        rows = np.flatnonzero(known & (slowness.typical > SMALLEST))
        rows = rows[np.argsort(start[rows], kind="stable")][:: len(rows) // MOST + 1]
        wall = amounts(table, "wall_seconds")
        middle = (start + wall / 2)[rows]
        begun, ended = (np.searchsorted(np.sort(each), middle) for each in (start, start + wall))
        spent = {name: _spent(table, name)[rows] for name in phases.COLUMNS_OF}
        total = sum(spent.values(), np.zeros(len(rows)))
        large = {
            name: each for name, each in spent.items() if each.sum() > 0.05 * total.sum() and np.quantile(each, 0.8)
        }
        refuse_if(len(rows) < FEWEST or not large, f"finding a change takes at least {FEWEST} chunks with known times")
        self.start, self.typical = start[rows], slowness.typical[rows]
        self.spent = large | {phases.TOTAL: total}
        self.levels = {kind: each[rows] for kind, each in _places(chunks).items()}
        self.running = np.maximum(begun - ended, 1.0)
        """Number of chunks that ran at the same time."""

    @cached_property
    def design(self) -> Any:
        """Columns of what time depends on besides a change."""
        return scipy.sparse.hstack(
            [
                _columns(np.unique(self.levels[kind], return_inverse=True)[1])
                for kind in (WORKER, DATASET, ENDPOINT)
                if kind in self.levels
            ]
            + [scipy.sparse.csr_array(np.log(self.running / self.running.mean())[:, None])]
        ).tocsr()

    @cached_property
    def factor(self) -> Any:
        return _factor(self.design)

    @cached_property
    def rest(self) -> Numbers:
        """Logarithms of time by class (column) that the design does not explain, without outliers."""
        rates = np.column_stack([each / self.typical for each in self.spent.values()])
        # chunks without such time count as chunks with little
        values = np.log(rates + 0.05 * rates.mean(axis=0))
        rest = values - self.design @ scipy.linalg.cho_solve(self.factor, self.design.T @ values)
        most = 4 * np.median(np.abs(rest), axis=0)
        return np.asarray(np.clip(rest, -most, most))

    def changes(self) -> list[_Change]:
        """Most significant rise in all chunks, and in those of each host, server and dataset; largest first."""
        number = len(self.start)
        parts: list[tuple[str | None, int, Flags]] = [(None, 0, np.ones(number, np.bool_))]
        for kind in (HOST, ENDPOINT, DATASET):
            for place, size in enumerate(np.bincount(self.levels.get(kind, []))):
                if max(BLOCKS, 0.02 * number) <= size < number:
                    parts.append((kind, place, self.levels[kind] == place))
        limit = BY_CHANCE / (len(parts) * len(self.spent))
        none = (0.0, 0.0, False)
        found = [
            _Change(*max(self._rises(part, limit), default=none), kind, place, part) for kind, place, part in parts
        ]
        return sorted(found, key=lambda each: -each.significance)

    def _rises(self, part: Flags, chance: float) -> Iterator[tuple[float, float, bool]]:
        """Largest rise of each class in a part: its significance, start, and whether it is gradual."""
        block = (np.cumsum(part) - 1) * BLOCKS // part.sum()
        own = _columns(np.where(part, block, BLOCKS))[:, :BLOCKS]
        sizes = own.sum(axis=0)
        left = own.toarray() - self.design @ scipy.linalg.cho_solve(self.factor, (self.design.T @ own).toarray())
        # what remains of a change depends on when datasets, workers and servers change
        within = (own.T @ left) / sizes[:, None]
        basis, seen, _ = np.linalg.svd(within)
        basis = basis[:, seen > 0.3].T
        if len(basis) < 10:
            return
        contrasts = basis @ within
        places = np.arange(3, BLOCKS - 2)
        candidates = np.column_stack([np.arange(BLOCKS)[:, None] >= places, np.linspace(0, 1, BLOCKS)])
        found = fitted(basis @ (left.T @ self.rest / sizes[:, None]), contrasts @ candidates, contrasts)
        limit = found.quantile(chance / candidates.shape[1])
        rises = np.where(found.slope > 0, found.likelihood, -np.inf)
        for row, best in enumerate(np.argmax(rises, axis=1)):
            gradual = bool(best == len(places))
            since = self.start[part & (block >= (BLOCKS // 2 if gradual else places[best]))][0]
            yield found.slope[row, best] / found.error[row, best] / limit, since, gradual

    def fit(self, name: str, *changes: Flags) -> _Fit:
        """Factors of a class of time in these chunks, by a robust multiplicative model."""
        number, spent = len(changes), self.spent[name]
        design = scipy.sparse.hstack([scipy.sparse.csr_array(np.column_stack(changes)), self.design]).tocsr()
        inverse = scipy.linalg.cho_solve(_factor(design), np.eye(design.shape[1]))
        found = np.zeros(len(inverse))
        for _ in range(20):
            ratio = spent / (self.typical * np.exp(design @ found))
            # a few stragglers are no change
            rest = np.minimum(ratio, max(1.5, np.quantile(ratio, 0.95))) - 1
            found += inverse @ (design.T @ rest)
        # chunks that start at about the same time may share their fate
        block = np.arange(len(rest)) * BLOCKS // len(rest)
        scores = inverse[:number] @ (design.multiply(rest[:, None]).T @ _columns(block).toarray())
        error = np.sqrt((scores**2).sum(axis=1))
        before = self.typical * np.exp(self.design @ found[number:])
        return _Fit(np.exp(found[:number]), error, 1 / np.diag(inverse)[:number] - RIDGE, before)

    def is_alone(self, change: _Change, since: float) -> bool:
        """Whether a place slows down and the others do not."""
        later = self.start >= since
        found = self.fit(phases.TOTAL, change.part & later, later & ~change.part)
        if found.chunks[1] > FEWEST_TO_COMPARE:
            return bool(found.factor[1] - 1 < 0.25 * (found.factor[0] - 1))
        # other hosts and servers did the same work at that time, other datasets did not run
        return change.kind != DATASET


@fact
def slowdown(slowness: Slowness) -> Slowdown:
    """How the run slows down; refused if it does not."""
    work, chunks = _Work(slowness), slowness.coded
    changes = work.changes()
    refuse_if(changes[0].significance <= 1, CONSTANT)
    _, since, gradual, _, _, part = changes[0]
    kind, place, part = next(
        ((each.kind, each.place, each.part) for each in changes if each.kind and work.is_alone(each, since)),
        (None, 0, np.ones_like(part)),
    )
    rows = part & (work.start >= since)
    # bursts pass: the last third has to be slow as well
    last = np.cumsum(rows) > 2 / 3 * rows.sum()
    whole = work.fit(phases.TOTAL, rows & ~last, rows & last)
    refuse_if(np.min(whole.factor[whole.chunks > FEWEST_TO_COMPARE], initial=np.inf) < LEAST, CONSTANT)
    fits = {name: work.fit(name, rows) for name in [*work.spent][:-1]}
    name = max(fits, key=lambda each: work.spent[each][rows].sum() * (1 - 1 / fits[each].factor[0]))
    fit, onset = fits[name], float(work.start[0])
    if not gradual and fit.factor[0] > 1:
        # each chunk is more like those before or like those after
        like = np.log(np.maximum(work.spent[name], SMALLEST) / fit.before)[part] / np.log(fit.factor[0])
        rest = np.cumsum(np.clip(like, -1, 2)[::-1] - 0.5)[::-1]
        onset = float(work.start[part][np.argmax(rest)])
        fit = work.fit(name, part & (work.start >= onset))
    # the middles of both halves are half of the run apart
    middle, error = (float(each[0]) * (2 if gradual else 1) for each in (np.log(fit.factor), fit.error))
    # stragglers are cut, so 1.645 would hold for too few: in simulated runs, 2 hold for 90 %
    low, high = (float(np.exp(middle + side * error)) for side in (-2, 2))
    refuse_if(low <= 1 or fit.chunks[0] < FEWEST_TO_COMPARE, CONSTANT)
    if kind is None and name in STORAGE and len(chunks.names[ENDPOINT]) == 1:
        kind = ENDPOINT
    begun = moments(chunks.table, "start")
    slow = begun >= onset
    if kind and kind in (places := _places(chunks)):
        slow &= places[kind] == place
    share = (begun[slow] - onset) / (work.start[-1] - onset) if gradual else 1.0
    return Slowdown(
        time_class=name,
        onset=onset,
        gradual=gradual,
        factor=float(np.exp(middle)),
        interval=(low, high),
        kind=kind,
        name=None if kind is None else chunks.names[kind][place],
        ids=integers(chunks.table["id"])[slow],
        excess=_spent(chunks.table, name)[slow] * (1 - np.exp(-middle * share)),
    )


def _places(chunks: Any) -> dict[str, Integers]:
    """Workers, hosts, servers and datasets of all chunks, by kind, if known. Hosts may have only one worker."""
    hosts = chunks.host_of[chunks.levels[WORKER].codes]
    levels = {HOST: hosts} | {kind: each.codes for kind, each in chunks.levels.items()}
    return {kind: codes for kind, codes in levels.items() if None not in chunks.names[kind]}


def _columns(codes: Integers) -> Any:
    """Sparse columns that show which rows have each code."""
    return scipy.sparse.csr_array((np.ones(len(codes)), (np.arange(len(codes)), codes)))


def _factor(design: Any) -> Any:
    """Cholesky factor of normal equations; a small ridge makes redundant columns harmless."""
    return scipy.linalg.cho_factor((design.T @ design).toarray() + RIDGE * np.eye(design.shape[1]))


def _spent(table: pa.Table, name: str) -> Numbers:
    """Seconds of chunks in a class of time."""
    return np.asarray(sum(amounts(table, column) for column in phases.COLUMNS_OF[name]), np.float64)
