"""Thread slots of workers over time: how many are busy, and why the free ones are, counted moment by moment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from roastcoffea.metrics.bins import MICROSECONDS, Axes, level_before
from roastcoffea.metrics.phases import (
    CLIENT,
    IDLE,
    IN_FLIGHT,
    MISPLACED,
    PAUSED,
    QUEUED,
    STARTUP,
    TAIL,
    TRANSFER,
    WORKER_OVERHEAD,
)
from roastcoffea.metrics.statistics import Flags, Integers, Numbers
from roastcoffea.records.tasks import KINDS, MERGE, OTHER, PREPROCESSING, PROCESSOR

SHARED: Final = (QUEUED, MISPLACED, TAIL, CLIENT)
"""Those that are counted over all workers, and shared out among them."""

TAIL_OF: Final = (PROCESSOR, MERGE, PREPROCESSING, OTHER)
"""What a tail waits for: the first of these kinds of which a task is on a worker or on its way."""

CLIENT_OF: Final = ("before", "between", "after")
"""When nothing is anywhere: before the first task, between tasks, after the last one."""

TIME_BITS: Final = 44
"""Microseconds that fit into a number beside a worker and a kind of edge: half a year."""

KIND_BITS: Final = 3
MOST_WORKERS: Final = 1 << 63 - TIME_BITS - KIND_BITS
BLOCK: Final = 100_000
"""Attempts, and moments, that are looked at in one go: it bounds the memory."""

EDGES: Final = {
    "assigned": (0, 0, 0, 1),
    "arrived": (0, 0, 1, -1),
    "ready": (0, 1, -1, 0),
    "start": (1, -1, 0, 0),
    "stop": (-1, 0, 0, 1),
    "seen": (0, 0, 0, -1),
    "presence": (0, 0, 0, 0),
}
"""How the levels of a worker change at each moment of an attempt; at the last of them its threads or pauses do."""


class Moments(NamedTuple):
    """Moments of attempts of tasks in seconds (one clock), each array as long as there are attempts.

    `worker` is a number from 0, `kind` one of the places in `records.tasks.KINDS`. None of the moments comes before the
    one that precedes it here.
    """

    worker: Integers
    runnable: Numbers
    assigned: Numbers
    arrived: Numbers
    ready: Numbers
    start: Numbers
    stop: Numbers
    seen: Numbers
    kind: Integers


class Presence(NamedTuple):
    """Workers: `worker` is the number that attempts use; from start to stop it offers so many threads.

    For pauses it is the times in which workers begin nothing; there `threads` is 1.
    """

    worker: Integers
    start: Numbers
    stop: Numbers
    threads: Integers


NONE: Final = Presence(np.zeros(0, np.int64), np.zeros(0), np.zeros(0), np.zeros(0, np.int64))


@dataclass(frozen=True, slots=True)
class Slots:
    """What free slots waited for.

    `seconds` has for each cause the thread seconds by row and bin. `tail_of` splits those of the tail by `TAIL_OF`,
    `client_of` those of the client by `CLIENT_OF`. `beyond` are busy seconds beyond the worker's threads, or while it
    was not there.
    """

    seconds: dict[str, Numbers]
    tail_of: dict[str, float]
    client_of: dict[str, float]
    beyond: float


def idle_slots(
    attempts: Moments,
    presence: Presence,
    pauses: Presence,
    axes: Axes,
    first: Presence = NONE,
    *,
    together: Integers | None = None,
) -> Slots:
    """Causes of idleness.

    At each moment the free slots of a worker are filled with its tasks that are ready, then those that wait for their
    inputs, then assignments and reports on their way; while it should have begun its `first` task, all these are its
    start-up. A worker that is paused begins nothing and fetches nothing,
    whatever it has: all its free slots are paused, and its ready tasks are there for others. What is left over all
    workers is counted against the tasks that wait at the scheduler, then against ready tasks on other workers; the
    rest is the tail while any task is on a worker or on its way, and the client's otherwise. Workers share each cause
    in proportion to their free slots. Where `together` numbers the workers, those of one number are all workers.
    """
    seconds = {cause: np.zeros((axes.rows, axes.bins)) for cause in (*IDLE, STARTUP)}
    beyond = 0
    left, surplus = [], []
    for block in _blocks(attempts, presence):
        steps = _steps(attempts, (presence, pauses, first), block, axes)
        free, ready = _fill(steps, axes, seconds)
        left.append(_changes(steps, free))
        surplus.append(_changes(steps, ready))
        beyond += int((np.maximum(steps.busy - steps.threads, 0) * np.diff(steps.time, append=0)).sum())
    waits = np.zeros(len(TAIL_OF) + len(CLIENT_OF))
    for group in _groups(attempts, _joined(left), _joined(surplus), axes, together):
        found = {cause: np.zeros((group.axes.rows, axes.bins)) for cause in SHARED}
        waits += _share(group.attempts, group.left, group.surplus, group.axes, found)
        for cause, amounts in found.items():
            seconds[cause][group.rows] += amounts
    return Slots(
        {cause: amounts / MICROSECONDS for cause, amounts in seconds.items()},
        dict(zip(TAIL_OF, waits[: len(TAIL_OF)].tolist(), strict=True)),
        dict(zip(CLIENT_OF, waits[len(TAIL_OF) :].tolist(), strict=True)),
        beyond / MICROSECONDS,
    )


# Worker by worker


_Block = tuple[int, int, Integers]
"""The first of some workers, the one after their last, and where their attempts are."""


class _Steps(NamedTuple):
    """Levels of workers, worker by worker, from each moment of a change to the next; at their end all are 0."""

    worker: Integers
    time: Integers
    busy: Integers
    ready: Integers
    arriving: Integers
    way: Integers
    threads: Integers
    paused: Flags
    starting: Flags


class _Changes(NamedTuple):
    """By how much an amount of a worker changes, and when."""

    worker: Integers
    time: Integers
    change: Integers


def _blocks(attempts: Moments, presence: Presence) -> Iterator[_Block]:
    """Workers with about as many attempts as are looked at in one go."""
    workers = int(presence.worker.max(initial=-1)) + 1
    small = attempts.worker.astype(np.uint16) if workers <= 1 << 16 else attempts.worker
    order = np.argsort(small, kind="stable")
    ends = np.cumsum(np.bincount(attempts.worker, minlength=workers))
    block = ends // BLOCK + np.arange(workers) // MOST_WORKERS
    first = begin = 0
    for last in (np.flatnonzero(np.diff(block, append=-1)) + 1).tolist():
        yield first, last, order[begin : int(ends[last - 1])]
        first, begin = last, int(ends[last - 1])


def _steps(attempts: Moments, of_workers: tuple[Presence, ...], block: _Block, axes: Axes) -> _Steps:
    first, last_worker, own = block
    worker = attempts.worker[own] - first
    of_workers = tuple(_of_block(spans, first, last_worker) for spans in of_workers)
    edges = [_places(worker, getattr(attempts, name)[own], axes) for name in list(EDGES)[:-1]]
    edges += [_places(spans.worker, times, axes) for spans in of_workers for times in (spans.start, spans.stop)]
    kinds = [*range(len(EDGES) - 1), *[len(EDGES) - 1] * (len(edges) - len(EDGES) + 1)]
    keys = np.concatenate([places << KIND_BITS | kind for places, kind in zip(edges, kinds, strict=True)])
    keys.sort()
    kind, places = keys & ((1 << KIND_BITS) - 1), keys >> KIND_BITS
    last = np.append(places[1:] != places[:-1], True) if len(places) else np.zeros(0, np.bool_)
    changes = np.array(list(EDGES.values()), np.int8)
    busy, ready, arriving, way = (np.cumsum(change[kind], dtype=np.int64)[last] for change in changes.T)
    places = places[last]
    threads, paused, starting = (_level(spans, places, axes) for spans in of_workers)
    worker, time = (places >> TIME_BITS) + first, places & ((1 << TIME_BITS) - 1)
    return _Steps(worker, time, busy, ready, arriving, way, threads, paused > 0, starting > 0)


def _of_block(spans: Presence, first: int, last: int) -> Presence:
    inside = (spans.worker >= first) & (spans.worker < last)
    return Presence(spans.worker[inside] - first, spans.start[inside], spans.stop[inside], spans.threads[inside])


def _places(worker: Integers, moments: Numbers, axes: Axes) -> Integers:
    return worker << TIME_BITS | axes.microseconds(moments)


def _level(spans: Presence, places: Integers, axes: Axes) -> Integers:
    """Sum of the spans that cover each place."""
    changes = np.zeros(len(places), np.int64)
    for sign, moments in ((1, spans.start), (-1, spans.stop)):
        at = np.searchsorted(places, _places(spans.worker, moments, axes))
        np.add.at(changes, at, sign * spans.threads)
    return np.cumsum(changes)


def _fill(steps: _Steps, axes: Axes, seconds: Mapping[str, Numbers]) -> tuple[Integers, Integers]:
    """Count the causes that lie in the worker itself; give free slots that are left, and ready tasks beyond its own."""
    free = np.maximum(steps.threads - steps.busy, 0)
    able = np.where(steps.paused, 0, free)
    _count(steps, free - able, axes, seconds[PAUSED])
    surplus = steps.ready - np.minimum(able, steps.ready)
    for cause, waiting in ((WORKER_OVERHEAD, steps.ready), (TRANSFER, steps.arriving), (IN_FLIGHT, steps.way)):
        filled = np.minimum(able, waiting)
        at_first = np.where(steps.starting, filled, 0)
        _count(steps, filled - at_first, axes, seconds[cause])
        if at_first.any():
            _count(steps, at_first, axes, seconds[STARTUP])
        able = able - filled
    return able, surplus


def _changes(steps: _Steps, amounts: Integers) -> _Changes:
    """Where an amount changes; as it is 0 at the end of each worker, the next one begins anew."""
    changes = np.diff(amounts, prepend=0)
    at = np.flatnonzero(changes)
    return _Changes(steps.worker[at], steps.time[at], changes[at])


def _joined(parts: list[_Changes]) -> _Changes:
    return _Changes(*map(np.concatenate, zip(*parts, strict=True))) if parts else _Changes(*[np.zeros(0, np.int64)] * 3)


def _count(steps: _Steps, amounts: Integers, axes: Axes, seconds: Numbers) -> None:
    """Add thread time of an amount (microseconds) to its rows and bins."""
    worker, time, change = _changes(steps, amounts)
    bins = axes.bin(time)
    places = axes.row[worker] * axes.bins + bins
    within = axes.sums(places, change * (axes.edges[bins + 1] - time))
    seconds += within + level_before(axes.sums(places, change)) * np.diff(axes.edges)


# Over all workers


class _Group(NamedTuple):
    """Workers that could take over each other's work, and their rows."""

    attempts: Moments
    left: _Changes
    surplus: _Changes
    axes: Axes
    rows: Integers


