"""Colours of charts are names of the page's variables, which both schemes have."""

from __future__ import annotations

from roastcoffea.metrics.phases import BYTE_NAMES, FAMILIES, IDLING, TIME_NAMES
from roastcoffea.report.page.figures import INK, family_of, painted, variable
from roastcoffea.report.screen import palette


def test_every_class_has_a_colour_in_both_schemes() -> None:
    light, dark = palette("light"), palette("dark")
    for name in (*TIME_NAMES, *BYTE_NAMES):
        family = family_of(name)
        assert family in FAMILIES
        assert f"--rc-{family.name}: {family.light};" in light
        assert f"--rc-{family.name}: {family.dark};" in dark
        assert variable(family.name) == f"var(--rc-{family.name})"


def test_what_is_of_no_family_is_idle_and_ink_is_none() -> None:
    assert family_of("a class of a later version") is IDLING
    assert variable(INK) == "var(--ink)"
    assert painted(INK) == {"name": "paint-ink"}
