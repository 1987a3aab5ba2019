"""Points of scaling (rates by number of workers), their laws, and rates in the units of what limits them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from scipy.optimize import nnls

from roastcoffea.measurement import Measurement
from roastcoffea.metrics.statistics import Numbers, sample_deviation
from roastcoffea.records.tasks import MERGE, PROCESSOR
from roastcoffea.replay.recorded import only

INTERVAL: Final = (0.025, 0.975)

SAME: Final = 0.001
"""Relative difference below which amounts are considered equal."""

LEAST_GAIN: Final = 0.1
"""Another worker is wasted if it adds less than this share of the first one's gain."""

MOST_WORKERS: Final = 100_000

SLOWER: Final = "more workers made it slower, which no serial fraction explains"
"""Why there is no law if the serial fraction would exceed 1."""

RESAMPLES: Final = 400
SEED: Final = 1

WORKERS, THREADS = "workers", "threads"
"""What is counted."""

BYTES, REQUESTS, TASKS, MERGED, CHUNKS = "bytes", "requests", "tasks", "merged", "chunks"
"""What has a rate."""


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


# Points


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaled:
    """Amounts from one run."""

    name: str
    start: float
    workers: int
    threads: int
    missing: float
    """Share of the workers' time in which they were absent."""
    seconds: float
    events: float
    failed: bool
    chunksizes: frozenset[Any]
    cores: int | None
    """Cores of all hosts; None if unknown."""
    scatter: float
    """Relative error of the rate as estimated from chunks alone; 0 if unknown."""
    classes: Mapping[str, float]
    rates: Mapping[str, Between]
    """Bytes, requests, tasks, merged results and chunks per second, those that were measured."""
    amounts: Mapping[str, float]
    loop_share: float | None
    """Share of a core that the scheduler's event loop used while tasks were in flight."""
    loop_lag: float | None

    @property
    def rate(self) -> float:
        """Events per second."""
        return self.events / self.seconds


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


def scaled(name: str, measurement: Measurement, unit: str) -> Scaled:
    """Amounts from a measurement."""
    metrics, run = measurement.metrics, measurement.run
    events, workers, hosts = metrics["total_events"], metrics["peak_workers"], run.environment.hosts
    threads = max(round(workers * metrics["cores_per_worker"]), 1)
    cores, wall = only(host.cores for host in hosts), measurement.chunks["wall_seconds"].dropna().to_numpy()
    counted = {what: (times, some) for what, times, some in _counted(measurement)}
    rates = {what: middle_rate(*each) for what, each in counted.items()}
    return Scaled(
        name=name,
        start=run.start,
        workers=workers if unit == WORKERS else threads,
        threads=threads,
        missing=1 - metrics["avg_workers"] / workers,
        seconds=metrics["elapsed_time_seconds"],
        events=events,
        failed=run.ended_early,
        chunksizes=frozenset(call.options.get("chunksize") for call in run.calls),
        cores=None if cores is None else cores * len(hosts),
        scatter=float(sample_deviation(wall) / wall.mean() / len(wall) ** 0.5) if len(wall) > 1 else 0.0,
        classes={each: seconds / events for each, seconds in measurement.time_ledger.items()},
        rates={what: rate for what, rate in rates.items() if rate is not None},
        amounts={what: float(some.sum()) for what, (_, some) in counted.items()},
        loop_share=metrics.get("scheduler_core_share"),
        loop_lag=metrics.get("scheduler_lag_seconds"),
    )


def _counted(measurement: Measurement) -> Iterator[tuple[str, Numbers, Numbers]]:
    """Times and amounts of what is counted."""
    chunks = measurement.chunks
    if len(chunks):
        found = [(BYTES, chunks["stop"], chunks["bytes_requested"]), (CHUNKS, chunks["stop"], 1 + 0 * chunks["stop"])]
        if chunks["requests"].notna().all():
            found.append((REQUESTS, chunks["stop"], chunks["requests"]))
        yield from map(_known, found)
    if measurement.run.tasks is not None:
        tasks = measurement.tasks
        # what merges take in are the results of all tasks but the last
        results = tasks[tasks["kind"].isin((PROCESSOR, MERGE))]
        results = results[results["stop"] != results["stop"].max()]
        yield from map(
            _known, [(TASKS, tasks["seen"], 1 + 0 * tasks["seen"]), (MERGED, results["stop"], results["nbytes"])]
        )


