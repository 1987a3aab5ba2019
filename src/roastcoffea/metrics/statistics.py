"""NumPy arrays from Arrow columns, statistics, and sums in time bins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import scipy
from pyarrow import Table

Numbers = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

OF_90_PERCENT: Final = 1.645
"""Half-width of the central 90 % of a normal distribution, in standard deviations."""


def amounts(table: Table, name: str) -> Numbers:
    """Amounts in a column, with 0 for unknown amounts. The array is read-only."""
    return _numbers(table[name], 0.0)


def moments(table: Table, name: str) -> Numbers:
    """Times in a column, with NaN for unknown times. The array is read-only."""
    return _numbers(table[name], np.nan)


def _numbers(column: pa.ChunkedArray, unknown: float) -> Numbers:
    found = pc.cast(column, pa.float64())
    numbers: Numbers = (pc.fill_null(found, unknown) if found.null_count else found).to_numpy()
    # a column without nulls is not copied
    numbers.flags.writeable = False
    return numbers


def integers(column: pa.ChunkedArray, unknown: int = 0) -> Integers:
    """Integers in a column, with `unknown` for missing values."""
    return np.asarray(pc.fill_null(column, unknown).to_numpy(), dtype=np.int64)


def having(column: pa.ChunkedArray, value: str | pa.ChunkedArray) -> Flags:
    """Whether each value equals `value`, which may be a constant or another column."""
    found = pc.equal(column, value) if isinstance(value, pa.ChunkedArray) else of_texts(column, pc.equal, value)
    return np.asarray(pc.fill_null(found, False).to_numpy(), np.bool_)


def one_of(column: pa.ChunkedArray, values: pa.Array) -> Flags:
    return np.asarray(pc.fill_null(of_texts(column, pc.is_in, values), False).to_numpy(), np.bool_)


def of_texts(column: pa.ChunkedArray, function: Callable[..., Any], *arguments: Any) -> pa.ChunkedArray:
    """Value of a function for each value. Of texts in a dictionary, it is computed once; null remains null."""
    if not pa.types.is_dictionary(column.type):
        return function(column, *arguments)
    known = column.combine_chunks()
    found = function(known.dictionary, *arguments)
    if not known.null_count and len(found.unique()) == 1:
        return pa.chunked_array([pa.repeat(found[0], len(known))])
    return pa.chunked_array([found.take(known.indices)])


def codes(column: pa.ChunkedArray | pa.Array) -> Integers:
    """Integer codes for the values, in order of first appearance. Null also has a code."""
    return named_codes(column)[0]


def named_codes(column: pa.ChunkedArray | pa.Array) -> tuple[Integers, pa.Array]:
    """Integer codes for the values, in order of first appearance, and the values. Null also has a code."""
    encoded = pc.dictionary_encode(column, null_encoding="encode")
    encoded = encoded.combine_chunks() if isinstance(encoded, pa.ChunkedArray) else encoded
    if not pa.types.is_dictionary(column.type):
        return np.asarray(encoded.indices.to_numpy(), np.int64), encoded.dictionary
    # a stored dictionary is in any order, has no null, and may hold values that do not appear
    number, rows = len(encoded.dictionary), np.arange(len(encoded))
    known = pc.cast(encoded.indices, pa.int64()).fill_null(number).to_numpy()
    first = np.full(number + 1, len(rows))
    first[known[::-1]] = rows[::-1]
    there = np.flatnonzero(first < len(rows))
    there = there[np.argsort(first[there])]
    first[there] = rows[: len(there)]
    return first[known], encoded.dictionary.take(pa.array(there, mask=there == number))


def places(column: pa.ChunkedArray, known: Sequence[str] | pa.Array) -> Integers:
    """Index of each value in `known`, or -1 if the value is null or not in `known`."""
    values = known if isinstance(known, pa.Array) else pa.array(known, pa.string())
    found = pc.fill_null(of_texts(column, partial(pc.index_in, value_set=values, skip_nulls=True)), -1)
    return np.asarray(found.to_numpy(), dtype=np.int64)


def rows_of(values: Integers, known: Integers) -> Integers:
    """Index of each value's first occurrence in `known`, or -1 if there is none."""
    if not len(known):
        return np.full(len(values), -1)
    low, span = int(known.min()), int(known.max()) - int(known.min()) + 1
    if span > 8 * len(known):
        order = np.argsort(known, kind="stable")
        place = order[np.minimum(np.searchsorted(known, values, sorter=order), len(known) - 1)]
        return np.where(known[place] == values, place, -1)
    # consecutive numbers such as run IDs need no search
    first = np.full(span + 1, -1)
    first[known[::-1] - low] = np.arange(len(known))[::-1]
    # as unsigned integers, values below the lowest one are beyond the span as well
    beyond_low = (values.astype(np.int64, copy=False) - low).view(np.uint64)
    return np.asarray(first[np.minimum(beyond_low, np.uint64(span)).view(np.int64)])


