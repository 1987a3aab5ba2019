"""What limits a campaign: its thread time, from how many workers on, its rate, and what to change.

A class of the time ledger belongs to the limit that the diagnosis calls its cause; a few limits are wider than a cause.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Final, NamedTuple

import numpy as np
import pandas as pd
from scipy.optimize import nnls

from roastcoffea.measurement import Measurement
from roastcoffea.metrics import phases
from roastcoffea.metrics.catalogue import NotMeasuredError
from roastcoffea.metrics.facts import known_names
from roastcoffea.metrics.statistics import Numbers
from roastcoffea.records.workers import MERGE, PROCESSOR
from roastcoffea.replay.stages import only
from roastcoffea.sheets.sheet import Amount, Card, Cell, Column, Sheet, columns, drawn, segment
from roastcoffea.units import (
    BYTE_PER_SECOND,
    COUNT,
    FRACTION,
    GIGABIT_PER_SECOND,
    SECOND,
    Unit,
    alike,
    counted,
    number,
    suffixed,
    three_digits,
)

INTERVAL: Final = (0.025, 0.975)
SEED: Final = 1

SLOWER: Final = "more workers made it slower, which no serial fraction explains"
"""Why there is no law if the serial fraction would exceed 1."""


@dataclass(frozen=True, slots=True)
class Between:
    """A number and its 95 % interval, or None if there is no interval."""

    value: float
    low: float | None = None
    high: float | None = None

    @classmethod
    def of(cls, values: Numbers) -> Between:
        """The first value, with the interval of the others; without one if they are all equal."""
        if np.ptp(values[1:]) == 0:
            return cls(float(values[0]))
        return cls(float(values[0]), *np.quantile(values[1:], INTERVAL).tolist())

    def text(self, write: Callable[[float], str]) -> str:
        """The number, with its interval in brackets."""
        interval = "" if self.low is None or self.high is None else f" [{write(self.low)}, {write(self.high)}]"
        return f"{write(self.value)}{interval}"


@dataclass(frozen=True, slots=True)
class Point:
    """Runs with the same peak number of workers.

    `rate` is in events per second. `speedup` is relative to one worker, assuming that the smallest number scales
    perfectly; `efficiency` is the rate per worker, relative to the smallest number. `classes` are thread seconds per
    event, by class of the time ledger.
    """

    workers: int
    runs: int
    seconds: float
    events: float
    rate: Between
    speedup: Between
    efficiency: Between
    classes: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Law:
    """Rate of N workers: `rate` x N / (1 + `contention` (N - 1) + `coherency` N (N - 1)).

    Without coherency it is Amdahl's law, with it the universal scalability law (Gunther). `peak` is the number of
    workers with the highest rate, `worth` the largest number at which another one adds a tenth of the first one's rate;
    None means no limit. `deviation` is the largest relative distance of a point.
    """

    rate: float
    contention: Between
    coherency: Between
    peak: float | None
    worth: int | None
    worth_low: int | None
    worth_high: int | None
    deviation: float

    def speedup(self, workers: Numbers) -> Numbers:
        """Speed-up of this many workers."""
        return _speedup(workers, self.contention.value, self.coherency.value)


def laws_of(workers: Numbers, rates: Numbers, *, strong: bool) -> tuple[dict[str, Law], dict[str, str]]:
    """Laws by name, and why others are missing.

    Parameters
    ----------
    rates
        A row for each number of workers: the measured rate, and possible others.
    strong
        Whether all runs had the same work.
    """
    laws: dict[str, Law] = {}
    missing: dict[str, str] = {}
    for degree, name in enumerate(("Amdahl", "USL"), start=1):
        fewest = degree + 2  # with one number of workers less, any law would fit
        if len(workers) < fewest:
            missing[name] = f"it needs runs with {fewest} different numbers of workers, not {len(workers)}"
        elif degree == 1 and not strong:
            missing[name] = "it applies to the same work on different numbers of workers"
        elif (law := _law(workers, rates, degree)).contention.value > 1.001:
            missing[name] = SLOWER
        else:
            laws[name] = law
    return laws, missing


def _law(workers: Numbers, rates: Numbers, degree: int) -> Law:
    """Law that fits the points best, with the laws that fit the resampled ones."""
    # workers / rate is linear in the parameters
    traits = np.column_stack([np.ones(len(workers)), workers - 1, workers * (workers - 1)])[:, : degree + 1]
    fits = np.zeros((rates.shape[1], 3))
    for place, some in enumerate(rates.T):
        fits[place, : degree + 1], _ = nnls(traits * (some / workers)[:, None], np.ones(len(workers)))
    one = np.maximum(fits[:, 0], 1e-300)
    contention, coherency = fits[:, 1] / one, fits[:, 2] / one
    most, *others = (_worth(*each) for each in zip(contention, coherency, strict=True))
    fitted = _speedup(workers, contention[0], coherency[0]) / one[0]
    return Law(
        rate=float(1 / one[0]),
        contention=Between.of(contention),
        coherency=Between.of(coherency),
        peak=float(max((1 - contention[0]) / coherency[0], 1.0) ** 0.5) if coherency[0] > 0 else None,
        worth=_finite([most], 0.0),
        worth_low=_finite(others, INTERVAL[0]),
        worth_high=_finite(others, INTERVAL[1]),
        deviation=float(np.abs(rates[:, 0] / fitted - 1).max()),
    )


def _speedup(workers: Numbers, contention: float, coherency: float) -> Numbers:
    return np.asarray(workers / (1 + contention * (workers - 1) + coherency * workers * (workers - 1)))


def _worth(contention: float, coherency: float) -> float:
    """Largest number of workers at which another one adds a tenth of the first one's gain."""

    def wasted(workers: int) -> bool:
        fewer, more = _speedup(np.array([workers, workers + 1.0]), contention, coherency)
        return bool(more - fewer < 0.1)

    # gains shrink as workers are added, and are negative beyond the peak
    found = bisect_left(range(100_000), True, key=wasted)
    return found if found < 100_000 else np.inf


