"""Colours that people with any kind of sight tell apart."""

from collections.abc import Mapping
from itertools import combinations

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from roastcoffea.metrics import phases
from roastcoffea.visualization.colours import CYCLE, OF_BYTES, OF_PHASES, OF_TIME

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


def closest(colours: Mapping[str, str], sight: str) -> tuple[float, str, str]:
    distances = [
        (float(np.linalg.norm(seen(colours[one], sight) - seen(colours[other], sight))), one, other)
        for one, other in combinations(colours, 2)
    ]
    return min(distances)


def apart(colours: Mapping[str, str]) -> dict[str, str]:
    """Without what older runs have in the place of another."""
    assert colours[phases.WAIT] == colours[phases.BLOCKED]
    return {name: colour for name, colour in colours.items() if name != phases.WAIT}


@pytest.mark.parametrize("sight", SIGHTS)
def test_classes_are_told_apart(sight: str) -> None:
    assert closest(apart(OF_TIME), sight)[0] >= 8
    assert closest(apart({name: OF_TIME[name] for name in phases.BUSY}), sight)[0] >= 10
    assert closest(OF_BYTES, sight)[0] >= 10
    assert closest(apart(OF_PHASES), sight)[0] >= 10
    assert closest({colour: colour for colour in CYCLE}, sight)[0] >= 7.5


def test_every_class_and_phase_has_a_colour() -> None:
    assert tuple(OF_TIME) == phases.TIME_NAMES
    assert tuple(OF_BYTES) == phases.BYTE_NAMES
    assert tuple(OF_PHASES) == tuple(phase.name for phase in phases.PHASES)


def test_a_class_of_both_ledgers_looks_the_same_in_both() -> None:
    shared = set(OF_TIME) & set(OF_BYTES)
    assert shared == {"preprocessing", "failed", "residual"}
    assert all(OF_TIME[name] == OF_BYTES[name] for name in shared)
