"""Limits on scaling: the thread time lost, the number of workers at which each limit sets in, and advice.

The diagnosis names a cause for each time-ledger class. That cause is the limit for the class, but a few limits combine
several causes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import pandas as pd

from roastcoffea.measurement import Measurement
from roastcoffea.metrics import phases
from roastcoffea.metrics.catalogue import NotMeasuredError
from roastcoffea.metrics.facts import known_names
from roastcoffea.metrics.statistics import Numbers, nonnegative_fit
from roastcoffea.records.workers import MERGE, PROCESSOR
from roastcoffea.replay.stages import only
from roastcoffea.sheets.sheet import Amount, Card, Cell, Column, Sheet, columns, drawn, percent_of, segment
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

DRAWS: Final = 200
INTERVAL: Final = (0.025, 0.975)


@dataclass(frozen=True, slots=True)
class Between:
    """A value with its 95 % interval. `low` and `high` are None if there is no interval."""

    value: float
    low: float | None = None
    high: float | None = None

    @classmethod
    def of(cls, values: Numbers) -> Between:
        """Take the first element as the value, and quantiles of the rest as the interval (if they differ)."""
        if np.ptp(values[1:]) == 0:
            return cls(float(values[0]))
        return cls(float(values[0]), *np.quantile(values[1:], INTERVAL).tolist())

    def text(self, write: Callable[[float], str]) -> str:
        interval = "" if self.low is None or self.high is None else f" [{write(self.low)}, {write(self.high)}]"
        return f"{write(self.value)}{interval}"


@dataclass(frozen=True, slots=True)
class Point:
    """Summary of the runs with the same peak number of workers.

    `rate` is in events per second. `speedup` is relative to one worker, assuming perfect scaling up to the smallest
    number of workers. `efficiency` is the rate per worker, relative to the rate per worker in the smallest runs.
    `classes` holds the thread time per event, in seconds, for each time-ledger class.
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
    """A scaling law. The rate with N workers is `rate` x N / (1 + `contention` (N - 1) + `coherency` N (N - 1)).

    If `coherency` is 0, this is Amdahl's law. Otherwise, it is Gunther's universal scalability law. `peak` is the
    number of workers with the highest rate. `worth` is the number of workers beyond which an additional worker
    contributes less than a tenth of the first worker's rate. Each is None if there is no such number. `deviation` is
    the largest relative distance between a point and the law.
    """

    rate: float
    contention: Between
    coherency: Between
    peak: float | None
    worth: int | None
    deviation: float

    def speedup(self, workers: Numbers) -> Numbers:
        return _speedup(workers, self.contention.value, self.coherency.value)


def law_of(workers: Numbers, rates: Numbers, *, coherency: bool) -> Law:
    """Fit a scaling law.

    Each row of `rates` contains the measured rate of a point, followed by resampled rates.
    """
    # workers / rate is linear in the parameters
    traits = np.column_stack([np.ones(len(workers)), workers - 1, workers * (workers - 1)])[:, : 2 + coherency]
    fits = np.zeros((rates.shape[1], 3))
    for fit, some in zip(fits, rates.T, strict=True):
        fit[: 2 + coherency] = nonnegative_fit(traits * (some / workers)[:, None], np.ones(len(workers)))
    shares = fits[:, 1:] / np.maximum(fits[:, :1], 1e-300)
    contention, coherent = (Between.of(share) for share in shares.T)
    fitted, many = (_speedup(of, contention.value, coherent.value) for of in (workers, np.arange(1.0, 100_000)))
    wasted = np.diff(many) < 0.1
    return Law(
        rate=float(1 / max(fits[0, 0], 1e-300)),
        contention=contention,
        coherency=coherent,
        peak=max((1 - contention.value) / coherent.value, 1.0) ** 0.5 if coherent.value > 0 else None,
        worth=int(np.argmax(wasted)) + 1 if wasted.any() else None,
        deviation=float(np.abs(rates[:, 0] * fits[0, 0] / fitted - 1).max()),
    )


