"""Columns of Arrow tables as arrays of numpy."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roastcoffea.metrics.statistics import Flags, Integers, Numbers


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
