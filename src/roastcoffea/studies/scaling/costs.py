"""Thread time of a run by what limits it, for each worker, and with the time in which workers were absent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from roastcoffea.measurement import Measurement
from roastcoffea.metrics import phases
from roastcoffea.metrics.catalogue import NotMeasuredError
from roastcoffea.metrics.phases import Family
from roastcoffea.metrics.statistics import Numbers
from roastcoffea.metrics.worker_names import known_names
from roastcoffea.records.tasks import PROCESSOR

if TYPE_CHECKING:
    import pandas as pd

BINS: Final = 500
"""Bins of the timeline that tells a slow client from a tail."""


@dataclass(frozen=True, slots=True)
class Limit:
    """Something that keeps threads from useful work.

    The time of `classes` in the time ledger is lost altogether, or, if it `grows`, as far as it exceeds that of the run
    with the least of it per event.
    """

    name: str
    family: Family
    classes: tuple[str, ...]
    grows: bool = False


STORAGE: Final = "storage"
BANDWIDTH: Final = "storage bandwidth"
LATENCY: Final = "storage latency"
COLD: Final = "cold cache"
SCHEDULER: Final = "scheduler"
RESULTS: Final = "merging and transfer"
CLIENT: Final = "client"
TAIL: Final = "tail"
STARTUP: Final = "start-up"
LATE: Final = "late workers"
NODES: Final = "slow hosts"
CONTENTION: Final = "contention"
SERVICES: Final = "waiting for services"
FAILURES: Final = "failures"
MEMORY: Final = "memory"
TASKS: Final = "task overhead"
PREPROCESSING: Final = "preprocessing"
OTHERS: Final = "other users' tasks"
UNACCOUNTED: Final = "unaccounted"

CPU: Final = (phases.COMPUTE, phases.DECOMPRESS, phases.INTERPRET)
SCHEDULING: Final = (phases.IN_FLIGHT, phases.WORKER_OVERHEAD, phases.QUEUED, phases.MISPLACED)
UNKNOWN: Final = (phases.UNRECORDED, phases.RESIDUAL)

LIMITS: Final = (
    Limit(STORAGE, phases.READING, (phases.READ, phases.OPEN), grows=True),
    Limit(SCHEDULER, phases.HANDLING, SCHEDULING),
    Limit(RESULTS, phases.HANDLING, (phases.MERGE, phases.TRANSFER)),
    Limit(CLIENT, phases.IDLING, (phases.CLIENT,)),
    Limit(TAIL, phases.IDLING, (phases.TAIL,)),
    Limit(STARTUP, phases.OPENING, (phases.STARTUP,)),
    Limit(LATE, phases.IDLING, ()),
    Limit(NODES, phases.TROUBLE, ()),
    Limit(CONTENTION, phases.TROUBLE, (phases.CONTENTION, phases.LOCK)),
    Limit(SERVICES, phases.TROUBLE, (phases.BLOCKED, phases.WAIT), grows=True),
    Limit(FAILURES, phases.TROUBLE, (phases.FAILED,)),
    Limit(MEMORY, phases.TROUBLE, (phases.PAUSED,)),
    Limit(TASKS, phases.HANDLING, (phases.OVERHEAD, phases.CHECKPOINT), grows=True),
    Limit(PREPROCESSING, phases.OPENING, (phases.PREPROCESSING,), grows=True),
    Limit(OTHERS, phases.TROUBLE, (phases.OTHER_TASKS,)),
    Limit(UNACCOUNTED, phases.IDLING, UNKNOWN),
)
"""What can limit a run; every class of the time ledger is in one of them, or is CPU time."""

WORK: Final = "CPU time"
"""Time of the classes in CPU; what it grows by is contention for hosts."""

FAMILIES: Final[Mapping[str, Family]] = {
    **{limit.name: limit.family for limit in LIMITS},
    **dict.fromkeys((BANDWIDTH, LATENCY, COLD), phases.READING),
}


@dataclass(frozen=True, slots=True, eq=False)
class Costs:
    """Thread seconds of one run by limit, an amount for each worker; they add up to all threads for the whole run."""

    seconds: Mapping[str, Numbers]
    slow: Mapping[str, float]
    """Slow hosts or workers, with the factor by which their chunks take longer."""
    absent: float
    """Mean seconds for which a worker was absent."""
    before: float
    after: float
    """Seconds before the first task and after the last one."""


def costs_of(measurement: Measurement) -> Costs:
    """Thread seconds by limit; the measurement has a time ledger."""
    ledger = measurement.time_ledger
    frame = ledger.by("worker")
    empty = np.zeros(len(frame))
    seconds = {limit.name: sum((_column(frame, name) for name in limit.classes), empty) for limit in LIMITS}
    seconds[WORK] = sum((_column(frame, name) for name in CPU), empty)
    _split_tail(seconds, measurement)
    slow = _split_slow(seconds, frame, measurement)
    absent = _absent(measurement, frame)
    seconds[LATE] = absent
    idle, threads = ledger.client_of, sum(_threads(measurement).values())
    before, after = (idle.get(when, 0.0) / max(threads, 1) for when in ("before", "after"))
    return Costs(seconds, slow, float(absent.sum()) / max(threads, 1), before, after)


def _column(frame: pd.DataFrame, name: str) -> Numbers:
    return np.asarray(frame[name].to_numpy(np.float64)) if name in frame else np.zeros(len(frame))


def _threads(measurement: Measurement) -> dict[str, int]:
    lives = measurement.lifetimes
    return dict(zip(lives["worker"], lives["threads"], strict=True))


# Idle time with nothing to run: a tail, merging, or a client that is slow to submit


def _split_tail(seconds: dict[str, Numbers], measurement: Measurement) -> None:
    """Move what waits for merges to results, and what waits for the client to submit more to the client."""
    tail, ledger = seconds[TAIL], measurement.time_ledger
    total = float(tail.sum())
    if not total:
        return
    starved = min(_starved(measurement) / total, 1.0)
    merges = (1 - starved) * ledger.tail_of.get("merge", 0.0) / total
    seconds[CLIENT] = seconds[CLIENT] + starved * tail
    seconds[RESULTS] = seconds[RESULTS] + merges * tail
    seconds[TAIL] = (1 - starved - merges) * tail


def _starved(measurement: Measurement) -> float:
    """Seconds of the tail while the client still submitted chunks."""
    windows = list(_submitting(measurement))
    return _tail_within(measurement, windows) if windows else 0.0


def _tail_within(measurement: Measurement, windows: Sequence[tuple[float, float]]) -> float:
    """Seconds of the tail within these times."""
    try:
        lines = measurement.time_ledger.timeline(BINS)
    except NotMeasuredError:
        return 0.0
    left = lines.index.to_numpy(np.float64)
    right = left + lines["seconds"].to_numpy()
    inside = sum(np.clip(np.minimum(right, stop) - np.maximum(left, start), 0.0, None) for start, stop in windows)
    return float((lines[phases.TAIL].to_numpy() * inside).sum())


def _submitting(measurement: Measurement) -> Iterator[tuple[float, float]]:
    """Times from the first chunk that a Runner call submitted to the last one."""
    if measurement.run.tasks is None:
        return
    tasks = measurement.tasks
    tasks = tasks[(tasks["kind"] == PROCESSOR) & (tasks["attempt"].fillna(1) == 1)]
    runnable = tasks["runnable"].dropna().to_numpy(np.float64)
    for call in measurement.run.calls:
        inside = runnable[(runnable >= call.start) & (runnable <= (call.stop or np.inf))]
        if len(inside):
            yield float(inside.min()), float(inside.max())


# Slow hosts and workers, and absent ones


def _split_slow(seconds: dict[str, Numbers], frame: pd.DataFrame, measurement: Measurement) -> dict[str, float]:
    """Move what slow hosts and workers take longer, and the tail that they alone make; return how slow they are."""
    slow = {one.name: one for one in _slow(measurement)}
    if not slow:
        return {}
    hosts, shares = measurement.time_ledger.hosts, np.zeros(len(frame))
    for place, worker in enumerate(frame.index):
        factors = [slow[name].factor for name in (worker, hosts.get(worker)) if name in slow]
        shares[place] = 1 - 1 / float(np.prod(factors)) if factors else 0.0
    others = [worker for worker, share in zip(frame.index, shares, strict=True) if not share]
    moved = dict.fromkeys((WORK, STORAGE, SERVICES), shares) | {TAIL: _after(measurement, others, seconds[TAIL])}
    seconds[NODES] = sum((share * seconds[name] for name, share in moved.items()), np.zeros(len(frame)))
    for name, share in moved.items():
        seconds[name] = (1 - share) * seconds[name]
    names = known_names(measurement.metrics.evaluator)
    return {names.in_text(name): one.factor for name, one in slow.items()}


def _after(measurement: Measurement, workers: list[str], tail: Numbers) -> Numbers:
    """Share of the tail after the last chunk of these workers."""
    run, total = measurement.run, float(tail.sum())
    chunks = measurement.chunks
    ends = chunks[chunks["worker"].isin(workers)]["stop"].dropna()
    if not total or not len(ends):
        return np.zeros(len(tail))
    return np.full(len(tail), min(_tail_within(measurement, [(float(ends.max()), run.stop)]) / total, 1.0))


def _slow(measurement: Measurement) -> Iterator[Any]:
    try:
        found = measurement.metrics.evaluator.value("slowness").slow
    except NotMeasuredError:
        return
    yield from (one for one in found if one.kind in {"host", "worker"})


def _absent(measurement: Measurement, frame: pd.DataFrame) -> Numbers:
    """Thread seconds in which workers were absent, so that all add up to the most workers for the whole run."""
    ledger, metrics, threads = measurement.time_ledger, measurement.metrics, _threads(measurement)
    elapsed = metrics["elapsed_time_seconds"]
    capacity = np.array([ledger.capacity[worker] for worker in frame.index])
    each = np.array([threads.get(worker, 1) for worker in frame.index]) * elapsed - capacity
    offered = metrics["peak_workers"] * metrics["cores_per_worker"] * elapsed
    missing, own = max(offered - capacity.sum(), 0.0), np.clip(each, 0.0, None)
    return np.asarray(own * (missing / own.sum() if own.sum() else 0.0))