def _finite(worth: Sequence[float], share: float) -> int | None:
    """Quantile of numbers of workers; None if it has no limit."""
    found = sorted(worth)[round(share * (len(worth) - 1))]
    return None if np.isinf(found) else int(found)


STORAGE, CONTENTION, CLIENT, TAIL, STARTUP = "storage", "contention", "client", "tail", "start-up"
SCHEDULER, BLOCKED, PREPROCESSING, UNACCOUNTED = "scheduler", "blocked", "preprocessing", "unaccounted"
BANDWIDTH, LATENCY, COLD = "storage bandwidth", "storage latency", "cold cache"
RESULTS, OVERHEAD, LATE, NODES = "merging and transfer", "task overhead", "late workers", "slow hosts"
WORK: Final = "CPU time"
"""Time of the classes in CPU; what it grows by is contention for hosts."""

LIMIT_OF: Final = {
    **{one.name: one.word or UNACCOUNTED for one in phases.TIME_CLASSES},
    **dict.fromkeys((phases.COMPUTE, phases.DECOMPRESS, phases.INTERPRET), WORK),
    **dict.fromkeys((phases.MERGE, phases.TRANSFER), RESULTS),
    **dict.fromkeys((phases.OVERHEAD, phases.CHECKPOINT), OVERHEAD),
    phases.OPEN: STORAGE,
    phases.LOCK: CONTENTION,
}
"""Limit of each class of the time ledger: its cause as the diagnosis calls it, or one that is wider."""

LIMITS: Final = [*dict.fromkeys((*LIMIT_OF.values(), NODES, LATE, COLD))]
GROWING: Final = (STORAGE, BLOCKED, OVERHEAD, PREPROCESSING, WORK)
"""Of these the excess over the run with the least of it per event is lost, of the others everything."""

FAMILIES: Final = {
    **{LIMIT_OF[one.name]: one.family for one in reversed(phases.TIME_CLASSES)},
    **dict.fromkeys((BANDWIDTH, LATENCY, COLD), phases.READING),
    LATE: phases.IDLING,
    NODES: phases.TROUBLE,
}

RESAMPLES: Final = 200

MATTERS: Final = 0.1
"""Share of thread time from which a limit is named as the reason."""

FALL: Final = 0.95
"""Useful workers of the largest size, relative to the best, below which more of them make a run slower."""

BYTES, REQUESTS, TASKS, MERGED, CHUNKS = "bytes", "requests", "tasks", "merged", "chunks"
"""What has a rate."""


# One run


class Reading(NamedTuple):
    """Waiting for storage of one run, per chunk: what goes with requests and with bytes, as fitted and resampled."""

    chunks: int
    of_requests: Numbers
    of_bytes: Numbers


def reading_of(measurement: Measurement) -> Reading | None:
    """Reading of a run; None if it was not measured."""
    chunks = measurement.chunks
    chunks = chunks[(chunks["outcome"] == "ok") & chunks["read_seconds"].notna() & chunks["bytes_requested"].notna()]
    if not len(chunks):
        return None
    names = ["requests", "bytes_requested", "metadata_requests", "bytes_metadata", "read_seconds", "open_seconds"]
    sample = chunks.sample(min(len(chunks), 4000), random_state=2)[names].fillna(0).to_numpy(np.float64)
    requests, of_bytes, before, metadata = sample[:, :4].T
    # a reading and an opening of each chunk: one, its requests, and its bytes
    one, places = np.ones(len(sample)), np.arange(len(sample))
    later = np.maximum(requests - before, 0.0)
    traits = np.array([[one, later, of_bytes - metadata], [one, before, metadata]]).transpose(2, 0, 1)
    scale, random = np.maximum(traits.max(axis=(0, 1)), 1e-300), np.random.default_rng(2)
    fits = [
        nnls((traits[picked] / scale).reshape(-1, 3), sample[picked, 4:].ravel())[0]
        for picked in (places, *(random.choice(places, len(places)) for _ in range(100)))
    ]
    parts = np.array(fits) / scale * traits.sum(axis=(0, 1)) / len(sample)
    return Reading(len(chunks), parts[:, 0] + parts[:, 1], parts[:, 2])