def _speedup(workers: Numbers, contention: float, coherency: float) -> Numbers:
    return np.asarray(workers / (1 + contention * (workers - 1) + coherency * workers * (workers - 1)))


STORAGE, CONTENTION, CLIENT, TAIL, BLOCKED = "storage", "contention", "client", "tail", "blocked"
SCHEDULER, PREPROCESSING, FAILURES, UNACCOUNTED = "scheduler", "preprocessing", "failures", "unaccounted"
BANDWIDTH, LATENCY, COLD = "storage bandwidth", "storage latency", "cold cache"
RESULTS, OVERHEAD, LATE, NODES = "merging and transfer", "task overhead", "late workers", "slow hosts"
WRITING: Final = "writing"
WORK: Final = "CPU time"
"""CPU time in process(). Any increase per event counts as contention."""

LIMIT_OF: Final = {
    **{one.name: one.word or UNACCOUNTED for one in phases.TIME_CLASSES},
    **dict.fromkeys((phases.COMPUTE, phases.DECOMPRESS, phases.INTERPRET), WORK),
    **dict.fromkeys((phases.MERGE, phases.TRANSFER), RESULTS),
    **dict.fromkeys((phases.OVERHEAD, phases.CHECKPOINT, phases.MEASURING), OVERHEAD),
    phases.OPEN: STORAGE,
    phases.LOCK: CONTENTION,
}
"""Maps each time-ledger class to a limit: the cause named by the diagnosis, or a broader limit."""

SUDDEN: Final = {LATE, NODES, COLD, FAILURES}
"""Limits that do not grow gradually with the number of workers."""

LIMITS: Final = [*dict.fromkeys((*LIMIT_OF.values(), NODES, LATE, COLD))]
FAMILIES: Final = {
    **{LIMIT_OF[one.name]: one.family for one in reversed(phases.TIME_CLASSES)},
    **dict.fromkeys((BANDWIDTH, LATENCY, COLD), phases.READING),
    LATE: phases.IDLING,
    NODES: phases.TROUBLE,
}

BYTES, REQUESTS, TASKS, MERGED, CHUNKS = "bytes", "requests", "tasks", "merged", "chunks"

RATES: Final = {
    BANDWIDTH: (BYTES, GIGABIT_PER_SECOND, "the storage bandwidth"),
    LATENCY: (REQUESTS, Unit("requests/s", suffixed("requests/s")), "the requests per second"),
    SCHEDULER: (TASKS, Unit("tasks/s", suffixed("tasks/s")), "the tasks per second"),
    RESULTS: (MERGED, BYTE_PER_SECOND, "the merge rate"),
    CLIENT: (CHUNKS, Unit("chunks/s", suffixed("chunks/s")), "the client's speed"),
}
"""Maps each limit that can be expressed as a rate to the quantity, the rate's unit and the rate's name."""

WORDS: Final = {
    BANDWIDTH: ("Storage is too slow for all workers combined", "Read from faster storage, or read fewer branches."),
    LATENCY: (
        "Storage requests have a high latency",
        "Allow more connections, read from a closer server, or make fewer requests with larger chunks.",
    ),
    COLD: (
        "The first run read files that were not cached",
        "Leave this run out, or read the files once beforehand; otherwise, speed-ups relative to it are too large.",
    ),
    SCHEDULER: ("Workers sit idle while tasks wait for the scheduler or are in flight", "Use larger chunks."),
    RESULTS: ("Merging and transferring results is slow", "Return smaller outputs, or write large ones to files."),
    CLIENT: (
        "All workers wait for the client, {before} before the first task and {after} after the last one",
        "Preprocess once and keep the result, submit fewer and larger chunks, or return less to the client.",
    ),
    TAIL: (
        "Workers sit idle while the last chunks run",
        "Use smaller chunks, or process more events with this many workers.",
    ),
    "start-up": (
        "Each thread spends time on imports and on opening its first file",
        "Preload coffea.processor on the workers (--preload coffea.processor), and keep them running between runs.",
    ),
    LATE: (
        "Workers came late or left early: of {workers}, {there} were present on average",
        "Wait for the workers before starting (client.wait_for_workers), or make the run longer.",
    ),
    NODES: (
        "Chunks take longer on {slow} than elsewhere, and the other workers wait for these chunks",
        "Check what else is running there, or exclude these nodes.",
    ),
    CONTENTION: (
        "Threads wait for each other{cores}",
        "Use fewer workers or threads per host, or more hosts.",
    ),
    WRITING: (
        "Writing files takes longer",
        "Write to local disks and move the files afterwards, or write less at a time.",
    ),
    BLOCKED: (
        "Chunks are blocked longer by something other than storage and CPU",
        "Check what process() calls: services, locks, sleeps.",
    ),
    FAILURES: ("Failed attempts waste time", "Fix the errors."),
    "memory": ("Workers were paused for lack of memory", "Give them more memory, or use smaller chunks."),
    OVERHEAD: ("Finishing tasks (closing files, compressing results) takes longer", "Return smaller outputs."),
    PREPROCESSING: ("Preprocessing delays the run", "Preprocess once and keep the result."),
    "other tasks": ("Other tasks occupy these workers", "Use dedicated workers."),
    UNACCOUNTED: ("Thread time is unaccounted for", "See the run's time ledger."),
}