def _groups(
    attempts: Moments, left: _Changes, surplus: _Changes, axes: Axes, together: Integers | None
) -> Iterator[_Group]:
    """Groups of workers; where there is but one, it is everything as it is."""
    if together is None or len(numbers := np.unique(together)) < 2:
        yield _Group(attempts, left, surplus, axes, np.arange(axes.rows))
        return
    parts = [_by_group(part, together[part.worker], numbers) for part in (attempts, left, surplus)]
    for number, of_attempts, of_left, of_surplus in zip(numbers, *parts, strict=True):
        rows = np.unique(axes.row[together == number])
        its = axes._replace(row=np.searchsorted(rows, axes.row), rows=len(rows))
        yield _Group(Moments(*of_attempts), _Changes(*of_left), _Changes(*of_surplus), its, rows)


def _by_group(columns: Moments | _Changes, group: Integers, numbers: Integers) -> Iterator[tuple[Any, ...]]:
    """Rows of each group, in their order."""
    order = np.argsort(group, kind="stable")
    ends = np.searchsorted(group[order], numbers[1:])
    return zip(*(np.split(column[order], ends) for column in columns), strict=True)


def _share(attempts: Moments, left: _Changes, surplus: _Changes, axes: Axes, seconds: Mapping[str, Numbers]) -> Numbers:
    """Count the causes of what is left over all workers; give the seconds by what the tail and the client are of.

    While time runs on, each cause takes a share of all free slots. The integral of that share is a clock of its own:
    a worker's time in that class is its free slots x what that clock advanced.
    """
    marks, waits = _waits(attempts, axes)
    by_wait = np.zeros(len(TAIL_OF) + len(CLIENT_OF))
    free = np.zeros((axes.rows, axes.bins))
    behind = {cause: np.zeros_like(free) for cause in SHARED}
    at_edges = {cause: np.zeros(axes.bins + 1) for cause in SHARED}
    clocks = dict.fromkeys(SHARED, 0.0)
    for part in _parts(attempts, left, surplus, marks, axes):
        wait = waits[np.searchsorted(marks, part.time, side="right") - 1]
        amounts = _split(part, wait < len(TAIL_OF))
        by_wait += np.bincount(wait, (amounts[TAIL] + amounts[CLIENT]) * part.lasting, len(by_wait))
        places = axes.row[left.worker[part.left]] * axes.bins + axes.bin(part.time[part.is_left])
        change = left.change[part.left]
        free += axes.sums(places, change)
        for cause, amount in amounts.items():
            advance = amount / np.maximum(part.free, 1) * part.lasting
            clock = clocks[cause] + np.cumsum(advance)
            clocks[cause] = float(clock[-1])
            clock -= advance
            at_edges[cause][part.edge] = clock[part.is_edge]
            behind[cause] += axes.sums(places, change * clock[part.is_left])
    for cause, clock in at_edges.items():
        seconds[cause][:] = free * clock[1:] - behind[cause] + level_before(free) * np.diff(clock)
    return by_wait / MICROSECONDS


