"""Safe reading of Parquet files, even if they claim to need far too much memory.

Arrow allocates the size that a page claims, and a page of a few bytes can claim any size, e.g. if it contains only
zeros, or a string to which every row refers. The claimed sizes are therefore added up after Arrow has read a column's
pages and before Arrow decodes them. If the sum is too large for a file of this size, or cannot be determined, the file
is read in a separate process with a memory limit.
https://parquet.apache.org/docs/file-format/
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import lru_cache
from io import BufferedReader, BytesIO, FileIO
from pathlib import Path
from typing import Any, BinaryIO, Final

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import types

from roastcoffea.records.arrow import plain_schema
from roastcoffea.storage.reading import check_memory, opened, reading

TAIL: Final = 8
"""Number of bytes after the footer, which contain the footer's length and PAR1."""

EXPANSION: Final = 2000
"""Maximum memory for a table, as a multiple of its stored size.

The usual ratio is 100, and the highest measured ratio is 1100, for a table of identical chunks.
"""
ROOM: Final = 2**25
"""Additional memory in bytes that the tables in a folder may need together."""
SMALLEST_VALUE: Final = 8
"""Minimum in-memory size of a value in bytes, including its number or string offset and its levels."""


class Room:
    """Additional memory left for the tables in a folder."""

    def __init__(self) -> None:
        self.left = ROOM


class BeyondSizeError(ValueError):
    """Raised if a file claims too much memory, or if its claim cannot be checked."""


class _Pages(BufferedReader):
    """A file whose pages are checked when Arrow reads them, one column at a time."""

    def __init__(self, raw: Any, most: int | None) -> None:
        super().__init__(raw)
        self._most = most
        """Maximum memory that the file may claim in bytes, or None if the limit is checked elsewhere."""
        self._watched = False
        self.needed = 0

    def read(self, size: int | None = -1, /) -> bytes:
        content = super().read(size)
        if self._watched:
            try:
                needed = _claimed(content)
            except (LookupError, RecursionError, TypeError, pa.ArrowException) as error:
                raise BeyondSizeError(f"the size of a page is unknown ({type(error).__name__}: {error})") from None
            self._claim(needed)
        return content

    def watch(self, of_column: int, found: int, ours: int) -> None:
        """Start checking reads. Every column needs at least `of_column` bytes."""
        if self._most is not None:
            if of_column * found > self._most:
                raise BeyondSizeError(f"it claims to hold {of_column * found} bytes")
            self._claim(of_column * ours)  # missing columns are added
            self._watched = True

    def _claim(self, needed: int) -> None:
        """Add to the claimed memory, and raise an error if the claim is too large or the memory is not available."""
        self.needed += needed
        if self._most is not None and self.needed > self._most:
            raise BeyondSizeError(f"it claims to hold {self.needed} bytes or more")
        check_memory(self.needed, "it needs")


DATA: Final = 0
DICTIONARY: Final = 2
DESCRIBED: Final = {DATA: 5, DICTIONARY: 7}
"""Page types that roastcoffea writes, with the field that contains each type's own header."""
BY_DICTIONARY: Final = frozenset((2, 8))
ENCODINGS: Final = BY_DICTIONARY | {0, 3}
"""Encodings that roastcoffea writes. In other encodings, a few bytes may represent a long string."""
ZSTD: Final = b"\x28\xb5\x2f\xfd"
"""First bytes of data compressed with zstd. They are invalid in all other codecs."""


def _claimed(content: bytes) -> int:
    """Return an upper limit on the memory needed for a column with these pages."""
    needed = place = repeated = in_memory = texts = 0
    dictionary = None
    while place < len(content):
        header, start = _header(content, place)
        kind, size, stored = header[1], header[2], header[3]
        values, encoding = header[DESCRIBED[kind]][1], header[DESCRIBED[kind]][2]
        place = start + stored
        if min(size, stored, values) < 0 or place > len(content) or encoding not in ENCODINGS:
            raise LookupError(f"{size} bytes in {stored}, {values} values, encoding {encoding}")
        needed += size + values * SMALLEST_VALUE
        if kind == DICTIONARY:
            if dictionary is not None:
                raise LookupError("a second dictionary")
            dictionary, in_memory, texts = content[start:place], size, values
        elif encoding in BY_DICTIONARY:
            repeated += values
    if dictionary is None or repeated * in_memory <= needed:
        return needed + repeated * in_memory
    return needed + repeated * _longest(dictionary, in_memory, texts)