MATTERS: Final = 0.1
"""Minimum share of thread time for the main limit."""

FALL: Final = 0.95
"""Adding workers slows a run down if the number of useful workers falls below this fraction of its maximum."""


# One run


class ScaledRun:
    """A run, with the thread time lost to each limit.

    `costs` holds the thread time, in seconds, lost to each limit. The costs add up to the peak number of threads times
    the wall time. `counted` holds the times and amounts from which rates are computed. `client` describes how long all
    workers waited for the client before the first task and after the last task.
    """

    def __init__(self, name: str, measurement: Measurement, *, by_threads: bool) -> None:
        self.name, self.run, self._measurement = name, measurement.run, measurement
        metrics, ledger, hosts = measurement.metrics, measurement.time_ledger, self.run.environment.hosts
        peak = metrics["peak_workers"]
        self.threads = max(round(peak * metrics["cores_per_worker"]), 1)
        self.workers = self.threads if by_threads else peak
        self.missing = 1 - metrics["avg_workers"] / peak
        """Average number of absent workers, as a fraction of the peak number."""
        self.seconds, self.events = metrics["elapsed_time_seconds"], metrics["total_events"]
        self.rate = self.events / self.seconds
        cores, wall = only(host.cores for host in hosts), measurement.chunks["wall_seconds"].dropna().to_numpy()
        self.cores = None if cores is None else cores * len(hosts)
        # relative error of the rate, estimated from the spread of the chunks
        self.scatter = float(np.std(wall, ddof=1) / wall.mean() / len(wall) ** 0.5) if len(wall) > 1 else 0.0
        self.classes = {each: seconds / self.events for each, seconds in ledger.items()}
        self.counted = _counted(measurement)
        self.client = {
            when: SECOND.text(ledger.client_of.get(when, 0.0) / self.threads) for when in ("before", "after")
        }
        self.costs = pd.Series(dict(ledger)).rename(LIMIT_OF).groupby(level=0).sum().reindex(LIMITS, fill_value=0.0)
        # absence counts as a cost, so that the costs add up to the peak number of threads times the wall time
        most = peak * metrics["cores_per_worker"] * self.seconds
        self.costs[LATE] = max(most - (ledger.total or 0.0), 0.0)
        if tail := self.costs[TAIL]:
            starved = min(sum(self._tail_between(*each) for each in self._submitting()), tail)
            merges = (1 - starved / tail) * ledger.tail_of.get("merge", 0.0)
            self.costs[[CLIENT, RESULTS, TAIL]] += [starved, merges, -starved - merges]
        self.servers: list[str] = []
        """Servers that are slower than the others."""
        self.slow = self._split_slow()

    def _tail_between(self, start: float, stop: float) -> float:
        lines = self._measurement.time_ledger.timeline(500)
        inside = np.minimum(lines.index + lines["seconds"], stop) - np.maximum(lines.index, start)
        return float(lines[phases.TAIL] @ np.clip(inside, 0.0, None))

    def _submitting(self) -> Iterator[tuple[float, float]]:
        """Find when the first and the last chunk of each Runner call became runnable.

        Threads that are idle in the tail between these two times are waiting for the client.
        """
        if self.run.tasks is not None:
            tasks = self._measurement.tasks
            runnable = tasks[(tasks["kind"] == PROCESSOR) & (tasks["attempt"].fillna(1) == 1)]["runnable"].dropna()
            for call in self.run.calls:
                inside = runnable[runnable.between(call.start, call.stop or np.inf)]
                yield from [(inside.min(), inside.max())] if len(inside) else []

    def _split_slow(self) -> str:
        """Move the excess time of slow hosts and workers, and the tail they cause, to NODES; return their names."""
        evaluator, chunks, costs = self._measurement.metrics.evaluator, self._measurement.chunks, self.costs
        try:
            found = evaluator.value("slowness").slow
        except NotMeasuredError:
            return ""
        self.servers = [one.name for one in found if one.kind == "endpoint"]
        slow = [one for one in found if one.kind in {"host", "worker"}]
        names = [one.name for one in slow]
        hosts = chunks["worker"].map(self._measurement.time_ledger.hosts)
        others = chunks["stop"][~(chunks["worker"].isin(names) | hosts.isin(names))]
        if slow and len(others):
            work = costs[[WORK, STORAGE, WRITING, BLOCKED]]
            work *= min(sum(one.seconds for one in slow) / work.sum(), 1.0)
            alone = min(self._tail_between(others.max(), self.run.stop), costs[TAIL])
            costs[work.index] -= work
            costs[[NODES, TAIL]] += [work.sum() + alone, -alone]
        known = known_names(evaluator)
        return ", ".join(map(known.in_text, names[:3])) + (" and others" if len(names) > 3 else "")

    def amount(self, what: str) -> float:
        return float(self.counted[what][1].sum()) if what in self.counted else 0.0

    def rate_of(self, what: str) -> Between | None:
        """Compute the mean rate over the middle 80 % of a quantity, or return None if there is too little data."""
        times, amounts = self.counted.get(what, (np.zeros(0), np.zeros(0)))
        slices, total = 16, amounts.sum()
        if len(times) < 4 * slices or not total:
            return None
        # exclude start-up and tail
        begin, end = times[np.searchsorted(np.cumsum(amounts) / total, (0.1, 0.9))].tolist()
        if end <= begin:
            return None
        rates = np.histogram(times, slices, (begin, end), weights=amounts)[0] * slices / (end - begin)
        mean, error = float(rates.mean()), 1.96 * float(rates.std(ddof=1)) / slices**0.5
        return Between(mean, max(mean - error, 0.0), mean + error)

    @cached_property
    def reading(self) -> Numbers | None:
        """Storage wait per event due to the number of requests (first row) and of bytes (second row).

        The first column is the fit to the chunks, and the other columns are fits to resampled chunks. The array is None
        if reads were not measured.
        """
        chunks = self._measurement.chunks
        chunks = chunks[
            (chunks["outcome"] == "ok") & chunks["read_seconds"].notna() & chunks["bytes_requested"].notna()
        ]
        if not len(chunks):
            return None
        names = ["requests", "bytes_requested", "metadata_requests", "bytes_metadata", "read_seconds", "open_seconds"]
        sample = chunks.sample(min(len(chunks), 4000), random_state=2)[names].fillna(0).to_numpy(np.float64)
        requests, of_bytes, before, metadata = sample[:, :4].T
        # one row for reading each chunk and one for opening it: constant, number of requests, bytes
        one, places = np.ones(len(sample)), np.arange(len(sample))
        later = np.maximum(requests - before, 0.0)
        traits = np.array([[one, later, of_bytes - metadata], [one, before, metadata]]).transpose(2, 0, 1)
        scale, random = np.maximum(traits.max(axis=(0, 1)), 1e-300), np.random.default_rng(2)
        fits = [
            nonnegative_fit((traits[picked] / scale).reshape(-1, 3), sample[picked, 4:].ravel())
            for picked in (places, *random.choice(places, (DRAWS - 1, len(places))))
        ]
        parts = np.array(fits) / scale * traits.mean(axis=0).sum(axis=0) * len(chunks) / self.events
        return np.array([parts[:, 0] + parts[:, 1], parts[:, 2]])


