"""Bars and cards as plain data."""

from __future__ import annotations

import pytest

from roastcoffea.metrics.phases import COMPUTING, FAMILIES, IDLING
from roastcoffea.sheets.sheet import drawn, ink_on, luminance, palette, percent_of, segment


def test_shares_are_whole_percent() -> None:
    assert [percent_of(share) for share in (0.604, 0.0061, 0.0049, 1.0)] == ["60 %", "1 %", "< 1 %", "100 %"]


def test_a_part_has_a_label_where_there_is_room() -> None:
    wide, narrow = segment(COMPUTING, 0.6, "compute", "6 s"), segment(IDLING, 0.02, "idle: tail", "0.2 s")
    assert (wide.label, wide.fraction, wide.details) == ("compute", 0.6, "compute 6 s (60 %)")
    assert (narrow.label, narrow.name) == ("", "idle: tail")
    bar = drawn("10 s in all", "", [wide, narrow], 0.5)
    assert bar.spoken == "10 s in all: compute 60 %, idle: tail 2 %"
    assert bar.length == 0.5


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_palette_has_each_colour_and_an_ink(scheme: str) -> None:
    css = palette(FAMILIES, scheme)
    for family in FAMILIES:
        colour = getattr(family, scheme)
        assert f"--rc-{family.name}: {colour}; --rc-on-{family.name}: {ink_on(colour)};" in css


def test_ink_is_what_has_more_contrast() -> None:
    assert [ink_on(colour) for colour in ("#000000", "#FFFFFF", "#808080")] == ["#FFFFFF", "#000000", "#000000"]
    assert luminance((1.0, 1.0, 1.0)) == pytest.approx(1.0)
    assert luminance((0.0, 0.0, 0.0)) == 0.0
