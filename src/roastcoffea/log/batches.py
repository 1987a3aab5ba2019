"""Records of attempts that become columns many at a time, where their values are plausible."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from roastcoffea.log import packing
from roastcoffea.log.packing import (
    COLUMNS_READ,
    FIGURE_SIZE,
    FIGURES,
    FIGURES_SIZE,
    INTEGERS,
    LENGTHS,
    LENGTHS_SIZE,
    NEW_LINE,
    NO_INTEGER,
    NO_TEXT,
    NUMBERS,
    OF_TEXTS,
    TEXTS,
    PackedBranches,
)
from roastcoffea.records.arrow import ARROW_TYPES, arrow_schema, table_of_columns
from roastcoffea.records.chunks import BRANCH_READ_COLUMNS, CHUNK_COLUMNS, PHASE_COLUMNS

MOST_CORES: Final = 4096
"""Most cores that one process can use."""

CLOCK_SLACK: Final = 0.1
"""Seconds, and share of the wall time, by which clocks of one process may differ."""

LATEST: Final = 253_402_300_800.0
"""Unix time of the year 10000; a host without a clock may start at 0."""

WITHIN_WALL: Final = ("cpu_seconds", "core_wait_seconds", "gc_seconds", *(column.name for column in PHASE_COLUMNS))
"""Times of one thread within an attempt."""

OF_PROCESS: Final = ("helper_cpu_seconds", "process_cpu_seconds")
"""CPU times of several threads within an attempt."""

AMOUNTS: Final = ("memory_before", "memory_after", "memory_peak", "bytes_requested", "bytes_payload", "file_bytes")
"""Sizes, in bytes."""

MOST_BYTES: Final = 1 << 60


def impossible_times(record: Mapping[str, Any]) -> str | None:
    """Impossible start, stop or duration of an attempt, in words; None if all are possible."""
    start, stop, wall = (_number(record.get(name)) for name in ("start", "stop", "wall_seconds"))
    for name, moment in (("start", start), ("stop", stop)):
        if moment is not None and not 0 <= moment < LATEST:
            return f"{name} at {moment:g} s"
    if start is not None and stop is not None and stop < start:
        return f"an end {start - stop:g} s before its start"
    if wall is not None and not 0 <= wall < math.inf:
        return f"a duration of {wall:g} s"
    return None


def impossible_values(record: Mapping[str, Any]) -> dict[str, str]:
    """Names of impossible values of an attempt, each with the value.

    Its times are possible. Unmeasured values and non-numbers are skipped.
    """
    wall = _number(record.get("wall_seconds"))
    longest = math.inf if wall is None else wall * (1 + CLOCK_SLACK) + CLOCK_SLACK
    bounds = dict.fromkeys(WITHIN_WALL, longest) | dict.fromkeys(OF_PROCESS, MOST_CORES * longest)
    found = {name: f"{name} of {record[name]:g} s" for name in bounds if _outside(record.get(name), bounds[name])}
    return found | {name: f"{name} of {record[name]} B" for name in AMOUNTS if _outside(record.get(name), MOST_BYTES)}


def impossible_rows(
    numbers: Mapping[str, npt.NDArray[np.float64]], integers: Mapping[str, npt.NDArray[np.int64]]
) -> npt.NDArray[np.bool_]:
    """Whether times or values of attempts are impossible, by row of their columns.

    Unmeasured numbers are NaN, unmeasured integers the least of all.
    """
    start, stop, wall = (numbers[name] for name in ("start", "stop", "wall_seconds"))
    with np.errstate(invalid="ignore"):
        odd: npt.NDArray[np.bool_] = (stop < start) | (wall < 0) | (wall == math.inf)
        for moment in (start, stop):
            odd |= (moment < 0) | (moment >= LATEST)
        longest = np.where(np.isnan(wall), math.inf, wall * (1 + CLOCK_SLACK) + CLOCK_SLACK)
        for names, cores in ((WITHIN_WALL, 1), (OF_PROCESS, MOST_CORES)):
            for name in names:
                odd |= (numbers[name] < -CLOCK_SLACK) | (numbers[name] > cores * longest)
    unknown = np.iinfo(np.int64).min
    for name in AMOUNTS:
        amounts = integers[name]
        odd |= (amounts > MOST_BYTES) | ((amounts < 0) & (amounts != unknown))
    return odd


def _outside(value: Any, most: float) -> bool:
    number = _number(value)
    return number is not None and not -CLOCK_SLACK <= number <= most


def _number(value: Any) -> float | None:
    return value if isinstance(value, (int, float)) else None


ID: Final = FIGURES.index("id")

NO_COLUMNS: Final = NO_TEXT.encode()
"""coffea's columns of a record that has none."""