Groups = Sequence[Sequence[ScaledRun]]
"""Runs grouped by number of workers, in ascending order."""


def _counted(measurement: Measurement) -> dict[str, tuple[Numbers, Numbers]]:
    chunks = measurement.chunks.assign(one=1)
    columns = [(BYTES, chunks, "stop", "bytes_requested"), (CHUNKS, chunks, "stop", "one")]
    if chunks["requests"].notna().all():
        columns.append((REQUESTS, chunks, "stop", "requests"))
    if measurement.run.tasks is not None:
        tasks = measurement.tasks.assign(one=1)
        # every result except the last task's is input to a merge
        results = tasks[tasks["kind"].isin((PROCESSOR, MERGE))].sort_values("stop")[:-1]
        columns += [(TASKS, tasks, "seen", "one"), (MERGED, results, "stop", "nbytes")]
    found = {}
    for what, frame, time, name in columns:
        times, amounts = frame[[time, name]].dropna().sort_values(time).to_numpy(np.float64).T
        found[what] = times, amounts * (8e-9 if what == BYTES else 1.0)
    return found


# All runs


def drawn_from(groups: Groups) -> tuple[Numbers, Numbers]:
    """Resample the rates, and the thread time per event for each limit, at each number of workers.

    The first value along the second axis is measured. All other values are means over resampled repeats. If there is
    only a single run, resampling uses the spread of its chunks.
    """
    rates, costs = [], []
    for place, group in enumerate(groups):
        random = np.random.default_rng([1, place])
        picked = random.integers(len(group), size=(DRAWS, len(group)))
        longer = group[0].scatter * random.standard_normal(DRAWS) * (len(group) == 1)
        picked[0], longer[0] = np.arange(len(group)), 0.0
        rates.append(np.exp(np.log([run.rate for run in group])[picked].mean(axis=1) - longer))
        mean = np.array([run.costs / run.events for run in group])[picked].mean(axis=1)
        costs.append(mean * np.exp(longer)[:, None])
    return np.array(rates), np.array(costs)


