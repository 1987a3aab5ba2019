"""Change points: the runs at which a number changed, found by ranks.

The method is circular binary segmentation (Olshen, Venkatraman, Lucito and Wigler, Biostatistics 5, 557, 2004) of
ranks. The mean rank of any stretch of runs is compared with that of all others, in units of the standard deviation of
that difference; the statistic is the largest value. A stretch at the end is one change, one in between is two. If
nothing changed, all orders of the runs are equally likely, so the p-value is the share of shuffled orders with a
statistic at least as large. That holds for any scatter, with ties and outliers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from math import comb
from typing import Final

import numpy as np

from roastcoffea.metrics.statistics import Numbers
from roastcoffea.studies.compare.repeats import judged

FALSE_ALARMS: Final = 0.05
"""Largest probability of a mark in a history without a change, over all numbers that are tested."""

SEED: Final = 20260101
MOST_SHUFFLES: Final = 9999
FEWEST_SHUFFLES: Final = 999
MOST_STRETCHES: Final = 200_000_000
"""Stretches that are compared in all shuffled orders; long histories are shuffled less often."""

BATCH: Final = 1_000_000
"""Ranks that are shuffled at a time."""

SHORTEST: Final = 2
"""Smallest number of runs in a stretch, and on either side of it."""


def change_points(values: Sequence[float], risk: float = FALSE_ALARMS) -> list[int]:
    """Places at which values change, in order: 3 if the fourth value is the first after a change.

    The parts between changes are tested again and share the risk.

    Parameters
    ----------
    values
        A number of each run, oldest first.
    risk
        Largest probability of a mark where nothing changed.
    """
    series = np.asarray(values, np.float64)
    places = [0, *sorted(_found(series, 0, risk)), len(series)]
    for number in range(1, len(places) - 1):  # when a place was found, those beside it were not known
        low, high = places[number - 1], places[number + 1]
        places[number] = low + _best_place(series[low:high])
    return places[1:-1]


def _found(values: Numbers, first: int, risk: float) -> Iterator[int]:
    if len(values) < fewest_runs(risk) or p_value(values) > risk:
        return
    places = _places(values, risk)
    yield from (first + place for place in places)
    for low, high in pairwise([0, *places, len(values)]):
        yield from _found(values[low:high], first + low, risk / (len(places) + 1))


def p_value(values: Numbers) -> float:
    """Share of shuffled orders that look as much like a change."""
    ranks = mean_ranks(values)
    if len(values) < 2 * SHORTEST or np.ptp(ranks) == 0:
        return 1.0
    shuffled = _shuffled(tuple(np.sort(ranks)))
    as_large = len(shuffled) - np.searchsorted(shuffled, _largest(_sums(ranks[None, :]))[0] * (1 - 1e-9))
    return float((1 + as_large) / (1 + len(shuffled)))


def mean_ranks(values: Numbers) -> Numbers:
    """Ranks from 1; equal values share the mean of theirs."""
    _, place, times = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(times) - (times - 1) / 2)[place], np.float64)


# The statistic


def _sums(ranks: Numbers) -> Numbers:
    """Sums of the first ranks less their mean, from none to all of them; a row for each order."""
    centred = ranks - ranks.mean(axis=1, keepdims=True)
    return np.asarray(np.pad(np.cumsum(centred, axis=1), ((0, 0), (1, 0))), np.float64)


def _largest(sums: Numbers) -> Numbers:
    """Largest difference of the mean rank of a stretch from that of the others, but for a common factor."""
    found = _at_ends(sums).max(axis=1)
    count = sums.shape[1] - 1
    for length in range(SHORTEST, count - 2 * SHORTEST + 1):
        found = np.maximum(found, _between(sums, length).max(axis=1))
    return np.asarray(found)


def _at_ends(sums: Numbers) -> Numbers:
    """Differences for the first runs against the rest, by their number."""
    count = sums.shape[1] - 1
    lengths = np.arange(SHORTEST, count - SHORTEST + 1)
    return np.asarray(np.abs(sums[:, lengths]) / np.sqrt(lengths * (count - lengths)))


def _between(sums: Numbers, length: int) -> Numbers:
    """Differences for stretches of a length with runs on both sides, by their beginning."""
    count = sums.shape[1] - 1
    differences = sums[:, SHORTEST + length : count - SHORTEST + 1] - sums[:, SHORTEST : count - SHORTEST - length + 1]
    return np.asarray(np.abs(differences) / np.sqrt(length * (count - length)))


@lru_cache(maxsize=64)
def _shuffled(ranks: tuple[float, ...]) -> Numbers:
    """The statistic of shuffled orders of these ranks, sorted."""
    count = len(ranks)
    shuffles = min(max(2 * MOST_STRETCHES // count**2, FEWEST_SHUFFLES), MOST_SHUFFLES)
    rng, rows = np.random.default_rng(SEED), max(BATCH // count, 1)
    sizes = [min(rows, shuffles - first) for first in range(0, shuffles, rows)]
    orders = (rng.permuted(np.tile(ranks, (size, 1)), axis=1) for size in sizes)
    return np.sort(np.concatenate([_largest(_sums(order)) for order in orders]))


@lru_cache(maxsize=64)
def fewest_runs(risk: float) -> int:
    """Number of runs from which a change in their middle can be found, with any larger number as well."""
    count = 2 * SHORTEST
    while max(_smallest_p_value(count), _smallest_p_value(count + 1)) > risk:
        count += 1
    return count


def _smallest_p_value(count: int) -> float:
    """Share of the orders in which one half of the runs, all low or all high, is a stretch."""
    halves = {count // 2, count - count // 2}
    stretches = sum(1 + max(count - 2 * SHORTEST + 1 - length, 0) for length in halves)
    return 2 * stretches / comb(count, count // 2)


# Where it changed


def _places(values: Numbers, risk: float) -> list[int]:
    """Ends of the stretch that differs most from the others, as far as they are clear; else the best single place."""
    sums = _sums(mean_ranks(values)[None, :])
    best, found = float(_at_ends(sums).max()), [_best_place(values)]
    for length in range(SHORTEST, len(values) - 2 * SHORTEST + 1):
        between = _between(sums, length)[0]
        if between.max() > best * (1 + 1e-9):
            begin = int(np.argmax(between)) + SHORTEST
            best, stretch = float(between.max()), (0, begin, begin + length, len(values))
            clear = [place for low, place, high in _triples(stretch) if _differ(values, low, place, high, risk)]
            found = clear or found
    return found


def _best_place(values: Numbers) -> int:
    """Place that leaves the least absolute deviations from the medians before and after it, on logarithms.

    Ranks are no good here: of two parts of different length they favour a place within the longer one.
    """
    values = np.log(values) if np.all(values > 0) else values
    deviations = [
        sum(float(np.abs(part - np.median(part)).sum()) for part in (values[:place], values[place:]))
        for place in range(SHORTEST, len(values) - SHORTEST + 1)
    ]
    return int(np.argmin(deviations)) + SHORTEST


def _triples(places: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    return zip(places, places[1:], places[2:], strict=False)


def _differ(values: Numbers, low: int, place: int, high: int, risk: float) -> bool:
    """Whether values before and after a place are told apart as repeats are."""
    before, after = values[low:place].tolist(), values[place:high].tolist()
    return judged(before, after, confidence=1 - risk).side is not None