MOST_LISTS: Final = 1000
"""Most different lists of branches that are remembered."""


class PackedParts(NamedTuple):
    """Parts of a packed record that has texts and figures: JSON, lines of text, figures, and numbers of branches.

    `width` is the bytes of an integer of branches, `integers` how many there are.
    """

    rest: bytes
    texts: bytes
    figures: bytes
    branches: bytes
    width: int
    integers: int

    @property
    def identity(self) -> int:
        """Identity of the record."""
        return int.from_bytes(self.figures[ID :: len(FIGURES)], "little", signed=True)


def parts_of(content: bytes) -> PackedParts | None:
    """Parts of the only record in `checked_content`; None if there are several, or values travel as JSON."""
    if len(content) < LENGTHS_SIZE:
        return None
    rest, texts, planes, width, count = struct.unpack_from(LENGTHS, content)
    if not texts or planes != FIGURE_SIZE:
        return None
    begin = LENGTHS_SIZE + rest
    figures = begin + texts
    branches = figures + FIGURES_SIZE
    names = content.count(NEW_LINE, begin, figures) + 1 - len(OF_TEXTS) if count else 0
    if branches + packing.size_of_branches(names, width, count) != len(content):
        return None
    numbers = content[branches:] if count else b""
    of_record = content[LENGTHS_SIZE:begin], content[begin:figures], content[figures:branches]
    return PackedParts(*of_record, numbers, width, count)


@dataclass(slots=True, eq=False)
class Waiting:
    """A record that has not become columns yet: its texts, its figures, and its other values.

    `branches` are the names of its branches if coffea's columns derive from them.
    """

    texts: bytes
    figures: bytes
    others: dict[str, Any]
    branches: bytes | None

    def record(self) -> dict[str, Any]:
        """The record as `unpacked_records` would give it, without its branches."""
        texts = NEW_LINE.join([self.texts, self.branches]) if self.branches else self.texts
        lengths = struct.pack(LENGTHS, 0, len(texts), FIGURE_SIZE, 0, 0)
        (record,) = packing.records_in(b"".join([lengths, texts, self.figures]))
        return record | self.others


@dataclass(slots=True, eq=False)
class Batch:
    """Records that became columns; those with values that cannot be are left to whoever looks at them one by one."""

    table: pa.Table
    others: list[tuple[int, dict[str, Any]]]
    """Rows with further values."""
    odd: list[dict[str, Any]]


class Lists:
    """Names of branches by the lines in which they travel: most records of a run have the same ones."""

    def __init__(self) -> None:
        self._known: dict[bytes, tuple[bytes, list[str]]] = {}

    def names(self, lines: bytes) -> list[str]:
        """Names in these lines."""
        return self._entry(lines)[1]

    def shared(self, lines: bytes) -> bytes:
        """The same lines, in memory once."""
        return self._entry(lines)[0]

    def _entry(self, lines: bytes) -> tuple[bytes, list[str]]:
        known = self._known.get(lines)
        if known is None:
            if len(self._known) >= MOST_LISTS:
                self._known.clear()
            names = lines.decode("utf-8", "surrogatepass").split(packing.BETWEEN_TEXTS)
            known = self._known[lines] = lines, names
        return known


