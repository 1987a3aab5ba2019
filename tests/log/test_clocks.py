"""Offsets of clocks by their bounds, by hand."""

from __future__ import annotations

import math

import pytest

from roastcoffea.log.attempts import ClockBounds, offset_within


@pytest.mark.parametrize(
    ("low", "high", "offset"),
    [(-0.01, 0.11, 0.0), (0.0, 0.5, 0.0), (0.04, 0.06, 0.05), (-100.05, -100.0, -100.025), (3.0, 3.0, 3.0)],
)
def test_it_is_0_if_possible_otherwise_the_middle(low: float, high: float, offset: float) -> None:
    assert offset_within(low, high) == pytest.approx(offset)


@pytest.mark.parametrize("bounds", [(-math.inf, math.inf), (-math.inf, 1.0), (-1.0, math.inf), (5.0, 3.9)])
def test_without_both_bounds_or_where_they_contradict_each_other_it_is_unknown(bounds: tuple[float, float]) -> None:
    assert math.isnan(offset_within(*bounds))


def test_each_message_narrows_the_bounds_until_a_clock_is_set() -> None:
    clock, offsets, resets = ClockBounds(), [], []
    for bounds in ((-0.01, 0.11), (0.04, 0.25), (-0.15, 0.06), (0.9, 1.1), (2.0, 2.1), (-9.0, -8.0)):
        resets.append(clock.narrow(*bounds))
        offsets.append(clock.offset)
    # the run's times are on the clocks as they were before; the fourth may come of a clock that drifts
    assert offsets == pytest.approx([0.0, 0.075, 0.05, 0.05, 0.05, 0.05])
    assert resets == [False] * 4 + [True] * 2
