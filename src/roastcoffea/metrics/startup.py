"""Start-up: what first tasks of workers, and first chunks of threads, take beyond later ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from roastcoffea.metrics import phases
from roastcoffea.metrics.slots import NONE, Moments, Presence
from roastcoffea.metrics.statistics import Flags, Integers, Numbers, amounts, codes, having
from roastcoffea.records.chunks import OK

FROM_FIRST: Final = {phases.OPEN, phases.INTERPRET, phases.COMPUTE, phases.LOCK, phases.BLOCKED, phases.WAIT}
"""Classes of which the first chunk of a thread may take more: files of libraries are read, functions compiled."""

BY_EVENT: Final = {phases.INTERPRET, phases.COMPUTE}
"""Those of them that grow with a chunk's events."""

FEWEST: Final = 3
"""Later chunks of a dataset, or later tasks, that tell what is usual."""

SPREADS: Final = 5.0
"""A first one is beyond later ones by more than so many of their median deviations, and more than `SHORTEST`."""

SHORTEST: Final = 0.02
"""Seconds below which nothing is called start-up: clocks, caches and other processes make that much."""


def beyond_later_chunks(chunks: pa.Table, used: Flags) -> dict[str, Numbers]:
    """Seconds by class that each chunk takes beyond later ones: of chunks that are the first of their thread.

    What is usual is the median of later chunks of the dataset, by event where they compute, times what the same of
    the worker's own later chunks are to that median. Nothing is told of a dataset without later chunks.
    """
    first, later = _first_of_threads(chunks, used)
    found = {name: np.zeros(len(chunks)) for name in phases.COLUMNS_OF if name in FROM_FIRST}
    if not first.any() or not later.any():
        return found
    groups = _Groups(first, later, *(_Group(codes(chunks[name])[later]) for name in ("dataset", "worker")))
    at = np.flatnonzero(first)
    dataset, worker = (codes(chunks[name])[at] for name in ("dataset", "worker"))
    events = np.maximum(amounts(chunks, "events"), 1.0)
    for name, late in found.items():
        for column in phases.COLUMNS_OF[name]:
            size = events if name in BY_EVENT else np.ones(len(chunks))
            late[at] += groups.beyond(amounts(chunks, column), size, dataset, worker)
    return found


def _first_of_threads(chunks: pa.Table, used: Flags) -> tuple[Flags, Flags]:
    """Chunks that are the first of their thread, and later ones: of those that were computed to the end."""
    known = used & having(chunks["outcome"], OK)
    for name in ("start", "thread", "worker"):
        known &= chunks[name].is_valid().to_numpy()
    place = np.flatnonzero(known)
    thread = np.asarray(chunks["thread"].filter(pa.array(known)).to_numpy(), np.int64)
    worker, start = codes(chunks["worker"])[place], amounts(chunks, "start")[place]
    order = np.lexsort((start, thread, worker))
    new = np.ones(len(order), np.bool_)
    new[1:] = (np.diff(worker[order]) != 0) | (np.diff(thread[order]) != 0)
    first = np.zeros(len(chunks), np.bool_)
    first[place[order[new]]] = True
    return first, known & ~first


class _Group:
    """Rows of each value of a column, in its order."""

    def __init__(self, code: Integers) -> None:
        self.code = code
        self._order = np.argsort(code.astype(np.uint16) if code.max() < 1 << 16 else code, kind="stable")
        self._ends = np.cumsum(np.bincount(code))

    def medians(self, values: Numbers, code: Integers) -> Numbers:
        """Median of the rows of each of these values; NaN where there are fewer than tell what is usual."""
        parts = np.split(values[self._order], self._ends[:-1])
        enough = {one for one in set(code.tolist()) if one < len(parts) and len(parts[one]) >= FEWEST}
        found = {one: float(np.median(parts[one])) for one in enough}
        return np.array([found.get(one, np.nan) for one in code.tolist()])


