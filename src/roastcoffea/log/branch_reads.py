"""Branches that attempts read, as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from roastcoffea.log import packing
from roastcoffea.log.packing import PackedBranches
from roastcoffea.records.arrow import arrow_schema, table_of_columns
from roastcoffea.records.chunks import BRANCH_READ_COLUMNS

MOST_BETWEEN: Final = 256
"""Most unread baskets between read ones that are listed with size 0 in a branch's sizes."""


def table_of_branches(records: Sequence[tuple[int, PackedBranches]]) -> pa.Table:
    """Table of the branches of attempts, each with the attempt's identity."""
    if not records:
        return arrow_schema(BRANCH_READ_COLUMNS).empty_table()
    branches = [branches for _, branches in records]
    counts = [len(one.names) for one in branches]
    columns = {
        "chunk": pa.array(np.repeat(np.array([identity for identity, _ in records], dtype=np.int64), counts)),
        "branch": pa.array([name for one in branches for name in one.names], pa.string()),
    }
    for row, name in enumerate(packing.BRANCH_INTEGERS):
        columns[name] = pa.array(_joined([one.integers[row] for one in branches]))
    for row, name in enumerate(packing.BRANCH_SECONDS):
        seconds = np.concatenate([one.seconds[row] for one in branches])
        columns[name] = pa.array(seconds.astype(np.float64), from_pandas=True)
    columns |= _columns_of_baskets(branches, columns["baskets"].to_numpy())
    return table_of_columns(BRANCH_READ_COLUMNS, columns)


def _joined(integers: Sequence[npt.NDArray[np.uint64]]) -> npt.NDArray[np.int64]:
    return np.concatenate(integers).astype(np.int64)


def _columns_of_baskets(branches: Sequence[PackedBranches], baskets: npt.NDArray[np.int64]) -> dict[str, pa.Array]:
    """First and last basket of branches with this many, and sizes from one to the other; 0 if not read."""
    listed = _joined([one.listed for one in branches])
    numbers, sizes = (_joined([getattr(one, name) for one in branches]) for name in ("baskets", "sizes"))
    order = np.lexsort((numbers, np.repeat(np.arange(len(listed)), listed)))
    numbers, sizes = numbers[order], sizes[order]
    ends = np.cumsum(listed)
    some = listed > 0
    first, last = np.zeros_like(listed), np.zeros_like(listed)
    first[some], last[some] = numbers[(ends - listed)[some]], numbers[ends[some] - 1]
    spans = np.where(some, last - first + 1, 0)
    gaps = np.flatnonzero((listed == baskets) & (listed < spans))
    if len(gaps):
        numbers_of, sizes_of = np.split(numbers, ends[:-1]), np.split(sizes, ends[:-1])
        for row in gaps:
            if spans[row] - listed[row] > MOST_BETWEEN:
                sizes_of[row] = sizes_of[row][[0, -1]]
            else:
                filled = np.zeros(spans[row], np.int64)
                filled[numbers_of[row] - first[row]] = sizes_of[row]
                sizes_of[row] = filled
        ends, sizes = np.cumsum(list(map(len, sizes_of))), np.concatenate(sizes_of)
    offsets = np.append(0, ends).astype(np.int32)
    return {
        "basket_first": pa.array(first, mask=~some),
        "basket_last": pa.array(last, mask=~some),
        packing.BASKET_BYTES: pa.ListArray.from_arrays(pa.array(offsets), pa.array(sizes)),
    }