def split_cold(runs: Sequence[ScaledRun]) -> None:
    """Move the first run's excess storage wait to COLD, if later runs waited less.

    Only later runs with at least as many workers are considered. Additional streams cannot make each stream faster, but
    a warm cache can.
    """

    def waiting(run: ScaledRun) -> float:
        return float(run.costs[STORAGE] / run.events)

    first, *later = sorted(runs, key=lambda one: one.run.start)
    least = min((run for run in later if run.workers >= first.workers), key=waiting, default=first)
    excess = waiting(first) - waiting(least)
    error = np.hypot(first.scatter, least.scatter) * waiting(first)
    if later[0].run.start > first.run.start and excess > 2 * error:
        first.costs[[COLD, STORAGE]] += [excess * first.events, -excess * first.events]


class Shares:
    """Thread time lost to each limit, as arrays with a row for each number of workers.

    The first column is measured, and the other columns are resampled. `lost` holds the thread time per event for each
    limit, and `ideal` holds the thread time per event in the absence of limits, both in seconds. `of_requests` is the
    share of the growth in storage wait due to requests (None if unknown). `constant` contains LATENCY if waiting for
    requests takes most of the time at any number of workers.
    """

    def __init__(self, groups: Groups, costs: Numbers) -> None:
        self.workers = np.array([group[0].workers for group in groups], np.float64)
        self.ideal, self.lost, self.of_requests = np.zeros(DRAWS), dict[str, Numbers](), None
        for name, amounts in zip(LIMITS, np.moveaxis(costs, 2, 0), strict=True):
            least = np.zeros(DRAWS)
            if name in {STORAGE, WRITING, BLOCKED, OVERHEAD, PREPROCESSING, WORK}:
                # use the number of workers at the measured minimum, because minima of resampled values would be biased
                # low
                least = amounts[np.argmin(amounts[:, 0])]
            self.ideal = self.ideal + least
            self.lost[name] = np.clip(amounts - least, 0.0, None)
        # if the same events need more CPU time, threads slow each other down
        self.lost[CONTENTION] = self.lost[CONTENTION] + self.lost.pop(WORK)
        grown = self.lost.pop(STORAGE)
        worst, best = (groups[int(find(grown[:, 0]))][0] for find in (np.argmax, np.argmin))
        self.constant = []
        before, now, by_requests = best.reading, worst.reading, False
        if before is not None and now is not None and worst is not best:
            requests, of_bytes = np.clip(now - before, 0.0, None)
            self.of_requests = requests / np.maximum(requests + of_bytes, 1e-300)
            by_requests = self.of_requests[0] > 0.5
        self.lost |= {LATENCY: by_requests * grown, BANDWIDTH: (not by_requests) * grown}
        if before is not None and not by_requests and np.quantile(before[0] / self.ideal, 0.025) >= 0.5:
            taken = np.minimum(before[0], 0.99 * self.ideal)
            self.constant, self.ideal, self.lost[LATENCY] = [LATENCY], self.ideal - taken, 0 * grown + taken

    def share(self, name: str) -> Numbers:
        return np.asarray(self.lost[name] / (self.ideal + sum(self.lost.values())))

    def useful(self, *names: str) -> Numbers:
        """Compute the number of useful workers if only the given limits applied (by default, all limits)."""
        lost = sum(self.lost[name] for name in names or self.lost)
        return np.asarray(self.workers[:, None] * self.ideal / (self.ideal + lost))


