"""Change points against permutations that are counted one by one, and their false alarms by simulation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import permutations
from statistics import mean

import numpy as np
import pytest

from roastcoffea.studies.history_analysis import FALSE_ALARMS, FEWEST_RUNS, change_points, p_value

RUNS = 24


def by_hand(values: Sequence[float]) -> float:
    """Largest difference between the mean of a stretch and that of all others, for the ranks 1 to n."""
    count = len(values)
    found = []
    for begin in range(count):
        for end in range(begin + 2, count + 1):
            rest = [*values[:begin], *values[end:]]
            at_end = begin == 0 or end == count
            if len(rest) >= 2 and (at_end or (begin >= 2 and count - end >= 2)):
                difference = abs(mean(values[begin:end]) - mean(rest))
                found.append(difference * math.sqrt((end - begin) * len(rest)))
    return max(found)


@pytest.mark.slow
def test_the_p_value_is_the_share_of_all_orders() -> None:
    for values in ([3, 1, 2, 4, 6, 5], [2, 1, 6, 5, 3, 4], [1, 2, 3, 4, 5, 6]):
        orders = [by_hand(order) for order in permutations(range(1, 7))]
        share = sum(each >= by_hand(values) - 1e-9 for each in orders) / len(orders)
        # of 9999 shuffled orders: three standard deviations
        assert p_value(np.array(values, float)) == pytest.approx(share, abs=0.015)


def test_a_step_is_found_where_it_is() -> None:
    low, high = [1.0, 1.1, 0.9, 1.05, 0.95, 1.02], [1.4, 1.5, 1.45, 1.55, 1.42, 1.48]
    assert change_points([*low, *high]) == [6]
    assert change_points([*high, *low]) == [6]
    assert change_points([*low, *low, *high, *high, *low, *low]) == [12, 24]
    higher = [2 * value for value in high]
    assert change_points([*low, *low, *high, *high, *higher, *higher]) == [12, 24]


def test_a_late_step_is_found_where_it_is() -> None:
    low = [1.0, 1.01, 0.99, 1.02, 0.98, 1.005, 0.995, 1.015, 0.985, 1.012, 1.001, 0.999, 1.03, 1.04]
    assert change_points([*low, 1.44, 1.45, 1.43, 1.46]) == [14]


def test_what_is_no_change_is_not_marked() -> None:
    scattered = [1.0, 1.3, 0.8, 1.1, 0.9, 1.2, 0.85, 1.15, 1.05, 0.95, 1.25, 0.99]
    assert change_points(scattered) == []
    assert change_points([2.0] * 40) == []
    assert change_points([]) == change_points([1.0]) == change_points([1.0, 5.0, 5.0]) == []
    one_run_astray = [1.0, 1.01, 0.99, 1.02, 0.98, 1.03, 9.0, 0.97, 1.04, 0.96, 1.005, 0.995]
    assert change_points(one_run_astray) == []


def test_with_fewer_runs_no_change_can_be_told() -> None:
    for count in range(2, FEWEST_RUNS + 1):
        values = [*range(count // 2), *range(100, 100 + count - count // 2)]
        assert change_points(values, 0.025) == [count // 2] * (count == FEWEST_RUNS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scatter", "histories"),
    [
        ("normal", 1_500),
        ("of two values", 1_500),
    ],
)
def test_the_share_of_false_alarms(scatter: str, histories: int) -> None:
    rng = np.random.default_rng(7)
    shape = (histories, RUNS)
    values = {
        "normal": np.exp(0.1 * rng.standard_normal(shape)),
        "of two values": 1.0 + rng.integers(0, 2, shape),
    }[scatter]
    alarms = sum(bool(change_points(history)) for history in values)
    allowed = FALSE_ALARMS * histories
    assert alarms <= allowed + 3 * math.sqrt(allowed)
    if scatter != "of two values":  # which has few different values of the statistic
        assert alarms >= allowed - 3 * math.sqrt(allowed)


@pytest.mark.slow
def test_a_real_change_is_found_and_leads_to_few_false_ones() -> None:
    rng = np.random.default_rng(11)
    histories = 100
    shift = np.where(np.arange(RUNS) < 15, 0.0, 0.3)
    found = [change_points(np.exp(0.1 * rng.standard_normal(RUNS) + shift)) for _ in range(histories)]
    near = sum(any(abs(place - 15) <= 1 for place in places) for places in found)
    assert near > 0.9 * histories
    further = sum(len(places) > 1 for places in found)
    assert further <= FALSE_ALARMS * histories + 3 * math.sqrt(FALSE_ALARMS * histories)
