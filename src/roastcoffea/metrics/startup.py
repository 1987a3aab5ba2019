"""Start-up: the extra time of workers' first tasks and threads' first chunks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from roastcoffea.metrics import phases
from roastcoffea.metrics.facts import aggregated
from roastcoffea.metrics.slots import NONE, Moments, Presence
from roastcoffea.metrics.statistics import Flags, Integers, Numbers, amounts, codes, having, integers
from roastcoffea.records.chunks import OK

FROM_FIRST: Final = {phases.OPEN, phases.INTERPRET, phases.COMPUTE, phases.LOCK, phases.BLOCKED, phases.WAIT}
"""Classes in which a thread's first chunk may take longer: libraries are loaded, functions compiled."""

BY_EVENT: Final = FROM_FIRST - {phases.OPEN}
"""Those of them that may scale with events: the excess is what is higher both per event and per chunk."""

FEWEST: Final = 3
"""Fewest later chunks of a dataset, or later tasks, that establish what is usual."""

SPREADS: Final = 5.0
"""A first one is slow if it exceeds later ones by this many median deviations and by `SHORTEST`."""

SHORTEST: Final = 0.02
"""Seconds below which nothing is start-up: clocks, caches and other processes cause that much."""


def excess_over_later_chunks(chunks: pa.Table, used: Flags, of_run: Integers) -> dict[str, Numbers]:
    """Extra seconds by class of each chunk that is the first of its thread.

    The usual time is the median of later chunks of the dataset, scaled by how the worker's own later chunks compare to
    that median; or the median of later chunks of the file, if that is more. If the worker or file has no later chunk,
    and the chunk loaded no modules, the chunk itself may be slow: then only what first chunks have in common is
    start-up. Datasets without later chunks are left out. Chunks are compared within their recorded run, which `of_run`
    numbers.
    """
    first, later = _first_of_threads(chunks, used)
    found = {name: np.zeros(len(chunks)) for name in phases.COLUMNS_OF if name in FROM_FIRST}
    if not first.any() or not later.any():
        return found
    at = np.flatnonzero(first)
    groups = _Groups(first, later, chunks, of_run)
    certain = chunks["imports"].is_valid().to_numpy()[at] | groups.have_later
    events = np.maximum(amounts(chunks, "events"), 1.0)
    for name, late in found.items():
        for column in phases.COLUMNS_OF[name]:
            seconds = amounts(chunks, column)
            beyond = groups.beyond(seconds, np.ones(len(chunks)))
            if name in BY_EVENT:
                beyond = np.minimum(beyond, groups.beyond(seconds, events))
            late[at] += np.where(certain, beyond, np.minimum(beyond, _in_common(beyond, of_run[at])))
    return found


def _within(of_run: Integers, code: Integers) -> Integers:
    """A number for each value within each recorded run."""
    return np.unique(of_run * (code.max(initial=0) + 1) + code, return_inverse=True)[1] if of_run.any() else code


def _in_common(beyond: Numbers, of_run: Integers) -> Numbers:
    """Largest extra time of each first chunk that the other first chunks of its run support."""
    found = np.zeros(len(beyond))
    for run in np.unique(of_run):
        own = beyond[of_run == run]
        if len(own) > 1:
            order, middle = np.sort(own), (len(own) - 2) // 2
            # the lower median of the others
            place = np.where(np.searchsorted(order, own) <= middle, middle + 1, middle)
            # first chunks vary by this factor in what they have in common
            found[of_run == run] = 2.0 * order[place]
    return found


def _first_of_threads(chunks: pa.Table, used: Flags) -> tuple[Flags, Flags]:
    """Completed chunks that are the first of their thread, and later ones."""
    known = used & having(chunks["outcome"], OK)
    for name in ("start", "thread", "worker"):
        known &= chunks[name].is_valid().to_numpy()
    place = np.flatnonzero(known)
    thread, worker = integers(chunks["thread"])[place], codes(chunks["worker"])[place]
    start = amounts(chunks, "start")[place]
    order = np.lexsort((start, thread, worker))
    new = np.ones(len(order), np.bool_)
    new[1:] = (np.diff(worker[order]) != 0) | (np.diff(thread[order]) != 0)
    first = np.zeros(len(chunks), np.bool_)
    first[place[order[new]]] = True
    return first, known & ~first