def turning_of(workers: Numbers, useful: Numbers) -> float:
    """Find the number of workers beyond which a limit absorbs the gain from adding workers.

    If the total rate peaks and then falls, this is the number of workers with the highest rate. Otherwise, it is the
    number of workers that would reach the highest rate if scaling were ideal.
    """
    best = int(np.argmax(useful))
    return float(workers[best] if useful[-1] < FALL * useful[best] else useful[best])


def peak_of(workers: Numbers, useful: Numbers) -> int | None:
    """Find the number of workers beyond which the number of useful workers falls, or return None if uncertain.

    Each row of `useful` contains the measured value for a number of workers, followed by resampled values.
    """
    best = int(np.argmax(useful[:, 0]))
    fall = useful[-1] / useful[best]
    return round(workers[best]) if fall[0] < FALL and np.quantile(fall[1:], INTERVAL[1]) < 1 else None


# The explanation


@dataclass(frozen=True, slots=True)
class Rate:
    """A limit expressed as a rate.

    `each` is the amount per event, and `thing` names the rate.
    """

    value: Between
    unit: Unit
    each: float
    thing: str

    def text(self) -> str:
        return self.value.text(alike(self.unit, filter(None, (self.value.value, self.value.high))).text)


def rate_of(name: str, runs: Sequence[ScaledRun], most: ScaledRun) -> Rate | None:
    """Find the highest rate of any run, or return None if the limit has no rate or the rate was not measured."""
    if name not in RATES:
        return None
    what, unit, thing = RATES[name]
    found = [(rate, run) for run in runs if (rate := run.rate_of(what)) is not None]
    if name == CLIENT and most.costs[CLIENT]:  # the rate if only the client took time
        found = [(Between(most.amount(CHUNKS) * most.threads / float(most.costs[CLIENT])), most)]
    if not found:
        return None
    value, run = max(found, key=lambda pair: pair[0].value)
    return Rate(value, unit, run.amount(what) / run.events, thing)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A limit on scaling.

    `share` is the limit's largest share of thread time, reached with `at` workers. `shares` holds the share at each
    number of workers. Beyond `turning` workers, the limit absorbs the gain from adding workers. Beyond `falls` workers,
    adding workers slows the run down. `rate` is the limit expressed as a rate, if possible.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """All limits on scaling, largest first.

    `main` is the main reason why adding workers gains less and less, or None if no limit is large enough. `useful`
    holds the number of useful workers for each number of workers. `ideal` is the thread time per event in the absence
    of limits, in seconds.
    """

    causes: list[Limit]
    main: Limit | None
    useful: list[Between]
    ideal: float
    doubts: list[str]