class ScaledRun:
    """Amounts of one run.

    `costs` are thread seconds by worker and limit, which add up to all threads for the whole run. `counted` are times
    and amounts of what has a rate, `slow` are slow hosts or workers with the factor by which their chunks take longer,
    `client` are the seconds for which the client kept all workers waiting.
    """

    def __init__(self, name: str, measurement: Measurement, *, by_threads: bool) -> None:
        self.name, self.run, self.metrics = name, measurement.run, measurement.metrics
        peak, hosts = self.metrics["peak_workers"], self.run.environment.hosts
        self.threads = max(round(peak * self.metrics["cores_per_worker"]), 1)
        self.workers = self.threads if by_threads else peak
        self.missing = 1 - self.metrics["avg_workers"] / peak
        """Share of the workers' time in which they were absent."""
        self.seconds, self.events = self.metrics["elapsed_time_seconds"], self.metrics["total_events"]
        self.rate = self.events / self.seconds
        cores, wall = only(host.cores for host in hosts), measurement.chunks["wall_seconds"].dropna().to_numpy()
        self.cores = None if cores is None else cores * len(hosts)
        # relative error of the rate as estimated from chunks alone
        self.scatter = float(np.std(wall, ddof=1) / wall.mean() / len(wall) ** 0.5) if len(wall) > 1 else 0.0
        self.classes = {each: seconds / self.events for each, seconds in measurement.time_ledger.items()}
        self.counted = _counted(measurement)
        self.reading = reading_of(measurement)
        self._split(measurement)

    def _split(self, measurement: Measurement) -> None:
        """Split thread seconds by limit."""
        ledger, lives = measurement.time_ledger, measurement.lifetimes
        costs = ledger.by("worker").rename(columns=LIMIT_OF).T.groupby(level=0).sum().T.astype(np.float64)
        costs = costs.reindex(columns=LIMITS, fill_value=0.0)
        _split_tail(costs, measurement)
        self.slow = _split_slow(costs, measurement)
        threads = dict(zip(lives["worker"], lives["threads"], strict=True))
        # workers were absent: all add up to the most workers for the whole run
        capacity = np.array([ledger.capacity[worker] for worker in costs.index])
        own = np.clip(np.array([threads.get(each, 1) for each in costs.index]) * self.seconds - capacity, 0.0, None)
        most = self.metrics["peak_workers"] * self.metrics["cores_per_worker"] * self.seconds
        costs[LATE] = own * max(most - capacity.sum(), 0.0) / (own.sum() or 1.0)
        total = max(sum(threads.values()), 1)
        self.costs, self.absent = costs, float(costs[LATE].sum()) / total
        self.client = {when: ledger.client_of.get(when, 0.0) / total for when in ("before", "after")}

    def amount(self, counted: str) -> float:
        """Sum of what is counted."""
        return float(self.counted[counted][1].sum()) if counted in self.counted else 0.0

    def rate_of(self, counted: str) -> Between | None:
        """Amount per second while the middle of it came, with an interval; None if there is too little to tell."""
        return middle_rate(*self.counted[counted]) if counted in self.counted else None

    def per_event(self) -> dict[str, Numbers]:
        """Thread seconds per event of each limit: the measured ones, and those of resampled workers,
        each as much faster or slower as runs of such chunks can be."""
        random, many = np.random.default_rng([SEED, self.workers]), len(self.costs)
        weights = random.multinomial(many, np.full(many, 1 / many), RESAMPLES)
        weights = weights * np.exp(self.scatter * random.standard_normal((RESAMPLES, 1)))
        every = np.vstack([np.ones(many), weights]) / self.events
        return {name: np.asarray(every @ self.costs[name]) for name in LIMITS}


Groups = Sequence[Sequence[ScaledRun]]
"""Runs by size, ascending."""


def _counted(measurement: Measurement) -> dict[str, tuple[Numbers, Numbers]]:
    chunks = measurement.chunks.assign(one=1)
    columns = [(BYTES, chunks, "stop", "bytes_requested"), (CHUNKS, chunks, "stop", "one")]
    if chunks["requests"].notna().all():
        columns.append((REQUESTS, chunks, "stop", "requests"))
    if measurement.run.tasks is not None:
        tasks = measurement.tasks.assign(one=1)
        # what merges take in are the results of all tasks but the last
        results = tasks[tasks["kind"].isin((PROCESSOR, MERGE))]
        results = results[results["stop"] != results["stop"].max()]
        columns += [(TASKS, tasks, "seen", "one"), (MERGED, results, "stop", "nbytes")]
    known = {name: frame[[*both]].dropna().to_numpy(np.float64).T for name, frame, *both in columns}
    return {name: (times, amounts) for name, (times, amounts) in known.items() if len(times)}


