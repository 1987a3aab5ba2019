"""Arrays of numbers: columns of Arrow tables as such, and statistics; empty input is the caller's to refuse."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Numbers = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


def amounts(table: pa.Table, name: str) -> Numbers:
    """Column of amounts; 0 for those that are not known."""
    return _numbers(table[name], 0.0)


def moments(table: pa.Table, name: str) -> Numbers:
    """Column of moments; NaN for those that are not known."""
    return _numbers(table[name], np.nan)


def _numbers(column: pa.ChunkedArray, unknown: float) -> Numbers:
    return np.array(pc.fill_null(pc.cast(column, pa.float64()), unknown).to_numpy(), np.float64)


def integers(column: pa.ChunkedArray, unknown: int = 0) -> Integers:
    """Column of integers, with a number in place of what was not measured."""
    return np.asarray(pc.fill_null(column, unknown).to_numpy(), dtype=np.int64)


def having(column: pa.ChunkedArray, value: str | pa.ChunkedArray) -> Flags:
    """Whether values are this one, or each the one in its row."""
    return np.asarray(pc.fill_null(pc.equal(column, value), False).to_numpy(), np.bool_)


def one_of(column: pa.ChunkedArray, values: pa.Array) -> Flags:
    """Whether values are among these."""
    return np.asarray(pc.is_in(column, value_set=values).to_numpy(), np.bool_)


def codes(column: pa.ChunkedArray) -> Integers:
    """A number for each different value, in the order of their first rows; what is not known has one as well."""
    encoded = pc.dictionary_encode(column, null_encoding="encode").combine_chunks()
    return np.asarray(encoded.indices.to_numpy(), np.int64)


def places(column: pa.ChunkedArray, known: Sequence[str] | pa.Array) -> Integers:
    """Place of each value among those that are known; -1 for another, and for none."""
    values = known if isinstance(known, pa.Array) else pa.array(known, pa.string())
    found = pc.fill_null(pc.index_in(column, value_set=values, skip_nulls=True), -1)
    return np.asarray(found.to_numpy(), dtype=np.int64)


def measured_values(column: pa.ChunkedArray) -> Numbers:
    """Values of a column that were measured."""
    return np.asarray(column.drop_null().to_numpy(), dtype=np.float64)


def clipped(starts: Numbers, stops: Numbers, low: float, high: float) -> tuple[Numbers, Numbers]:
    """Parts of intervals that lie between low and high; one that does not has length zero."""
    return np.clip(starts, low, high), np.clip(stops, low, high)


def integral(starts: Numbers, stops: Numbers, heights: Numbers) -> float:
    """Time integral of the sum of intervals, each of its own height."""
    return float(np.sum((stops - starts) * heights))


def highest_concurrency(starts: Numbers, stops: Numbers) -> int:
    """Most intervals at one moment; where one ends and the next begins at the same instant it is one."""
    lasting = stops > starts
    starts, stops = np.sort(starts[lasting]), np.sort(stops[lasting])
    open_at_start = np.arange(1, len(starts) + 1) - np.searchsorted(stops, starts, side="right")
    return int(open_at_start.max(initial=0))


def union_length(starts: Numbers, stops: Numbers) -> float:
    """Length of time that at least one interval covers."""
    order = np.argsort(starts)
    starts, stops = starts[order], stops[order]
    covered_until = np.concatenate([starts[:1], np.maximum.accumulate(stops)[:-1]])
    return float(np.sum(np.maximum(stops - np.maximum(starts, covered_until), 0.0)))


def time_weighted_mean(times: Numbers, values: Numbers) -> float:
    """Mean of a quantity over the time between its first and its last sample, linear between samples.

    Samples that were all taken at one moment give their plain mean.
    """
    order = np.argsort(times, kind="stable")
    times, values = times[order], values[order]
    steps = np.diff(times)
    if steps.sum() == 0:
        return float(values.mean())
    return float(np.sum(steps * (values[1:] + values[:-1]) / 2) / steps.sum())


def sample_deviation(values: Numbers) -> float:
    """Standard deviation of what the values are a sample of (n - 1); it takes two values at least."""
    return float(np.std(values, ddof=1))