def explained(groups: Groups, costs: Numbers, unit: str) -> Limits:
    """Explain how runs scale. `unit` is "worker" or "thread"."""
    shares = Shares(groups, costs)
    causes = [_limit(name, shares, groups, unit) for name in shares.lost if shares.share(name)[:, 0].max() >= 0.005]
    causes.sort(key=lambda one: -one.share.value)
    main = next((one for one in causes if one.name != UNACCOUNTED and one.share.value >= MATTERS), None)
    useful, doubts = [Between.of(row) for row in shares.useful()], [*_doubts(main, shares, groups)]
    return Limits(causes=causes, main=main, useful=useful, ideal=float(shares.ideal[0]), doubts=doubts)


def _limit(name: str, shares: Shares, groups: Groups, unit: str) -> Limit:
    share, useful = shares.share(name), shares.useful(name)
    at = int(np.argmax(share[:, 0]))
    run = groups[at][0]
    if name in SUDDEN or name in shares.constant:
        level = 0.1 if name == NODES else 0.5
        turned = Between.of(shares.workers[np.argmax(share >= level * share.max(axis=0), axis=0)])
    else:
        turned = Between.of(np.array([turning_of(shares.workers, column) for column in useful.T]))
    beyond = [one for group in groups for one in group if one.workers >= turned.value]
    rate = None if name in shares.constant else rate_of(name, beyond or groups[at], run)
    known = rate is not None or name == LATE
    falls = peak_of(shares.workers, useful) if known and share[at, 0] >= MATTERS else None
    what, advice = WORDS[name]
    of_run = {"slow": run.slow, "cores": f" on {counted(run.cores, 'core')}" if run.cores else "", **run.client}
    of_run |= {"workers": counted(run.workers, unit), "there": number(three_digits(run.workers * (1 - run.missing)))}
    text = what.format(**of_run) + (f", at most {rate.text()}." if rate else ".")
    if run.servers and FAMILIES[name] == phases.READING:
        servers = " and ".join(run.servers)
        text = f"{servers} {'is' if len(run.servers) == 1 else 'are'} slower than the other servers. {text}"
        advice = f"Read the files on {servers} from other servers."
    if falls is not None:
        text += f" Beyond {counted(falls, unit)}, the total rate falls: adding more slows the run down."
    return Limit(
        name=name,
        share=Between.of(share[at]),
        at=run.workers,
        shares=share[:, 0].tolist(),
        turning=turned,
        falls=falls,
        rate=rate,
        text=text,
        advice=advice,
    )


def _doubts(main: Limit | None, shares: Shares, groups: Groups) -> Iterator[str]:
    if main is None or main.name not in {BANDWIDTH, LATENCY} or shares.constant:
        return
    if shares.of_requests is None:
        yield "without each chunk's byte count and read time, storage bandwidth and latency cannot be distinguished"
        return
    low, high = np.quantile(shares.of_requests[1:], INTERVAL)
    first = min((run for group in groups for run in group), key=lambda run: run.run.start)
    if low < 0.5 < high:
        yield "chunks and their requests are too similar for storage bandwidth and latency to be distinguished"
    elif main.falls is not None and first.workers == main.at:
        yield "the run with the most workers came first: repeat it if the files were not cached yet"


# For people

SHOWN: Final = 0.02
"""Minimum share of thread time at which a limit is drawn."""

USEFUL: Final = "useful"


