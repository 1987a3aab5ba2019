"""Slopes, steps and their intervals in series of known numbers."""

from __future__ import annotations

import numpy as np
import pytest
import scipy

from roastcoffea.metrics.trends import fitted

BLOCKS = 10
PLACES = np.arange(BLOCKS)
NO_LEVEL = scipy.linalg.null_space(np.ones((1, BLOCKS))).T


@pytest.mark.parametrize("wander", [0.0, 0.2, 2.0])
def test_intervals_contain_the_slope(wander: float) -> None:
    """In about 90 % of series, whether their noise is independent or wanders."""
    draw, number = np.random.default_rng(3), 400
    noise = draw.normal(size=(number, BLOCKS)) + wander * draw.normal(size=(number, BLOCKS)).cumsum(axis=1)
    found = fitted(NO_LEVEL @ (2.0 * PLACES + noise).T, NO_LEVEL @ PLACES[:, None], NO_LEVEL, alike=True)
    inside = np.abs(found.slope - 2.0) < found.quantile(0.05) * found.error
    assert 0.85 <= np.mean(inside) <= 0.95
    assert np.median(found.slope) == pytest.approx(2.0, rel=0.05)


def test_the_likelihood_shows_where_a_step_is() -> None:
    steps = PLACES[:, None] >= np.arange(1, BLOCKS)
    series = 5.0 * steps[:, 3] + np.random.default_rng(1).normal(size=BLOCKS)
    found = fitted(NO_LEVEL @ series[:, None], NO_LEVEL @ steps, NO_LEVEL)
    assert int(np.argmax(found.likelihood[0])) == 3
    assert found.slope[0, 3] == pytest.approx(5.0, abs=2.0)