def middle_rate(times: Numbers, amounts: Numbers) -> Between | None:
    """Amount per second while the middle of it came, with an interval; None if there is too little to tell."""
    slices = 16
    if len(times) < 4 * slices or not amounts.sum():
        return None
    order = np.argsort(times)
    times, amounts = times[order], amounts[order]
    # neither its start nor its tail
    begin, end = times[np.searchsorted(np.cumsum(amounts) / amounts.sum(), (0.1, 0.9))].tolist()
    if end <= begin:
        return None
    rates = np.histogram(times, slices, (begin, end), weights=amounts)[0] * slices / (end - begin)
    mean, error = float(rates.mean()), 1.96 * float(rates.std(ddof=1)) / slices**0.5
    return Between(mean, max(mean - error, 0.0), mean + error)


def _split_tail(costs: pd.DataFrame, measurement: Measurement) -> None:
    """Move what waits for merges to results, and what waits for the client to submit more to the client."""
    tail = costs[TAIL]
    total = float(tail.sum())
    if total:
        starved = min(_tail_within(measurement, _submitting(measurement)) / total, 1.0)
        merges = (1 - starved) * measurement.time_ledger.tail_of.get("merge", 0.0) / total
        costs[CLIENT] += starved * tail
        costs[RESULTS] += merges * tail
        costs[TAIL] = (1 - starved - merges) * tail


def _tail_within(measurement: Measurement, windows: Sequence[tuple[float, float]]) -> float:
    """Seconds of the tail within these times."""
    try:
        lines = measurement.time_ledger.timeline(500)
    except NotMeasuredError:
        return 0.0
    left = lines.index.to_numpy(np.float64)
    right = left + lines["seconds"].to_numpy()
    inside = [np.clip(np.minimum(right, stop) - np.maximum(left, start), 0.0, None) for start, stop in windows]
    return float((lines[phases.TAIL].to_numpy() * sum(inside)).sum())


def _submitting(measurement: Measurement) -> list[tuple[float, float]]:
    """Times from the first chunk that a Runner call submitted to the last one."""
    if measurement.run.tasks is None:
        return []
    tasks = measurement.tasks
    runnable = tasks[(tasks["kind"] == PROCESSOR) & (tasks["attempt"].fillna(1) == 1)]["runnable"].dropna()
    calls = (runnable[runnable.between(call.start, call.stop or np.inf)] for call in measurement.run.calls)
    return [(float(inside.min()), float(inside.max())) for inside in calls if len(inside)]


def _split_slow(costs: pd.DataFrame, measurement: Measurement) -> dict[str, float]:
    """Move what slow hosts and workers take longer, and the tail that they alone make; return how slow they are."""
    try:
        known = measurement.metrics.evaluator.value("slowness").slow
    except NotMeasuredError:
        return {}
    slow = {one.name: one.factor for one in known if one.kind in {"host", "worker"}}
    if slow:
        hosts, chunks, tail = measurement.time_ledger.hosts, measurement.chunks, float(costs[TAIL].sum())
        factors = [slow.get(worker, 1.0) * slow.get(str(hosts.get(worker)), 1.0) for worker in costs.index]
        shares = 1 - 1 / np.array(factors)
        ends = chunks[chunks["worker"].isin(costs.index[shares == 0])]["stop"].dropna()
        windows = [(float(ends.max()), measurement.run.stop)] if tail and len(ends) else []
        alone = min(_tail_within(measurement, windows) / (tail or 1.0), 1.0)
        moved = costs[[WORK, STORAGE, BLOCKED, TAIL]].mul(np.column_stack([shares, shares, shares, 0 * shares + alone]))
        costs[NODES] += moved.sum(axis=1)
        costs[moved.columns] -= moved
    names = known_names(measurement.metrics.evaluator)
    return {names.in_text(name): factor for name, factor in slow.items()}


# All runs


class Shares:
    """What limits take in runs by size: arrays of sizes x (measured, resampled ...).

    `lost` are thread seconds per event by limit, `work` those in CPU; `ideal` are those without any limit. `least` is
    the place of the size with the least waiting for storage per event, `of_requests` the share of requests in what the
    waiting for storage grew by, None if that is unknown.
    """

    def __init__(self, groups: Groups) -> None:
        costs = [[run.per_event() for run in group] for group in groups]
        _split_cold(groups, costs)
        means = [_mean(group, place) for place, group in enumerate(costs)]
        mean = {name: np.array([one[name] for one in means]) for name in LIMITS}
        # the least is found among the measured ones: else chance would make it less
        least = {name: int(np.argmin(mean[name][:, 0])) for name in GROWING}
        self.workers = np.array([group[0].workers for group in groups], np.float64)
        self.work, self.least = mean[WORK], least[STORAGE]
        self.ideal = np.asarray(sum(mean[name][place] for name, place in least.items()))
        self.lost = {
            name: np.clip(amounts - (amounts[least[name]] if name in least else 0.0), 0.0, None)
            for name, amounts in mean.items()
        }
        # threads that take more CPU time for the same events get in each other's way
        self.lost[CONTENTION] = self.lost[CONTENTION] + self.lost.pop(WORK)
        most = int(np.argmax(self.share(STORAGE)[:, 0]))
        self.of_requests = _of_requests(groups, most, self.least)
        grown, by_requests = self.lost.pop(STORAGE), self.of_requests is not None and self.of_requests[0] > 0.5
        self.lost |= {LATENCY: by_requests * grown, BANDWIDTH: (not by_requests) * grown}

    def share(self, name: str) -> Numbers:
        """Share of all thread time that a limit takes."""
        return np.asarray(self.lost[name] / (self.ideal + sum(self.lost.values())))

    def useful(self, *names: str) -> Numbers:
        """How many workers are useful, or would be if these were the only limits."""
        lost = sum(self.lost[name] for name in names or self.lost)
        return np.asarray(self.workers[:, None] * self.ideal / (self.ideal + lost))


