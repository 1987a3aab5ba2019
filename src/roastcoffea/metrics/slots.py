"""Thread slots of workers over time: how many are busy, and why the others are free, moment by moment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

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
    UNRECORDED,
    WORKER_OVERHEAD,
)
from roastcoffea.metrics.statistics import MICROSECONDS, Axes, Flags, Integers, Numbers, level_before, union
from roastcoffea.records.tasks import KINDS, MERGE, OTHER, PREPROCESSING, PROCESSOR

SHARED: Final = (QUEUED, MISPLACED, TAIL, CLIENT)
"""Classes counted over all workers, then split between them."""

TAIL_OF: Final = (PROCESSOR, MERGE, PREPROCESSING, OTHER)
"""What a tail waits for: the first of these kinds with a task on a worker or in flight."""

CLIENT_OF: Final = ("before", "between", "after")
"""Periods without any task: before the first one, between tasks, after the last one."""

TIME_BITS: Final = 44
"""Bits for microseconds next to a worker and an edge kind: half a year."""

KIND_BITS: Final = 3
MOST_WORKERS: Final = 1 << 63 - TIME_BITS - KIND_BITS
BLOCK: Final = 100_000
"""Attempts and moments processed at once, which limits the memory."""

EDGES: Final = {
    "assigned": (0, 0, 0, 1),
    "arrived": (0, 0, 1, -1),
    "ready": (0, 1, -1, 0),
    "start": (1, -1, 0, 0),
    "stop": (-1, 0, 0, 1),
    "seen": (0, 0, 0, -1),
    "presence": (0, 0, 0, 0),
}
"""Changes of a worker's levels at each moment of an attempt; at the last entry, its threads or pauses change."""


class Moments(NamedTuple):
    """Moments of task attempts in seconds (one clock), one element per attempt.

    `worker` counts from 0, `kind` is an index into `records.tasks.KINDS`. The moments are in the order of these fields.
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
    """Workers, by the number that attempts use, and the threads that each offers from start to stop.

    Pauses have the same form, with 1 for `threads`.
    """

    worker: Integers
    start: Numbers
    stop: Numbers
    threads: Integers


NONE: Final = Presence(np.zeros(0, np.int64), np.zeros(0), np.zeros(0), np.zeros(0, np.int64))


@dataclass(frozen=True, slots=True)
class Slots:
    """Reasons for free slots.

    `seconds` has the thread seconds of each cause by row and bin. `tail_of` splits the tail by `TAIL_OF`, `client_of`
    the client's time by `CLIENT_OF`. `beyond` are busy seconds in excess of the worker's threads, or while it was
    absent.
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
    gaps: Presence = NONE,
    together: Integers | None = None,
) -> Slots:
    """Idle time by cause.

    At each moment the free slots of a worker are matched with its ready tasks, then with tasks that wait for their
    inputs, then with assignments and reports in flight; while its `first` task is overdue, all these are its start-up.
    A paused worker starts and fetches nothing: all its free slots are paused, and its ready tasks are a surplus for
    other workers. Of free slots in `gaps` nothing is known. The slots that remain over all workers are matched with
    tasks queued at the scheduler, then with the surplus of ready tasks; the rest is the tail while any task is on a
    worker or in flight, and the client's otherwise. Each cause is split between workers in proportion to their free
    slots. If `together` numbers the workers, those with the same number count as all workers.
    """
    seconds = {cause: np.zeros((axes.rows, axes.bins)) for cause in (*IDLE, STARTUP, UNRECORDED)}
    beyond = 0
    left, surplus = [], []
    for block in _blocks(attempts, presence):
        steps = _steps(attempts, (presence, pauses, first, gaps), block, axes)
        free, ready = _fill(steps, axes, seconds)
        left.append(_changes(steps, free))
        surplus.append(_changes(steps, ready))
        beyond += int((np.maximum(steps.busy - steps.threads, 0) * np.diff(steps.time, append=0)).sum())
    waits = np.zeros(len(TAIL_OF) + len(CLIENT_OF))
    for rows, group in _groups((attempts, _joined(left), _joined(surplus)), axes, together):
        shares, its_waits = _share(*group)
        waits += its_waits
        for cause, amounts in zip(SHARED, shares, strict=True):
            seconds[cause][rows] += amounts
    return Slots(
        {cause: amounts / MICROSECONDS for cause, amounts in seconds.items()},
        dict(zip(TAIL_OF, waits[: len(TAIL_OF)].tolist(), strict=True)),
        dict(zip(CLIENT_OF, waits[len(TAIL_OF) :].tolist(), strict=True)),
        beyond / MICROSECONDS,
    )


