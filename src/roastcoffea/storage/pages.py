"""Pages of a Parquet file: what they claim to hold, found without decoding them.

A few bytes can claim any size: a page of zeros, a text that each row refers to, rows without any page. Arrow allocates
what is claimed, so the claims are added up before it reads. The header of a page is a Thrift structure in the compact
protocol: https://parquet.apache.org/docs/file-format/data-pages/
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

DATA: Final = 0
INDEX: Final = 1
DICTIONARY: Final = 2
DATA_V2: Final = 3
CONTENT: Final = {DATA: 5, INDEX: 6, DICTIONARY: 7, DATA_V2: 8}
"""Fields of a page's header with more about a page of this kind."""

ENCODINGS: Final = frozenset((0, 2, 3, 4, 5, 6, 8, 9))
"""Encodings of values: all but those in which a few bytes stand for a long text (DELTA_BYTE_ARRAY)."""
BY_DICTIONARY: Final = frozenset((2, 8))

SMALLEST_VALUE: Final = 8
"""Least bytes of a value in memory: its number or the offset of its text, and its levels."""
HEADER: Final = 4096
LONGEST_HEADER: Final = 2**20
"""Bytes of a page's header, at first and at most: it repeats the smallest and the largest text."""

TEXT: Final = "BYTE_ARRAY"
CODECS: Final = ("BROTLI", "GZIP", "SNAPPY", "ZSTD")
LENGTH: Final = 4
"""Bytes of the length in front of a text."""


class Page(NamedTuple):
    """A page, as its header describes it."""

    kind: int
    encoding: int
    start: int
    """Place of its content in the file."""
    stored: int
    size: int
    """Bytes of its content in the file, and decompressed."""
    values: int


def claimed_bytes(stored: pq.FileMetaData, file: BinaryIO, length: int) -> int:
    """Memory that a file's columns need, in bytes; ValueError where what it claims cannot be."""
    needed = 0
    for group in map(stored.row_group, range(stored.num_row_groups)):
        for column in map(group.column, range(group.num_columns)):
            needed += max(_column(column, file, length), SMALLEST_VALUE * group.num_rows)
    return needed


def _column(column: Any, file: BinaryIO, length: int) -> int:
    """Memory that a column of a row group needs."""
    needed = longest = 0
    for page in _pages(column, file, length):
        needed += page.size
        if page.kind == DICTIONARY:
            longest = _longest(page, column, file)
        elif page.kind in (DATA, DATA_V2):
            if page.encoding not in ENCODINGS:
                raise ValueError(f"a page of {column.path_in_schema} has the unknown encoding {page.encoding}")
            needed += page.values * (SMALLEST_VALUE + (longest if page.encoding in BY_DICTIONARY else 0))
    return needed


def _pages(column: Any, file: BinaryIO, length: int) -> Iterator[Page]:
    """Pages of a column of a row group."""
    begin = column.data_page_offset
    if column.has_dictionary_page and 0 < column.dictionary_page_offset < begin:
        begin = column.dictionary_page_offset
    place, end, left = begin, begin + column.total_compressed_size, column.num_values
    if not 0 <= begin <= end <= length:
        raise ValueError(f"{column.path_in_schema} is outside of the file")
    while place < end and left > 0:
        page = _page(file, place, end)
        yield page
        place = page.start + page.stored
        left -= page.values if page.kind in (DATA, DATA_V2) else 0


def _page(file: BinaryIO, place: int, end: int) -> Page:
    """Page with a header at this place."""
    size = HEADER
    while True:
        file.seek(place)
        thrift = _Thrift(file.read(min(size, end - place)))
        try:
            header = thrift.structure()
            break
        except IndexError:
            if size >= min(LONGEST_HEADER, end - place):
                raise ValueError("the header of a page is cut off") from None
            size = LONGEST_HEADER
    kind, start = header[1], place + thrift.place
    content = header.get(CONTENT.get(kind, 0), {})
    page = Page(kind, content.get(4 if kind == DATA_V2 else 2, 0), start, header[3], header[2], content.get(1, 0))
    if min(page.stored, page.size, page.values) < 0 or start + page.stored > end:
        raise ValueError(f"a page claims {page.stored} bytes of the file, {page.size} in memory, {page.values} values")
    return page


def _longest(page: Page, column: Any, file: BinaryIO) -> int:
    """Bytes of the longest text in a dictionary."""
    if column.physical_type != TEXT or not page.size:
        return 0
    if column.compression not in (*CODECS, "UNCOMPRESSED"):
        return page.size  # it is not known better
    file.seek(page.start)
    content = file.read(page.stored)
    if column.compression in CODECS:
        content = pa.Codec(column.compression.lower()).decompress(content, page.size, asbytes=True)
    longest = place = 0
    for _ in range(min(page.values, len(content) // LENGTH)):
        size = int.from_bytes(content[place : place + LENGTH], "little")
        longest = max(longest, size)
        place += LENGTH + size
    return longest


class _Thrift:
    """Reader of structures; IndexError where the bytes end."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.place = 0

    def structure(self, depth: int = 0) -> dict[int, Any]:
        """Fields of a structure, by number."""
        if depth > 4:  # the header of a page has two levels
            raise ValueError("the header of a page is nested")
        fields: dict[int, Any] = {}
        number = 0
        while head := self._byte():
            step, kind = head >> 4, head & 15
            number = number + step if step else self._whole()
            fields[number] = self._value(kind, depth)
        return fields

    def _value(self, kind: int, depth: int) -> Any:
        match kind:
            case 1 | 2:
                return kind == 1
            case 3:
                return self._byte()
            case 4 | 5 | 6:
                return self._whole()
            case 7:
                return self._skip(8)
            case 8:
                return self._skip(self._varint())
            case 12:
                return self.structure(depth + 1)
        raise ValueError(f"the header of a page has a field of type {kind}")

    def _byte(self) -> int:
        self.place += 1
        return self.content[self.place - 1]

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:  # the last byte
                return value
            shift += 7
            if shift > 63:  # bits of the largest number
                raise ValueError("the header of a page has a number without end")

    def _whole(self) -> int:
        value = self._varint()
        return value >> 1 ^ -(value & 1)

    def _skip(self, size: int) -> None:
        self.place += size
        if self.place > len(self.content):
            raise IndexError("the header goes on")
