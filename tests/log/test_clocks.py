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


@pytest.mark.parametrize("bounds", [(-math.inf, math.inf), (-math.inf, 1.0), (-1.0, math.inf)])
def test_without_both_bounds_it_is_unknown(bounds: tuple[float, float]) -> None:
    assert math.isnan(offset_within(*bounds))


def test_each_message_narrows_the_bounds_until_a_clock_is_set() -> None:
    clock, offsets = ClockBounds(), []
    for bounds in ((-0.01, 0.11), (0.04, 0.25), (-0.15, 0.06), (1.0, 1.2), (0.9, 1.1)):
        clock.narrow(*bounds)
        offsets.append(clock.offset)
    assert offsets == pytest.approx([0.0, 0.075, 0.05, 1.1, 1.05])