def _headline(found: Limits, points: Sequence[Point], unit: str) -> str:
    largest, useful, main = points[-1].workers, found.useful[-1].value, found.main
    of_all = f"{counted(largest, unit)} do the work of {number(three_digits(useful))}"
    most, best = max((one.value, point.workers) for one, point in zip(found.useful, points, strict=True))
    if best < largest and most > useful / FALL:
        of_all += f", {number(best)} the work of {number(three_digits(most))}"
    if main is None:
        return f"Nothing limits these runs: the rate grows with the number of workers ({of_all})."
    name = main.name.capitalize()
    if main.name == COLD:
        return f"{name} in the run with {counted(main.at, unit)}; {of_all} compared with later runs."
    verb = "limit" if name.endswith("s") or " and " in name else "limits"
    return f"{name} {verb} these runs{_gained(main, points, unit)}: {of_all}."


def _gained(main: Limit, points: Sequence[Point], unit: str) -> str:
    if main.falls is not None:
        return f", and more than {counted(main.falls, unit)} slow them down"
    start = _from(main, points, unit)
    return f" from {start} on" if main.name in SUDDEN else f", and more than {start} gain little"


def _from(limit: Limit, points: Sequence[Point], unit: str) -> str:
    """Format the turning point, with its interval unless a run has exactly this number of workers."""
    value = round(limit.turning.value)
    if value in {point.workers for point in points}:
        return counted(value, unit)
    return f"about {limit.turning.text('{:,.0f}'.format)} {unit}s"


def reasons(found: Limits, points: Sequence[Point], unit: str, needs: Sequence[str]) -> Sheet:
    main = found.main
    return Sheet(
        title="why adding workers gains less and less",
        lead=[_headline(found, points, unit), *needs, *(f"Note: {doubt}." for doubt in found.doubts)],
        items=[main.text, main.advice] if main else [],
        columns=[
            Column("limit"),
            Column("thread time", FRACTION, "the limit's largest share of thread time"),
            Column(f"with {unit}s", COUNT, "where the limit's share is largest"),
            Column(f"from {unit}s", COUNT, "number of workers above which the limit absorbs the gain from adding more"),
            Column("at most", None, "highest rate that the limit allows"),
        ],
        rows=[
            (
                one.name,
                Amount(one.share.value, FRACTION, one.share.text(percent_of)),
                one.at,
                round(one.turning.value),
                one.rate.unit.text(one.rate.value.value) if one.rate and one.share.value >= MATTERS else "",
            )
            for one in found.causes[:6]
        ],
        cards=[_card(one, points, unit) for one in found.causes[:3] if one.share.value >= SHOWN],
        form="plain",
        things="limits",
    )


def _card(one: Limit, points: Sequence[Point], unit: str) -> Card:
    share, workers = one.shares[-1], points[-1].workers
    if share < SHOWN:
        share, workers = one.share.value, one.at
    name, start = one.name.capitalize(), _from(one, points, unit)
    more = f" From {start} on." if one.name in SUDDEN else f" More than {start} gain little." * (one.falls is None)
    of_time = f"{percent_of(share)} of thread time with {counted(workers, unit)}"
    return Card(name, of_time, f"{one.text}{more}", one.advice, family=FAMILIES[one.name])


def useful_workers(found: Limits, points: Sequence[Point], unit: str) -> Sheet:
    rows: list[list[Cell]] = []
    bars = []
    for place, point in enumerate(points):
        parts = [(USEFUL, phases.COMPUTING, found.useful[place].value)]
        parts += [(one.name, FAMILIES[one.name], one.shares[place] * point.workers) for one in found.causes]
        shown = [amount for *_, amount in parts[:4]]
        shown.append(max(point.workers - sum(shown), 0.0))
        rows.append([number(point.workers), *(Amount(each, text=_amount(each)) for each in shown)])
        drawn_parts = [
            segment(family, each / point.workers, name, _amount(each)) for name, family, each in parts if each
        ]
        bars.append(drawn(f"{counted(point.workers, unit)}: {_amount(shown[0])} useful", "", drawn_parts))
    return Sheet(
        title=f"useful {unit}s, and where the others are lost",
        columns=columns(None, f"{unit}s") + columns(COUNT, USEFUL, *(one.name for one in found.causes[:3]), "others"),
        rows=rows,
        bars=bars,
        things="sizes",
    )


def _amount(workers: float) -> str:
    return number(float(f"{workers:.1f}")) if workers < 100 else number(round(workers))
