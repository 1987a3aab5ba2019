"""Shares of thread time that limits take, by number of workers; rates of reading, and what limits a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from scipy.optimize import nnls

from roastcoffea.measurement import Measurement
from roastcoffea.metrics import phases
from roastcoffea.metrics.catalogue import NotMeasuredError
from roastcoffea.metrics.facts import known_names
from roastcoffea.metrics.phases import Family
from roastcoffea.metrics.statistics import Numbers
from roastcoffea.records.tasks import PROCESSOR
from roastcoffea.studies.scaling.laws import INTERVAL, SEED, Loop, Pace, Scaled

if TYPE_CHECKING:
    import pandas as pd


MOST_CHUNKS: Final = 4000
"""Chunks from which waiting is fitted."""

READING_RESAMPLES: Final = 100
READING_SEED: Final = 2


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """Waiting for storage of one run, per chunk: what goes with requests, and what with bytes, and possible others."""

    chunks: int
    bytes: float
    requests: float | None
    seconds: float
    """Waiting for storage, summed."""
    of_requests: Numbers
    of_bytes: Numbers


def reading_of(measurement: Measurement) -> Reading | None:
    """Reading of a run; None if it was not measured."""
    chunks = measurement.chunks
    chunks = chunks[chunks["outcome"] == "ok"]
    chunks = chunks[chunks["read_seconds"].notna() & chunks["bytes_requested"].notna()]
    if not len(chunks):
        return None
    wait, traits, own = _observed(chunks)
    fits = _fits(wait, traits)
    mean = traits.sum(axis=0) / len(own)
    requests = float(chunks["requests"].sum()) if chunks["requests"].notna().all() else None
    parts = fits * mean
    total = float(chunks["bytes_requested"].sum())
    return Reading(len(chunks), total, requests, float(wait.sum()), parts[:, 0] + parts[:, 1], parts[:, 2])


def _observed(chunks: pd.DataFrame) -> tuple[Numbers, Numbers, Numbers]:
    """Waits; one, requests and bytes of each; and the chunk of each: readings, and openings that wait."""
    if len(chunks) > MOST_CHUNKS:
        chunks = chunks.sample(MOST_CHUNKS, random_state=READING_SEED)
    opened, metadata = (chunks[name].fillna(0).to_numpy() for name in ("open_seconds", "bytes_metadata"))
    known = chunks["requests"].notna().all() and chunks["metadata_requests"].notna().all()
    before = chunks["metadata_requests"].to_numpy() if known else np.zeros(len(chunks))
    later = chunks["requests"].to_numpy() - before if known else np.zeros(len(chunks))
    one = np.ones(len(chunks))
    read = np.column_stack([one, later, chunks["bytes_requested"].to_numpy() - metadata])
    open_ = np.column_stack([one, before, metadata])
    waits = np.concatenate([chunks["read_seconds"].to_numpy(), opened])
    return waits.astype(np.float64), np.concatenate([read, open_]).astype(np.float64), one


def _fits(wait: Numbers, traits: Numbers) -> Numbers:
    """Coefficients that explain the waits, none negative: first of all chunks, then of resampled ones."""
    scale = np.maximum(traits.max(axis=0), 1e-300)
    random, half = np.random.default_rng(READING_SEED), len(wait) // 2
    found = [_fit(wait, traits / scale)]
    for _ in range(READING_RESAMPLES):
        picked = random.integers(half, size=half)
        rows = np.concatenate([picked, picked + half])
        found.append(_fit(wait[rows], traits[rows] / scale))
    return np.asarray(np.asarray(found) / scale, np.float64)


def _fit(wait: Numbers, traits: Numbers) -> Numbers:
    # by its normal equations, which are of three columns however many chunks there are
    square, right = traits.T @ traits, traits.T @ wait
    root = np.linalg.cholesky(square + 1e-9 * np.trace(square) * np.eye(len(square)))
    found, _ = nnls(root.T, np.linalg.solve(root, right))
    return np.asarray(found)


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


RESAMPLES: Final = 200

GROWING: Final = (*(limit.name for limit in LIMITS if limit.grows), WORK)
"""Of these the excess over the least is lost, of the others everything."""


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """All that is known of a run."""

    scaled: Scaled
    start: float
    costs: Costs
    reading: Reading | None
    pace: Pace
    scheduler: Loop | None = None

    def per_event(self) -> dict[str, Numbers]:
        """Thread seconds per event of each limit: the measured ones, and those of resampled workers,
        each as much faster or slower as runs of such chunks can be."""
        random = np.random.default_rng([SEED, self.scaled.workers])
        many = max(len(amounts) for amounts in self.costs.seconds.values())
        weights = random.multinomial(many, np.full(many, 1 / many), RESAMPLES) if many else np.zeros((RESAMPLES, 0))
        all_of_it = np.vstack([np.ones(many), weights])
        all_of_it[1:] *= np.exp(self.scaled.scatter * random.standard_normal(RESAMPLES))[:, None]
        events = self.scaled.events
        return {
            name: np.asarray(all_of_it @ amounts / events, np.float64) for name, amounts in self.costs.seconds.items()
        }


@dataclass(frozen=True, slots=True, eq=False)
class Shares:
    """What limits take: arrays of sizes x (measured, resampled ...).

    `lost` are thread seconds per event; `ideal` are those without any limit. `cold` is the place of a size whose files
    were not in the cache, if there is one.
    """

    workers: Numbers
    lost: Mapping[str, Numbers]
    ideal: Numbers
    work: Numbers
    least: int
    """Place of the size with the least waiting for storage per event."""
    cold: int | None

    @property
    def total(self) -> Numbers:
        """All thread seconds per event."""
        return self.ideal + sum(self.lost.values(), np.zeros_like(self.ideal))

    def share(self, name: str) -> Numbers:
        """Share of all thread time that a limit takes."""
        return np.asarray(self.lost[name] / self.total)

    def useful_but_for(self, name: str) -> Numbers:
        """How many workers would be useful if this were the only limit."""
        return np.asarray(self.workers[:, None] * self.ideal / (self.ideal + self.lost[name]))

    def useful(self) -> Numbers:
        """How many workers are useful."""
        return np.asarray(self.workers[:, None] * self.ideal / self.total)


def shares_of(groups: Sequence[Sequence[Judged]]) -> Shares:
    """Shares of all sizes; `groups` have the runs of one size each, ascending."""
    costs = [[one.per_event() for one in group] for group in groups]
    cold = _cold(groups, costs)
    names = [*(limit.name for limit in LIMITS), WORK, COLD]
    mean = {name: np.array([_mean(group, name, place) for place, group in enumerate(costs)]) for name in names}
    # the least is found among the measured ones: else chance would make it less
    least = {name: int(np.argmin(mean[name][:, 0])) for name in GROWING}
    ideal = sum((mean[name][place] for name, place in least.items()), np.zeros(RESAMPLES + 1))
    lost = {
        name: np.clip(amounts - amounts[least[name]], 0.0, None) if name in GROWING else np.clip(amounts, 0.0, None)
        for name, amounts in mean.items()
    }
    # threads that take more CPU time for the same events get in each other's way
    lost[CONTENTION] = lost[CONTENTION] + lost.pop(WORK)
    workers = np.array([group[0].scaled.workers for group in groups], np.float64)
    return Shares(workers, lost, ideal, mean[WORK], least[STORAGE], cold)


def _mean(group: Sequence[Mapping[str, Numbers]], name: str, place: int) -> Numbers:
    """Mean over the runs of a size, and over resampled runs."""
    amounts = np.array([one.get(name, np.zeros(RESAMPLES + 1)) for one in group])
    picked = np.random.default_rng([SEED, place]).integers(len(group), size=(len(group), RESAMPLES + 1))
    picked[:, 0] = np.arange(len(group))
    return np.asarray(np.take_along_axis(amounts, picked, axis=0).mean(axis=0))


def _cold(groups: Sequence[Sequence[Judged]], costs: list[list[dict[str, Numbers]]]) -> int | None:
    """Find a first run that waited longer for the same bytes than one with as many workers or more.

    More streams cannot make each of them faster, a cache that has been filled can. Its excess moves out of storage.
    """
    every = [(run.start, size, place) for size, group in enumerate(groups) for place, run in enumerate(group)]
    first, size, place = min(every)
    if [start for start, _, _ in every].count(first) > 1:
        return None
    own = costs[size][place][STORAGE]
    others = [
        cost[STORAGE]
        for at, group in enumerate(costs[size:], start=size)
        for number, cost in enumerate(group)
        if (at, number) != (size, place)
    ]
    least = min(others, key=lambda other: float(other[0]), default=None)
    if least is None or np.quantile(own[1:], INTERVAL[0]) <= np.quantile(least[1:], INTERVAL[1]):
        return None
    costs[size][place] |= {COLD: np.clip(own - least, 0.0, None), STORAGE: np.minimum(own, least)}
    return size


def named_storage(shares: Shares, groups: Sequence[Sequence[Judged]]) -> tuple[Shares, Numbers | None]:
    """Shares with storage under the name of what it lacks; and the share of requests in what the waiting grew by."""
    lost = dict(shares.lost)
    grown = lost.pop(STORAGE)
    of_requests = _of_requests(groups, int(np.argmax(grown[:, 0] / shares.total[:, 0])), shares.least)
    name = LATENCY if of_requests is not None and of_requests[0] > 0.5 else BANDWIDTH
    return replace(shares, lost={name: grown} | lost), of_requests


def _of_requests(groups: Sequence[Sequence[Judged]], most: int, least: int) -> Numbers | None:
    """How much of what waiting per chunk grew by goes with requests; the rest goes with bytes."""
    now, before = (next((run.reading for run in groups[place] if run.reading), None) for place in (most, least))
    if now is None or before is None or most == least:
        return None
    requests = np.clip(now.of_requests - before.of_requests, 0.0, None)
    size = np.clip(now.of_bytes - before.of_bytes, 0.0, None)
    both = requests + size
    return np.asarray(np.where(both > 0, requests / np.where(both > 0, both, 1.0), 0.0))
