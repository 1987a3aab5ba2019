"""Tasks as few bytes: what a page needs to draw each single one, or the sums in pixels where they are too many.

Tasks are sorted by lane and time. Of each there are the gap since the one before it and its duration, in 16 bits with
an escape to 32, its class in 8 and its group in 16 bits. The unit of time is a four millionth of the run. Low and high
bytes stand apart, as they compress better so.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from roastcoffea.metrics.statistics import Integers, Numbers
from roastcoffea.visualization.stream import Stream, main_in_pixels

ESCAPE: Final = 0xFFFF
UNITS_IN_RUN: Final = 4_000_000
MOST_GROUPS: Final = 0xFFFF
PIXEL_ROWS: Final = 400
PIXEL_COLUMNS: Final = 800


class Packed(NamedTuple):
    """Bytes, and what a script needs to read them."""

    facts: dict[str, Any]
    content: bytes


def packed_tasks(stream: Stream, start: float, stop: float, groups: Integers) -> Packed:
    """Every task; `groups` has a number below `MOST_GROUPS` for each."""
    unit = max((stop - start) / UNITS_IN_RUN, 1e-6)
    order = np.lexsort((stream.start, stream.lane))
    begins = np.rint((stream.start[order] - start) / unit).astype(np.int64)
    ends = np.rint((stream.stop[order] - start) / unit).astype(np.int64)
    of_lane = np.bincount(stream.lane, minlength=len(stream.lanes))
    before = np.concatenate([[0], ends[:-1]])
    before[np.cumsum(of_lane)[:-1]] = 0
    gaps, far_gaps = _short(begins - before)
    durations, far_durations = _short(ends - begins)
    parts = [of_lane.astype("<u4"), far_gaps, far_durations, *_planes(gaps), *_planes(durations)]
    parts += [stream.kind[order].astype("u1"), *_planes(groups[order])]
    facts: dict[str, Any] = {"tasks": len(order), "unit": unit, "gaps": len(far_gaps), "durations": len(far_durations)}
    return Packed(facts, b"".join(part.tobytes() for part in parts))


def packed_pixels(stream: Stream, start: float, stop: float) -> Packed:
    """Class, its seconds and all busy seconds of each pixel; seconds are in parts of 65535 of what fits into it."""
    rows = min(len(stream.lanes), PIXEL_ROWS)
    pixels = main_in_pixels(stream, rows, np.linspace(start, stop, PIXEL_COLUMNS + 1))
    lanes = np.bincount(np.arange(len(stream.lanes)) * rows // len(stream.lanes))
    room = (stop - start) / PIXEL_COLUMNS * lanes[:, None]
    parts = [pixels.kind.astype("u1"), *_planes(_shares(pixels.most, room)), *_planes(_shares(pixels.busy, room))]
    facts: dict[str, Any] = {"rows": rows, "columns": PIXEL_COLUMNS, "seconds": (stop - start) / PIXEL_COLUMNS}
    return Packed(facts, b"".join(part.tobytes() for part in parts))


def groups_of(parts: list[tuple[pa.Table | None, Integers, list[str]]], tasks: int) -> tuple[Integers, list[list[Any]]]:
    """Number of the group of each task, and the groups: what tasks have in common in these columns.

    Each table comes with the row in it of each task, -1 where there is none.
    """
    groups: Integers = np.zeros(tasks, np.int64)
    found: list[list[Any]] = [[]]
    for table, rows, names in parts:
        for name in names:
            codes, values = _coded(table, rows, name)
            pairs, groups = np.unique(groups * len(values) + codes, return_inverse=True)
            found = [[*found[one // len(values)], values[one % len(values)]] for one in pairs.tolist()]
    return groups, found


def _coded(table: pa.Table | None, rows: Integers, name: str) -> tuple[Integers, list[Any]]:
    """Number of the value of each row, the last of which stands for none."""
    if table is None or not len(table):
        return np.zeros(len(rows), np.int64), [None]
    encoded = table[name].combine_chunks().dictionary_encode()
    values = encoded.dictionary.to_pylist()
    codes = np.append(encoded.indices.fill_null(len(values)).to_numpy(), len(values)).astype(np.int64)
    return codes[rows], [*values, None]


def _short(amounts: Integers) -> tuple[Integers, Any]:
    """Amounts in 16 bits, and in full those that do not fit, which have `ESCAPE` in their place."""
    far = (amounts < 0) | (amounts >= ESCAPE)
    return np.where(far, ESCAPE, amounts), amounts[far].astype("<i4")


def _planes(amounts: Integers) -> tuple[Any, Any]:
    """Low and high bytes."""
    return (amounts & 0xFF).astype("u1"), (amounts >> 8).astype("u1")


def _shares(seconds: Numbers, room: Any) -> Integers:
    shares: Numbers = np.clip(seconds / room, 0, 1)
    return np.rint(shares * 0xFFFF).astype(np.int64)