def batch_of(waiting: Sequence[Waiting], lists: Lists) -> Batch:
    """Columns of records.

    Raises
    ------
    ValueError
        A record has texts that cannot be a column.
    """
    numbers, integers = _figures([each.figures for each in waiting])
    odd = impossible_rows(dict(zip(NUMBERS, numbers, strict=True)), dict(zip(INTEGERS, integers, strict=True)))
    columns = dict(zip(TEXTS, _texts([each.texts for each in waiting]), strict=True))
    columns |= {name: pa.array(row, from_pandas=True) for name, row in zip(NUMBERS, numbers, strict=True)}
    columns |= {name: pa.array(row, mask=row == NO_INTEGER) for name, row in zip(INTEGERS, integers, strict=True)}
    columns[COLUMNS_READ] = _columns_read(waiting, lists)
    schema = arrow_schema(CHUNK_COLUMNS)
    empty = {field.name: pa.nulls(len(waiting), field.type) for field in schema if field.name not in columns}
    table = pa.table({name: (columns | empty)[name] for name in schema.names}, schema=schema)
    possible = np.flatnonzero(~odd)
    others = [(place, waiting[row].others) for place, row in enumerate(possible.tolist()) if waiting[row].others]
    if len(possible) < len(waiting):
        table = table.take(pa.array(possible))
    return Batch(table, others, [waiting[row].record() for row in np.flatnonzero(odd).tolist()])


def _figures(packed: Sequence[bytes]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Numbers and integers of records, one row for each column."""
    planes = np.frombuffer(b"".join(packed), np.uint8).reshape(len(packed), FIGURE_SIZE, len(FIGURES))
    figures = np.ascontiguousarray(planes.transpose(2, 0, 1))
    numbers, integers = figures[: len(NUMBERS)], figures[len(NUMBERS) :]
    return numbers.view("<f8").reshape(-1, len(packed)), integers.view("<i8").reshape(-1, len(packed))


def _texts(lines: Sequence[bytes]) -> list[pa.Array]:
    """Columns of texts, of which each record has a line."""
    data = np.frombuffer(NEW_LINE.join([*lines, b""]), np.uint8)
    is_end = data == NEW_LINE[0]
    ends = np.flatnonzero(is_end)
    if len(ends) != len(lines) * len(OF_TEXTS):
        raise ValueError("the texts are not those of the records")
    kept = data[~is_end]
    offsets = np.zeros(len(ends) + 1, np.int32)
    offsets[1:] = ends - np.arange(len(ends))
    is_text = np.ones(len(ends), np.bool_)
    short = np.flatnonzero(np.diff(offsets) == 1)
    is_text[short] = kept[offsets[short]] != NO_COLUMNS[0]
    known = np.packbits(is_text, bitorder="little")
    buffers = [pa.py_buffer(each) for each in (known, offsets, kept)]
    together = pa.Array.from_buffers(ARROW_TYPES["text"], len(ends), buffers)
    together.validate(full=True)
    return [together.take(pa.array(np.arange(place, len(ends), len(OF_TEXTS)))) for place in range(len(TEXTS))]


def _columns_read(waiting: Sequence[Waiting], lists: Lists) -> pa.Array:
    """coffea's columns, of which many records have the same."""
    kind = ARROW_TYPES["texts"]
    if all(each.branches is None for each in waiting):
        return pa.nulls(len(waiting), kind)
    places: dict[tuple[bytes, bytes], int] = {}
    found = []
    for each in waiting:
        known = None
        if each.branches is not None:
            deviations = each.texts.rpartition(NEW_LINE)[2]
            known = places.setdefault((deviations, each.branches), len(places))
        found.append(known)
    different = [
        packing.columns_read(deviations.decode("utf-8", "surrogatepass"), lists.names(lines) if lines else ())
        for deviations, lines in places
    ]
    return pa.array(different, kind).take(pa.array(found, pa.int64()))


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