def _mean(group: Sequence[Mapping[str, Numbers]], place: int) -> dict[str, Numbers]:
    """Means over the runs of a size, and over resampled runs."""
    picked = np.random.default_rng([SEED, place]).integers(len(group), size=(len(group), RESAMPLES + 1))
    picked[:, 0] = np.arange(len(group))
    every = {name: np.array([one[name] for one in group]) for name in LIMITS}
    return {name: np.take_along_axis(amounts, picked, axis=0).mean(axis=0) for name, amounts in every.items()}


def _split_cold(groups: Groups, costs: Sequence[Sequence[dict[str, Numbers]]]) -> None:
    """Move the excess of a first run, which waited longer for the same bytes than those with as many workers.

    More streams cannot make each of them faster, a cache that has been filled can.
    """
    pairs = [pair for each in zip(groups, costs, strict=True) for pair in zip(*each, strict=True)]
    (first, own), *later = sorted(pairs, key=lambda pair: pair[0].run.start)
    others = [cost[STORAGE] for run, cost in later if run.workers >= first.workers]
    least = min(others, key=lambda other: float(other[0]), default=own[STORAGE])
    if later[0][0].run.start > first.run.start and (
        np.quantile(own[STORAGE][1:], INTERVAL[0]) > np.quantile(least[1:], INTERVAL[1])
    ):
        own |= {COLD: np.clip(own[STORAGE] - least, 0.0, None), STORAGE: np.minimum(own[STORAGE], least)}


def _of_requests(groups: Groups, most: int, least: int) -> Numbers | None:
    """How much of what waiting per chunk grew by goes with requests; the rest goes with bytes."""
    now, before = (next((run.reading for run in groups[place] if run.reading), None) for place in (most, least))
    if now is None or before is None or most == least:
        return None
    requests = np.clip(now.of_requests - before.of_requests, 0.0, None)
    both = requests + np.clip(now.of_bytes - before.of_bytes, 0.0, None)
    return np.asarray(requests / np.where(both > 0, both, 1.0))


def turning_of(workers: Numbers, useful: Numbers) -> float:
    """Number of workers above which a limit takes what more of them would give.

    It is where the line without any loss meets the most that all workers together reached: as many workers would do, if
    nothing limited them. If the rate falls, it is the number with the highest one.
    """
    best = int(np.argmax(useful))
    return float(workers[best] if useful[-1] < FALL * useful[best] else useful[best])


def peak_of(workers: Numbers, useful: Numbers) -> float | None:
    """Number of workers beyond which fewer are useful; None if that cannot be said for certain.

    `useful` has a row for each number of workers: as measured, and as resampled.
    """
    best = int(np.argmax(useful[:, 0]))
    fall = useful[-1] / useful[best]
    return float(workers[best]) if fall[0] < FALL and np.quantile(fall[1:], INTERVAL[1]) < 1 else None


# The limit as a rate


@dataclass(frozen=True, slots=True)
class Rate:
    """A limit in its own unit, `each` of it per event, and a phrase for it."""

    value: Between
    unit: Unit
    each: float
    thing: str

    def text(self) -> str:
        """The limit, with its interval."""
        return self.value.text(alike(self.unit, [self.value.value]).text)


RATES: Final = {
    BANDWIDTH: (BYTES, "the storage"),
    LATENCY: (REQUESTS, "the requests per second"),
    SCHEDULER: (TASKS, "the tasks per second"),
    RESULTS: (MERGED, "the rate of merging"),
    CLIENT: (CHUNKS, "the client's speed"),
}
"""What is counted of a limit that has a rate, and a phrase for it."""


