"""Arrays of numbers from Arrow columns, their statistics, and their sums in bins of time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import Table

Numbers = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

OF_90_PERCENT: Final = 1.645
"""Standard deviations to each side that hold 90 % of normally distributed values."""


def amounts(table: Table, name: str) -> Numbers:
    """Column of amounts, with 0 for unknown ones."""
    return _numbers(table[name], 0.0)


def moments(table: Table, name: str) -> Numbers:
    """Column of moments, with NaN for unknown ones."""
    return _numbers(table[name], np.nan)


def _numbers(column: pa.ChunkedArray, unknown: float) -> Numbers:
    return np.array(pc.fill_null(pc.cast(column, pa.float64()), unknown).to_numpy(), np.float64)


def integers(column: pa.ChunkedArray, unknown: int = 0) -> Integers:
    """Column of integers, with this number for those not measured."""
    return np.asarray(pc.fill_null(column, unknown).to_numpy(), dtype=np.int64)


def having(column: pa.ChunkedArray, value: str | pa.ChunkedArray) -> Flags:
    """Whether values equal this one, or the one in the same row."""
    return np.asarray(pc.fill_null(pc.equal(column, value), False).to_numpy(), np.bool_)


def one_of(column: pa.ChunkedArray, values: pa.Array) -> Flags:
    """Whether values are among these."""
    return np.asarray(pc.is_in(column, value_set=values).to_numpy(), np.bool_)


def codes(column: pa.ChunkedArray) -> Integers:
    """A number for each distinct value, in order of first appearance; null has one as well."""
    encoded = pc.dictionary_encode(column, null_encoding="encode").combine_chunks()
    return np.asarray(encoded.indices.to_numpy(), np.int64)


def places(column: pa.ChunkedArray, known: Sequence[str] | pa.Array) -> Integers:
    """Index of each value among the known ones; -1 for others and for null."""
    values = known if isinstance(known, pa.Array) else pa.array(known, pa.string())
    found = pc.fill_null(pc.index_in(column, value_set=values, skip_nulls=True), -1)
    return np.asarray(found.to_numpy(), dtype=np.int64)


def measured_values(column: pa.ChunkedArray) -> Numbers:
    """Measured values of a column."""
    return np.asarray(column.drop_null().to_numpy(), dtype=np.float64)


def clipped(starts: Numbers, stops: Numbers, low: float, high: float) -> tuple[Numbers, Numbers]:
    """Intervals cut to low and high; one outside has length zero."""
    return np.clip(starts, low, high), np.clip(stops, low, high)


def integral(starts: Numbers, stops: Numbers, heights: Numbers) -> float:
    """Time integral of the sum of intervals, each with its own height."""
    return float(np.sum((stops - starts) * heights))


def highest_concurrency(starts: Numbers, stops: Numbers) -> int:
    """Most intervals at one moment; an interval may start at the instant when another ends."""
    lasting = stops > starts
    starts, stops = np.sort(starts[lasting]), np.sort(stops[lasting])
    open_at_start = np.arange(1, len(starts) + 1) - np.searchsorted(stops, starts, side="right")
    return int(open_at_start.max(initial=0))


def union(starts: Numbers, stops: Numbers, gap: float = 0.0) -> tuple[Numbers, Numbers]:
    """Times covered by at least one interval, with gaps of up to this length, in order."""
    order = np.argsort(starts, kind="stable")
    starts, until = starts[order], np.maximum.accumulate(stops[order])
    first = np.append(True, starts[1:] > until[:-1] + gap)[: len(starts)]
    return starts[first], until[np.append(first[1:], True)[: len(starts)]]


def union_length(starts: Numbers, stops: Numbers) -> float:
    """Total time covered by at least one interval."""
    begins, ends = union(starts, stops)
    return float(np.sum(ends - begins))


def time_weighted_mean(times: Numbers, values: Numbers) -> float:
    """Mean of a quantity over the time between its first and its last sample, linear between samples.

    Samples all taken at one moment have their plain mean.
    """
    order = np.argsort(times, kind="stable")
    times, values = times[order], values[order]
    lasted = times[-1] - times[0]
    return float(np.trapezoid(values, times) / lasted if lasted else values.mean())


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