# Worker by worker


_Block = tuple[int, int, Integers]
"""First worker of a block, the one after its last, and the places of their attempts."""


class _Steps(NamedTuple):
    """Levels of each worker from one change to the next; they are all 0 at its end."""

    worker: Integers
    time: Integers
    busy: Integers
    ready: Integers
    arriving: Integers
    in_flight: Integers
    threads: Integers
    paused: Flags
    starting: Flags
    unrecorded: Flags


class _Changes(NamedTuple):
    """Changes of a worker's amount, with their times."""

    worker: Integers
    time: Integers
    change: Integers


def _blocks(attempts: Moments, presence: Presence) -> Iterator[_Block]:
    """Blocks of workers with about `BLOCK` attempts each."""
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
    busy, ready, arriving, in_flight = (np.cumsum(change[kind], dtype=np.int64)[last] for change in changes.T)
    places = places[last]
    threads, paused, starting, unrecorded = (_level(spans, places, axes) for spans in of_workers)
    worker, time = (places >> TIME_BITS) + first, places & ((1 << TIME_BITS) - 1)
    return _Steps(worker, time, busy, ready, arriving, in_flight, threads, paused > 0, starting > 0, unrecorded > 0)


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
    """Count the causes within a worker; return the remaining free slots and its surplus of ready tasks."""
    free = np.maximum(steps.threads - steps.busy, 0)
    known = np.where(steps.unrecorded, 0, free)
    _count(steps, free - known, axes, seconds[UNRECORDED])
    able = np.where(steps.paused, 0, known)
    _count(steps, known - able, axes, seconds[PAUSED])
    surplus = steps.ready - np.minimum(able, steps.ready)
    for cause, waiting in ((WORKER_OVERHEAD, steps.ready), (TRANSFER, steps.arriving), (IN_FLIGHT, steps.in_flight)):
        filled = np.minimum(able, waiting)
        at_first = np.where(steps.starting, filled, 0)
        _count(steps, filled - at_first, axes, seconds[cause])
        if at_first.any():
            _count(steps, at_first, axes, seconds[STARTUP])
        able = able - filled
    return able, surplus


def _changes(steps: _Steps, amounts: Integers) -> _Changes:
    """Changes of an amount; it is 0 at the end of each worker, so that the next one starts from 0."""
    changes = np.diff(amounts, prepend=0)
    at = np.flatnonzero(changes)
    return _Changes(steps.worker[at], steps.time[at], changes[at])


def _joined(parts: list[_Changes]) -> _Changes:
    return _Changes(*map(np.concatenate, zip(*parts, strict=True))) if parts else _Changes(*[np.zeros(0, np.int64)] * 3)


def _count(steps: _Steps, amounts: Integers, axes: Axes, seconds: Numbers) -> None:
    """Add the thread time of an amount (microseconds) to its rows and bins."""
    worker, time, change = _changes(steps, amounts)
    bins = axes.bin(time)
    places = axes.row[worker] * axes.bins + bins
    within = axes.sums(places, change * (axes.edges[bins + 1] - time))
    seconds += within + level_before(axes.sums(places, change)) * np.diff(axes.edges)


# Over all workers


