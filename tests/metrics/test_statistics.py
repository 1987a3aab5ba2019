import numpy as np
import pytest

from roastcoffea.metrics.statistics import (
    clipped,
    highest_concurrency,
    integral,
    sample_deviation,
    time_weighted_mean,
    union_length,
)


def arrays(*intervals):
    pairs = np.array(intervals, dtype=float).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


@pytest.mark.parametrize(
    ("intervals", "most"),
    [
        ([], 0),
        ([(0, 1)], 1),
        ([(0, 1), (1, 2)], 1),  # one follows the other
        ([(0, 2), (1, 3), (2, 4)], 2),
        ([(1, 1), (1, 1)], 0),  # no time at all
        ([(0, 9), (1, 2), (3, 4), (3, 5)], 3),
    ],
)
def test_highest_concurrency(intervals, most):
    assert highest_concurrency(*arrays(*intervals)) == most


@pytest.mark.parametrize(
    ("intervals", "length"),
    [
        ([], 0),
        ([(0, 1)], 1),
        ([(5, 6), (0, 2), (1, 3)], 4),
        ([(0, 10), (2, 3), (9, 12)], 12),
        ([(0, 1), (1, 2)], 2),
    ],
)
def test_union_length(intervals, length):
    assert union_length(*arrays(*intervals)) == length


def test_against_a_fine_grid():
    random = np.random.default_rng(1)
    starts = random.integers(0, 1000, 200).astype(float)
    stops = starts + random.integers(0, 50, 200)
    starts, stops = clipped(starts, stops, 100, 900)
    moments = np.arange(0, 1100) + 0.5
    open_then = ((starts[:, None] < moments) & (moments < stops[:, None])).sum(axis=0)
    assert highest_concurrency(starts, stops) == open_then.max()
    assert union_length(starts, stops) == (open_then > 0).sum()
    assert integral(starts, stops, np.ones(200)) == open_then.sum()


def test_clipped_outside_has_no_length():
    starts, stops = clipped(*arrays((0, 1), (8, 12), (3, 4)), low=2, high=10)
    assert (stops - starts).tolist() == [0, 2, 1]


def test_time_weighted_mean_weighs_time_and_not_samples():
    assert time_weighted_mean(np.array([0.0, 1.0, 100.0]), np.array([0.0, 10.0, 10.0])) == pytest.approx(9.95)


def test_time_weighted_mean_of_one_moment():
    assert time_weighted_mean(np.array([3.0, 3.0]), np.array([1.0, 2.0])) == 1.5


def test_sample_deviation():
    assert sample_deviation(np.array([1.0, 3.0])) == pytest.approx(2**0.5)