def _longest(dictionary: bytes, size: int, texts: int) -> int:
    """Return the size in bytes of the longest string in a dictionary, or 0 for a dictionary of numbers."""
    if not dictionary.startswith(ZSTD):
        return size  # the exact length is unknown
    content = pa.Codec("zstd").decompress(dictionary, size, asbytes=True)
    longest = place = 0
    for _ in range(min(texts, size)):
        length = int.from_bytes(content[place : place + 4], "little")
        longest = max(longest, length)
        place += 4 + length
        if place > size:
            return 0  # Arrow does not find any strings in such a dictionary
    return longest


def _header(content: bytes, place: int) -> tuple[dict[int, Any], int]:
    """Return the numbers in a page header by field, and the position after the header.

    The header uses Thrift's compact protocol: https://github.com/apache/thrift/blob/master/doc/specs/
    """
    fields: dict[int, Any] = {}
    number = 0
    while head := content[place]:
        kind, number, place = head & 15, number + (head >> 4), place + 1
        if head < 16 or number > 15:
            raise LookupError(f"field {number}")
        if kind == 12:  # a structure
            fields[number], place = _header(content, place)
        elif kind not in (1, 2):  # 1 and 2 are booleans
            value, place = _number(content, place)
            if kind == 8:  # a string in the statistics
                place += value
            elif kind in (4, 5, 6):
                fields[number] = value >> 1 ^ -(value & 1)
            else:
                raise LookupError(f"a value of type {kind}")
    return fields, place + 1


def _number(content: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while (byte := content[place]) > 127:  # not the last byte
        value |= (byte & 127) << shift
        shift, place = shift + 7, place + 1
        if shift > 63:
            raise LookupError("an unterminated number")
    return value | byte << shift, place + 1


def read_parquet(path: Path, schema: pa.Schema, room: Room, rows: int | None = None) -> pa.Table:
    """Read a table with the columns and types of a schema, plus additional columns of plain values as stored.

    Raises
    ------
    MeasurementError
        If the file is missing or damaged, claims too much memory, or has a different number of rows.
    """
    with reading(path), opened(path) as file:
        length = os.fstat(file.fileno()).st_size
        small = length <= 2**20
        content = BytesIO(file.read(length)) if small else FileIO(file.fileno(), closefd=False)
        can_hold = EXPANSION * (length - TAIL - _footer_size(content, length))
        if rows == 0 and length <= 2**15:
            return _empty_table(content.read(), schema)
        most = can_hold + room.left
        pages = _Pages(content, most)
        try:
            table, needed = _table(pages, schema, rows), pages.needed
        except BeyondSizeError as error:
            table = _in_another_process(file, schema, rows, most, str(error))
            needed = table.nbytes
        table.validate(full=True)
        room.left -= max(needed - can_hold, 0)
        return table


@lru_cache(maxsize=100)
def _empty_table(content: bytes, schema: pa.Schema) -> pa.Table:
    """Read a table without rows. The table is cached because many measurements contain identical empty tables."""
    return _table(_Pages(BytesIO(content), 0), schema, 0)


def _table(pages: _Pages, schema: pa.Schema, rows: int | None, *, threads: bool = True) -> pa.Table:
    with pq.ParquetFile(
        pages,
        pre_buffer=False,  # Arrow would read several columns at once
        page_checksum_verification=True,
        thrift_string_size_limit=2**24,
        thrift_container_size_limit=10_000,
    ) as stored:
        known, found = stored.metadata.num_rows, stored.schema_arrow
        if rows not in (None, known):
            raise ValueError(f"{known} rows instead of {rows}")
        groups = [stored.metadata.row_group(number).num_rows for number in range(stored.num_row_groups)]
        if min(groups, default=0) < 0 or sum(groups) != known:
            raise ValueError(f"it has {known} rows, in groups of {groups[:10]}")
        # texts of large tables are stored as dictionaries
        if is_ours := plain_schema(found).equals(schema, check_metadata=True):
            ours = found
        else:  # written by another program or another version of this program
            fields = {field.name: field for field in schema}
            ours = pa.schema([fields.get(field.name, field) for field in found])
            for field in found:
                _check_type(field, fields.get(field.name))
        pages.watch(known * SMALLEST_VALUE, len(found), len(schema))
        # if there are few rows, distributing the columns among threads takes longer than reading them
        table = stored.read(use_threads=threads and known > 100_000) if known else found.empty_table()
    if table.num_rows != known:
        raise ValueError(f"{table.num_rows} rows instead of {known}")
    return table if is_ours else table.cast(ours)


def _in_another_process(file: BinaryIO, schema: pa.Schema, rows: int | None, most: int, why: str) -> pa.Table:
    """Read a table in a separate process, with memory limited to what a file of this size may need."""
    if sys.platform != "linux" or not sys.executable:  # other systems do not enforce memory limits
        raise ValueError(f"{why}; such a table can only be read on Linux")
    limit = min(2**27 + 2 * most, psutil.virtual_memory().available)
    command = "from roastcoffea.storage.parquet import read_confined; read_confined()"
    done = subprocess.run(
        [sys.executable, "-P", "-c", command, schema.serialize().to_pybytes().hex(), json.dumps([rows, most, limit])],
        stdin=file,
        capture_output=True,
        check=False,
        env=os.environ
        | {
            "PYTHONPATH": os.pathsep.join(place for place in sys.path if isinstance(place, str)),
            "ARROW_DEFAULT_MEMORY_POOL": "system",
        },
    )
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines() or [f"the process ended ({done.returncode})"]
        raise ValueError(f"{why}; reading it with a limit of {limit} bytes of memory failed with {said[-1]}")
    with pa.ipc.open_stream(done.stdout) as stream:
        return stream.read_all()


def read_confined() -> None:
    """Read a file from standard input, and write its table to standard output."""
    import resource

    rows, most, limit = json.loads(sys.argv[2])
    space = psutil.Process().memory_info().vms + limit
    for kind, value in ((resource.RLIMIT_AS, space), (resource.RLIMIT_CPU, 60), (resource.RLIMIT_CORE, 0)):
        hard = resource.getrlimit(kind)[1]  # the hard limit cannot be raised
        least = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (least, least))
    schema = pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(sys.argv[1])))
    # the address space that each thread reserves would count towards the limit
    table = _table(_Pages(FileIO(0), None), schema, rows, threads=False)
    needed = table.nbytes + len(table) * len(schema) * SMALLEST_VALUE
    if needed > most:
        raise ValueError(f"it holds {needed} bytes, which no measurement of its size does")
    with pa.ipc.new_stream(sys.stdout.buffer, table.schema) as stream:
        stream.write_table(table)