class _Part(NamedTuple):
    """Events that follow each other: their times, how long until the next, and the three levels from then on.

    `left` are the places, among the changes of free slots, of those events that are one; `edge` likewise.
    """

    time: Integers
    lasting: Integers
    free: Integers
    ready: Integers
    queued: Integers
    is_left: Flags
    left: Integers
    is_edge: Flags
    edge: Integers


def _parts(attempts: Moments, left: _Changes, surplus: _Changes, marks: Integers, axes: Axes) -> Iterator[_Part]:
    """Events in the order of time, about as many as are looked at in one go.

    They are changes of free slots, of surplus ready tasks, and of tasks that wait; moments at which nothing changes;
    and edges.
    """
    runnable, assigned = axes.microseconds(attempts.runnable), axes.microseconds(attempts.assigned)
    waiting = runnable < assigned
    queued = np.concatenate([runnable[waiting], assigned[waiting]])
    kinds = (left.time, surplus.time, queued, marks, axes.edges)
    times, ends = np.concatenate(kinds), np.cumsum([len(kind) for kind in kinds])
    changes = np.zeros(len(times), np.int32)
    changes[: ends[2]] = np.concatenate([left.change, surplus.change, np.repeat([1, -1], len(queued) // 2)])
    order = np.argsort(times, kind="stable")
    levels = [0, 0, 0]
    for begin in range(0, len(order), BLOCK):
        index = order[begin : begin + BLOCK]
        time, sort = times[index], np.searchsorted(ends, index, side="right")
        after = times[order[min(begin + BLOCK, len(order) - 1)]]
        amounts = (np.where(sort == kind, changes[index], 0) for kind in range(len(levels)))
        counts = [level + np.cumsum(amount) for level, amount in zip(levels, amounts, strict=True)]
        levels = [int(count[-1]) for count in counts]
        is_left, is_edge = sort == 0, sort == len(ends) - 1
        edge, (free, ready, waits) = index[is_edge] - ends[-2], counts
        yield _Part(time, np.diff(time, append=after), free, ready, waits, is_left, index[is_left], is_edge, edge)


def _split(part: _Part, active: Flags) -> dict[str, Integers]:
    """Free slots by the cause that they share."""
    waiting = np.minimum(part.free, part.queued)
    misplaced = np.minimum(part.free - waiting, part.ready)
    rest = part.free - waiting - misplaced
    return {QUEUED: waiting, MISPLACED: misplaced, TAIL: np.where(active, rest, 0), CLIENT: np.where(active, 0, rest)}


def _waits(attempts: Moments, axes: Axes) -> tuple[Integers, Integers]:
    """What all wait for from each time on: the place in TAIL_OF, or beyond it that in CLIENT_OF."""
    assigned, seen = axes.microseconds(attempts.assigned), axes.microseconds(attempts.seen)
    kinds = [attempts.kind == KINDS.index(kind) for kind in TAIL_OF]
    covered = [_union(assigned[kind], seen[kind]) for kind in kinds]
    marks = np.unique(np.concatenate([[0], *(moments for spans in covered for moments in spans)]))
    first, last = assigned.min(initial=axes.edges[-1]), seen.max(initial=-1)
    waits = len(TAIL_OF) + np.where(marks < first, 0, np.where(marks < last, 1, 2))
    for place, (begins, ends) in reversed(list(enumerate(covered))):
        open_spans = np.searchsorted(begins, marks, side="right") - np.searchsorted(ends, marks, side="right")
        waits[open_spans > 0] = place
    return marks, waits


def _union(begins: Integers, ends: Integers) -> tuple[Integers, Integers]:
    """Times that at least one interval covers, without overlaps."""
    order = np.argsort(begins, kind="stable")
    begins, ends = begins[order], np.maximum.accumulate(ends[order])
    opens = np.append(True, begins[1:] > ends[:-1]) if len(begins) else np.zeros(0, np.bool_)
    return begins[opens], ends[np.append(opens[1:], True)] if len(begins) else ends
