"""Bars and cards as plain data: what a sheet may bring for renderers that draw."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

NARROW: Final = 0.03
"""Share below which a part of a bar has no label in it."""

NAMED: Final = 0.005
"""Share from which a part of a bar has a name below it."""

MIDDLE: Final = 0.179
"""Luminance at which black and white have the same contrast."""


class Paint(Protocol):
    """A colour with a fixed meaning, on both backgrounds."""

    @property
    def name(self) -> str:
        """Its name in style sheets."""

    @property
    def light(self) -> str:
        """Colour on a light background."""

    @property
    def dark(self) -> str:
        """Colour on a dark background."""


class Segment(NamedTuple):
    """A part of a bar: what stands in it, and below it."""

    family: Paint
    width: str
    label: str
    """In it; empty where there is no room."""
    name: str
    """Below it; empty where that would be too much."""
    percent: str
    amount: str
    details: str
    """What it holds, in words."""
    ink: str
    """Colour of what stands in it, on a light background."""


class Drawn(NamedTuple):
    """A bar with its title."""

    title: str
    note: str
    spoken: str
    """What a screen reader says in its place."""
    segments: Sequence[Segment]
    length: float = 1.0
    """Share of the width that it takes: bars below each other have one scale."""


class Card(NamedTuple):
    """Something to change, or that differs."""

    title: str
    saving: str
    """How much it is about, in a few words."""
    what: str
    advice: str = ""
    culprit: str = ""
    """Name in `what` that stands out; empty for none."""
    remedy: str | None = None
    family: Paint | None = None
    evidence: str = ""
    """Anchor of what shows it; empty where nothing does."""
    page: str = ""
    """Address of the documentation's page on it; empty where there is none."""
    measure: str = ""
    """What the evidence is to show where it has a choice; empty for what it shows at first."""


def segment(family: Paint, fraction: float, name: str, amount: str, *, label: str = "", details: str = "") -> Segment:
    """A part of a bar with this share of it; its label, and its details, tell its name where none are given."""
    percent = percent_of(fraction)
    return Segment(
        family=family,
        width=f"{100 * fraction:.2f}",
        label=(label or name) if fraction >= NARROW else "",
        name=name,
        percent=percent,
        amount=amount,
        details=details or f"{name} {amount} ({percent})",
        ink=ink_on(family.light),
    )


def drawn(title: str, note: str, segments: Sequence[Segment], length: float = 1.0) -> Drawn:
    """A bar of these parts."""
    spoken = ", ".join(f"{part.name} {part.percent}" for part in segments if part.name)
    return Drawn(title, note, f"{title}: {spoken}", segments, length)


def percent_of(share: float) -> str:
    """A share of a bar, as exact as people look at it."""
    return "< 1 %" if share < NAMED else f"{100 * share:.0f} %"


# Colours


def palette(paints: Iterable[Paint], scheme: str) -> str:
    """Colours as variables of CSS, with the ink that is legible on each."""
    colours: Mapping[str, str] = {paint.name: getattr(paint, scheme) for paint in paints}
    return " ".join(f"--rc-{name}: {colour}; --rc-on-{name}: {ink_on(colour)};" for name, colour in colours.items())


def ink_on(colour: str) -> str:
    """Black or white, whichever reads better on a colour of six digits: its contrast is 4.5:1 at least."""
    parts = (int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5))
    return "#000000" if luminance(parts) > MIDDLE else "#FFFFFF"


def luminance(parts: Iterable[float]) -> float:
    """Relative luminance of red, green and blue, from 0 (black) to 1 (white), as contrasts need it (WCAG 2)."""
    linear = (value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in parts)
    return sum(weight * value for weight, value in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
