"""Turning points of curves that are known."""

from __future__ import annotations

import numpy as np
import pytest

from roastcoffea.studies.scaling.scaling_limits import FAMILIES, LIMIT_OF, STORAGE, WORDS, WORK, peak_of, turning_of

SIZES = np.array([8.0, 16.0, 32.0, 64.0, 128.0])


@pytest.mark.parametrize("knee", [10.0, 16.0, 25.0, 60.0])
def test_a_plateau_begins_at_its_height(knee: float) -> None:
    assert turning_of(SIZES, np.minimum(SIZES, knee)) == knee


def test_a_rate_that_falls_turns_where_it_is_highest() -> None:
    useful = np.array([8.0, 15.0, 20.0, 16.0, 11.0])
    assert turning_of(SIZES, useful) == 32
    assert peak_of(SIZES, useful[:, None] * [1.0, 1.01, 0.99]) == 32


def test_a_fall_that_chance_explains_is_none() -> None:
    useful = np.array([8.0, 15.0, 20.0, 20.0, 18.0])
    assert peak_of(SIZES, np.column_stack([useful, useful, [8.0, 15.0, 18.0, 18.0, 19.0]])) is None
    assert peak_of(SIZES, np.column_stack([SIZES, SIZES])) is None


def test_each_class_of_time_has_a_limit_with_words_and_a_colour() -> None:
    assert set(LIMIT_OF.values()) - {WORK, STORAGE} <= WORDS.keys()
    assert WORDS.keys() <= FAMILIES.keys()
