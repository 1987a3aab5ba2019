"""Thread slots of workers over time: how many are busy, and why the others are free, moment by moment."""

from __future__ import annotations

from collections.abc import Sequence
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
from roastcoffea.records.workers import KINDS, MERGE, OTHER, PREPROCESSING, PROCESSOR

TAIL_OF: Final = (PROCESSOR, MERGE, PREPROCESSING, OTHER)
"""What a tail waits for: the first of these kinds with a task on a worker or in flight."""

CLIENT_OF: Final = ("before", "between", "after")
"""Periods without any task: before the first one, between tasks, after the last one."""

BLOCK: Final = 100_000
"""Attempts and moments processed at once, which limits the memory."""


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


class _Changes(NamedTuple):
    """Changes of a worker's amount, with their times."""

    worker: Integers
    time: Integers
    change: Numbers


class Slots(NamedTuple):
    """Reasons for free slots.

    `seconds` has the thread seconds of each cause by row and bin. `tail_of` splits the tail by `TAIL_OF`, `client_of`
    the client's time by `CLIENT_OF`. `beyond` are busy seconds in excess of the worker's threads, or while it was
    absent.
    """

    seconds: dict[str, Numbers]
    tail_of: dict[str, float]
    client_of: dict[str, float]
    beyond: float


def _of(part: Any, workers: Flags) -> Any:
    """What is of some workers."""
    kept = workers[part.worker]
    return part._make(column[kept] for column in part)


def idle_slots(
    attempts: Moments,
    presence: Presence,
    pauses: Presence,
    axes: Axes,
    *,
    first: Presence,
    gaps: Presence,
    together: Integers,
) -> Slots:
    """Idle time by cause.

    At each moment the free slots of a worker are matched with its ready tasks, then with tasks that wait for their
    inputs, then with assignments and reports in flight; while its `first` task is overdue, all these are its start-up.
    A paused worker starts and fetches nothing: all its free slots are paused, and its ready tasks are a surplus for
    other workers. Of free slots in `gaps` nothing is known. The slots that remain over all workers are matched with
    tasks queued at the scheduler, then with the surplus of ready tasks; the rest is the tail while any task is on a
    worker or in flight, and the client's otherwise. Each cause is split between workers in proportion to their free
    slots. Workers with the same number in `together` count as all workers.
    """
    seconds = {cause: np.zeros((axes.rows, axes.bins)) for cause in (*IDLE, STARTUP, UNRECORDED)}
    beyond, left, surplus = 0.0, [], []
    block = np.cumsum(np.bincount(attempts.worker, minlength=max(len(together), 1))) // BLOCK
    for number in np.unique(block):
        own = block == number
        spans = [_of(each, own) for each in (presence, pauses, first, gaps)]
        of_block = _fill(_of(attempts, own), spans, axes, seconds)
        left.append(of_block[0])
        surplus.append(of_block[1])
        beyond += of_block[2]
    free, ready = (_Changes(*map(np.concatenate, zip(*each, strict=True))) for each in (left, surplus))
    waits = np.zeros(len(TAIL_OF) + len(CLIENT_OF))
    groups = np.unique(together)
    for number in groups:
        parts, rows, where = (attempts, free, ready), np.arange(axes.rows), axes
        if len(groups) > 1:
            # those that could take over each other's tasks; a single group's are not copied
            own = together == number
            rows, parts = np.unique(axes.row[own]), (_of(attempts, own), _of(free, own), _of(ready, own))
            where = axes._replace(row=np.searchsorted(rows, axes.row), rows=len(rows))
        shares, of_waits = _share(*parts, where)
        waits += of_waits
        for cause, amounts in zip((QUEUED, MISPLACED, TAIL, CLIENT), shares, strict=True):
            seconds[cause][rows] += amounts
    return Slots(
        {cause: amounts / MICROSECONDS for cause, amounts in seconds.items()},
        dict(zip(TAIL_OF, waits.tolist(), strict=False)),
        dict(zip(CLIENT_OF, waits[len(TAIL_OF) :].tolist(), strict=True)),
        beyond / MICROSECONDS,
    )


CHANGES: Final = (
    # busy, ready, arriving, in flight
    (0, 0, 0, 1),  # assigned
    (0, 0, 1, -1),  # arrived
    (0, 1, -1, 0),  # ready
    (1, -1, 0, 0),  # start
    (-1, 0, 0, 1),  # stop
    (0, 0, 0, -1),  # seen
    (0, 0, 0, 0),  # presence, a pause, a gap
)
"""How each moment of an attempt changes the levels of its worker."""


