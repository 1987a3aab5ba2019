"""Colours of plots and pages, on light and dark backgrounds: a class has that of its family everywhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from matplotlib.axes import Axes
from matplotlib.colors import to_rgb

from roastcoffea.metrics import phases
from roastcoffea.metrics.phases import FAMILY_OF, Family
from roastcoffea.report import cards


@dataclass(frozen=True, eq=False)
class Scheme:
    """All colours on a background."""

    dark: bool
    ground: str
    """The background itself; thin lines in it separate what has the same colour."""
    ink: str
    """Text, and lines that are no class's."""
    quiet: str
    """Axes, and lines that something is compared with."""
    series: tuple[str, ...]
    """For things without a colour of their own, such as datasets and workers: greens, which stand for no class."""
    of_time: Mapping[str, str]
    of_bytes: Mapping[str, str]
    of_phases: Mapping[str, str]

    def of(self, family: Family) -> str:
        """Colour of a family."""
        return family.dark if self.dark else family.light


FAMILY_OF_PHASE: Final = {phase.name: FAMILY_OF[phase.time_class] for phase in phases.PHASES}


def _scheme(dark: bool, ground: str, ink: str, quiet: str, series: tuple[str, ...]) -> Scheme:
    of = {family: family.dark if dark else family.light for family in phases.FAMILIES}
    of_time, of_bytes = (
        {name: of[FAMILY_OF[name]] for name in names} for names in (phases.TIME_NAMES, phases.BYTE_NAMES)
    )
    of_phases = {name: of[family] for name, family in FAMILY_OF_PHASE.items()}
    return Scheme(dark, ground, ink, quiet, series, of_time, of_bytes, of_phases)


LIGHT: Final = _scheme(False, "#FFFFFF", "#1C1C1E", "#5B5B60", ("#005049", "#5F9963", "#212E01", "#546F4E"))
DARK: Final = _scheme(True, "#17181A", "#E6E6E8", "#A5A5AB", ("#99C8C1", "#03892C", "#DFF7D6", "#839F84"))

OF_TIME: Final = LIGHT.of_time
OF_BYTES: Final = LIGHT.of_bytes
OF_PHASES: Final = LIGHT.of_phases


def scheme_of(ax: Axes) -> Scheme:
    """Colours for these axes: what is labelled in a light colour has a dark background, transparent or not."""
    return scheme_on(str(ax.xaxis.label.get_color()))


def scheme_on(ink: str) -> Scheme:
    """Colours beside text of this colour."""
    return DARK if luminance(ink) > cards.MIDDLE else LIGHT


def luminance(colour: str) -> float:
    """Relative luminance of a colour, from 0 (black) to 1 (white)."""
    return cards.luminance(to_rgb(colour))
