"""Colours of what plots and pages show: a class has the same one everywhere, on a light background."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from roastcoffea.metrics import phases

OF_TIME: Final[Mapping[str, str]] = {one.name: one.colour for one in phases.TIME_CLASSES}
OF_BYTES: Final[Mapping[str, str]] = {one.name: one.colour for one in phases.BYTE_CLASSES}
OF_PHASES: Final = {phase.name: phase.own_colour or OF_TIME[phase.time_class] for phase in phases.PHASES}

BLUE: Final = OF_TIME[phases.COMPUTE]
AMBER: Final = OF_TIME[phases.READ]
GREY: Final = OF_TIME[phases.MISPLACED]
PALE: Final = OF_TIME[phases.CLIENT]
BLACK: Final = phases.BLACK

CPU: Final = BLUE
NOT_CPU: Final = OF_TIME[phases.BLOCKED]

CYCLE: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#000000", "#E69F00")
"""For things without a colour of their own, such as datasets and workers (after Okabe and Ito)."""