def _groups(
    parts: tuple[Moments | _Changes, ...], axes: Axes, together: Integers | None
) -> Iterator[tuple[Integers, tuple[Any, ...]]]:
    """Rows of workers that could take over each other's tasks, and their parts; a single group's are not copied."""
    if together is None or len(numbers := np.unique(together)) < 2:
        yield np.arange(axes.rows), (*parts, axes)
        return
    for number in numbers:
        rows = np.unique(axes.row[together == number])
        own = [together[part.worker] == number for part in parts]
        of = (type(part)(*(column[some] for column in part)) for part, some in zip(parts, own, strict=True))
        yield rows, (*of, axes._replace(row=np.searchsorted(rows, axes.row), rows=len(rows)))


def _share(attempts: Moments, left: _Changes, surplus: _Changes, axes: Axes) -> tuple[Numbers, Numbers]:
    """Time of each of SHARED in the slots that remain over all workers; and the tail's and the client's by part.

    At each moment, a cause takes a share of all free slots. The integral of that share acts as a clock: a worker's time
    in that class is its free slots times the clock's advance.
    """
    marks, waits = _waits(attempts, axes)
    by_wait = np.zeros(len(TAIL_OF) + len(CLIENT_OF))
    free = np.zeros((axes.rows, axes.bins))
    behind = np.zeros((len(SHARED), axes.rows, axes.bins))
    at_edges, clocks = np.zeros((len(SHARED), axes.bins + 1)), np.zeros((len(SHARED), 1))
    for part in _parts(attempts, left, surplus, marks, axes):
        wait = waits[np.searchsorted(marks, part.time, side="right") - 1]
        amounts = _split(part, wait < len(TAIL_OF))
        by_wait += np.bincount(wait, amounts[2:].sum(axis=0) * part.lasting, len(by_wait))
        places = axes.row[left.worker[part.left]] * axes.bins + axes.bin(part.time[part.is_left])
        change = left.change[part.left]
        free += axes.sums(places, change)
        advance = amounts / np.maximum(part.free, 1) * part.lasting
        after = clocks + np.cumsum(advance, axis=1)
        clocks, clock = after[:, -1:], after - advance
        at_edges[:, part.edge] = clock[:, part.is_edge]
        behind += [axes.sums(places, change * each) for each in clock[:, part.is_left]]
    found = free * at_edges[:, None, 1:] - behind + level_before(free) * np.diff(at_edges)[:, None]
    return found, by_wait / MICROSECONDS


class _Part(NamedTuple):
    """Consecutive events: their times, the time until the next one, and the three levels after them.

    `left` maps the events that change free slots to these changes; `edge` does the same for edges.
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
    """Events in order of time, in parts of about `BLOCK`.

    Events are changes of free slots, of surplus ready tasks and of queued tasks; moments without a change; and edges.
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


def _split(part: _Part, active: Flags) -> Integers:
    """Free slots split by cause, in the order of SHARED."""
    waiting = np.minimum(part.free, part.queued)
    misplaced = np.minimum(part.free - waiting, part.ready)
    rest = part.free - waiting - misplaced
    return np.stack([waiting, misplaced, np.where(active, rest, 0), np.where(active, 0, rest)])


def _waits(attempts: Moments, axes: Axes) -> tuple[Integers, Integers]:
    """What everything waits for from each time on: the place in TAIL_OF, followed by those in CLIENT_OF."""
    assigned, seen = axes.microseconds(attempts.assigned), axes.microseconds(attempts.seen)
    kinds = [attempts.kind == KINDS.index(kind) for kind in TAIL_OF]
    covered = [union(assigned[kind], seen[kind]) for kind in kinds]
    marks = np.unique(np.concatenate([[0], *(moments for spans in covered for moments in spans)]))
    first, last = assigned.min(initial=axes.edges[-1]), seen.max(initial=-1)
    waits = len(TAIL_OF) + np.where(marks < first, 0, np.where(marks < last, 1, 2))
    for place, (begins, ends) in reversed(list(enumerate(covered))):
        open_spans = np.searchsorted(begins, marks, side="right") - np.searchsorted(ends, marks, side="right")
        waits[open_spans > 0] = place
    return marks, waits
