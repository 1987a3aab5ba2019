"""Attempt records as bytes, which the probe packs and the client unpacks.

This module must work when it is pickled by value.
"""

from __future__ import annotations

import json
import math
import numbers
import operator
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain, repeat
from typing import Any, Final, NamedTuple

from roastcoffea.records.chunks import BRANCH_READ_COLUMNS, CHUNK_COLUMNS

BRANCHES: Final = "branch_reads"
SECTIONS: Final = "sections"
PROBLEMS: Final = "problems"
PREPROCESSING: Final = "preprocessing"
PROFILE: Final = "profile"
OF_PROCESS: Final = "of_process"
"""Keys in a record that are not columns of its table. `PREPROCESSING` marks the record of a preprocessing task.

`OF_PROCESS` describes an attempt's process, for executors without a scheduler that could query workers.

A record that contains only problems belongs to no attempt and needs no ID.
"""

PROFILE_UNITS: Final = 10_000
"""Units per second for the times in a profile, which are sent as integers."""

BRANCH_INTEGERS: Final = ("bytes_payload", "bytes_again", "bytes_uncompressed", "baskets")
BRANCH_SECONDS: Final = tuple(column.name for column in BRANCH_READ_COLUMNS if column.kind == "number")
"""Columns for a branch's times. A time is None if it was not measured."""

BASKETS_LISTED: Final = "baskets_listed"
"""Column for the number of baskets listed for a branch. The list contains either all baskets or only the first and
last.
"""

BASKET: Final = "basket"
BASKET_BYTES: Final = "basket_bytes"
"""Columns for the listed baskets' numbers and sizes, in branch order."""

BRANCHES_HAVE: Final = ("branch", *BRANCH_INTEGERS, *BRANCH_SECONDS, BASKETS_LISTED, BASKET, BASKET_BYTES)

SECONDS_PLANES: Final = (1, 2, 3)
"""Positions of the bytes sent for each 4-byte float. Times drop the least significant byte, so they may be too small by
up to one part in 32,768.
"""

COLUMNS_READ: Final = "coffea_columns"
OF_EACH_BRANCH: Final = "-data"
"""Suffix that coffea usually appends to branch names to form column names. Only deviations from this rule are sent."""

TEXTS: Final = tuple(column.name for column in CHUNK_COLUMNS if column.kind in {"text", "values"})
NUMBERS: Final = tuple(column.name for column in CHUNK_COLUMNS if column.kind == "number")
INTEGERS: Final = tuple(column.name for column in CHUNK_COLUMNS if column.kind == "integer")
FIGURES: Final = NUMBERS + INTEGERS
ID: Final = FIGURES.index("id")
FIGURES_PACKING: Final = f"<{len(NUMBERS)}d{len(INTEGERS)}q"
FIGURE_SIZE: Final = 8
FIGURES_SIZE: Final = FIGURE_SIZE * len(FIGURES)

OF_TEXTS: Final = (*TEXTS, COLUMNS_READ)

PACKED: Final = frozenset((BRANCHES, *OF_TEXTS, *FIGURES))
"""Values in a record that are sent as JSON only if they cannot be packed."""

NO_TEXT: Final = "\0"
NO_NUMBER: Final = math.nan
NO_INTEGER: Final = -(1 << 63)
NO_FIGURES: Final = (NO_NUMBER,) * len(NUMBERS) + (NO_INTEGER,) * len(INTEGERS)

PLACES: Final = {name: place for place, name in enumerate((*TEXTS, *FIGURES))}
UNKNOWN: Final = frozenset((NO_TEXT, NO_INTEGER))
"""Placeholders for unknown values other than NaN."""

BETWEEN_TEXTS: Final = "\n"
NEW_LINE: Final = b"\n"

LENGTHS: Final = "<5I"
"""Header of a record: size of the JSON, size of the text, bytes per figure, bytes per branch integer, and number of
branch integers.
"""

SEED: Final = zlib.crc32(repr((TEXTS, FIGURES, BRANCHES_HAVE)).encode())
CHECK: Final = "<I"
CHECK_SIZE: Final = 4
"""Size of the checksum at the start of packed records. The format seeds the checksum, so both sides must use the
same format.
"""


def packed_records(records: list[dict[str, Any]]) -> bytes:
    """Pack records as JSON, strings, figures and branch numbers, without pickle.

    The result is compressed with LZ4, which is far faster than zlib and comes with coffea.
    """
    import lz4.block

    packed: bytes = lz4.block.compress(b"".join([part for record in records for part in _packed_record(record)]))
    return struct.pack(CHECK, zlib.crc32(packed, SEED)) + packed


def _packed_record(record: dict[str, Any]) -> list[bytes]:
    columns = record.get(BRANCHES) or {"branch": ()}
    others = {name: value for name, value in record.items() if name not in PACKED}
    texts, figures = _packed_texts(record, columns["branch"], others), _packed_figures(record, others)
    width, integers, numbers = _packed_branches(columns) if columns["branch"] else (0, 0, [])
    rest = _encoded(others).encode() if others else b""
    lengths = struct.pack(LENGTHS, len(rest), len(texts), FIGURE_SIZE, width, integers)
    return [lengths, rest, texts, *figures, *numbers]


