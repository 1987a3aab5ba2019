"""Points of scaling (rates by number of workers), their laws, and rates in the units of what limits them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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

FEWEST: Final = {"Amdahl": 3, "USL": 4}
"""Fewest distinct numbers of workers for a law: with one less, any law would fit."""

LEAST_GAIN: Final = 0.1
"""Another worker is wasted if it adds less than this share of the first one's gain."""

MOST_WORKERS: Final = 100_000

SLOWER: Final = "more workers made it slower, which no serial fraction explains"
"""Why there is no law if the serial fraction would exceed 1."""

RESAMPLES: Final = 400
SEED: Final = 1

WORKERS: Final = "workers"
THREADS: Final = "threads"
"""What is counted."""


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
        low, high = np.quantile(values[1:], INTERVAL)
        return cls(float(values[0]), float(low), float(high))


# Points


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaled:
    """Amounts from one run."""

    name: str
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
    return Scaled(
        name=name,
        workers=workers if unit == WORKERS else threads,
        threads=threads,
        missing=1 - metrics["avg_workers"] / workers,
        seconds=metrics["elapsed_time_seconds"],
        events=events,
        failed=measurement.run.ended_early,
        chunksizes=frozenset(call.options.get("chunksize") for call in run.calls),
        cores=None if cores is None else cores * len(hosts),
        scatter=float(sample_deviation(wall) / wall.mean() / len(wall) ** 0.5) if len(wall) > 1 else 0.0,
        classes={each: seconds / events for each, seconds in measurement.time_ledger.items()},
    )


def resampled_rates(group: Sequence[Scaled], place: int) -> Numbers:
    """Possible rates of a group: first the measured one, then those of resampled runs or chunks."""
    random = np.random.default_rng([SEED, place])
    rates = np.log([each.rate for each in group])
    if len(group) == 1:
        others = rates[0] + group[0].scatter * random.standard_normal(RESAMPLES)
    else:
        from scipy.stats import bootstrap

        means = bootstrap((rates,), np.mean, n_resamples=RESAMPLES, method="percentile", random_state=random)
        others = means.bootstrap_distribution
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
    for degree, (name, fewest) in enumerate(FEWEST.items(), start=1):
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
    fits = np.array([_fit(workers, column, degree) for column in rates.T])
    rate, contention, coherency = fits[0]
    worth = [_worth(*fit[1:]) for fit in fits]
    fitted = rate * _speedup(workers, contention, coherency)
    low, high = (_at(worth[1:], share) for share in INTERVAL)
    peak = float(max((1 - contention) / coherency, 1.0) ** 0.5) if coherency > 0 else None
    deviation = float(np.abs(rates[:, 0] / fitted - 1).max())
    return Law(float(rate), Between.of(fits[:, 1]), Between.of(fits[:, 2]), peak, worth[0], low, high, deviation)


def _fit(workers: Numbers, rates: Numbers, degree: int) -> tuple[float, float, float]:
    """Rate of one worker, contention and coherency: workers / rate is linear in these parameters."""
    traits = np.column_stack([np.ones(len(workers)), workers - 1, workers * (workers - 1)])[:, : degree + 1]
    found, _ = nnls(traits * (rates / workers)[:, None], np.ones(len(workers)))
    one, *others = np.maximum(found, [1e-300, *[0.0] * degree])
    contention, coherency = (*(other / one for other in others), 0.0)[:2]
    return 1 / float(one), float(contention), float(coherency)


def _speedup(workers: Numbers, contention: float, coherency: float) -> Numbers:
    return np.asarray(workers / (1 + contention * (workers - 1) + coherency * workers * (workers - 1)))


def _worth(contention: float, coherency: float) -> int | None:
    """Largest number of workers at which another one adds its share; None if there is no limit."""
    # gains shrink as workers are added, and are negative beyond the peak: the first small one is found by bisection
    low, high = 0, MOST_WORKERS
    while high - low > 1:
        middle = (low + high) // 2
        fewer, more = _speedup(np.array([middle, middle + 1.0]), contention, coherency)
        low, high = (low, middle) if more - fewer < LEAST_GAIN else (middle, high)
    return high if high < MOST_WORKERS else None


