"""Repeats: intervals and verdicts against figures from elsewhere, and the size of the test."""

from __future__ import annotations

import numpy as np
import pytest
from made_runs import observation, with_metric
from scipy import stats

from roastcoffea.studies.observations import (
    ABOVE,
    BELOW,
    CHUNKS,
    RUNS,
    factor_over_chunks,
    judged,
    ranks_left_out,
    spread,
)

FIVE = (10.0, 10.2, 9.9, 10.1, 10.05)
SLOWER = (12.0, 12.3, 11.9, 12.2, 12.1)


def test_of_three_runs_each_the_interval_is_that_of_welch_on_logarithms() -> None:
    found = judged(FIVE[:3], SLOWER[:3])
    interval = stats.ttest_ind(np.log(SLOWER[:3]), np.log(FIVE[:3]), equal_var=False).confidence_interval(0.95)
    assert found.side == ABOVE
    assert found.over == RUNS
    assert (found.low, found.high) == pytest.approx((np.exp(interval.low) - 1, np.exp(interval.high) - 1))
    assert judged(SLOWER[:3], FIVE[:3]).side == BELOW


@pytest.mark.parametrize("sizes", [(4, 4), (5, 5), (3, 6), (2, 8), (7, 12), (40, 45), (60, 60)])
@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.99])
def test_the_interval_ends_where_ranks_tell_groups_apart(sizes: tuple[int, int], confidence: float) -> None:
    drawn = np.random.default_rng(3)
    old, new = drawn.normal(0, 1, sizes[0]), drawn.normal(1, 1, sizes[1])
    found = judged(old, new, relative=False, confidence=confidence)
    many = sizes[0] > 50
    exact = {"alternative": "two-sided", "method": "asymptotic" if many else "exact"}
    if not ranks_left_out(*sizes, confidence):
        assert (found.low is None) == (min(sizes) < 3)
        return
    for bound, outwards in ((found.low, -1e-6), (found.high, 1e-6)):
        beyond, within = (stats.mannwhitneyu(old + bound + step, new, **exact).pvalue for step in (outwards, -outwards))
        assert beyond <= 1 - confidence + 1e-9
        assert within > 1 - confidence - 1e-3 * many


def test_a_run_that_went_astray_hides_little() -> None:
    assert judged(FIVE, (*SLOWER[:4], 40.0)).side == ABOVE


@pytest.mark.parametrize(
    ("before", "after", "side", "words"),
    [
        ((10.0,), (20.0,), None, "spread of repeats is unknown"),
        (FIVE, (20.0,), None, "spread of repeats is unknown"),
        ((10.0, 10.1), (20.0, 20.1), None, "2 and 2 runs are too few"),
        ((10.0, 10.1, 10.2), (20.0, 20.1, 20.2), ABOVE, None),
        ((10.0, 10.1), SLOWER, None, "2 and 5 runs are too few"),
        ((10.0, 10.1), (*SLOWER, 12.4, 12.5, 12.6), ABOVE, None),
        (FIVE, (9.0, 12.0, 10.5, 9.5, 11.0), None, "repeats differ just as much"),
        ((0.0, 0.0, 0.0), (1.0, 1.0, 1.1), None, "relative change is undefined"),
        ((0.0, 0.0, 5.0), (0.0, 0.0, 0.0), None, "in the metric's unit, not in %"),
        ((4.0, 4.0, 4.0), (5.0, 5.0, 5.0), ABOVE, None),
        ((4.0, 4.0), (5.0, 5.0), None, "too few"),
        ((0.0, 0.0, 0.0), (0.0, 0.0, 0.0), None, "equals the limit"),
        ((0.0, 0.0), (0.0, 0.0), None, "too few"),
        ((4.0, 4.0, 4.0), (4.0, 4.0, 4.0), None, "equals the limit"),
        ((-3.0, -3.1, -2.9), (3.0, 3.1, 2.9), ABOVE, None),
    ],
)
def test_what_can_be_told(before: tuple[float, ...], after: tuple[float, ...], side: str | None, words: str) -> None:
    found = judged(before, after)
    assert found.side == side
    assert (found.reason is None) == (words is None)
    assert words is None or words in str(found.reason)