def _packed_texts(record: dict[str, Any], branches: Sequence[str], others: dict[str, Any]) -> bytes:
    """Pack a record's strings and branch names as lines. Multi-line strings are added to the JSON."""
    *texts, columns = map(record.get, OF_TEXTS)
    if columns is not None:
        usual = {*map(operator.add, branches, repeat(OF_EACH_BRANCH))}
        columns = "" if columns == usual else _encoded([columns - usual, usual - columns])
    lines = [*texts, columns, *branches]
    with suppress(TypeError):
        joined = BETWEEN_TEXTS.join([NO_TEXT if line is None else line for line in lines])
        if NO_TEXT not in lines and joined.count(BETWEEN_TEXTS) < len(lines):
            return joined.encode("utf-8", "surrogatepass")
    odd = {name: text for name, text in zip(TEXTS, texts, strict=True) if text is not None and not _is_line(text)}
    others |= odd
    names = [name.replace(BETWEEN_TEXTS, " ").replace(NO_TEXT, " ") for name in branches]
    return _packed_texts(record | dict.fromkeys(odd), names, others)


def _is_line(text: Any) -> bool:
    return isinstance(text, str) and BETWEEN_TEXTS not in text and text != NO_TEXT


def _packed_figures(record: dict[str, Any], others: dict[str, Any]) -> list[bytes]:
    """Pack a record's figures. Values that do not fit are added to the JSON."""
    figures = [*map(record.get, FIGURES, NO_FIGURES)]
    try:
        if None in figures:
            figures = [none if figure is None else figure for figure, none in zip(figures, NO_FIGURES, strict=True)]
        data = struct.pack(FIGURES_PACKING, *figures)
    except (
        struct.error,
        OverflowError,
        TypeError,
        ValueError,
    ):  # the client reports and omits values that do not fit
        others |= {name: record.get(name) for name in FIGURES if name != "id"}
        return _packed_figures({"id": record["id"]}, others)
    return _planes(data, range(FIGURE_SIZE), FIGURE_SIZE)


def _planes(data: bytes, places: Iterable[int], width: int) -> list[bytes]:
    """Group the bytes of packed numbers by position, for better compression."""
    return [data[place::width] for place in places]


def _packed_branches(columns: dict[str, Sequence[Any]]) -> tuple[int, int, list[bytes]]:
    """Bytes per integer, number of integers, and the packed integers and seconds of all branches."""
    integers = [
        *chain.from_iterable(columns[name] for name in (*BRANCH_INTEGERS, BASKETS_LISTED, BASKET, BASKET_BYTES))
    ]
    width = 4
    try:
        data = struct.pack(f"<{len(integers)}I", *integers)
    except struct.error:
        width = 8
        data = struct.pack(f"<{len(integers)}Q", *integers)
    seconds = [*chain.from_iterable(columns[name] for name in BRANCH_SECONDS)]
    if None in seconds:
        seconds = [NO_NUMBER if value is None else value for value in seconds]
    planes = _planes(data, range(width), width)
    planes += _planes(struct.pack(f"<{len(seconds)}f", *seconds), SECONDS_PLANES, 4)
    return width, len(integers), planes


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
        rest, texts, planes, width, count = struct.unpack_from(LENGTHS, data, at)
        if not texts or planes != FIGURE_SIZE:
            raise ValueError("an older version of roastcoffea packed them")
        begin = at + struct.calcsize(LENGTHS)
        lines = begin + rest
        figures = lines + texts
        branches = figures + FIGURES_SIZE
        at = branches
        if count:
            names = data.count(NEW_LINE, lines, figures) + 1 - len(OF_TEXTS)
            at += count * width + names * len(BRANCH_SECONDS) * len(SECONDS_PLANES)
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
        figures = bytearray(FIGURES_SIZE)
        for plane in range(FIGURE_SIZE):
            figures[plane::FIGURE_SIZE] = record.figures[plane * len(FIGURES) : (plane + 1) * len(FIGURES)]
        values = (*(text.decode("utf-8", "surrogatepass") for text in texts), *struct.unpack(FIGURES_PACKING, figures))
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

    packed = blob[CHECK_SIZE:]
    if blob[:CHECK_SIZE] != struct.pack(CHECK, zlib.crc32(packed, SEED)):
        raise ValueError("they are damaged, or another version of roastcoffea packed them")
    # LZ4 allocates the claimed size, and expands data at most 255-fold
    if int.from_bytes(packed[:4], "little") > 255 * len(packed):
        raise ValueError("they claim an impossible size")
    content: bytes = lz4.block.decompress(packed)
    return content


def _plain(value: Any) -> Any:
    """Convert a value that JSON does not support, e.g. a NumPy number."""
    if isinstance(value, numbers.Integral):
        return operator.index(value)
    if isinstance(value, numbers.Real):
        return float(value)
    return sorted(map(str, value)) if isinstance(value, (set, frozenset)) else str(value)


_encoded: Final = json.JSONEncoder(default=_plain, separators=(",", ":")).encode