class _Groups(NamedTuple):
    """Chunks that are compared: the first ones, and later ones by dataset and by worker."""

    first: Flags
    later: Flags
    dataset: _Group
    worker: _Group

    def beyond(self, seconds: Numbers, size: Numbers, dataset: Integers, worker: Integers) -> Numbers:
        """What first chunks take beyond what is usual."""
        rate, of_first = (seconds / size)[self.later], size[self.first]
        usual = self.dataset.medians(rate, dataset)
        every = self.dataset.medians(rate, np.arange(int(self.dataset.code.max()) + 1))[self.dataset.code]
        ratio = np.divide(rate, every, out=np.ones(len(rate)), where=every > 0)
        own = self.worker.medians(ratio, worker)
        spread = self.dataset.medians(np.abs(rate - every), dataset)
        late = seconds[self.first] - usual * np.where(np.isnan(own), 1.0, own) * of_first
        return np.where(late > np.maximum(SPREADS * spread * of_first, SHORTEST), late, 0.0)


def first_tasks(moments: Moments, workers: int) -> Presence:
    """Times from a worker's first assignment to its first task's beginning, beyond what later tasks take.

    What later tasks take is the time from their assignment until they arrive; it is that of all workers, as a worker
    may have no later task. A worker that has begun its first task as quickly as later ones is not there.
    """
    begun = np.full(workers, np.inf)
    np.minimum.at(begun, moments.worker, moments.start)
    assigned = np.full(workers, np.inf)
    np.minimum.at(assigned, moments.worker, moments.assigned)
    way = moments.arrived - moments.assigned
    later = (moments.assigned > begun[moments.worker]) & np.isfinite(way)
    if np.count_nonzero(later) < FEWEST:
        return NONE
    usual = float(np.median(way[later]))
    spread = float(np.median(np.abs(way[later] - usual)))
    with np.errstate(invalid="ignore"):
        late = begun - assigned - usual
    fresh = np.flatnonzero(np.isfinite(late) & (late > max(SPREADS * spread, SHORTEST)))
    return Presence(fresh, assigned[fresh] + usual, begun[fresh], np.ones(len(fresh), np.int64))


class StartUp(NamedTuple):
    """What a worker's start-up took."""

    worker: str
    seconds: float
    """Thread seconds, as in the ledger."""
    idle_seconds: float
    """Those of them in which its threads waited for its first task."""
    modules: tuple[str, ...]
    """Top-level modules that appeared while its chunks ran, in the order in which they did."""


def startup_of(rows: pa.Table, idle: Mapping[str, float], chunks: pa.Table) -> list[StartUp]:
    """Start-up of each worker that had any, the longest first; `rows` are those of the time ledger."""
    sums: dict[str, float] = {}
    for worker, seconds in zip(rows["address"].to_pylist(), rows[phases.STARTUP].to_pylist(), strict=True):
        sums[worker] = sums.get(worker, 0.0) + seconds
    known = chunks.select(["worker", "imports", "start"]).filter(chunks["imports"].is_valid()).sort_by("start")
    modules: dict[str, dict[str, None]] = {}
    for worker, names in zip(known["worker"].to_pylist(), known["imports"].to_pylist(), strict=True):
        modules.setdefault(worker, {}).update(dict.fromkeys(names))
    found = [
        StartUp(worker, seconds, idle.get(worker, 0.0), tuple(modules.get(worker, ())))
        for worker, seconds in sums.items()
        if seconds > 0
    ]
    return sorted(found, key=lambda one: -one.seconds)


def moved(seconds: dict[str, Numbers], beyond: Mapping[str, Numbers]) -> dict[str, Numbers]:
    """Seconds by class, with what is start-up in its own."""
    taken = {name: np.minimum(amount, seconds[name]) for name, amount in beyond.items()}
    kept = {name: amount - taken[name] if name in taken else amount for name, amount in seconds.items()}
    return kept | {phases.STARTUP: sum(taken.values(), np.zeros(len(next(iter(seconds.values())))))}