def rate_of(name: str, runs: Sequence[ScaledRun], most: ScaledRun) -> Rate | None:
    """The limit as a rate; None if it has none or it was not measured.

    It is the best rate of the runs: the mean of those that are as good, given their intervals.
    """
    if name not in RATES:
        return None
    what, thing = RATES[name]
    if name == LATENCY and most.rate_of(REQUESTS) is None:
        what, thing = CHUNKS, "the openings and reads"
    unit = {BYTES: GIGABIT_PER_SECOND, MERGED: BYTE_PER_SECOND}.get(what) or Unit(f"{what}/s", suffixed(f"{what}/s"))
    if name == CLIENT:  # that works on nothing else
        seconds, chunks = float(most.costs[CLIENT].sum()) / most.threads, most.amount(CHUNKS)
        return Rate(Between(chunks / seconds), unit, chunks / most.events, thing) if seconds and chunks else None
    rates = [(rate, run.amount(what) / run.events) for run in runs if (rate := run.rate_of(what)) is not None]
    if not rates:
        return None
    best = max((rate for rate, _ in rates), key=lambda rate: rate.value)
    same = [(*astuple(rate), each) for rate, each in rates if (rate.high or rate.value) >= (best.low or best.value)]
    value, low, high, each = (8e-9 if what == BYTES else 1.0) * np.mean(same, axis=0)
    return Rate(Between(float(value), float(low), float(high)), unit, float(each), thing)


# Words

WORDS: Final = {
    BANDWIDTH: (
        "{storage}{waits}.",
        "Read from faster or nearer storage, cache the files, or read fewer branches.",
    ),
    LATENCY: (
        "Requests wait, whatever their size{waits}{at_most}.",
        "Allow more connections, read from a nearer server, or make fewer requests with larger chunks.",
    ),
    COLD: (
        "The first run, with {first}, read files that were not cached{waits}.",
        "Leave it out, or read the files once before: speed-ups relative to it are too large.",
    ),
    SCHEDULER: (
        "Workers are idle while tasks wait for the scheduler or are in flight{at_most}.{loop}",
        "Use larger chunks to have fewer tasks.{free}",
    ),
    RESULTS: (
        "Merging and moving results takes the time{at_most}.",
        "Return smaller outputs (fewer or coarser histograms), or write large ones to files.",
    ),
    CLIENT: (
        "All workers wait for the client, {before} before the first task and {after} after the last one{at_most}.",
        "Preprocess once and keep the result, submit fewer and larger chunks, return less to the client.",
    ),
    TAIL: (
        "Workers have nothing left to do while the last chunks run: there are {chunks} chunks for each thread.",
        "Use smaller chunks, or process more events with so many workers.",
    ),
    STARTUP: (
        "Each thread spends {startup} on imports and first openings, however little it has to do afterwards.",
        "Preload coffea.processor on the workers (--preload coffea.processor), and keep them for several runs.",
    ),
    LATE: (
        "Workers were absent for {absent} of {wall} on average with {workers}.",
        "Wait for the workers before the run (client.wait_for_workers), or run long enough for them to matter.",
    ),
    NODES: (
        "Chunks take longer on {slow} than elsewhere, and others wait for the last of them.",
        "Check what else runs there, or exclude it.",
    ),
    CONTENTION: (
        "{threads} get in each other's way{cores}{grown}.",
        "Use fewer workers or threads per host, or more hosts.",
    ),
    BLOCKED: (
        "Chunks wait longer for something that is neither storage nor CPU.",
        "Look at what process() calls: services, locks, sleeps.",
    ),
    "failures": (
        "Attempts that failed took the time.",
        "Look at the failed attempts: roastcoffea show RUN has them.",
    ),
    "memory": ("Workers were paused for memory.", "Give them more memory, or use smaller chunks."),
    OVERHEAD: ("Finishing a task (closing files, compressing results) takes longer.", "Return smaller outputs."),
    PREPROCESSING: ("Preprocessing takes more.", "Preprocess once and keep the result."),
    "other tasks": ("Tasks of other users ran on these workers.", "Use workers of your own."),
    UNACCOUNTED: ("Thread time is unaccounted for.", "Look at the time ledger of the run: roastcoffea show RUN."),
}
"""What happens with a limit, and what to change."""