def _fill(
    attempts: Moments, of_workers: Sequence[Presence], axes: Axes, seconds: dict[str, Numbers]
) -> tuple[_Changes, _Changes, float]:
    """Count the causes within each worker; return the remaining free slots, the surplus of ready tasks, and busy time
    in excess of threads."""
    times: list[tuple[Integers, Any]] = [(attempts.worker, moments) for moments in attempts[2:8]]
    times += [(spans.worker, moments) for spans in of_workers for moments in (spans.start, spans.stop)]
    # a worker, a time of the run in as many bits as it needs, and three bits for the kind of change
    bits = int(axes.edges[-1]).bit_length()
    edges = [of << bits | axes.microseconds(moments) for of, moments in times]
    keys = np.concatenate([edge << 3 | min(kind, 6) for kind, edge in enumerate(edges)])
    keys.sort()
    kind, places = keys & 7, keys >> 3
    last = np.diff(places, append=-1) != 0
    places = places[last]
    busy, ready, arriving, in_flight = (np.cumsum(change[kind])[last] for change in np.array(CHANGES).T)
    levels = np.zeros((len(of_workers), len(places)), np.int64)
    for number, edge in enumerate(edges[6:]):
        threads = of_workers[number // 2].threads
        np.add.at(levels[number // 2], np.searchsorted(places, edge), -threads if number % 2 else threads)
    threads, paused, starting, unrecorded = np.cumsum(levels, axis=1)
    worker, time = places >> bits, places & (1 << bits) - 1

    def changes(amounts: Numbers | Integers) -> _Changes:
        # an amount is 0 at the end of each worker, so that the next one starts from 0
        change = np.diff(amounts, prepend=0)
        at = np.flatnonzero(change)
        return _Changes(worker[at], time[at], change[at])

    def count(cause: str, amounts: Numbers | Integers) -> None:
        of, times, change = changes(amounts)
        bins = axes.bin(times)
        where = axes.row[of] * axes.bins + bins
        within = axes.sums(where, change * (axes.edges[bins + 1] - times))
        seconds[cause] += within + level_before(axes.sums(where, change)) * np.diff(axes.edges)

    free = np.maximum(threads - busy, 0)
    known = np.where(unrecorded > 0, 0, free)
    able = np.where(paused > 0, 0, known)
    count(UNRECORDED, free - known)
    count(PAUSED, known - able)
    surplus = ready - np.minimum(able, ready)
    for cause, waiting in ((WORKER_OVERHEAD, ready), (TRANSFER, arriving), (IN_FLIGHT, in_flight)):
        filled = np.minimum(able, waiting)
        at_first = np.where(starting > 0, filled, 0)
        count(cause, filled - at_first)
        count(STARTUP, at_first)
        able = able - filled
    beyond = float(np.maximum(busy - threads, 0) @ np.diff(time, append=0))
    return changes(able), changes(surplus), beyond


def _share(attempts: Moments, left: _Changes, surplus: _Changes, axes: Axes) -> tuple[Numbers, Numbers]:
    """Time of each cause in the slots that remain over all workers; and the tail's and the client's by part.

    At each moment, a cause takes a share of all free slots. The integral of that share acts as a clock: a worker's time
    in that class is its free slots times the clock's advance. Events are changes of free slots, of surplus ready tasks
    and of queued tasks; moments without a change; and edges.
    """
    marks, waits = _waits(attempts, axes)
    runnable, assigned = axes.microseconds(attempts.runnable), axes.microseconds(attempts.assigned)
    queued = np.concatenate([moments[runnable < assigned] for moments in (runnable, assigned)])
    kinds = (left.time, surplus.time, queued, marks, axes.edges)
    times, ends = np.concatenate(kinds), np.cumsum([len(kind) for kind in kinds])
    changes = np.zeros(len(times), np.int32)
    changes[: ends[2]] = np.concatenate([left.change, surplus.change, np.repeat([1, -1], len(queued) // 2)])
    order = np.argsort(times, kind="stable")
    by_wait = np.zeros(len(TAIL_OF) + len(CLIENT_OF))
    free_slots, behind = np.zeros((axes.rows, axes.bins)), np.zeros((4, axes.rows, axes.bins))
    at_edges, clocks, levels = np.zeros((4, axes.bins + 1)), np.zeros((4, 1)), np.zeros((3, 1), np.int64)
    for begin in range(0, len(order), BLOCK):
        index = order[begin : begin + BLOCK]
        time, sort = times[index], np.searchsorted(ends, index, side="right")
        lasting = np.diff(time, append=times[order[min(begin + BLOCK, len(order) - 1)]])
        levels = levels[:, -1:] + np.cumsum(np.where(sort == np.arange(3)[:, None], changes[index], 0), axis=1)
        free, ready, waiting = levels
        wait = waits[np.searchsorted(marks, time, side="right") - 1]
        waiting = np.minimum(free, waiting)
        misplaced = np.minimum(free - waiting, ready)
        rest = free - waiting - misplaced
        tail = np.where(wait < len(TAIL_OF), rest, 0)
        by_wait += np.bincount(wait, rest * lasting, len(by_wait))
        advance = np.stack([waiting, misplaced, tail, rest - tail]) / np.maximum(free, 1) * lasting
        after = clocks + np.cumsum(advance, axis=1)
        clocks, clock = after[:, -1:], after - advance
        is_left, is_edge = sort == 0, sort == 4
        places = axes.row[left.worker[index[is_left]]] * axes.bins + axes.bin(time[is_left])
        change = left.change[index[is_left]]
        free_slots += axes.sums(places, change)
        at_edges[:, index[is_edge] - ends[3]] = clock[:, is_edge]
        behind += [axes.sums(places, change * each) for each in clock[:, is_left]]
    found = free_slots * at_edges[:, None, 1:] - behind + level_before(free_slots) * np.diff(at_edges)[:, None]
    return found, by_wait / MICROSECONDS


def _waits(attempts: Moments, axes: Axes) -> tuple[Integers, Integers]:
    """What everything waits for from each time on: the place in TAIL_OF, followed by those in CLIENT_OF."""
    assigned, seen = axes.microseconds(attempts.assigned), axes.microseconds(attempts.seen)
    kinds = [attempts.kind == KINDS.index(kind) for kind in TAIL_OF]
    covered = [union(assigned[kind], seen[kind]) for kind in kinds]
    marks = np.unique(np.concatenate([[0], *(moments for spans in covered for moments in spans)]))
    first, last = assigned.min(initial=axes.edges[-1]), seen.max(initial=-1)
    waits = len(TAIL_OF) + np.where(marks < first, 0, np.where(marks < last, 1, 2))
    for place in reversed(range(len(TAIL_OF))):
        begun, ended = (np.searchsorted(moments, marks, side="right") for moments in covered[place])
        waits[begun > ended] = place
    return marks, waits
