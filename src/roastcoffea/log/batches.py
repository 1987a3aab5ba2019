"""Convert many packed records to columns at once, and discard impossible values."""

from __future__ import annotations

import json
import math
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from roastcoffea.log import packing
from roastcoffea.log.kinds import LATEST
from roastcoffea.log.packing import (
    COLUMNS_READ,
    FIGURE_SIZE,
    FIGURES,
    INTEGERS,
    NEW_LINE,
    NO_INTEGER,
    NO_TEXT,
    NUMBERS,
    OF_TEXTS,
    TEXTS,
)
from roastcoffea.records.arrow import ARROW_TYPES, arrow_schema, table_of_columns
from roastcoffea.records.chunks import BRANCH_READ_COLUMNS, CHUNK_COLUMNS, PHASE_COLUMNS

ID: Final = FIGURES.index("id")
PLACES: Final = {name: place for place, name in enumerate((*TEXTS, *FIGURES))}
UNKNOWN: Final = frozenset((NO_TEXT, NO_INTEGER))
"""Placeholders for unknown values other than NaN."""

MOST_CORES: Final = 4096
"""Maximum plausible number of cores used by a single process."""

CLOCK_SLACK: Final = 0.1
"""Tolerated discrepancy between a process's clocks, both in seconds and as a fraction of the wall time."""

WITHIN_WALL: Final = ("cpu_seconds", "core_wait_seconds", "gc_seconds", *(column.name for column in PHASE_COLUMNS))
"""Times measured on an attempt's own thread. They cannot exceed its wall time."""

OF_PROCESS: Final = ("helper_cpu_seconds", "process_cpu_seconds")
"""CPU times summed over several threads. They may exceed the wall time."""

AMOUNTS: Final = ("memory_before", "memory_after", "memory_peak", "bytes_requested", "bytes_payload", "file_bytes")

MOST_BYTES: Final = 1 << 60

Numbers = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


def impossible_times(numbers: Mapping[str, Numbers]) -> dict[str, tuple[Numbers, Flags]]:
    """An attempt's times by name, each with a mask of impossible values. Unmeasured times are NaN."""
    start, stop, wall = (numbers[name] for name in ("start", "stop", "wall_seconds"))
    with np.errstate(invalid="ignore"):
        found = {name: (one, (one < 0) | (one >= LATEST)) for name, one in (("start", start), ("stop", stop))}
        found["wall_seconds"] = wall, (wall < 0) | (wall == math.inf)
        return found | {"stop minus start": (stop - start, stop < start)}


def impossible_values(numbers: Mapping[str, Numbers], integers: Mapping[str, Integers]) -> dict[str, Flags]:
    """Masks of impossible values by column, assuming that the attempt's times are possible."""
    wall = numbers["wall_seconds"]
    with np.errstate(invalid="ignore"):
        longest = np.where(np.isnan(wall), math.inf, wall * (1 + CLOCK_SLACK) + CLOCK_SLACK)
        found = {name: (numbers[name] < -CLOCK_SLACK) | (numbers[name] > longest) for name in WITHIN_WALL}
        for name in OF_PROCESS:
            found[name] = (numbers[name] < -CLOCK_SLACK) | (numbers[name] > MOST_CORES * longest)
    for name in AMOUNTS:
        found[name] = (integers[name] > MOST_BYTES) | ((integers[name] < 0) & (integers[name] != NO_INTEGER))
    return found


@lru_cache(100)
def list_in(lines: bytes) -> tuple[bytes, list[str]]:
    """Split lines into branch names. The result is cached, because most records list the same branches."""
    return lines, lines.decode("utf-8", "surrogatepass").split(packing.BETWEEN_TEXTS) if lines else []


@dataclass(slots=True, eq=False)
class Attempt:
    """A record that has not yet been converted to columns.

    `lines` contains the branch names.
    """

    texts: bytes
    figures: bytes
    lines: bytes
    others: dict[str, Any]


@dataclass(slots=True, eq=False)
class Branches:
    """An attempt's branches, as arrays with one column per branch.

    The rows of `integers` are `BRANCH_INTEGERS`, followed by the number of listed baskets. The rows of `seconds` are
    `BRANCH_SECONDS`; unmeasured times are NaN. `baskets` has a row of basket numbers and a row of basket sizes, both in
    branch order.
    """

    identity: int
    names: list[str]
    integers: Integers
    seconds: npt.NDArray[np.float32]
    baskets: Integers


def split_record(record: PackedRecord, others: dict[str, Any]) -> tuple[Attempt, Branches | None]:
    if not record.integers:
        return Attempt(record.texts, record.figures, b"", others), None
    *texts, last = record.texts.split(NEW_LINE, len(OF_TEXTS))
    lines, names = list_in(last)
    size = record.integers * record.width
    integers = _planes(record.branches[:size], range(record.width), 8).view("<i8")
    # some differences are negative because clocks differ
    seconds = _planes(record.branches[size:], packing.SECONDS_PLANES, 4).view("<f4").clip(min=0.0)
    fixed = len(names) * (1 + len(packing.BRANCH_INTEGERS))
    columns = integers[:fixed].reshape(-1, len(names)), seconds.reshape(-1, len(names)), integers[fixed:].reshape(2, -1)
    return Attempt(NEW_LINE.join(texts), record.figures, lines, others), Branches(record.identity, names, *columns)


