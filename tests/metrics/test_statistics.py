import numpy as np
import pyarrow as pa
import pytest

from roastcoffea.metrics.statistics import (
    Groups,
    clipped,
    having,
    highest_concurrency,
    integral,
    named_codes,
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


@pytest.mark.parametrize(
    ("matrix", "target", "law"),
    [
        ([[2.0, 1.0], [0.0, 1.0]], [5.0, 1.0], [2.0, 1.0]),
        ([[1.0, 1.0], [0.0, 1.0]], [1.0, -1.0], [1.0, 0.0]),
        ([[1.0, 1.0], [0.0, 0.0]], [2.0, 0.0], [2.0, 0.0]),
    ],
)
def test_square_fits_are_not_negative(matrix: list[list[float]], target: list[float], law: list[float]):
    """An exact solution, one that would be negative, and a singular matrix, of which only the sum is known."""
    found = nonnegative_fit(np.array(matrix), np.array(target))
    assert found.min() >= 0
    assert np.array(matrix) @ found == pytest.approx(np.array(matrix) @ law)


@pytest.mark.parametrize("texts", [["a", None, "b", "a"], ["b", "b"], [None, None], []])
def test_texts_in_a_dictionary_with_entries_that_do_not_appear(texts: list[str | None]):
    plain = pa.chunked_array([pa.array(texts, pa.string())])
    known = pa.array(["c", "b", "a"])
    places = pa.array([None if text is None else "cba".index(text) for text in texts], pa.int8())
    encoded = pa.chunked_array([pa.DictionaryArray.from_arrays(places, known)])
    (one, values), (other, names) = named_codes(plain), named_codes(encoded)
    assert (one.tolist(), values.to_pylist()) == (other.tolist(), names.to_pylist())
    assert having(plain, "b").tolist() == having(encoded, "b").tolist()


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
