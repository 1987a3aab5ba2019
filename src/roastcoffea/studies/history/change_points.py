"""Change points: the runs at which a number changed, found by ranks.

The statistic is that of Pettitt (1979), standardized: the difference between the mean rank before a place and after it,
over its standard deviation, at the place where it is largest. If nothing changed, all orders of the runs are equally
likely, so the p-value is the share of shuffled orders that are at least as extreme. That holds for any scatter, ties
and outliers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final

import numpy as np

from roastcoffea.metrics.statistics import Numbers

FALSE_ALARMS: Final = 0.05
"""Share of histories without a change that are marked all the same, at most, over all numbers that are tested."""

SHUFFLES: Final = 9999
SEED: Final = 20260101
BATCH: Final = 1_000_000
"""Ranks that are shuffled at a time."""

SHORTEST: Final = 2
"""Runs on either side of a change point, at least: one run is an outlier."""


def change_points(values: Sequence[float], risk: float = FALSE_ALARMS) -> list[int]:
    """Places from which on values are others than before, in order.

    Where a change was found, the values before and after it are tested again, each with half of the risk: what is found
    beyond a change has, all together, the same risk of a false alarm.

    Parameters
    ----------
    values
        A number of each run, oldest first.
    risk
        Probability of a mark where nothing changed, at most.
    """
    return sorted(_found(np.asarray(values, np.float64), 0, risk))


def _found(values: Numbers, first: int, risk: float) -> Iterator[int]:
    place, p_value = most_likely_change(values)
    if place is None or p_value > risk:
        return
    yield first + place
    yield from _found(values[:place], first, risk / 2)
    yield from _found(values[place:], first + place, risk / 2)


def most_likely_change(values: Numbers) -> tuple[int | None, float]:
    """Place of the most likely change, and its p-value; no place where values are too few, or all the same."""
    ranks = mean_ranks(values)
    if len(values) < 2 * SHORTEST or np.ptp(ranks) == 0:
        return None, 1.0
    found = _statistics(ranks[None, :])[0]
    shuffled = _shuffled(tuple(np.sort(ranks)))
    as_extreme = len(shuffled) - np.searchsorted(shuffled, found.max() * (1 - 1e-9))
    return int(np.argmax(found)) + SHORTEST, float((1 + as_extreme) / (1 + len(shuffled)))


def mean_ranks(values: Numbers) -> Numbers:
    """Ranks from 1; equal values share the mean of theirs."""
    _, place, times = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(times) - (times - 1) / 2)[place], np.float64)


def _statistics(ranks: Numbers) -> Numbers:
    """Difference of the mean ranks before and after each place, but for a common factor; one row for each order."""
    count = ranks.shape[1]
    before = np.arange(SHORTEST, count - SHORTEST + 1)
    sums = np.cumsum(ranks - ranks.mean(axis=1, keepdims=True), axis=1)[:, before - 1]
    return np.asarray(np.abs(sums) / np.sqrt(before * (count - before)))


@lru_cache(maxsize=64)
def _shuffled(ranks: tuple[float, ...]) -> Numbers:
    """The statistic of shuffled orders of these ranks, sorted."""
    rng, rows = np.random.default_rng(SEED), max(BATCH // len(ranks), 1)
    sizes = [min(rows, SHUFFLES - first) for first in range(0, SHUFFLES, rows)]
    orders = (rng.permuted(np.tile(ranks, (size, 1)), axis=1) for size in sizes)
    return np.sort(np.concatenate([_statistics(order).max(axis=1) for order in orders]))


def fewest_runs(risk: float) -> int:
    """Number of runs from which on a change in their middle can be told at all.

    The most extreme orders have all low values on one side of the middle. There are two such sides for an even number
    of runs, and four for an odd one.
    """
    from math import comb

    count = 2 * SHORTEST
    while (4 if count % 2 else 2) > risk * comb(count, count // 2):
        count += 1
    return count