def _planes(data: bytes, places: Sequence[int], size: int) -> npt.NDArray[Any]:
    """Reassemble numbers from bytes that are grouped by position. Missing bytes are 0."""
    planes = np.frombuffer(data, np.uint8).reshape(len(places), -1)
    numbers = np.zeros((planes.shape[1], size), np.uint8)
    numbers[:, list(places)] = planes.T
    return numbers.reshape(-1)


def table_of_attempts(waiting: Sequence[Attempt]) -> tuple[pa.Table, Flags, list[tuple[tuple[str, str], int, str]]]:
    """Table of attempts, mask of the rows with valid times, and discarded values.

    Raises
    ------
    TypeError, ValueError, OverflowError
        If a value does not match its column's type.
    """
    planes = np.frombuffer(b"".join(each.figures for each in waiting), np.uint8)
    figures = planes.reshape(len(waiting), FIGURE_SIZE, len(FIGURES)).transpose(2, 0, 1).copy()
    numbers = dict(zip(NUMBERS, figures[: len(NUMBERS)].view("<f8").reshape(-1, len(waiting)), strict=True))
    integers = dict(zip(INTEGERS, figures[len(NUMBERS) :].view("<i8").reshape(-1, len(waiting)), strict=True))
    possible, odd = np.ones(len(waiting), np.bool_), []
    for name, (values, flags) in impossible_times(numbers).items():
        for row in np.flatnonzero(flags & possible).tolist():
            odd.append((("record", "with impossible times"), row, f"{name} of {values[row]:g} s"))
        possible &= ~flags
    for name, flags in impossible_values(numbers, integers).items():
        column, unit, unknown = (numbers[name], "s", math.nan) if name in numbers else (integers[name], "B", NO_INTEGER)
        for row in np.flatnonzero(flags & possible).tolist():
            odd.append((("impossible value", "in records"), row, f"{name} of {column[row]:.12g} {unit}"))
        column[flags] = unknown
    columns = dict(zip(TEXTS, _texts([each.texts for each in waiting]), strict=True))
    columns |= {name: pa.array(values, from_pandas=True) for name, values in numbers.items()}
    columns |= {name: pa.array(values, mask=values == NO_INTEGER) for name, values in integers.items()}
    columns[COLUMNS_READ] = _columns_read(waiting)
    told = {name for each in waiting for name in each.others}
    for field in arrow_schema(CHUNK_COLUMNS):
        known = columns.get(field.name, pa.nulls(len(waiting), field.type))
        if field.name in told:
            pairs = zip(waiting, known.to_pylist(), strict=True)
            known = pa.array([each.others.get(field.name, value) for each, value in pairs], field.type)
        columns[field.name] = known
    return table_of_columns(CHUNK_COLUMNS, columns), possible, odd


def _texts(lines: Sequence[bytes]) -> list[pa.Array]:
    of_records = pc.split_pattern(pa.array(lines, pa.binary()), NEW_LINE)
    if of_records.value_lengths().unique().to_pylist() != [len(OF_TEXTS)]:
        raise ValueError("the strings do not match the records")
    texts = of_records.flatten().cast(ARROW_TYPES["text"])
    known = pc.if_else(pc.equal(texts, NO_TEXT), pa.scalar(None, texts.type), texts)
    return [known[place :: len(OF_TEXTS)] for place in range(len(TEXTS))]


def _columns_read(waiting: Sequence[Attempt]) -> pa.Array:
    told = [(each.texts.rpartition(NEW_LINE)[2], each.lines) for each in waiting]
    different = {one: place for place, one in enumerate(dict.fromkeys(told))}
    columns = pa.array([columns_read(*one) for one in different], ARROW_TYPES["texts"])
    return columns.take(pa.array([different[one] for one in told], pa.int64()))


def columns_read(deviations: bytes, lines: bytes) -> list[str] | None:
    """Columns read by coffea, from the branch names and the deviations from the naming rule; None if unknown."""
    if deviations == NO_TEXT.encode():
        return None
    more, less = json.loads(deviations) if deviations else ((), ())
    usual = {name + packing.OF_EACH_BRANCH for name in list_in(lines)[1]}
    return sorted((usual - set(less)) | set(more))


MOST_BETWEEN: Final = 256
"""Maximum number of unread baskets to list, with size 0, between two baskets that were read."""