def order_of(numbers: Integers) -> Integers:
    """Order of nonnegative integers. Equal ones keep their order."""
    if numbers.max(initial=0) < 1 << 16:
        # sorting 16-bit integers takes linear time
        return np.argsort(numbers.astype(np.uint16), kind="stable")
    bits = max(len(numbers) - 1, 1).bit_length()
    if int(numbers.max(initial=0)).bit_length() + bits > 63:
        return np.argsort(numbers, kind="stable")
    # sorting numbers is several times faster than sorting their places
    keys = numbers.astype(np.int64) << bits
    keys |= np.arange(len(numbers))
    keys.sort()
    keys &= (1 << bits) - 1
    return keys


class Groups:
    """Values grouped by integer codes below `number`, which are sorted only once. Groups may be empty."""

    def __init__(self, codes: Integers, number: int) -> None:
        self.codes = codes
        self.sizes = np.bincount(codes, minlength=number)

    @cached_property
    def order(self) -> Integers:
        """Values in order of their groups."""
        return order_of(self.codes)

    @cached_property
    def _by_size(self) -> tuple[Integers, Integers, Numbers]:
        """Groups in order of size, the values in this order, and memory for them, which is used for all medians."""
        groups = np.argsort(self.sizes, kind="stable")
        place = np.empty(len(groups), np.int64)
        place[groups] = np.arange(len(groups))
        return groups, order_of(place[self.codes]), np.empty(len(self.codes))

    def medians(self, values: Numbers, fewest: int = 1) -> Numbers:
        """Median of each group, or NaN for groups with fewer than `fewest` values."""
        lower, upper = self.middles(values)
        return np.where(self.sizes >= fewest, (lower + upper) / 2, np.nan)

    def middles(self, values: Numbers) -> Numbers:
        """Lower and upper median of each group (rows), or NaN for empty groups."""
        groups, order, ordered = self._by_size
        np.take(values, order, out=ordered, mode="clip")  # other modes make a copy first
        found, group, begin = np.full((2, len(self.sizes)), np.nan), 0, 0
        for size, number in zip(*map(np.ndarray.tolist, np.unique(self.sizes, return_counts=True)), strict=True):
            if size:
                # one call sorts all groups of the same size
                alike = ordered[begin : begin + number * size].reshape(number, size)
                alike.sort(axis=1)
                found[:, groups[group : group + number]] = alike[:, (size - 1) // 2], alike[:, size // 2]
            group, begin = group + number, begin + number * size
        return found


def measured_values(column: pa.ChunkedArray) -> Numbers:
    return np.asarray(column.drop_null().to_numpy(), dtype=np.float64)


def clipped(starts: Numbers, stops: Numbers, low: float, high: float) -> tuple[Numbers, Numbers]:
    """Clip intervals to the range from `low` to `high`. An interval outside the range is clipped to zero length."""
    return np.clip(starts, low, high), np.clip(stops, low, high)


def integral(starts: Numbers, stops: Numbers, heights: Numbers) -> float:
    return float(np.sum((stops - starts) * heights))


def highest_concurrency(starts: Numbers, stops: Numbers) -> int:
    """Maximum number of overlapping intervals. Intervals that only touch do not overlap."""
    lasting = stops > starts
    starts, stops = np.sort(starts[lasting]), np.sort(stops[lasting])
    open_at_start = np.arange(1, len(starts) + 1) - np.searchsorted(stops, starts, side="right")
    return int(open_at_start.max(initial=0))


def union(starts: Numbers, stops: Numbers, gap: float = 0.0) -> tuple[Numbers, Numbers]:
    """Merge intervals that overlap or are at most `gap` apart. The result is sorted by time."""
    starts, stops = np.sort(starts), np.sort(stops)
    # there is a gap before an interval if all earlier ones have ended
    first = np.append(True, starts[1:] > stops[:-1] + gap)[: len(starts)]
    return starts[first], stops[np.append(first[1:], True)[: len(starts)]]


def union_length(starts: Numbers, stops: Numbers) -> float:
    begins, ends = union(starts, stops)
    return float(np.sum(ends - begins))


def time_weighted_mean(times: Numbers, values: Numbers) -> float:
    """Mean of a sampled quantity over time, interpolated linearly between samples.

    If all samples were taken at the same time, it is the mean of the samples.
    """
    order = np.argsort(times, kind="stable")
    times, values = times[order], values[order]
    lasted = times[-1] - times[0]
    return float(np.diff(times) @ (values[1:] + values[:-1]) / 2 / lasted if lasted else values.mean())


def nonnegative_fit(matrix: Numbers, target: Numbers) -> Numbers:
    """Fit nonnegative coefficients by least squares, even if `nnls` fails (scipy 1.12 to 1.14, similar columns)."""
    if matrix.shape[0] == matrix.shape[1] and np.linalg.matrix_rank(matrix) == len(matrix):
        exact = np.linalg.solve(matrix, target)
        if exact.min() >= 0:  # much faster
            return np.asarray(exact, np.float64)
    try:
        fitted: Numbers = scipy.optimize.nnls(matrix, target)[0]
    except (RuntimeError, np.linalg.LinAlgError):
        fitted = scipy.optimize.lsq_linear(matrix, target, bounds=(0.0, np.inf)).x
    return fitted


MICROSECONDS: Final = 1_000_000


class Axes(NamedTuple):
    """Grid for thread time, with time bins and a row for each worker.

    `edges` contains the bin edges in microseconds since `start`, which is in Unix seconds.
    """

    start: float
    edges: Integers
    row: Integers
    rows: int

    @property
    def bins(self) -> int:
        return len(self.edges) - 1

    def microseconds(self, moments: Numbers) -> Integers:
        """Convert times to microseconds since the start, clipped to the range of the bins."""
        since = np.clip(moments - self.start, 0, self.edges[-1] / MICROSECONDS)
        return np.rint(since * MICROSECONDS).astype(np.int64)

    def bin(self, times: Integers) -> Integers:
        """Index of the bin that contains each time. The last edge belongs to the last bin."""
        return np.minimum(np.searchsorted(self.edges, times, side="right") - 1, self.bins - 1)

    def sums(self, places: Integers, amounts: npt.NDArray[np.generic]) -> Numbers:
        """Sum amounts by row and bin. A place is the row index times the number of bins, plus the bin index."""
        sums: Numbers = np.bincount(places, amounts, self.rows * self.bins).astype(np.float64, copy=False)
        return sums.reshape(self.rows, self.bins)


def axes(start: float, stop: float, row: Integers, rows: int, bins: int = 1) -> Axes:
    """Divide the time from start to stop into bins of roughly equal width, with edges at whole microseconds."""
    length = round((stop - start) * MICROSECONDS)
    return Axes(start, np.rint(np.linspace(0, length, bins + 1)).astype(np.int64), row, rows)


def spread(worker: Integers, start: Numbers, stop: Numbers, seconds: Numbers, axes: Axes) -> Numbers:
    """Spread each amount evenly over its duration, and sum the time by row and bin.

    An amount without a duration goes into a single bin.
    """
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
    return np.asarray(np.cumsum(changes, axis=1) - changes)
