"""Laws of scaling, their points (rates by number of workers), and numbers with intervals."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy.optimize import nnls

from roastcoffea.metrics.statistics import Numbers

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
