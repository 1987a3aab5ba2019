"""Worker thread slots over time: how many are busy, and why the other slots are free."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

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
from roastcoffea.metrics.statistics import (
    MICROSECONDS,
    Axes,
    Flags,
    Groups,
    Integers,
    Numbers,
    level_before,
    order_of,
    union,
)
from roastcoffea.records.workers import KINDS, MERGE, OTHER, PREPROCESSING, PROCESSOR

TAIL_OF: Final = (PROCESSOR, MERGE, PREPROCESSING, OTHER)
"""Task kinds that idle slots may be waiting for in the tail, in order of precedence."""

CLIENT_OF: Final = ("before", "between", "after")
"""Periods without tasks: before the first task, between tasks, and after the last task."""

BLOCK: Final = 20_000
"""Number of attempts or times to process at once, which limits memory use."""


class Moments(NamedTuple):
    """Times of task attempts in seconds, all on the same clock.

    Each array has one element per attempt. `worker` is a zero-based index, and `kind` is an index into
    `records.workers.KINDS`. An attempt's times increase in the order of these fields.
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
    """Periods during which a worker is present, and the number of threads it provides.

    Workers are numbered as in `Moments`. Pauses have the same form, with `threads` equal to 1.
    """

    worker: Integers
    start: Numbers
    stop: Numbers
    threads: Integers


Levels = npt.NDArray[np.int32]


class _Changes(NamedTuple):
    worker: Integers
    time: Integers
    change: Levels


class Slots(NamedTuple):
    """Thread time of free slots, by cause.

    `seconds` contains the thread time for each cause, by row and bin. `tail_of` breaks down the tail by `TAIL_OF`,
    and `client_of` breaks down the client's time by `CLIENT_OF`. `beyond` is the busy time beyond what a worker's
    thread count or lifetime allows.
    """

    seconds: dict[str, Numbers]
    tail_of: dict[str, float]
    client_of: dict[str, float]
    beyond: float


