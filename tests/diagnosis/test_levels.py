"""Medians of levels against NumPy's, and intervals against drawn noise."""

import numpy as np
import pytest

from roastcoffea.diagnosis.slowness import Noise, estimated, middles, of_the_others
from roastcoffea.metrics.statistics import Groups


def test_medians_are_those_of_numpy() -> None:
    draw = np.random.default_rng(1)
    levels, values = Groups(draw.integers(0, 9, 500), 12), draw.normal(size=500)
    lower, middle = middles(levels, values)
    for level in range(9):
        own = np.sort(values[levels.codes == level])
        assert middle[level] == np.median(own)
        assert lower[level] == own[(len(own) - 1) // 2]
    assert lower[9:].tolist() == middle[9:].tolist() == [0.0] * 3


@pytest.mark.parametrize(
    ("medians", "sizes", "others"),
    [
        ([0.0, 1.0], [5, 5], [1.0, 0.0]),
        ([0.0, 1.0, 5.0], [5, 5, 5], [1.0, 0.0, 0.0]),
        ([0.0, 1.0, 5.0], [9, 1, 1], [1.0, 0.0, 0.0]),
        ([1.0, 0.0, 1.0, 0.0], [20, 20, 20, 20], [0.0, 1.0, 0.0, 1.0]),
        ([3.0, 1.0, 2.0], [0, 4, 4], [1.0, 2.0, 1.0]),
    ],
)
def test_others_are_measured_by_their_chunks(medians: list[float], sizes: list[int], others: list[float]) -> None:
    assert of_the_others(np.array(medians), np.array(sizes)).tolist() == others


@pytest.mark.parametrize("size", [1, 2, 3, 7, 40])
def test_noise_passes_a_bound_as_rarely_as_it_should(size: int) -> None:
    draw = np.random.default_rng(1)
    beyond = 0
    for _ in range(400):
        levels = Groups(np.repeat([0, 1], [100, size]), 2)
        values = draw.normal(size=100 + size)
        found = estimated(values, levels, Noise.around(values[:100], []), 2)
        beyond += found.low[1] > 0
    assert beyond <= 0.025 * 400 + 3 * np.sqrt(0.025 * 400)


@pytest.mark.parametrize("size", [3, 20])
def test_intervals_hold_the_effect(size: int) -> None:
    draw = np.random.default_rng(2)
    held = likely = 0
    for _ in range(200):
        levels = Groups(np.repeat([0, 1], [100, size]), 2)
        values = draw.normal(size=100 + size) + 3.0 * levels.codes
        found = estimated(values, levels, Noise.around(values, [levels]), 20)
        held += found.low[1] < 3.0 < found.high[1]
        likely += found.likely_low[1] < 3.0 < found.likely_high[1]
        assert found.shrunk[1] <= found.effect[1]
    assert held >= 190
    assert 0.85 * 200 <= likely <= 0.95 * 200


def test_levels_within_their_own_scatter_are_not_beyond_the_others() -> None:
    draw = np.random.default_rng(3)
    levels = Groups(np.repeat(np.arange(20), 50), 20)
    values = 0.1 * draw.normal(size=1000) + draw.normal(size=20)[levels.codes]
    noise = Noise.around(values, [levels])
    assert np.any(estimated(values, levels, noise, 20, scatter=False).low > 0)
    assert not np.any(estimated(values, levels, noise, 20).low > 0)


@pytest.mark.parametrize(("size", "scale"), [(2, 1.2), (3, 1.05), (4, 1.0), (10, 1.0)])
def test_medians_that_are_subtracted_do_not_hide_noise(size: int, scale: float) -> None:
    """Of normal noise, even if each file has few chunks."""
    draw = np.random.default_rng(4)
    found = []
    for _ in range(50):
        workers, files = (
            Groups(codes, int(codes.max()) + 1) for codes in (np.arange(400) % 20, np.arange(400) // size)
        )
        found.append(Noise.around(draw.normal(size=400), [workers, files]).scale)
    assert np.mean(found) == pytest.approx(scale, abs=0.05)