class _Group:
    """Rows of each value of a column, in order."""

    def __init__(self, code: Integers) -> None:
        self.code = code
        small = len(code) and code.max() < 1 << 16
        self._order = np.argsort(code.astype(np.uint16) if small else code, kind="stable")
        self.numbers = np.bincount(code)
        self._ends = np.cumsum(self.numbers)

    def medians(self, values: Numbers, code: Integers, fewest: int = 1) -> Numbers:
        """Median of the rows of each of these values; NaN if there are too few to establish what is usual."""
        found: dict[int, float] = {}
        for one in set(code.tolist()):
            if one < len(self.numbers) and self.numbers[one] >= fewest:
                end = self._ends[one]
                found[one] = _median(values[self._order[end - self.numbers[one] : end]])
        return np.array([found.get(one, np.nan) for one in code.tolist()])

    def number(self, code: Integers) -> Integers:
        """Number of rows of each of these values."""
        return np.asarray(np.append(self.numbers, 0)[np.minimum(code, len(self.numbers))])


def _median(values: Numbers) -> float:
    """Median, as of `np.median`, which takes ten times as long for the chunks of one worker."""
    half = len(values) // 2
    ordered = np.partition(values, (half - 1, half, len(values) - 1))
    if np.isnan(ordered[-1]):
        return np.nan
    return float(ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2)


class _Groups:
    """Chunks to compare: the first ones, and later ones by dataset, worker and file."""

    def __init__(self, first: Flags, later: Flags, chunks: pa.Table, of_run: Integers) -> None:
        dataset, file = (_within(of_run, codes(chunks[name])) for name in ("dataset", "file"))
        worker = codes(chunks["worker"])
        # of many files, only those of first chunks
        of_files = np.flatnonzero(np.isin(file, file[first]) & later)
        self.first, self.later, self.of_files = first, later, of_files
        self.dataset, self.worker, self.file = _Group(dataset[later]), _Group(worker[later]), _Group(file[of_files])
        self.datasets, self.workers, self.files = (code[first] for code in (dataset, worker, file))
        self._worker = worker

    @property
    def have_later(self) -> Flags:
        """Whether worker and file of each first chunk have later chunks."""
        return np.asarray((self.worker.number(self.workers) > 0) & (self.file.number(self.files) > 0))

    def beyond(self, seconds: Numbers, size: Numbers) -> Numbers:
        """Extra time of first chunks compared with the usual one."""
        if seconds.min(initial=0.0) >= 0 and seconds[self.first].max(initial=0.0) <= SHORTEST:
            return np.zeros(len(self.datasets))  # they cannot be so much longer than others
        rates, of_first = seconds / size, size[self.first]
        rate = rates[self.later]
        usual = self.dataset.medians(rate, self.datasets, FEWEST)
        every = self.dataset.medians(rate, np.arange(len(self.dataset.numbers)), FEWEST)[self.dataset.code]
        ratio = np.divide(rate, every, out=np.ones(len(rate)), where=every > 0)
        by_worker = self._of_workers(ratio, np.arange(int(self._worker.max()) + 1))
        own = np.where(usual > 0, usual * by_worker[self.workers], self.worker.medians(rate, self.workers))
        # the same file takes longer on a slow worker
        of_file = rates[self.of_files] / np.maximum(by_worker[self._worker[self.of_files]], 1.0)
        expected = np.fmax(np.fmax(own, self.file.medians(of_file, self.files)), np.where(np.isnan(own), usual, 0.0))
        spread = self.dataset.medians(np.abs(rate - every), self.datasets, FEWEST)
        late = seconds[self.first] - expected * of_first
        known = ~np.isnan(usual) & (late > np.maximum(SPREADS * spread * of_first, SHORTEST))
        return np.where(known, late, 0.0)

    def _of_workers(self, ratio: Numbers, worker: Integers) -> Numbers:
        """Later chunks of workers relative to the usual; from only a few, slowness is taken and speed is not."""
        found = np.nan_to_num(self.worker.medians(ratio, worker), nan=1.0)
        return np.where(self.worker.number(worker) < FEWEST, np.maximum(found, 1.0), found)


