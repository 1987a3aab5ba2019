"""Ranges that runs leave open, by hand."""

from __future__ import annotations

import pytest

from roastcoffea.studies.prediction import LeftOpen, left_open


def test_nothing_is_open() -> None:
    assert left_open(10.0, {"storage": [], "others": [10.0]}) == LeftOpen(pytest.approx(10.0), 1.0, None)


def test_the_centre_of_a_range_is_as_far_from_both_ends() -> None:
    found = left_open(10.0, {"storage": [40.0, 20.0], "others": []})
    assert found == LeftOpen(pytest.approx(20.0), pytest.approx(2.0), "storage")


def test_independent_ranges_add_up_in_quadrature() -> None:
    """Ends 1.21 apart to each side, and 1.1 to one side: the centre moves by the root of 1.1."""
    found = left_open(10.0, {"storage": [12.1, 10 / 1.21], "others": [11.0]})
    assert found.middle == pytest.approx(10 * 1.1**0.5)
    # logarithms of 1.21 and of the root of 1.1 are as 4 and 1
    assert found.factor == pytest.approx(1.1 ** (17**0.5 / 2))
    assert found.widest == "storage"
