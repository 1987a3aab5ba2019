"""Laws of scaling: Amdahl's, and the universal scalability law (Gunther)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy.optimize import nnls

from roastcoffea.metrics.statistics import Numbers

INTERVAL: Final = (0.025, 0.975)

SAME: Final = 0.001
"""Relative difference of amounts up to which they are the same."""

FEWEST: Final = {"Amdahl": 3, "USL": 4}
"""Different numbers of workers from which a law is drawn: with one fewer it would fit anything."""

LEAST_GAIN: Final = 0.1
"""Another worker is wasted where it adds less than this share of what the first one does."""

MOST_WORKERS: Final = 100_000

SLOWER: Final = "more workers made it slower: no share of the work explains that"
"""Why there is no law where more than all of the work would have to go one after the other."""


@dataclass(frozen=True, slots=True)
class Between:
    """A number and its 95 % interval; the interval is None where nothing tells it."""

    value: float
    low: float | None = None
    high: float | None = None

    @classmethod
    def of(cls, values: Numbers) -> Between:
        """The first value, with the interval of the others; none where they do not differ."""
        if np.ptp(values[1:]) == 0:
            return cls(float(values[0]))
        low, high = np.quantile(values[1:], INTERVAL)
        return cls(float(values[0]), float(low), float(high))


@dataclass(frozen=True, slots=True, kw_only=True)
class Law:
    """Rate of N workers: `rate` x N / (1 + `contention` (N - 1) + `coherency` N (N - 1)).

    Without coherency it is Amdahl's law, with it the universal scalability law (Gunther). `peak` is the number of
    workers that has the highest rate, `worth` the largest to which another one adds a tenth of what the first gives.
    None stands for numbers without end. `deviation` is the largest relative distance of a point.
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
        """Speed-up of so many workers."""
        return _speedup(workers, self.contention.value, self.coherency.value)


def laws_of(workers: Numbers, rates: Numbers, *, strong: bool) -> tuple[dict[str, Law], dict[str, str]]:
    """Laws by name, and why others are missing.

    Parameters
    ----------
    rates
        A row for each number of workers: the rate, and others that it might have been.
    strong
        Whether all numbers of workers had the same work.
    """
    laws: dict[str, Law] = {}
    missing: dict[str, str] = {}
    for degree, (name, fewest) in enumerate(FEWEST.items(), start=1):
        if len(workers) < fewest:
            missing[name] = f"it takes runs with {fewest} different numbers of workers; there are {len(workers)}"
        elif degree == 1 and not strong:
            missing[name] = "it is for the same work on different numbers of workers"
        elif (law := _law(workers, rates, degree)).contention.value > 1 + SAME:
            missing[name] = SLOWER
        else:
            laws[name] = law
    return laws, missing


def _law(workers: Numbers, rates: Numbers, degree: int) -> Law:
    """Law that fits the points best, and what fits the resampled ones."""
    fits = np.array([_fit(workers, column, degree) for column in rates.T])
    rate, contention, coherency = fits[0]
    worth = [_worth(*fit[1:]) for fit in fits]
    fitted = rate * _speedup(workers, contention, coherency)
    low, high = (_at(worth[1:], share) for share in INTERVAL)
    return Law(
        rate=float(rate),
        contention=Between.of(fits[:, 1]),
        coherency=Between.of(fits[:, 2]),
        peak=float(max((1 - contention) / coherency, 1.0) ** 0.5) if coherency > 0 else None,
        worth=worth[0],
        worth_low=low,
        worth_high=high,
        deviation=float(np.abs(rates[:, 0] / fitted - 1).max()),
    )


def _fit(workers: Numbers, rates: Numbers, degree: int) -> tuple[float, float, float]:
    """Rate of one worker, contention and coherency: workers / rate is linear in what they make."""
    traits = np.column_stack([np.ones(len(workers)), workers - 1, workers * (workers - 1)])[:, : degree + 1]
    found, _ = nnls(traits * (rates / workers)[:, None], np.ones(len(workers)))
    one, *others = np.maximum(found, [1e-300, *[0.0] * degree])
    contention, coherency = (*(other / one for other in others), 0.0)[:2]
    return 1 / float(one), float(contention), float(coherency)


def _speedup(workers: Numbers, contention: float, coherency: float) -> Numbers:
    return np.asarray(workers / (1 + contention * (workers - 1) + coherency * workers * (workers - 1)))


def _worth(contention: float, coherency: float) -> int | None:
    """Most workers of which the last adds its share; None where all do."""
    workers = np.arange(1, MOST_WORKERS + 1, dtype=np.float64)
    wasted = np.diff(_speedup(workers, contention, coherency)) < LEAST_GAIN
    return int(np.argmax(wasted)) + 1 if wasted.any() else None


def _at(worth: Sequence[int | None], share: float) -> int | None:
    """Quantile of numbers of workers; None is beyond all."""
    ordered = sorted(worth, key=lambda workers: float("inf") if workers is None else workers)
    return ordered[round(share * (len(ordered) - 1))]
