"""Records of attempts that become columns many at a time, straight from the bytes in which they travelled."""

from __future__ import annotations

import struct
from collections.abc import Sequence
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
)
from roastcoffea.log.plausible import impossible_rows
from roastcoffea.records.arrow import ARROW_TYPES, arrow_schema
from roastcoffea.records.chunks import CHUNK_COLUMNS

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
