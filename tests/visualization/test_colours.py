"""Colours that people with any kind of sight tell apart, on light and dark backgrounds."""

from collections.abc import Iterable
from itertools import combinations

import numpy as np
import pytest
from matplotlib.colors import rgb_to_hsv, to_rgb
from matplotlib.figure import Figure

from roastcoffea.metrics import phases
from roastcoffea.metrics.phases import FAMILIES, FAMILY_OF
from roastcoffea.sheets.sheet import ink_on
from roastcoffea.visualization.draw import DARK, LIGHT, Scheme, luminance, scheme_of

SIGHTS = {
    "no defect": np.eye(3),
    # Machado, Oliveira, Fernandes 2009, severity 1
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
TO_CONES = np.array(
    [[0.41222147, 0.53633254, 0.05144599], [0.2119035, 0.68069955, 0.10739696], [0.08830246, 0.28171884, 0.6299787]]
)
TO_OKLAB = np.array(
    [
        [0.21045426, 0.79361778, -0.00407205],
        [1.9779985, -2.42859221, 0.45059371],
        [0.0259040371, 0.78277177, -0.80867577],
    ]
)


def seen(colour: str, sight: str) -> np.ndarray:
    """Coordinates of a colour in OKLab, in which distances are those that people see; x 100."""
    value = np.array(to_rgb(colour))
    light = np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)
    return 100 * TO_OKLAB @ np.cbrt(TO_CONES @ np.clip(SIGHTS[sight] @ light, 0, 1))


BACKGROUNDS = {
    LIGHT: ("#FFFFFF", "#FBFBFA", "#F6F8FA", "#F4F4F6"),
    DARK: ("#000000", "#111111", "#15181C", "#17181A", "#1D2126", "#1E1E1E", "#25272A", "#002B36"),
}
"""Those of plots, pages, JupyterLab, VS Code and terminals."""

SCHEMES = pytest.mark.parametrize("scheme", [LIGHT, DARK], ids=["light", "dark"])


def closest(colours: Iterable[str], sight: str) -> float:
    return min(
        float(np.linalg.norm(seen(one, sight) - seen(other, sight))) for one, other in combinations(set(colours), 2)
    )


def contrast(one: str, other: str) -> float:
    """By the definition of the Web Content Accessibility Guidelines 2.2."""
    values = np.array([to_rgb(one), to_rgb(other)])
    linear = np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)
    low, high = sorted(linear @ [0.2126, 0.7152, 0.0722])
    return float((high + 0.05) / (low + 0.05))


def of_classes(scheme: Scheme) -> set[str]:
    return {*scheme.of_time.values(), *scheme.of_bytes.values(), *scheme.of_phases.values()}


def test_contrasts_are_those_of_the_definition() -> None:
    # the examples of its authors, and of common checkers
    assert contrast("#FFFFFF", "#000000") == pytest.approx(21)
    assert contrast("#777777", "#FFFFFF") == pytest.approx(4.48, abs=0.005)


@SCHEMES
def test_there_are_seven_colours_in_all(scheme: Scheme) -> None:
    assert of_classes(scheme) == {scheme.of(family) for family in FAMILIES}
    assert len(of_classes(scheme)) == len(FAMILIES) == 7


@SCHEMES
@pytest.mark.parametrize("sight", SIGHTS)
def test_families_are_told_apart(scheme: Scheme, sight: str) -> None:
    assert closest(of_classes(scheme), sight) >= 9
    assert closest(scheme.series, sight) >= 11


@SCHEMES
def test_every_colour_has_contrast_to_its_backgrounds(scheme: Scheme) -> None:
    assert scheme.ground in BACKGROUNDS[scheme]
    for ground in BACKGROUNDS[scheme]:
        assert min(contrast(colour, ground) for colour in (*of_classes(scheme), *scheme.series)) >= 3
        assert min(contrast(colour, ground) for colour in (scheme.ink, scheme.quiet)) >= 4.5


@SCHEMES
def test_letters_on_a_colour_are_read(scheme: Scheme) -> None:
    assert min(contrast(ink_on(colour), colour) for colour in (*of_classes(scheme), *scheme.series)) >= 4.5


def test_luminance_is_that_of_which_contrasts_are_computed() -> None:
    for colour in (*of_classes(LIGHT), *of_classes(DARK)):
        assert (luminance(colour) + 0.05) / 0.05 == pytest.approx(contrast(colour, "#000000"))


@SCHEMES
def test_every_class_and_phase_has_the_colour_of_its_family(scheme: Scheme) -> None:
    assert tuple(scheme.of_time) == phases.TIME_NAMES
    assert tuple(scheme.of_bytes) == phases.BYTE_NAMES
    assert tuple(scheme.of_phases) == tuple(phase.name for phase in phases.PHASES)
    for name, colour in {**scheme.of_time, **scheme.of_bytes}.items():
        assert colour == scheme.of(FAMILY_OF[name])
    for phase in phases.PHASES:
        assert scheme.of_phases[phase.name] == scheme.of(FAMILY_OF[phase.time_class])


def test_a_class_of_both_ledgers_has_one_family() -> None:
    time, requested = ({one.name: one.family for one in table} for table in (phases.TIME_CLASSES, phases.BYTE_CLASSES))
    assert set(time) & set(requested) == {"preprocessing", "failed", "residual"}
    assert time | requested == requested | time


def test_work_is_blue_storage_orange_handling_purple_trouble_red_and_idle_time_grey() -> None:
    for scheme in (LIGHT, DARK):
        for family, (first, last) in {
            phases.COMPUTING: (200, 270),
            phases.DECODING: (195, 270),
            phases.READING: (20, 45),
            phases.OPENING: (20, 45),
            phases.HANDLING: (260, 300),
            phases.TROUBLE: (345, 370),
        }.items():
            hue, saturation, _ = rgb_to_hsv(to_rgb(scheme.of(family)))
            assert first <= 360 * hue + (360 if first > 300 and hue < 0.5 else 0) <= last
            assert saturation > 0.2
        assert rgb_to_hsv(to_rgb(scheme.of(phases.IDLING)))[1] < 0.15


@pytest.mark.parametrize(("letters", "wanted"), [("#222222", LIGHT), ("white", DARK), ("0.9", DARK)])
def test_light_letters_stand_on_a_dark_background(letters: str, wanted: Scheme) -> None:
    ax = Figure().add_subplot()
    ax.xaxis.label.set_color(letters)
    assert scheme_of(ax) is wanted