def _known(named: tuple[str, Any, Any]) -> tuple[str, Numbers, Numbers]:
    name, *both = named
    times, amounts = (column.to_numpy(np.float64, na_value=np.nan) for column in both)
    known = ~np.isnan(times + amounts)
    return name, times[known], amounts[known]


def middle_rate(times: Numbers, amounts: Numbers) -> Between | None:
    """Amount per second while the middle of it came, with an interval; None if there is too little to tell."""
    slices = 16
    if len(times) < 4 * slices or not amounts.sum():
        return None
    order = np.argsort(times)
    times, came = times[order], np.cumsum(amounts[order]) / amounts.sum()
    # neither its start nor its tail
    begin, end = times[np.searchsorted(came, (0.1, 0.9))].tolist()
    if end <= begin:
        return None
    rates = np.histogram(times, slices, (begin, end), weights=amounts[order])[0] * slices / (end - begin)
    mean, error = float(rates.mean()), 1.96 * float(rates.std(ddof=1)) / slices**0.5
    return Between(mean, max(mean - error, 0.0), mean + error)


def resampled_rates(group: Sequence[Scaled], place: int) -> Numbers:
    """Possible rates of a group: first the measured one, then those of resampled runs or chunks."""
    random = np.random.default_rng([SEED, place])
    rates = np.log([each.rate for each in group])
    if len(group) == 1:
        others = rates[0] + group[0].scatter * random.standard_normal(RESAMPLES)
    else:
        others = random.choice(rates, (RESAMPLES, len(rates))).mean(axis=1)
    return np.asarray(np.exp([rates.mean(), *others]))


def point_of(group: Sequence[Scaled], rates: Numbers, fewest: int, least: Numbers) -> Point:
    """Point of runs with one number of workers, relative to the rates of the fewest."""
    workers = group[0].workers
    gain = rates / least if rates is not least else np.ones(len(rates))
    seconds, events = np.median([(each.seconds, each.events) for each in group], axis=0).tolist()
    rate, speedup, efficiency = map(Between.of, (rates, gain * fewest, gain * fewest / workers))
    classes = {name: float(np.mean([each.classes.get(name, 0.0) for each in group])) for name in group[0].classes}
    return Point(workers, len(group), seconds, events, rate, speedup, efficiency, classes)


# Laws


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
        elif (law := _law(workers, rates, degree)).contention.value > 1 + SAME:
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
    worth = [_worth(*each) for each in zip(contention, coherency, strict=True)]
    low, high = (_finite(worth[1:], share) for share in INTERVAL)
    fitted = _speedup(workers, contention[0], coherency[0]) / one[0]
    peak = float(max((1 - contention[0]) / coherency[0], 1.0) ** 0.5) if coherency[0] > 0 else None
    return Law(
        rate=float(1 / one[0]),
        contention=Between.of(contention),
        coherency=Between.of(coherency),
        peak=peak,
        worth=_finite(worth[:1], 1.0),
        worth_low=low,
        worth_high=high,
        deviation=float(np.abs(rates[:, 0] / fitted - 1).max()),
    )


def _speedup(workers: Numbers, contention: float, coherency: float) -> Numbers:
    return np.asarray(workers / (1 + contention * (workers - 1) + coherency * workers * (workers - 1)))


def _worth(contention: float, coherency: float) -> float:
    """Largest number of workers at which another one adds its share."""

    def wasted(workers: int) -> bool:
        fewer, more = _speedup(np.array([workers, workers + 1.0]), contention, coherency)
        return bool(more - fewer < LEAST_GAIN)

    # gains shrink as workers are added, and are negative beyond the peak
    found = bisect_left(range(MOST_WORKERS), True, key=wasted)
    return found if found < MOST_WORKERS else np.inf


def _finite(worth: Sequence[float], share: float) -> int | None:
    """Quantile of numbers of workers; None if it has no limit."""
    found = sorted(worth)[round(share * (len(worth) - 1))]
    return None if np.isinf(found) else int(found)