def _words(name: str, shares: Shares, groups: Groups, *, at: int, rate: Rate | None, unit: str) -> tuple[str, str]:
    """What happens, and what to change."""
    run = groups[at][0]
    first, *later = sorted((one for group in groups for one in group), key=lambda one: one.run.start)
    slow = sorted(run.slow.items(), key=lambda pair: -pair[1])
    named = [f"{worker} ({number(three_digits(factor))} times)" for worker, factor in slow[:3]]
    ratio = float(shares.work[at, 0] / max(shares.work[0, 0], 1e-300))
    warm = min((one for one in later if one.reading is not None), key=_waiting, default=first)
    pair = (first, warm) if name == COLD else (groups[shares.least][0], run)
    waits = [
        f"{SECOND.text(_waiting(one))} with {counted(one.workers, unit)}"
        for one in dict.fromkeys(pair)
        if one.reading is not None
    ]
    used, late = run.metrics.get("scheduler_core_share"), run.metrics.get("scheduler_lag_seconds")
    loop = "" if used is None else f" The event loop of the scheduler used {FRACTION.text(used)} of a core"
    loop += "" if used is None or late is None else f", and was {SECOND.text(late)} late on average"
    free = "look at its connections to the workers, and at what else ran on its host"
    fields = {
        "workers": counted(run.workers, unit),
        "threads": counted(run.threads, "thread"),
        "at_most": f", at most {rate.text()}" if rate else "",
        "storage": f"Storage delivers at most {rate.text()} to all workers together" if rate else "Storage is too slow",
        "waits": f": each chunk waits {' and '.join(waits)}" if waits else "",
        "first": counted(first.workers, unit),
        "loop": loop and f"{loop} with {counted(run.workers, unit)}.",
        "free": "" if used is None or used >= 0.5 else f" The scheduler's core was mostly free: {free}.",
        **{when: SECOND.text(seconds) for when, seconds in run.client.items()},
        "chunks": number(three_digits(run.amount(CHUNKS) / run.threads)),
        "startup": SECOND.text(float(run.costs[STARTUP].sum()) / run.threads),
        "absent": SECOND.text(run.absent),
        "wall": SECOND.text(run.seconds),
        "slow": ", ".join(named) + (f" and {number(len(slow) - 3)} more" if len(slow) > 3 else ""),
        "cores": f", which share {counted(run.cores, 'core')}" if run.cores else "",
        "grown": f"; the same events take {number(three_digits(ratio))} times the CPU time" if ratio > 1 else "",
    }
    text, advice = (words.format_map(fields) for words in WORDS[name])
    return text, advice


def _waiting(run: ScaledRun) -> float:
    """Mean seconds for which a chunk waited for storage."""
    return 0.0 if run.reading is None else float(run.reading.of_requests[0] + run.reading.of_bytes[0])


# The explanation


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A limit.

    `share` is the part of all thread time that it takes with `at` workers, where that is most; `shares` are those of
    all sizes. `turning` is the number of workers above which it limits; `falls` the number beyond which more make
    the run slower. `rate` is the limit in its own unit, if it has one.
    """

    name: str
    share: Between
    at: int
    shares: list[float]
    turning: Between
    falls: int | None
    rate: Rate | None
    text: str
    advice: str

    @property
    def title(self) -> str:
        """Its name at the beginning of a sentence."""
        return f"{self.name[:1].upper()}{self.name[1:]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits, largest first; `useful` workers of each size; thread seconds per event of a run without any limit.

    `main` is the reason why more workers give less, None if nothing takes much.
    """

    causes: list[Limit]
    main: Limit | None
    useful: list[Between]
    ideal: float
    doubts: list[str]


def explained(groups: Groups, unit: str) -> Limits:
    """Explain runs, given by size, ascending; `unit` is what is counted, in the singular."""
    shares = Shares(groups)
    causes = [_limit(name, shares, groups, unit) for name in shares.lost if shares.share(name)[:, 0].max() >= 0.005]
    causes = sorted([*causes, *_constant_latency(shares, groups, unit)], key=lambda one: -one.share.value)
    main = next((one for one in causes if one.name != UNACCOUNTED and one.share.value >= MATTERS), None)
    useful, doubts = [Between.of(row) for row in shares.useful()], [*_doubts(main, shares, groups)]
    return Limits(causes=causes, main=main, useful=useful, ideal=float(shares.ideal[0]), doubts=doubts)


def _limit(name: str, shares: Shares, groups: Groups, unit: str) -> Limit:
    """A limit with everything about it."""
    share, useful = shares.share(name), shares.useful(name)
    at = int(np.argmax(share[:, 0]))
    if name in (LATE, NODES, COLD, "failures"):  # they are there or not; others grow with the workers
        level = 0.1 if name == NODES else 0.5
        turned = Between.of(shares.workers[np.argmax(share >= level * share.max(axis=0), axis=0)])
    else:
        turned = Between.of(np.array([turning_of(shares.workers, column) for column in useful.T]))
    beyond = [run for group in groups for run in group if run.workers >= turned.value]
    rate = rate_of(name, beyond or groups[at], groups[at][0])
    falls = peak_of(shares.workers, useful) if rate is not None and share[at, 0] >= MATTERS else None
    text, advice = _words(name, shares, groups, at=at, rate=rate, unit=unit)
    if falls is not None:
        text += f" Beyond {counted(falls, unit)} the total rate falls, and more of them make the run slower."
    return Limit(
        name=name,
        share=Between.of(share[at]),
        at=round(shares.workers[at]),
        shares=share[:, 0].tolist(),
        turning=turned,
        falls=None if falls is None else round(falls),
        rate=rate,
        text=text,
        advice=advice,
    )


def _constant_latency(shares: Shares, groups: Groups, unit: str) -> Iterator[Limit]:
    """Requests that take most of the time however many workers there are."""
    run = groups[shares.least][0]
    if shares.lost[LATENCY].any() or run.reading is None:
        return
    share = Between.of(run.reading.of_requests * run.reading.chunks / run.events / shares.ideal[0])
    if (share.value if share.low is None else share.low) >= 0.5:
        fewest = groups[0][0].workers
        parts = (share.value * shares.useful()[:, 0] / shares.workers).tolist()
        found = _limit(LATENCY, shares, groups, unit)
        yield replace(found, share=share, at=fewest, shares=parts, turning=Between(float(fewest)), rate=None)


