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
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import chain, repeat
from typing import Any, Final

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
    except (struct.error, OverflowError, TypeError, ValueError):  # the client reports and omits values that do not fit
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


def _plain(value: Any) -> Any:
    """Convert a value that JSON does not support, e.g. a NumPy number."""
    if isinstance(value, numbers.Integral):
        return operator.index(value)
    if isinstance(value, numbers.Real):
        return float(value)
    return sorted(map(str, value)) if isinstance(value, (set, frozenset)) else str(value)


_encoded: Final = json.JSONEncoder(default=_plain, separators=(",", ":")).encode
