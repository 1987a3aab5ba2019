"""Records of attempts as opaque bytes: packed by the probe on a worker, unpacked by the client.

This module must survive pickling by value.
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
"""Entries of a record in addition to the columns of its table; one marks a record of preprocessing.

The last one has what the process of an attempt knows of itself, where no scheduler asks workers for it.

A record with nothing but problems belongs to no attempt, and needs no identity.
"""

PROFILE_UNITS: Final = 10_000
"""Units per second of the integers that carry a profile's seconds."""

BRANCH_INTEGERS: Final = ("bytes_payload", "bytes_again", "bytes_uncompressed", "baskets")
BRANCH_SECONDS: Final = tuple(column.name for column in BRANCH_READ_COLUMNS if column.kind == "number")
"""Numbers of a branch. None if not measured."""

BASKETS_LISTED: Final = "baskets_listed"
"""Number of listed baskets of a branch: all, or only the first and the last one."""

BASKET: Final = "basket"
BASKET_BYTES: Final = "basket_bytes"
"""Numbers and sizes of the listed baskets, branch by branch."""

BRANCHES_HAVE: Final = ("branch", *BRANCH_INTEGERS, *BRANCH_SECONDS, BASKETS_LISTED, BASKET, BASKET_BYTES)
"""Columns of the branches of a record."""

SECONDS_PLANES: Final = (1, 2, 3)
"""Seconds travel as 4-byte numbers without their lowest byte: they may come smaller by one part in 32,768."""

COLUMNS_READ: Final = "coffea_columns"
OF_EACH_BRANCH: Final = "-data"
"""Usual ending of coffea's column names after the branch: only deviations are sent."""

TEXTS: Final = tuple(column.name for column in CHUNK_COLUMNS if column.kind in {"text", "values"})
NUMBERS: Final = tuple(column.name for column in CHUNK_COLUMNS if column.kind == "number")
INTEGERS: Final = tuple(column.name for column in CHUNK_COLUMNS if column.kind == "integer")
FIGURES: Final = NUMBERS + INTEGERS
ID: Final = FIGURES.index("id")
FIGURES_PACKING: Final = f"<{len(NUMBERS)}d{len(INTEGERS)}q"
FIGURE_SIZE: Final = 8
FIGURES_SIZE: Final = FIGURE_SIZE * len(FIGURES)

OF_TEXTS: Final = (*TEXTS, COLUMNS_READ)
"""Text values of a record."""

PACKED: Final = frozenset((BRANCHES, *OF_TEXTS, *FIGURES))
"""Values of a record that are not sent as JSON, unless they do not fit."""

NO_TEXT: Final = "\0"
NO_NUMBER: Final = math.nan
NO_INTEGER: Final = -(1 << 63)
NO_FIGURES: Final = (NO_NUMBER,) * len(NUMBERS) + (NO_INTEGER,) * len(INTEGERS)
"""Values sent for unknown ones."""

PLACES: Final = {name: place for place, name in enumerate((*TEXTS, *FIGURES))}
UNKNOWN: Final = frozenset((NO_TEXT, NO_INTEGER))
"""Where columns are in a record, and values of unknown ones other than NaN."""

BETWEEN_TEXTS: Final = "\n"
NEW_LINE: Final = b"\n"

LENGTHS: Final = "<5I"
"""Before each record: bytes of JSON, bytes of text, figures, bytes of an integer of branches, and number of these."""

SEED: Final = zlib.crc32(repr((TEXTS, FIGURES, BRANCHES_HAVE)).encode())
CHECK: Final = "<I"
CHECK_SIZE: Final = 4
"""Packed records begin with their checksum, seeded with the version that both sides must share."""


def packed_records(records: list[dict[str, Any]]) -> bytes:
    """Records as opaque bytes without pickles: JSON, texts, figures, and numbers of branches, compressed.

    LZ4 is far faster than zlib, and coffea brings it.
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
    """Lines with the texts of a record and names of its branches; texts that are no line go to the others."""
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
    """Figures of a record; if one does not fit, they go to the others."""
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
    ):  # the client leaves it out, and tells which does not fit
        others |= {name: record.get(name) for name in FIGURES if name != "id"}
        return _packed_figures({"id": record["id"]}, others)
    return _planes(data, range(FIGURE_SIZE), FIGURE_SIZE)


def _planes(data: bytes, places: Iterable[int], width: int) -> list[bytes]:
    """Bytes at these places of numbers of this width: bytes of the same place compress best."""
    return [data[place::width] for place in places]


def _packed_branches(columns: dict[str, Sequence[Any]]) -> tuple[int, int, list[bytes]]:
    """Bytes an integer, how many integers; and integers, sizes of baskets and seconds of the branches."""
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
    """Parts of a packed record: JSON, lines of text, figures, and numbers of branches.

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
        """Identity of the record; `NO_INTEGER` if it belongs to no attempt."""
        return int.from_bytes(self.figures[ID :: len(FIGURES)], "little", signed=True)


def records_in(blob: bytes) -> Iterator[PackedRecord]:
    """Records in the result of `packed_records`.

    Raises
    ------
    ValueError
        They are damaged, or of another version.
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
    """Only these columns of packed records, for a tenth of the time: no branches, sections or profile.

    What was not measured is left out, as is a value that travels as JSON (a text with a line break).

    Parameters
    ----------
    blob : bytes
        Result of `packed_records`.
    names : sequence of str
        Text, number and integer columns of chunks.
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
    """Content of packed records.

    Raises
    ------
    ValueError
        They are damaged, or of another version.
    """
    import lz4.block

    packed = blob[CHECK_SIZE:]
    if blob[:CHECK_SIZE] != struct.pack(CHECK, zlib.crc32(packed, SEED)):
        raise ValueError("they are damaged, or another version of roastcoffea packed them")
    # LZ4 allocates what they claim, and makes at most 255 times as many bytes
    if int.from_bytes(packed[:4], "little") > 255 * len(packed):
        raise ValueError("they claim to be larger than they can be")
    content: bytes = lz4.block.decompress(packed)
    return content


def _plain(value: Any) -> Any:
    """JSON form of values it does not know: NumPy numbers become numbers."""
    if isinstance(value, numbers.Integral):
        return operator.index(value)
    if isinstance(value, numbers.Real):
        return float(value)
    return sorted(map(str, value)) if isinstance(value, (set, frozenset)) else str(value)


_encoded: Final = json.JSONEncoder(default=_plain, separators=(",", ":")).encode