def _doubts(main: Limit | None, shares: Shares, groups: Groups) -> Iterator[str]:
    """What the runs cannot tell of the main limit."""
    if main is None or main.name not in {BANDWIDTH, LATENCY}:
        return
    if shares.of_requests is None:
        yield "without bytes and waiting of chunks, bandwidth and latency of the storage cannot be told apart"
        return
    low, high = np.quantile(shares.of_requests[1:], INTERVAL)
    first = min((run for group in groups for run in group), key=lambda run: run.run.start)
    if low < 0.5 < high:
        yield "chunks and requests are too much alike to tell bandwidth and latency of the storage apart"
    elif main.falls is not None and first.workers == main.at:
        yield "the run with most workers was the first one: if files were not cached yet, repeat it"


# For people

SHOWN: Final = 0.02
"""Share of thread time from which a limit is drawn."""

USEFUL: Final = "useful"


def _headline(found: Limits, points: Sequence[Point], unit: str) -> str:
    """The reason in a sentence, with its number of workers."""
    largest, useful, main = points[-1].workers, found.useful[-1].value, found.main
    of_all = f"{counted(largest, unit)} do the work of {number(three_digits(useful))}"
    most, best = max((one.value, point.workers) for one, point in zip(found.useful, points, strict=True))
    if best < largest and most > useful / FALL:
        of_all += f", {number(best)} that of {number(three_digits(most))}"
    if main is None:
        return f"Nothing limits these runs: more workers give what they promise ({of_all})."
    if main.name == COLD:
        return f"{main.title} in the run with {counted(main.at, unit)}; {of_all} compared with later runs."
    return f"{main.title} limits these runs from {_from(main, points, unit)} on: {of_all}."


def _from(limit: Limit, points: Sequence[Point], unit: str) -> str:
    """Turning point with its interval, and the sizes around it."""
    value = round(limit.turning.value)
    if value in {point.workers for point in points}:
        return counted(value, unit)
    return f"about {limit.turning.text('{:,.0f}'.format)} {unit}s"


def reasons(found: Limits, points: Sequence[Point], unit: str, needs: Sequence[str]) -> Sheet:
    """The reason, what to change, and all limits in a table."""
    main = found.main
    return Sheet(
        title="why more workers give less",
        lead=[_headline(found, points, unit), *needs, *(f"Note: {doubt}." for doubt in found.doubts)],
        items=[main.text, main.advice] if main else [],
        columns=[
            Column("limit"),
            Column("thread time", FRACTION, "part of all thread time that it takes, where that is most"),
            Column(f"with {unit}s", COUNT, "where it takes most"),
            Column(f"from {unit}s", COUNT, "number above which it takes what more of them would give"),
            Column("at most", None, "the most that it allows"),
        ],
        rows=[
            (
                one.name,
                Amount(one.share.value, FRACTION, one.share.text(_percent)),
                one.at,
                round(one.turning.value),
                one.rate.unit.text(one.rate.value.value) if one.rate and one.share.value >= MATTERS else "",
            )
            for one in found.causes[:6]
        ],
        cards=[
            Card(
                one.title,
                f"{_percent(one.share.value)} of thread time with {counted(one.at, unit)}",
                f"{one.text} From {_from(one, points, unit)} on.",
                one.advice,
                family=FAMILIES[one.name],
            )
            for one in found.causes[:3]
            if one.share.value >= SHOWN
        ],
        form="plain",
        things="limits",
    )


def useful_workers(found: Limits, points: Sequence[Point], unit: str) -> Sheet:
    """How many workers are useful at each size, and what the others are lost to."""
    shown = found.causes[:3]
    rows: list[list[Cell]] = []
    bars = []
    for place, point in enumerate(points):
        useful = found.useful[place].value
        amounts = [useful, *(one.shares[place] * point.workers for one in shown)]
        amounts.append(max(point.workers - sum(amounts), 0.0))
        rows.append([number(point.workers), *(Amount(each, text=_amount(each)) for each in amounts)])
        parts = [segment(phases.COMPUTING, useful / point.workers, USEFUL, _amount(useful))]
        parts += [
            segment(FAMILIES[one.name], one.shares[place], one.name, _amount(one.shares[place] * point.workers))
            for one in found.causes
            if one.shares[place] > 0
        ]
        bars.append(drawn(f"{counted(point.workers, unit)}: {_amount(useful)} useful", "", parts))
    return Sheet(
        title=f"useful {unit}s, and what the others are lost to",
        columns=columns(None, f"{unit}s") + columns(COUNT, USEFUL, *(one.name for one in shown), "others"),
        rows=rows,
        bars=bars,
        things="sizes",
    )


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _amount(workers: float) -> str:
    return number(float(f"{workers:.1f}")) if workers < 100 else number(round(workers))