def first_tasks(moments: Moments, workers: int, of_run: Integers) -> Presence:
    """Delays between each worker's first assignment and its first task's start, if longer than for later tasks.

    For later tasks the delay runs from assignment to arrival and covers all workers of the recorded run (numbered by
    `of_run`), because a worker may have no later task. Workers that started their first task as quickly as later ones
    are left out.
    """
    begun = np.full(workers, np.inf)
    np.minimum.at(begun, moments.worker, moments.start)
    assigned = np.full(workers, np.inf)
    np.minimum.at(assigned, moments.worker, moments.assigned)
    delay = moments.arrived - moments.assigned
    later = (moments.assigned > begun[moments.worker]) & np.isfinite(delay)
    if not later.any():
        return NONE
    group = _Group(of_run[moments.worker[later]])
    usual = group.medians(delay[later], of_run, FEWEST)
    spread = group.medians(np.abs(delay[later] - usual[moments.worker[later]]), of_run, FEWEST)
    with np.errstate(invalid="ignore"):
        late = begun - assigned - usual
        fresh = np.flatnonzero(np.isfinite(late) & (late > np.maximum(SPREADS * spread, SHORTEST)))
    return Presence(fresh, assigned[fresh] + usual[fresh], begun[fresh], np.ones(len(fresh), np.int64))


def could_begin(worker: Integers, start: Numbers, asked: Numbers, born: Numbers) -> Numbers:
    """When each attempt could have begun in a pool without a scheduler: as it did, but for the first of a new process.

    A pool begins a process when a chunk waits for one. So what lies between the birth of a process in a Runner call and
    its first attempt is start-up.

    Parameters
    ----------
    worker, start
        Worker, and beginning, of each attempt.
    asked
        When the Runner call of each attempt began.
    born
        When each worker's process was born; NaN where that was before the run, or is not known.
    """
    order = np.lexsort((start, worker))
    first = order[np.diff(worker[order], prepend=-1) != 0]
    birth, found = born[worker[first]], start.copy()
    # the operating system may tell it to have been born too early by two ticks
    new = (birth >= asked[first] - 0.02) & (start[first] - birth > SHORTEST)
    found[first[new]] = birth[new]
    return found


def until_first_attempts(moments: Moments) -> Presence:
    """Times in which attempts could have begun and had not, where no scheduler hands them out: see `could_begin`."""
    late = np.flatnonzero(moments.assigned < moments.start)
    return Presence(moments.worker[late], moments.assigned[late], moments.start[late], np.ones(len(late), np.int64))


class StartUp(NamedTuple):
    """Start-up of one worker."""

    worker: str
    seconds: float
    """Thread seconds, as in the ledger."""
    idle_seconds: float
    """Of these, seconds in which its threads waited for its first task."""
    modules: tuple[str, ...]
    """Top-level modules loaded while its chunks ran, in order."""


def startup_of(rows: pa.Table, idle: Mapping[str, float], chunks: pa.Table) -> list[StartUp]:
    """Start-up of each worker with any, longest first; `rows` are those of the time ledger."""
    known = chunks.select(["worker", "imports", "start"]).filter(chunks["imports"].is_valid()).sort_by("start")
    modules: dict[str, dict[str, None]] = defaultdict(dict)
    for worker, names in zip(known["worker"].to_pylist(), known["imports"].to_pylist(), strict=True):
        modules[worker] |= dict.fromkeys(names)
    sums = aggregated(rows, ["address"], {"seconds": (phases.STARTUP, "sum")}, use_threads=False)
    found = [
        StartUp(worker, seconds, idle.get(worker, 0.0), tuple(modules[worker]))
        for worker, seconds in zip(sums["address"].to_pylist(), sums["seconds"].to_pylist(), strict=True)
        if seconds > 0
    ]
    return sorted(found, key=lambda one: -one.seconds)


def moved(seconds: dict[str, Numbers], beyond: Mapping[str, Numbers]) -> dict[str, Numbers]:
    """Seconds by class, with start-up moved to its own."""
    taken = {name: np.minimum(amount, seconds[name]) for name, amount in beyond.items()}
    kept = {name: amount - taken[name] if name in taken else amount for name, amount in seconds.items()}
    return kept | {phases.STARTUP: sum(taken.values(), np.zeros(len(next(iter(seconds.values())))))}
