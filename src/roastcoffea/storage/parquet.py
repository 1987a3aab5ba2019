"""Parquet files read within bounds: nothing is allocated because a file claims to need it."""

from __future__ import annotations

import os
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import types

from roastcoffea.storage.pages import SMALLEST_VALUE, Footer
from roastcoffea.storage.reading import check_memory, opened, reading

LAST_BYTES: Final = b"PAR1"
"""End of each Parquet file; the length of its footer is in front."""
TAIL: Final = 8

SMALL_FILE: Final = 2**20
"""A file of so many bytes is read at once."""
OF_NO_ROWS: Final = 2**15
"""A file of a table without rows has fewer bytes."""
SMALL_FOOTER: Final = 2**18
FOOTER_SHARE: Final = 8
"""A footer may be this long; in a larger file, this fraction of it. Its parts take hundreds of times their size."""
LONGEST_FOOTER_TEXT: Final = 2**24
MOST_FOOTER_PARTS: Final = 10_000

EXPANSION: Final = 2000
"""Memory that a table may need, in sizes of its pages: requests of equal chunks take up to 1100, most tables 100."""
ROOM: Final = 2**25
"""Bytes that the tables of a folder may need in addition."""

FEW_ROWS: Final = 100_000
"""Rows below which a table is read in one thread: sharing out its columns takes longer than reading them."""


class Room:
    """Memory for the tables of a folder, together."""

    def __init__(self) -> None:
        self._left = ROOM

    def take(self, needed: int, pages: int) -> None:
        """Raise if so many bytes of pages claim more than they can hold, or than there is."""
        beyond = max(needed - EXPANSION * pages, 0)
        if beyond > self._left:
            raise ValueError(f"it claims to hold {needed} bytes in {pages}, which no measurement does")
        check_memory(needed, "it needs")
        self._left -= beyond


def read_parquet(path: Path, schema: pa.Schema, room: Room, rows: int | None = None) -> pa.Table:
    """Table of a file, with these columns as they are here and further columns of plain values as they are there.

    Raises
    ------
    MeasurementError
        If the file is missing, damaged, claims more than it can hold, or has another number of rows.
    """
    with reading(path), opened(path) as file:
        length = os.fstat(file.fileno()).st_size
        if length > SMALL_FILE:
            return _table(file, length, schema, room, rows)
        content = file.read(length)
        if rows == 0 and length <= OF_NO_ROWS:
            return _empty_table(content, schema)
        return _table(BytesIO(content), len(content), schema, room, rows)


@lru_cache(maxsize=100)
def _empty_table(content: bytes, schema: pa.Schema) -> pa.Table:
    """Table without rows: those of many measurements are equal to the byte, and are read once."""
    return _table(BytesIO(content), len(content), schema, Room(), 0)


def _table(file: BinaryIO, length: int, schema: pa.Schema, room: Room, rows: int | None) -> pa.Table:
    """Table of an open file of this length; see `read_parquet`."""
    footer = _footer(file, length)
    known = footer.rows
    if rows not in (None, known):
        raise ValueError(f"{known} rows instead of {rows}")
    absent = len(schema) * SMALLEST_VALUE * known  # of older versions: they are added
    room.take(footer.claimed(file) + absent, footer.pages)
    file.seek(0)
    with pq.ParquetFile(
        # Arrow calls Python for each column otherwise
        pa.BufferReader(file.getvalue()) if isinstance(file, BytesIO) else file,
        page_checksum_verification=True,
        thrift_string_size_limit=LONGEST_FOOTER_TEXT,
        thrift_container_size_limit=MOST_FOOTER_PARTS,
    ) as stored:
        found = stored.schema_arrow
        if is_ours := found.equals(schema, check_metadata=True):
            ours = schema
        else:  # another program, or another version of this one, has written it
            fields = {field.name: field for field in schema}
            ours = pa.schema([fields.get(field.name, field) for field in found])
            for field in found:
                _check_type(field, fields.get(field.name))
        table = stored.read(use_threads=known > FEW_ROWS) if known else found.empty_table()
    if table.num_rows != known:
        raise ValueError(f"{table.num_rows} rows instead of {known}")
    if not is_ours:
        table = table.cast(ours)
    table.validate(full=True)
    return table


def check_end(path: Path) -> None:
    """Raise where a file is missing, or its end is: a copy of it is not finished."""
    with reading(path), opened(path) as file:
        _tail(file, os.fstat(file.fileno()).st_size)


def _tail(file: BinaryIO, length: int) -> bytes:
    """Last bytes of a file, without the mark of its end."""
    file.seek(max(length - TAIL, 0))
    tail = file.read(TAIL)
    if not tail.endswith(LAST_BYTES):
        raise ValueError("its end is missing")
    return tail.removesuffix(LAST_BYTES)


def _footer(file: BinaryIO, length: int) -> Footer:
    """Footer of a file; ValueError if it is larger than that of any real table."""
    size, most = int.from_bytes(_tail(file, length), "little"), max(SMALL_FOOTER, length // FOOTER_SHARE)
    if size > min(most, length - TAIL):
        raise ValueError(f"its footer claims {size} bytes")
    file.seek(length - TAIL - size)
    return Footer(file.read(size), length)


def _check_type(field: pa.Field, ours: pa.Field | None) -> None:
    """Raise if a column is not similar to ours, or a further one is not of plain values."""
    fits = _is_plain(field.type) if ours is None else field.type == ours.type or _is_similar(field.type, ours.type)
    if not fits:
        expected = "numbers, texts or lists of them" if ours is None else str(ours.type)
        raise TypeError(f"{field.name} holds {str(field.type)[:100]} instead of {expected}")


def _is_similar(found: pa.DataType, ours: pa.DataType) -> bool:
    """Whether values of a type can be values of ours."""
    if types.is_null(found):
        return True
    if types.is_list(ours):
        return _is_list(found) and _is_similar(found.value_type, ours.value_type)
    found = _decoded(found)
    if types.is_string(ours):
        return _is_text(found)
    return bool(types.is_integer(found) or types.is_floating(found))


def _is_plain(found: pa.DataType) -> bool:
    found = _decoded(found.value_type if _is_list(found) else found)
    checks = (types.is_null, types.is_boolean, types.is_integer, types.is_floating, types.is_temporal, _is_text)
    return any(check(found) for check in checks)


def _is_list(found: pa.DataType) -> bool:
    return bool(types.is_list(found) or types.is_large_list(found))


def _is_text(found: pa.DataType) -> bool:
    return bool(types.is_string(found) or types.is_large_string(found) or types.is_string_view(found))


def _decoded(found: pa.DataType) -> pa.DataType:
    """Type of the values of a dictionary."""
    return found.value_type if types.is_dictionary(found) else found
