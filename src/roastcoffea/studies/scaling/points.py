"""Points of scaling: the rates of runs, by their number of workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from roastcoffea.measurement import Measurement
from roastcoffea.metrics.statistics import Numbers, sample_deviation
from roastcoffea.records.run import FAILED
from roastcoffea.studies.scaling.laws import Between

RESAMPLES: Final = 400
SEED: Final = 1

WORKERS: Final = "workers"
THREADS: Final = "threads"
"""What is counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaled:
    """What is taken of one run."""

    name: str
    workers: int
    threads: int
    missing: float
    """Share of the workers' time for which they were not there."""
    seconds: float
    events: float
    failed: bool
    chunksizes: frozenset[Any]
    cores: int | None
    """Cores of all hosts; None where they are not known."""
    scatter: float
    """Relative error of the rate as chunks alone tell it; 0 where they do not."""
    classes: Mapping[str, float]

    @property
    def rate(self) -> float:
        """Events a second."""
        return self.events / self.seconds

    @property
    def crowded(self) -> bool:
        """Whether it is known to have had more threads than cores."""
        return self.cores is not None and self.threads > self.cores


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Runs with one number of workers: the most at one moment.

    `rate` is in events a second. `speedup` is beside that of one worker, if the smallest number scales perfectly;
    `efficiency` is the rate for each worker, beside that of the smallest number. `classes` are thread seconds for each
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
    """What is taken of a measurement."""
    metrics, run = measurement.metrics, measurement.run
    events, workers, hosts = metrics["total_events"], metrics["peak_workers"], run.environment.hosts
    threads = max(round(workers * metrics["cores_per_worker"]), 1)
    cores = {host.cores for host in hosts}
    of_host = cores.pop() if len(cores) == 1 else None
    return Scaled(
        name=name,
        workers=workers if unit == WORKERS else threads,
        threads=threads,
        missing=1 - metrics["avg_workers"] / workers,
        seconds=metrics["elapsed_time_seconds"],
        events=events,
        failed=measurement.outcome == FAILED,
        chunksizes=frozenset(call.options.get("chunksize") for call in run.calls),
        cores=None if of_host is None else of_host * len(hosts),
        scatter=_scatter(measurement),
        classes={each: seconds / events for each, seconds in measurement.time_ledger.items()},
    )


def _scatter(measurement: Measurement) -> float:
    wall = measurement.chunks["wall_seconds"].dropna().to_numpy()
    return float(sample_deviation(wall) / wall.mean() / len(wall) ** 0.5) if len(wall) > 1 else 0.0


def resampled_rates(group: Sequence[Scaled], place: int) -> Numbers:
    """Rates that the group might have had: the first as it was, the others from resampled runs, or chunks."""
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
    """Point of runs with one number of workers, beside the rates of the fewest."""
    workers = group[0].workers
    gain = rates / least if rates is not least else np.ones(len(rates))
    return Point(
        workers=workers,
        runs=len(group),
        seconds=float(np.median([each.seconds for each in group])),
        events=float(np.median([each.events for each in group])),
        rate=Between.of(rates),
        speedup=Between.of(gain * fewest),
        efficiency=Between.of(gain * fewest / workers),
        classes={name: float(np.mean([each.classes.get(name, 0.0) for each in group])) for name in group[0].classes},
    )
