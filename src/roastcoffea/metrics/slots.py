"""Thread slots of workers over time: how many are busy, and why the free ones are, counted moment by moment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from roastcoffea.metrics.statistics import Numbers

Counts = npt.NDArray[np.int64]

TRANSFER: Final = "transfer"
WORKER: Final = "worker"
ON_THE_WAY: Final = "on the way"
QUEUED: Final = "idle: queued"
PLACEMENT: Final = "idle: placement"
TAIL: Final = "idle: tail"
CLIENT: Final = "idle: client"
CAUSES: Final = (TRANSFER, WORKER, ON_THE_WAY, QUEUED, PLACEMENT, TAIL, CLIENT)
"""Why a slot is free."""

MICROSECONDS: Final = 1_000_000
TIME_BITS: Final = 44
"""Microseconds that fit beside the number of a worker: half a year."""

LEVELS: Final = ("busy", "ready", "arriving", "way", "threads")
EDGES: Final = {
    "assigned": (0, 0, 0, 1, 0),
    "arrived": (0, 0, 1, -1, 0),
    "ready": (0, 1, -1, 0, 0),
    "start": (1, -1, 0, 0, 0),
    "stop": (-1, 0, 0, 1, 0),
    "seen": (0, 0, 0, -1, 0),
}
"""How the levels of a worker change at each moment of an attempt."""


class Moments(NamedTuple):
    """Moments of attempts of tasks in seconds (one clock), each array as long as there are attempts.

    `worker` is a number from 0. None of the moments comes before the one that precedes it here.
    """

    worker: Counts
    runnable: Numbers
    assigned: Numbers
    arrived: Numbers
    ready: Numbers
    start: Numbers
    stop: Numbers
    seen: Numbers


class Presence(NamedTuple):
    """Workers: `worker` is the number that attempts use; from start to stop it offers so many threads."""

    worker: Counts
    start: Numbers
    stop: Numbers
    threads: Counts


@dataclass(frozen=True, slots=True)
class Slots:
    """What free slots waited for.

    `seconds` has for each cause the thread seconds by worker; `beyond` are busy seconds beyond the worker's threads, or
    while it was not there.
    """

    seconds: dict[str, Numbers]
    beyond: float


def idle_slots(attempts: Moments, presence: Presence, start: float, stop: float) -> Slots:
    """Causes of idleness between start and stop of the run.

    At each moment the free slots of a worker are filled with its tasks that are ready, then those that wait for their
    inputs, then assignments and reports on their way. What is left over all workers is counted against the tasks that
    wait at the scheduler, then against ready tasks on other workers; the rest is the tail while any task is on a worker
    or on its way, and the client's otherwise. Workers share each cause in proportion to their free slots.
    """
    steps = _steps(attempts, presence, start, stop)
    free = np.maximum(steps.threads - steps.busy, 0)
    seconds: dict[str, Numbers] = {}
    workers = int(presence.worker.max(initial=-1)) + 1
    left = free
    for cause, waiting in ((WORKER, steps.ready), (TRANSFER, steps.arriving), (ON_THE_WAY, steps.way)):
        filled = np.minimum(left, waiting)
        seconds[cause] = _per_worker(steps, filled * steps.lasting, workers)
        left = left - filled
    surplus = steps.ready - np.minimum(free, steps.ready)
    queue = _microseconds(attempts.runnable, start, stop), _microseconds(attempts.assigned, start, stop)
    seconds |= _shared_causes(steps, left, surplus, queue, workers)
    beyond = int((np.maximum(steps.busy - steps.threads, 0) * steps.lasting).sum()) / MICROSECONDS
    return Slots({cause: seconds[cause] for cause in CAUSES}, beyond)


class _Steps(NamedTuple):
    """Levels of workers, worker by worker, from each moment at which one changes to the next."""

    worker: Counts
    time: Counts
    lasting: Counts
    busy: Counts
    ready: Counts
    arriving: Counts
    way: Counts
    threads: Counts


def _steps(attempts: Moments, presence: Presence, start: float, stop: float) -> _Steps:
    edges = len(EDGES) * len(attempts.worker) + 2 * len(presence.worker)
    keys, kinds = np.empty(edges, np.int64), np.empty(edges, np.int8)
    at = 0
    for kind, name in enumerate(EDGES):
        place = slice(at, at := at + len(attempts.worker))
        keys[place] = attempts.worker << TIME_BITS | _microseconds(getattr(attempts, name), start, stop)
        kinds[place] = kind
    changes = np.array([*EDGES.values(), *(np.zeros((2, len(LEVELS)), int).tolist())])
    threads = np.zeros(edges, np.int64)
    for sign, moments in ((1, presence.start), (-1, presence.stop)):
        place = slice(at, at := at + len(presence.worker))
        keys[place] = presence.worker << TIME_BITS | _microseconds(moments, start, stop)
        kinds[place] = len(EDGES)
        threads[place] = sign * presence.threads
    order = np.argsort(keys)
    keys, kinds = keys[order], kinds[order]
    last = np.append(keys[1:] != keys[:-1], True) if edges else np.zeros(0, np.bool_)
    levels = [np.cumsum(changes[:, level][kinds])[last] for level in range(len(LEVELS) - 1)]
    levels.append(np.cumsum(threads[order])[last])
    keys = keys[last]
    worker, time = keys >> TIME_BITS, keys & ((1 << TIME_BITS) - 1)
    lasting = np.zeros(len(keys), np.int64)
    lasting[:-1] = np.where(worker[1:] == worker[:-1], np.diff(time), 0)
    return _Steps(worker, time, lasting, *levels)


def _shared_causes(
    steps: _Steps, free: Counts, surplus: Counts, queue: tuple[Counts, Counts], workers: int
) -> dict[str, Numbers]:
    """Causes that are counted over all workers."""
    moments = np.concatenate([steps.time, *queue])
    order = np.argsort(moments, kind="stable")
    moments = moments[order]
    last = np.append(moments[1:] != moments[:-1], True) if len(moments) else np.zeros(0, np.bool_)
    places = np.empty(len(order), np.int64)
    places[order] = np.cumsum(last) - last
    nothing = np.zeros(len(queue[0]), np.int64)
    waiting = np.concatenate([np.zeros(len(steps.time), np.int64), nothing + 1, nothing - 1])

    def level(changes: Counts) -> Counts:
        return np.asarray(np.cumsum(changes[order])[last])

    def over_workers(amounts: Counts) -> Counts:
        return level(np.concatenate([_changes(steps, amounts), nothing, nothing]))

    total, ready, queued = over_workers(free), over_workers(surplus), level(waiting)
    active = over_workers(steps.busy + steps.ready + steps.arriving + steps.way)
    times = moments[last]
    counts = {QUEUED: np.minimum(total, queued)}
    counts[PLACEMENT] = np.minimum(total - counts[QUEUED], ready)
    rest = total - counts[QUEUED] - counts[PLACEMENT]
    counts[TAIL] = np.where(active > 0, rest, 0)
    counts[CLIENT] = rest - counts[TAIL]
    step_places = places[: len(steps.time)]
    return {
        cause: _shared(steps, free, times, count / np.maximum(total, 1), step_places, workers)
        for cause, count in counts.items()
    }


def _changes(steps: _Steps, amounts: Counts) -> Counts:
    """Change of an amount at each step of its worker."""
    changes = amounts.copy()
    changes[1:] -= np.where(steps.worker[1:] == steps.worker[:-1], amounts[:-1], 0)
    return changes


def _shared(  # noqa: PLR0917
    steps: _Steps, free: Counts, times: Counts, share: Numbers, places: Counts, workers: int
) -> Numbers:
    """Thread seconds of each worker, of whose free slots a share counts from each of these times to the next.

    `places` has for each step which of the times is its own; a step lasts until the next one of its worker.
    """
    integral = np.zeros(len(times))
    integral[1:] = np.cumsum(share[:-1] * np.diff(times))
    reached = integral[places]
    counted = np.zeros(len(reached))
    counted[:-1] = np.where(steps.lasting[:-1] > 0, np.diff(reached), 0.0)
    return _per_worker(steps, free * counted, workers)


def _per_worker(steps: _Steps, amounts: npt.NDArray[np.generic], workers: int) -> Numbers:
    return np.bincount(steps.worker, weights=amounts, minlength=workers) / MICROSECONDS


def _microseconds(moments: Numbers, start: float, stop: float) -> Counts:
    """Time since the start of the run, within it."""
    return np.rint((np.clip(moments, start, stop) - start) * MICROSECONDS).astype(np.int64)