def table_of_branches(records: Sequence[Branches]) -> pa.Table:
    if not records:
        return arrow_schema(BRANCH_READ_COLUMNS).empty_table()
    integers, seconds, baskets = (
        np.concatenate([getattr(one, name) for one in records], axis=1) for name in ("integers", "seconds", "baskets")
    )
    columns: dict[str, Any] = {
        "chunk": np.repeat([one.identity for one in records], [len(one.names) for one in records]),
        "branch": pa.array([name for one in records for name in one.names], pa.string()),
    }
    columns |= zip(packing.BRANCH_INTEGERS, integers, strict=False)
    for name, values in zip(packing.BRANCH_SECONDS, seconds, strict=True):
        columns[name] = pa.array(values.astype(np.float64), from_pandas=True)
    columns |= _columns_of_baskets(columns["baskets"], integers[-1], *baskets)
    return table_of_columns(BRANCH_READ_COLUMNS, columns)


def _columns_of_baskets(all_of: Integers, listed: Integers, numbers: Integers, sizes: Integers) -> dict[str, pa.Array]:
    """First and last listed basket of each branch, and the sizes of all baskets from the first to the last."""
    order = np.lexsort((numbers, np.repeat(np.arange(len(listed)), listed)))
    numbers, sizes = numbers[order], sizes[order]
    ends = np.cumsum(listed)
    some = listed > 0
    first, last = np.zeros_like(listed), np.zeros_like(listed)
    first[some], last[some] = numbers[(ends - listed)[some]], numbers[ends[some] - 1]
    spans = np.where(some, last - first + 1, 0)
    gaps = np.flatnonzero((listed == all_of) & (listed < spans))
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


class PackedRecord(NamedTuple):
    """Parts of a packed record: the JSON, lines of text, figures and branch numbers.

    `width` is the size of a branch integer in bytes, and `integers` is the number of branch integers.
    """

    rest: bytes
    texts: bytes
    figures: bytes
    branches: bytes
    width: int
    integers: int

    @property
    def identity(self) -> int:
        """The record's ID; `NO_INTEGER` if the record belongs to no attempt."""
        return int.from_bytes(self.figures[ID :: len(FIGURES)], "little", signed=True)


def records_in(blob: bytes) -> Iterator[PackedRecord]:
    """Split the result of `packed_records` into records.

    Raises
    ------
    ValueError
        If the records are damaged or were packed by another version.
    """
    data, at = checked_content(blob), 0
    while at < len(data):
        rest, texts, planes, width, count = struct.unpack_from(packing.LENGTHS, data, at)
        if not texts or planes != FIGURE_SIZE:
            raise ValueError("an older version of roastcoffea packed them")
        begin = at + struct.calcsize(packing.LENGTHS)
        lines = begin + rest
        figures = lines + texts
        branches = figures + packing.FIGURES_SIZE
        at = branches
        if count:
            names = data.count(NEW_LINE, lines, figures) + 1 - len(OF_TEXTS)
            at += count * width + names * len(packing.BRANCH_SECONDS) * len(packing.SECONDS_PLANES)
        of_record = data[begin:lines], data[lines:figures], data[figures:branches], data[branches:at]
        yield PackedRecord(*of_record, width, count)


def unpacked_values(blob: bytes, names: Sequence[str]) -> list[dict[str, Any]]:
    """Unpack only these columns, which is ten times faster than unpacking everything.

    Unmeasured values and values sent as JSON (strings with a line break) are omitted.

    Parameters
    ----------
    blob : bytes
        Result of `packed_records`.
    names : sequence of str
        Names of text, number and integer columns in chunk records.
    """
    found: list[dict[str, Any]] = []
    for record in records_in(blob):
        texts = record.texts.split(NEW_LINE, len(TEXTS))[: len(TEXTS)]
        figures = bytearray(packing.FIGURES_SIZE)
        for plane in range(FIGURE_SIZE):
            figures[plane::FIGURE_SIZE] = record.figures[plane * len(FIGURES) : (plane + 1) * len(FIGURES)]
        values = (
            *(text.decode("utf-8", "surrogatepass") for text in texts),
            *struct.unpack(packing.FIGURES_PACKING, figures),
        )
        picked = ((name, values[PLACES[name]]) for name in names)
        found.append({name: value for name, value in picked if value == value and value not in UNKNOWN})  # noqa: PLR0124
    return found


def checked_content(blob: bytes) -> bytes:
    """Check and decompress packed records.

    Raises
    ------
    ValueError
        If the records are damaged or were packed by another version.
    """
    import lz4.block

    packed = blob[packing.CHECK_SIZE :]
    if blob[: packing.CHECK_SIZE] != struct.pack(packing.CHECK, zlib.crc32(packed, packing.SEED)):
        raise ValueError("they are damaged, or another version of roastcoffea packed them")
    # LZ4 allocates the claimed size, and expands data at most 255-fold
    if int.from_bytes(packed[:4], "little") > 255 * len(packed):
        raise ValueError("they claim an impossible size")
    content: bytes = lz4.block.decompress(packed)
    return content
