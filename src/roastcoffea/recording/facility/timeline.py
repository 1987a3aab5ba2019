"""Thread time by class over the last minutes, in bins of a few seconds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from roastcoffea.metrics.phases import IDLE, TIME_CLASSES

BIN: Final = 5.0
BINS: Final = 120
"""Seconds in a bin, and bins that are kept: ten minutes."""

UNMETERED: Final = "chunks, not metered"
"""Time of chunks of which only the scheduler knows."""

RUNNING: Final = "not reported yet"
"""Time of slots with a task, less what tasks that ended have reported: they run, or are in transit."""

SHOWN: Final = (*(one.name for one in TIME_CLASSES if one.name not in {*IDLE, "residual"}), UNMETERED, RUNNING, *IDLE)
ASSIGNED: Final = "assigned"
"""Row of the time of slots with a task, as sampled."""

_ROWS: Final = {name: row for row, name in enumerate((*SHOWN, ASSIGNED))}
BATCH: Final = 1000
SHORTEST: Final = 1e-9
_IDLE: Final = [_ROWS[name] for name in IDLE]


class Timeline:
    """Thread seconds by class and bin.

    A task's seconds are spread over the time between its start and stop, so that past bins become more exact as tasks
    end. Memory does not grow.
    """

    def __init__(self) -> None:
        self._seconds = np.zeros((len(_ROWS), BINS))
        self._times: list[tuple[float, float]] = []
        self._amounts: list[list[float]] = []
        self._last = 0
        """Number of the latest bin, in bins since 1970."""

    def advance(self, now: float) -> None:
        """Make room for bins until now, and put what was added into the bins."""
        last = int(now // BIN)
        shift = min(last - self._last, BINS)
        if shift > 0:
            self._seconds[:, :-shift] = self._seconds[:, shift:].copy()
            self._seconds[:, -shift:] = 0.0
            self._last = last
        self._spread()

    def add(self, start: float, stop: float, seconds: Mapping[str, float]) -> None:
        """Spread the seconds of an attempt over its time."""
        self._times.append((start, stop))
        self._amounts.append([seconds.get(name, 0.0) for name in _ROWS])
        if len(self._times) >= BATCH:
            self._spread()

    def sample(self, start: float, stop: float, assigned: float, idle: Mapping[str, float]) -> None:
        """Spread the seconds of slots with a task, and of free ones by reason, over the time since the last sample."""
        self.add(start, stop, {**idle, ASSIGNED: assigned})

    def _spread(self) -> None:
        """Put the waiting amounts into bins, all at once: in parts by how long each time is within each bin."""
        if not self._times:
            return
        start, stop = np.array(self._times).T[:, :, np.newaxis]
        edges = (self._last - BINS + 1 + np.arange(BINS + 1)) * BIN
        stop = np.minimum(stop, edges[-1])
        within = np.minimum(stop, edges[1:]) - np.maximum(start, edges[:-1])
        lengths = np.maximum(stop - start, SHORTEST)
        self._seconds += np.array(self._amounts).T @ (np.maximum(within, 0.0) / lengths)
        self._times.clear()
        self._amounts.clear()

    def threads(self) -> tuple[npt.NDArray[np.float64], dict[str, npt.NDArray[np.float64]]]:
        """Beginnings of the bins that are over (Unix seconds), and the mean number of threads in each class."""
        seconds = self._seconds.copy()
        assigned = seconds[_ROWS[ASSIGNED]]
        idle = seconds[_IDLE].sum(axis=0)
        reported = seconds[: len(SHOWN)].sum(axis=0) - idle
        seconds[_ROWS[RUNNING]] = np.maximum(assigned - reported, 0.0)
        # tasks report what they took; a late sample took their threads for free ones
        left = np.maximum(idle - np.maximum(reported - assigned, 0.0), 0.0)
        seconds[_IDLE] *= np.divide(left, idle, out=np.zeros_like(idle), where=idle > 0)
        times = (self._last - BINS + 1 + np.arange(BINS, dtype=np.float64)) * BIN
        return times[:-1], {name: seconds[row, :-1] / BIN for name in SHOWN if seconds[row := _ROWS[name]].any()}