def _of(part: Any, workers: Flags) -> Any:
    rows = workers[part.worker]
    return part._make(column[rows] for column in part)


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
    """Divide idle time by cause.

    At each moment, a worker's free slots are matched first with its ready tasks, then with tasks that are waiting for
    their inputs, and then with assignments and reports in flight. While the worker's `first` task is overdue, all of
    these slots count as start-up. A paused worker neither starts nor fetches anything, so all of its free slots count
    as paused, and other workers could run its ready tasks. Slots that are free during `gaps` count as unknown.

    The remaining slots of all workers are matched with tasks that are queued on the scheduler, and then with ready
    tasks whose own worker has no slot for them (the surplus). All other slots are attributed to the tail if a task is
    on a worker or in flight, and otherwise to the client. The time for each cause is divided among the workers in
    proportion to their free slots. Only workers with the same number in `together` are pooled.
    """
    seconds = {cause: np.zeros((axes.rows, axes.bins)) for cause in (*IDLE, STARTUP, UNRECORDED)}
    beyond, left, surplus = 0.0, [], []
    of_workers, begin = Groups(attempts.worker, max(len(together), 1)), 0
    ends = np.cumsum(of_workers.sizes)
    for number in np.unique(ends // BLOCK):
        own = ends // BLOCK == number
        rows, begin = of_workers.order[begin : ends[own][-1]], ends[own][-1]
        spans = [_of(each, own) for each in (presence, pauses, first, gaps)]
        of_block = _fill([column[rows] for column in (attempts.worker, *attempts[2:8])], spans, axes, seconds)
        left.append(of_block[0])
        surplus.append(of_block[1])
        beyond += of_block[2]
    free, ready = (_Changes(*map(np.concatenate, zip(*each, strict=True))) for each in (left, surplus))
    left.clear()
    surplus.clear()
    waits = np.zeros(len(TAIL_OF) + len(CLIENT_OF))
    groups = np.unique(together)
    for number in groups:
        parts, rows, where = (attempts, free, ready), np.arange(axes.rows), axes
        if len(groups) > 1:
            # workers in a group could take over each other's tasks; a single group is not copied
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


HALF: Final = 32
"""Bits of a level. Adding up two levels at once takes half the time."""

CHANGES: Final = np.array(
    # assigned, arrived, ready, start, stop, seen; presence, a pause, a gap
    (
        (0, 0, 0, 1, -1, 0, 0),  # busy
        (0, 0, 1, -1, 0, 0, 0),  # ready
        (0, 1, -1, 0, 0, 0, 0),  # arriving
        (1, -1, 0, 0, 1, -1, 0),  # in flight
    ),
    np.int64,
)
"""Changes in a worker's levels at each event of an attempt."""

PAIRS: Final = CHANGES[::2] + (CHANGES[1::2] << HALF)


def _both(pairs: Integers) -> tuple[Levels, Levels]:
    """The two levels of a pair."""
    low = pairs.astype(np.int32)  # the lower bits, with their sign
    return low, ((pairs - low) >> HALF).astype(np.int32)


def _fill(
    attempts: Sequence[Any], of_workers: Sequence[Presence], axes: Axes, seconds: dict[str, Numbers]
) -> tuple[_Changes, _Changes, float]:
    """Add up the time for each cause within each worker.

    `attempts` contains the workers of attempts, and the moments from `assigned` to `seen`. Returns the changes in
    remaining free slots, the changes in surplus ready tasks, and the busy time beyond what the number of threads
    allows.
    """
    of_attempts, *moments_of = attempts
    times = [(of_attempts, moments) for moments in moments_of]
    times += [(spans.worker, moments) for spans in of_workers for moments in (spans.start, spans.stop)]
    # each key combines a worker, a time (in as many bits as the run needs), and three bits for the kind of change
    bits = int(axes.edges[-1]).bit_length()
    edges = [of << bits | axes.microseconds(moments) for of, moments in times]
    keys = np.concatenate([edge << 3 | min(kind, 6) for kind, edge in enumerate(edges)])
    keys.sort()
    kind, places = keys & 7, keys >> 3
    last = np.diff(places, append=-1) != 0
    places = places[last]
    (busy, ready), (arriving, in_flight) = (_both(np.cumsum(pair[kind])[last]) for pair in PAIRS)
    levels = np.zeros((len(of_workers), len(places)), np.int32)
    for number, edge in enumerate(edges[6:]):
        threads = of_workers[number // 2].threads
        np.add.at(levels[number // 2], np.searchsorted(places, edge), -threads if number % 2 else threads)
    present, paused, starting, unrecorded = np.cumsum(levels, axis=1, out=levels)
    worker, time = places >> bits, places & (1 << bits) - 1
    bins = axes.bin(time)
    where, left = axes.row[worker] * axes.bins + bins, axes.edges[bins + 1] - time

    def changes(amounts: Levels) -> tuple[Integers, Levels]:
        # each worker's sum ends at 0, so the next worker's sum starts from 0
        change = np.diff(amounts, prepend=np.int32(0))
        at = np.flatnonzero(change)
        return at, change[at]

    def count(cause: str, amounts: Levels) -> None:
        if amounts.any():
            at, change = changes(amounts)
            within = axes.sums(where[at], change * left[at])
            seconds[cause] += within + level_before(axes.sums(where[at], change)) * np.diff(axes.edges)

    def remaining(amounts: Levels) -> _Changes:
        at, change = changes(amounts)
        return _Changes(worker[at], time[at], change)

    free = np.maximum(present - busy, 0)
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
    beyond = float(np.maximum(busy - present, 0) @ np.diff(time, append=0))
    return remaining(able), remaining(surplus), beyond


def _share(attempts: Moments, left: _Changes, surplus: _Changes, axes: Axes) -> tuple[Numbers, Numbers]:
    """Divide all workers' remaining free slot time by cause, and break down tail and client time.

    At each moment, a cause takes a share of all free slots. The integral of this share over time acts as a clock: a
    worker's time for the cause is the number of its free slots multiplied by the advance of the clock. An event is a
    change in the number of free slots, surplus ready tasks or queued tasks, a change in what idle slots wait for, or a
    bin edge.
    """
    marks, waits = _waits(attempts, axes)
    runnable, assigned = axes.microseconds(attempts.runnable), axes.microseconds(attempts.assigned)
    queued = np.concatenate([moments[runnable < assigned] for moments in (runnable, assigned)])
    ready_at, ready_change = _while_free(left, surplus.time, surplus.change)
    queued_at, queued_change = _while_free(left, queued, np.repeat(np.array([1, -1], np.int32), len(queued) // 2))
    kinds = (left.time, ready_at, queued_at, marks, axes.edges)
    times, ends = np.concatenate(kinds), np.cumsum([len(kind) for kind in kinds])
    slots, tasks = np.zeros((2, len(times)), np.int64)
    slots[: ends[1]] = np.concatenate([left.change, ready_change << HALF])
    tasks[ends[1] : ends[2]] = queued_change
    order = order_of(times)
    by_wait = np.zeros(len(TAIL_OF) + len(CLIENT_OF))
    free_slots, behind = np.zeros((axes.rows, axes.bins)), np.zeros((4, axes.rows, axes.bins))
    at_edges, clocks, level = np.zeros((4, axes.bins + 1)), np.zeros((4, 1)), np.zeros((2, 1), np.int64)
    for begin in range(0, len(order), BLOCK):
        index = order[begin : begin + BLOCK]
        time, sort = times[index], np.searchsorted(ends, index, side="right")
        lasting = np.diff(time, append=times[order[min(begin + BLOCK, len(order) - 1)]])
        levels = level + np.cumsum([slots[index], tasks[index]], axis=1)
        level, (free, ready), waiting = levels[:, -1:], _both(levels[0]), levels[1]
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


def _while_free(left: _Changes, times: Integers, change: Levels) -> tuple[Integers, Integers]:
    """Changes at times when slots are free. All others are added up until the next change in the number of free slots.

    While no slot is free, levels have no effect. This is most of the time in a large run.
    """
    order = order_of(left.time)
    following, free = left.time[order], np.append(0, np.cumsum(left.change[order]))
    place = np.searchsorted(following, times, side="right")
    counts = free[place] > 0
    later = np.bincount(place[~counts], change[~counts], len(free)).astype(np.int64)[:-1]
    at = np.flatnonzero(later)
    return np.append(times[counts], following[at]), np.append(change[counts].astype(np.int64), later[at])


def _waits(attempts: Moments, axes: Axes) -> tuple[Integers, Integers]:
    """Times at which the reason for idle slots changes, and the new reasons as indices into (*TAIL_OF, *CLIENT_OF)."""
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