def check_end(path: Path) -> None:
    """Raise an error if a file is missing, or if it is truncated, e.g. by an interrupted copy."""
    with reading(path), opened(path) as file:
        _footer_size(file, os.fstat(file.fileno()).st_size)


def _footer_size(file: BinaryIO | FileIO, length: int) -> int:
    """Return the size of a file's footer in bytes, and raise ValueError if it is too large for a real table.

    Once parsed, a footer takes up hundreds of times its size in memory.
    """
    file.seek(max(length - TAIL, 0))
    tail = file.read(TAIL)
    if not tail.endswith(b"PAR1"):
        raise ValueError("its end is missing")
    size = int.from_bytes(tail[:4], "little")
    if size > min(max(2**18, length // 8), length - TAIL):
        raise ValueError(f"its footer claims {size} bytes")
    file.seek(0)
    return size


KINDS: Final = {
    "null": (types.is_null,),
    "text": (types.is_string, types.is_large_string, types.is_string_view),
    "number": (types.is_integer, types.is_floating),
    "plain": (types.is_boolean, types.is_temporal),
}
"""Supported kinds of values. Nested values are not supported."""


def _kind(found: pa.DataType) -> tuple[bool, str | None]:
    """Return whether a type is a list, and the kind of its values or items (None if not supported)."""
    is_list = types.is_list(found) or types.is_large_list(found)
    item = found.value_type if is_list else found
    item = item.value_type if types.is_dictionary(item) else item
    return is_list, next((kind for kind, checks in KINDS.items() if any(check(item) for check in checks)), None)


def _check_type(field: pa.Field, ours: pa.Field | None) -> None:
    """Raise an error if a column's type is incompatible with ours, or if an additional column is not plain."""
    found = _kind(field.type)
    if found[1] is None or not (ours is None or found[1] == "null" or found == _kind(ours.type)):
        expected = "numbers, strings or lists of them" if ours is None else str(ours.type)
        raise TypeError(f"{field.name} holds {str(field.type)[:100]} instead of {expected}")