def test_one_run_will_do_for_what_repeats_cannot_change() -> None:
    found = judged([100.0], [110.0], 0.05, exact=True)
    assert (found.side, found.low, found.high) == (ABOVE, pytest.approx(0.1), pytest.approx(0.1))
    assert judged([100.0], [103.0], 0.05, exact=True).side == BELOW


def test_a_limit_is_part_of_the_question() -> None:
    assert judged(FIVE, SLOWER, 0.1).side == ABOVE
    assert judged(FIVE, SLOWER, 0.2).side is None
    assert judged(FIVE, SLOWER, 0.5).side == BELOW
    assert judged(FIVE, SLOWER, 1.0, relative=False).side == ABOVE
    assert judged(FIVE, SLOWER, 3.0, relative=False).side == BELOW


def test_as_many_repeats_as_are_said_to_be_needed_do_tell() -> None:
    drawn = np.random.default_rng(4)

    def runs(mean: float, number: int) -> list[float]:
        return list(mean * np.exp(drawn.normal(0, 0.08, number)))

    found = [judged(runs(1.0, 40), runs(1.1, 40), 0.1).needed for _ in range(20)]
    needed = [number for number in found if number is not None]
    # to tell 5 % where runs scatter by 8 %: two-sided 5 %, power 80 %
    assert np.median(needed) == pytest.approx(2 * ((1.96 + 0.84) * 0.08 / np.log(1.05)) ** 2, rel=0.15)
    told = [judged(runs(1.0, 43), runs(1.05, 43)).side for _ in range(100)]
    assert told.count(ABOVE) >= 70


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3, 4, 5])
@pytest.mark.parametrize("kind", ["normal", "heavy tails", "skewed", "two modes"])
def test_repeats_of_one_run_are_seldom_told_apart(size: int, kind: str) -> None:
    drawn = np.random.default_rng(5)
    draws = 200
    scatter = {
        "normal": drawn.normal(0, 0.1, (draws, 2 * size)),
        "heavy tails": 0.05 * drawn.standard_t(2, (draws, 2 * size)),
        "skewed": 0.1 * drawn.exponential(1, (draws, 2 * size)),
        "two modes": drawn.normal(0, 0.02, (draws, 2 * size)) + 0.3 * (drawn.random((draws, 2 * size)) < 0.3),
    }[kind]
    told = sum(judged(np.exp(row[:size]), np.exp(row[size:])).side is not None for row in scatter)
    assert told == 0 if size == 2 else told <= 0.08 * draws


def test_a_median_has_an_interval_over_runs() -> None:
    found = spread(with_metric("total_cpu_time", *SLOWER), "total_cpu_time")
    assert found.median == np.median(SLOWER)
    assert found.over == RUNS
    expected = stats.bootstrap((SLOWER,), np.median, n_resamples=9999, method="percentile", rng=1).confidence_interval
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), rel=0.005)
    assert found == spread(with_metric("total_cpu_time", *SLOWER), "total_cpu_time")


def test_one_run_has_an_interval_over_its_chunks() -> None:
    seconds = np.random.default_rng(6).exponential(0.1, 400)
    run = observation(chunk_seconds=seconds)
    found = spread([run], "elapsed_time_seconds")
    assert found.over == CHUNKS
    half = 1.96 * np.std(seconds) * np.sqrt(400) / 4  # what chunks scatter by is shared by four threads
    assert (found.low, found.high) == pytest.approx((found.median - half, found.median + half), rel=0.02)
    assert spread([run], "num_chunks").over is None
    rates = spread([run], "event_rate_elapsed_khz")
    # 1000 events, whatever they take
    assert (rates.low * found.high, rates.high * found.low) == pytest.approx((1.0, 1.0))


def test_a_group_without_scatter_is_no_error() -> None:
    found = judged((2.0, 2.0, 2.0), (2.9, 3.0, 3.1), relative=False)
    assert found.side == ABOVE
    assert found.low == pytest.approx(1 - stats.t.ppf(0.975, 2) * 0.1 / 3**0.5)


def test_chunks_that_cannot_be_true_widen_the_interval_to_a_hundred_times() -> None:
    """As of a damaged table, or a clock that jumped."""
    for scatter in (5.0, 1e3, 1e9):
        assert factor_over_chunks(scatter, 0.95) == 100.0
    assert factor_over_chunks(0.1, 0.95) == pytest.approx(1.216, abs=1e-3)
