"""Columns of Arrow tables as arrays of numpy."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from roastcoffea.metrics.statistics import Numbers


def amounts(table: pa.Table, name: str) -> Numbers:
    """Column of amounts; 0 for those that are not known."""
    return _numbers(table[name], 0.0)


def moments(table: pa.Table, name: str) -> Numbers:
    """Column of moments; NaN for those that are not known."""
    return _numbers(table[name], np.nan)


def _numbers(column: pa.ChunkedArray, unknown: float) -> Numbers:
    return np.array(pc.fill_null(pc.cast(column, pa.float64()), unknown).to_numpy(), np.float64)


def codes(column: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    """A number for each different value, in the order of their first rows; what is not known has one as well."""
    encoded = pc.dictionary_encode(column, null_encoding="encode").combine_chunks()
    return np.asarray(encoded.indices.to_numpy(), np.int64)
