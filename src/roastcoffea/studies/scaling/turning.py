"""Turning points: from how many workers on a limit takes what more of them would give."""

from __future__ import annotations

from typing import Final

import numpy as np

from roastcoffea.metrics.statistics import Numbers
from roastcoffea.studies.scaling.laws import INTERVAL

HALF: Final = 0.5

FALL: Final = 0.95
"""Useful workers of the largest size, relative to the best, below which more of them make a run slower."""


def turning_of(workers: Numbers, useful: Numbers) -> float:
    """Number of workers above which a limit takes what more of them would give.

    It is where the line without any loss meets the most that all workers together reached: as many workers would do, if
    nothing limited them. If the rate falls, it is the number with the highest one.
    """
    best = int(np.argmax(useful))
    return float(workers[best] if useful[-1] < FALL * useful[best] else useful[best])


def peak_of(workers: Numbers, useful: Numbers) -> float | None:
    """Number of workers beyond which fewer are useful; None if that cannot be said for certain.

    `useful` has a row for each number of workers: as measured, and as resampled.
    """
    best = int(np.argmax(useful[:, 0]))
    fall = useful[-1] / useful[best]
    return float(workers[best]) if fall[0] < FALL and np.quantile(fall[1:], INTERVAL[1]) < 1 else None


def present_from(workers: Numbers, shares: Numbers, level: float) -> float:
    """Fewest workers with at least this part of the largest loss."""
    return float(workers[int(np.argmax(shares >= level * shares.max()))])