def _at(worth: Sequence[int | None], share: float) -> int | None:
    """Quantile of numbers of workers; None sorts above all."""
    ordered = sorted(worth, key=lambda workers: float("inf") if workers is None else workers)
    return ordered[round(share * (len(ordered) - 1))]


MIDDLE: Final = (0.1, 0.9)
"""Part of an amount whose rate is that of the run: neither its start nor its tail."""

SLICES: Final = 16
"""Parts of that time; the scatter of their rates gives the interval."""

FEWEST_EVENTS: Final = 4 * SLICES
"""Fewest events of which a rate is known."""

DEVIATIONS: Final = 1.96


@dataclass(frozen=True, slots=True)
class Pace:
    """Rates of a run per second, each None if not measured; and what the run had of each."""

    rates: dict[str, Between]
    amounts: dict[str, float]


@dataclass(frozen=True, slots=True)
class Loop:
    """The scheduler's event loop while tasks were in flight: share of its core, and mean lag in seconds."""

    share: float
    lag: float | None


def loop_of(measurement: Measurement) -> Loop | None:
    """The scheduler's event loop as sampled; None if it was not."""
    metrics = measurement.metrics
    share, lag = (metrics.get(name) for name in ("scheduler_core_share", "scheduler_lag_seconds"))
    return None if share is None else Loop(share, lag)


BYTES: Final = "bytes"
REQUESTS: Final = "requests"
TASKS: Final = "tasks"
MERGED: Final = "merged"
CHUNKS: Final = "chunks"


def pace_of(measurement: Measurement) -> Pace:
    """Rates of a run."""
    rates, amounts = {}, {}
    for name, (times, counted) in _counted(measurement).items():
        known = ~(np.isnan(times) | np.isnan(counted))
        amounts[name] = float(counted[known].sum())
        rate = middle_rate(times[known], counted[known])
        if rate is not None:
            rates[name] = rate
    return Pace(rates, amounts)


def _counted(measurement: Measurement) -> dict[str, tuple[Numbers, Numbers]]:
    """Times and amounts of what is counted."""
    chunks, found = measurement.chunks, {}
    if len(chunks):
        stop = chunks["stop"].to_numpy(np.float64)
        found[BYTES] = stop, chunks["bytes_requested"].to_numpy(np.float64)
        found[CHUNKS] = stop, np.ones(len(stop))
        if chunks["requests"].notna().all():
            found[REQUESTS] = stop, chunks["requests"].to_numpy(np.float64)
    if measurement.run.tasks is not None:
        tasks = measurement.tasks
        seen, size = (tasks[name].to_numpy(np.float64) for name in ("seen", "nbytes"))
        kind, stop = tasks["kind"].to_numpy(), tasks["stop"].to_numpy(np.float64)
        found[TASKS] = seen, np.ones(len(seen))
        # what merges take in are the results of all tasks but the last
        results = np.isin(kind, (PROCESSOR, MERGE))
        last = results & (stop == np.max(stop[results], initial=-np.inf))
        found[MERGED] = stop[results & ~last], size[results & ~last]
    return found


def middle_rate(times: Numbers, amounts: Numbers) -> Between | None:
    """Amount per second while the middle of it came, with an interval; None if there is too little to tell."""
    if len(times) < FEWEST_EVENTS or not amounts.sum():
        return None
    order = np.argsort(times)
    times, came = times[order], np.cumsum(amounts[order]) / amounts.sum()
    begin, end = (float(times[np.searchsorted(came, share)]) for share in MIDDLE)
    if end <= begin:
        return None
    edges = np.linspace(begin, end, SLICES + 1)
    slices, _ = np.histogram(times, edges, weights=amounts[order])
    rates = slices * SLICES / (end - begin)
    mean, error = float(rates.mean()), DEVIATIONS * float(rates.std(ddof=1)) / SLICES**0.5
    return Between(mean, max(mean - error, 0.0), mean + error)
