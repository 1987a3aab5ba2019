"""Change points against permutations that are counted one by one, and their false alarms by simulation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import permutations
from statistics import mean

import numpy as np
import pytest

from roastcoffea.studies.history.change_points import (
    FALSE_ALARMS,
    SHORTEST,
    change_points,
    fewest_runs,
    mean_ranks,
    most_likely_change,
)

HISTORIES = 1500
RUNS = 24


def by_hand(values: Sequence[float]) -> tuple[float, int]:
    """Largest difference of means before and after a place, for the ranks 1 to n, with the place."""
    count = len(values)
    found = []
    for place in range(SHORTEST, count - SHORTEST + 1):
        difference = abs(mean(values[:place]) - mean(values[place:]))
        found.append((difference * math.sqrt(place * (count - place)), -place))
    largest, place = max(found)
    return largest, -place


def test_the_p_value_is_the_share_of_all_orders() -> None:
    values = [3, 1, 2, 4, 7, 5, 6]
    largest, place = by_hand(values)
    orders = [by_hand(order)[0] for order in permutations(values)]
    share = sum(each >= largest - 1e-9 for each in orders) / len(orders)
    found, p_value = most_likely_change(np.array(values, float))
    assert found == place == 4
    assert p_value == pytest.approx(share, abs=0.012)  # of 9999 shuffled orders: three standard deviations


def test_equal_values_share_their_ranks() -> None:
    assert mean_ranks(np.array([3.0, 1.0, 1.0, 2.0])).tolist() == [4, 1.5, 1.5, 3]


def test_a_step_is_found_where_it_is() -> None:
    low, high = [1.0, 1.1, 0.9, 1.05, 0.95, 1.02], [1.4, 1.5, 1.45, 1.55, 1.42, 1.48]
    assert change_points([*low, *high]) == [6]
    assert change_points([*high, *low]) == [6]
    assert change_points([*low, *low, *high, *high, *low, *low]) == [12, 24]


def test_what_is_no_change_is_not_marked() -> None:
    scattered = [1.0, 1.3, 0.8, 1.1, 0.9, 1.2, 0.85, 1.15, 1.05, 0.95, 1.25, 0.99]
    assert change_points(scattered) == []
    assert change_points([2.0] * 40) == []
    assert change_points([]) == change_points([1.0]) == change_points([1.0, 5.0, 5.0]) == []
    one_run_astray = [1.0, 1.01, 0.99, 1.02, 0.98, 1.03, 9.0, 0.97, 1.04, 0.96, 1.005, 0.995]
    assert change_points(one_run_astray) == []


@pytest.mark.parametrize("risk", [0.05, 0.025, 0.01])
def test_with_fewer_runs_no_change_can_be_told(risk: float) -> None:
    fewest = fewest_runs(risk)
    assert fewest == {0.05: 8, 0.025: 10, 0.01: 10}[risk]
    for count in range(2, fewest):
        assert change_points([*range(count // 2), *range(100, 100 + count - count // 2)], risk) == []
    half = fewest // 2
    assert change_points([*range(half), *range(100, 100 + half)], risk) == [half]


@pytest.mark.parametrize("scatter", ["normal", "heavy-tailed", "of two values"])
def test_the_share_of_false_alarms(scatter: str) -> None:
    rng = np.random.default_rng(7)
    shape = (HISTORIES, RUNS)
    values = {
        "normal": np.exp(0.1 * rng.standard_normal(shape)),
        "heavy-tailed": np.exp(rng.standard_t(1.5, shape)),
        "of two values": 1.0 + rng.integers(0, 2, shape),
    }[scatter]
    alarms = sum(bool(change_points(history)) for history in values)
    allowed = FALSE_ALARMS * HISTORIES
    assert alarms <= allowed + 3 * math.sqrt(allowed)
    if scatter != "of two values":  # which has few different values of the statistic
        assert alarms >= allowed - 3 * math.sqrt(allowed)


def test_a_real_change_is_found_and_leads_to_few_false_ones() -> None:
    rng = np.random.default_rng(11)
    histories = 400
    shift = np.where(np.arange(RUNS) < 15, 0.0, 0.3)
    found = [change_points(np.exp(0.1 * rng.standard_normal(RUNS) + shift)) for _ in range(histories)]
    near = sum(any(abs(place - 15) <= 1 for place in places) for places in found)
    assert near > 0.9 * histories
    further = sum(len(places) > 1 for places in found)
    assert further <= FALSE_ALARMS * histories + 3 * math.sqrt(FALSE_ALARMS * histories)
