"""Colours of what plots and pages show: a class has the same one everywhere, on a light background.

They were chosen by search: any two classes of the time ledger stay 8 apart (OKLab x 100), any two of its busy classes
10, for eyes without a defect and with any of the three kinds of colour-blindness.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from roastcoffea.metrics import byte_ledger as byte_classes
from roastcoffea.metrics import slots
from roastcoffea.metrics import time_ledger as time_classes
from roastcoffea.metrics.ledger import RESIDUAL

BLUE: Final = "#3F80B6"
AMBER: Final = "#EABE69"
BROWN: Final = "#492200"
DARK_GREEN: Final = "#3C5238"
GREEN: Final = "#7FA490"
ORANGE: Final = "#FB6F3B"
YELLOW: Final = "#F7F05A"
BLACK: Final = "#080808"
GREY: Final = "#7E7E7E"
PALE: Final = "#D1D1D1"

OF_TIME: Final[Mapping[str, str]] = {
    time_classes.COMPUTE: BLUE,
    time_classes.DECOMPRESS: "#89C8FC",
    time_classes.INTERPRET: "#162E50",
    time_classes.READ: AMBER,
    time_classes.WAIT: YELLOW,
    time_classes.OPEN: BROWN,
    time_classes.CHECKPOINT: "#A35F13",
    time_classes.OVERHEAD: GREEN,
    time_classes.MERGE: "#ACFFBF",
    time_classes.BEFORE: DARK_GREEN,
    time_classes.OTHERS: "#6236E3",
    time_classes.WASTED: ORANGE,
    slots.TRANSFER: "#881583",
    slots.WORKER: "#C78ED0",
    slots.ON_THE_WAY: "#D850E2",
    slots.PAUSED: "#28082E",
    slots.QUEUED: "#656565",
    slots.PLACEMENT: GREY,
    slots.TAIL: "#B7B7B7",
    slots.CLIENT: PALE,
    RESIDUAL: BLACK,
}
"""Classes of the time ledger."""

OF_BYTES: Final[Mapping[str, str]] = {
    byte_classes.PAYLOAD: BLUE,
    byte_classes.REREAD: AMBER,
    byte_classes.METADATA: BROWN,
    byte_classes.BEFORE: DARK_GREEN,
    byte_classes.WASTED: ORANGE,
    RESIDUAL: BLACK,
}
"""Classes of the byte ledger; those that the time ledger has as well look the same."""

OF_PHASES: Final[Mapping[str, str]] = {
    "open": BROWN,
    "build": "#6F412A",
    "read": OF_TIME[time_classes.READ],
    "decompress": OF_TIME[time_classes.DECOMPRESS],
    "interpret": OF_TIME[time_classes.INTERPRET],
    "compute": OF_TIME[time_classes.COMPUTE],
    "wait": OF_TIME[time_classes.WAIT],
    "checkpoint": OF_TIME[time_classes.CHECKPOINT],
    "result": OF_TIME[time_classes.OVERHEAD],
}
"""Phases of a chunk, as the classes of thread time that they are part of."""

CPU: Final = OF_TIME[time_classes.COMPUTE]
NOT_CPU: Final = OF_TIME[time_classes.WAIT]

CYCLE: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#000000", "#E69F00")
"""For things without a colour of their own, such as datasets and workers (after Okabe and Ito)."""
