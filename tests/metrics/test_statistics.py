import numpy as np
import pytest

from roastcoffea.metrics.statistics import (
    Groups,
    clipped,
    highest_concurrency,
    integral,
    nonnegative_fit,
    time_weighted_mean,
    union_length,
)


def arrays(*intervals):
    pairs = np.array(intervals, dtype=float).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


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


@pytest.mark.parametrize("number", [5, 300, 70_000])
def test_medians_of_groups(number: int):
    random = np.random.default_rng(number)
    code, values = random.integers(0, number // 2, 200), random.random(200)
    found = Groups(code, number).medians(values, fewest=2)
    for place in range(number):
        own = values[code == place]
        assert found[place] == np.median(own) if len(own) >= 2 else np.isnan(found[place])
    assert np.isnan(Groups(code[:0], 3).medians(values[:0])).all()


def test_time_weighted_mean_weighs_time_and_not_samples():
    assert time_weighted_mean(np.array([0.0, 1.0, 100.0]), np.array([0.0, 10.0, 10.0])) == pytest.approx(9.95)


def test_a_fit_that_scipy_gives_up_on_is_made_another_way(monkeypatch):
    """scipy 1.12 to 1.14 may raise where columns are alike."""
    matrix, target = np.array([[1.0, 2.0], [1.0, 5.0], [1.0, 9.0]]), np.array([7.0, 16.0, 28.0])
    assert nonnegative_fit(matrix, target) == pytest.approx([1.0, 3.0])

    def gives_up(*_):
        raise RuntimeError("Maximum number of iterations reached.")

    monkeypatch.setattr("scipy.optimize.nnls", gives_up)
    assert nonnegative_fit(matrix, target) == pytest.approx([1.0, 3.0])
    assert nonnegative_fit(matrix, -target) == pytest.approx([0.0, 0.0], abs=1e-6)
