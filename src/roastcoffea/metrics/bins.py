"""Time bins for thread seconds, per worker or combined."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from roastcoffea.metrics.statistics import Integers, Numbers

MICROSECONDS: Final = 1_000_000


class Axes(NamedTuple):
    """Grid for thread seconds: time bins and a row for each worker.

    `edges` are microseconds from `start` (Unix seconds), one more than the number of bins.
    """

    start: float
    edges: Integers
    row: Integers
    rows: int

    @property
    def bins(self) -> int:
        """Number of bins."""
        return len(self.edges) - 1

    def microseconds(self, moments: Numbers) -> Integers:
        """Time since the start, within the bins."""
        since = np.clip(moments - self.start, 0, self.edges[-1] / MICROSECONDS)
        return np.rint(since * MICROSECONDS).astype(np.int64)

    def bin(self, times: Integers) -> Integers:
        """Bin of each time; the end falls into the last one."""
        return np.minimum(np.searchsorted(self.edges, times, side="right") - 1, self.bins - 1)

    def sums(self, places: Integers, amounts: npt.NDArray[np.generic]) -> Numbers:
        """Sums of amounts by row and bin; a place is row x bins + bin."""
        sums: Numbers = np.bincount(places, amounts, self.rows * self.bins).astype(np.float64, copy=False)
        return sums.reshape(self.rows, self.bins)


def axes(start: float, stop: float, row: Integers, rows: int, bins: int = 1) -> Axes:
    """Bins of about equal width from start to stop, with edges at whole microseconds."""
    length = round((stop - start) * MICROSECONDS)
    return Axes(start, np.rint(np.linspace(0, length, bins + 1)).astype(np.int64), row, rows)


def spread(worker: Integers, start: Numbers, stop: Numbers, seconds: Numbers, axes: Axes) -> Numbers:
    """Seconds by row and bin, each amount spread evenly over its duration; one without duration goes into one bin."""
    begin, end = axes.microseconds(start), axes.microseconds(stop)
    lasting = end > begin
    rate = np.divide(seconds, end - begin, out=np.zeros(len(seconds)), where=lasting)
    found = np.zeros((axes.rows, axes.bins))
    change = np.zeros_like(found)
    for sign, times in ((1, begin), (-1, end)):
        bins = axes.bin(times)
        places = axes.row[worker] * axes.bins + bins
        found += sign * axes.sums(places, rate * (axes.edges[bins + 1] - times))
        change += sign * axes.sums(places, rate)
    moments = np.where(lasting, 0.0, seconds)
    return (
        found
        + level_before(change) * np.diff(axes.edges)
        + axes.sums(axes.row[worker] * axes.bins + axes.bin(begin), moments)
    )


def level_before(changes: Numbers) -> Numbers:
    """Level at the start of each bin."""
    return np.asarray(np.cumsum(changes, axis=1) - changes)
