"""Pages of a Parquet file: what they claim to hold, found without decoding them.

A few bytes can claim any size: a page of zeros, a text that each row refers to, rows without any page. Arrow allocates
what is claimed, so the claims are added up before it reads: https://parquet.apache.org/docs/file-format/
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import BinaryIO, Final, NamedTuple

import pyarrow as pa

from roastcoffea.storage.thrift import VARINT, Fields, integer, structure

SCHEMA: Final = 2
ROWS: Final = 3
GROUPS: Final = 4
"""Fields of a footer: its schema, its number of rows, and its row groups, which have columns and rows as well."""
TELLING: Final = 128
"""First bytes of a footer, in which the first columns are named."""
MOST_KNOWN: Final = 100
LONGEST_KNOWN: Final = 2**16
"""Most beginnings and ends of footers that are kept, and most bytes of such a footer."""
VERSION: Final = 1
"""Field in front of the schema."""
COLUMNS: Final = 1
DESCRIPTION: Final = 3
"""Fields of a row group and of a column."""

DATA: Final = 0
INDEX: Final = 1
DICTIONARY: Final = 2
DATA_V2: Final = 3
CONTENT: Final = {DATA: 5, INDEX: 6, DICTIONARY: 7, DATA_V2: 8}
"""Kinds of pages, with the field of a header that describes them."""
ENCODING: Final = {DATA_V2: 4}
"""Field with the encoding, where it is not the second."""

ENCODINGS: Final = frozenset((0, 2, 3, 4, 5, 6, 8, 9))
"""Encodings of values: all but those in which a few bytes stand for a long text (DELTA_BYTE_ARRAY)."""
BY_DICTIONARY: Final = frozenset((2, 8))

SMALLEST_VALUE: Final = 8
"""Least bytes of a value in memory: its number or the offset of its text, and its levels."""
HEADER: Final = 4096
LONGEST_HEADER: Final = 2**20
"""Bytes of a page's header, at first and at most: it repeats the smallest and the largest text."""

USUAL_HEADER: Final = re.compile(
    rb"\x15\x00\x15(%b)\x15(%b)\x15%b\x1c\x15(%b)\x15(%b)\x15%b\x15%b(?:\x1c\x00)?\x00\x00" % ((VARINT,) * 7)
)
"""Header of a page of values with its checksum: size, size in the file, values and encoding."""

LARGEST_PAGE: Final = 2**26
"""Most bytes of a decompressed page; writers begin another one after about a million."""

TEXT: Final = 6
"""Type of texts in the file."""
UNCOMPRESSED: Final = 0
CODECS: Final = {1: "snappy", 2: "gzip", 4: "brotli", 6: "zstd", 7: "lz4_raw"}
LENGTH: Final = 4
"""Bytes of the length in front of a text."""


class Column(NamedTuple):
    """A column of a row group, as the footer describes it."""

    name: str
    kind: int
    codec: int
    values: int
    start: int
    """Place of its first page in the file."""
    stored: int
    """Bytes in the file."""


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


class Footer:
    """What the end of a file says of it.

    Raises
    ------
    ValueError
        If it cannot be.
    """

    def __init__(self, content: bytes, length: int) -> None:
        try:
            fields = _fields(content)
        except IndexError:
            raise ValueError("its footer is cut off") from None
        self.rows: int = fields[ROWS]
        self._groups = [
            (group[ROWS], [_column(one[DESCRIPTION]) for one in group[COLUMNS]]) for group in fields[GROUPS]
        ]
        self._length = length
        self.pages = min(sum(column.stored for _, columns in self._groups for column in columns), length)
        """Bytes of all pages in the file."""
        of_groups = [rows for rows, _ in self._groups]
        if min(of_groups, default=0) < 0 or sum(of_groups) != self.rows:
            raise ValueError(f"it has {self.rows} rows, in groups of {of_groups}")

    def claimed(self, file: BinaryIO) -> int:
        """Memory that all columns need, in bytes."""
        return sum(
            max(self._needed(column, file), SMALLEST_VALUE * rows)
            for rows, columns in self._groups
            for column in columns
        )

    def _needed(self, column: Column, file: BinaryIO) -> int:
        """Memory that a column needs."""
        needed = longest = 0
        for page in _pages(column, file, self._length):
            needed += page.size
            if page.kind == DICTIONARY:
                longest = _longest(page, column, file)
            elif page.kind in (DATA, DATA_V2):
                if page.encoding not in ENCODINGS:
                    raise ValueError(f"a page of {column.name} has the unknown encoding {page.encoding}")
                needed += page.values * (SMALLEST_VALUE + (longest if page.encoding in BY_DICTIONARY else 0))
        return needed


_beginnings: dict[bytes, bytes] = {}
"""Beginnings of footers, up to the schema, by their first bytes."""


def _fields(content: bytes) -> Fields:
    """Fields of a footer. Files of one table begin and end alike, with schemas: each of these is read once."""
    if len(content) > LONGEST_KNOWN:
        return structure(content)[0]
    first = content[:TELLING]
    known = _beginnings.get(first)
    if known is not None and content.startswith(known):
        fields, place = structure(content, len(known), after=SCHEMA, until=GROUPS)
        if fields.keys() == {ROWS, GROUPS}:
            _check_end(content[place:])
            return fields
    fields, _ = structure(content)
    beginning, place = structure(content, until=SCHEMA)
    if beginning.keys() == {VERSION, SCHEMA}:
        if len(_beginnings) >= MOST_KNOWN:
            _beginnings.clear()
        _beginnings[first] = content[:place]
    return fields


@lru_cache(MOST_KNOWN)
def _check_end(content: bytes) -> None:
    """Raise where these cannot be the fields behind the row groups."""
    fields, _ = structure(content, after=GROUPS)
    if min(fields, default=GROUPS + 1) <= GROUPS:
        raise ValueError(f"it has the field {min(fields)} twice")


def _column(fields: Fields) -> Column:
    """Column of its description."""
    first, dictionary = fields[9], fields.get(11, 0)
    start = dictionary if 0 < dictionary < first else first
    return Column(str(fields[3][0][:100]), fields[1], fields[4], fields[5], start, fields[7])


def _pages(column: Column, file: BinaryIO, length: int) -> Iterator[Page]:
    """Pages of a column of a row group."""
    place, end, left = column.start, column.start + column.stored, column.values
    if not 0 <= place <= end <= length:
        raise ValueError(f"{column.name} is outside of the file")
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
        try:
            read = file.read(min(size, end - place))
            if (usual := USUAL_HEADER.match(read)) is not None:
                of_memory, stored, values, encoding = map(integer, usual.groups())
                return _checked(Page(DATA, encoding, place + usual.end(), stored, of_memory, values), end)
            header, used = structure(read)
            break
        except IndexError:
            if size >= min(LONGEST_HEADER, end - place):
                raise ValueError("the header of a page is cut off") from None
            size = LONGEST_HEADER
    kind, start = header[1], place + used
    content = header.get(CONTENT.get(kind, 0), {})
    page = Page(kind, content.get(ENCODING.get(kind, 2), 0), start, header[3], header[2], content.get(1, 0))
    return _checked(page, end)


def _checked(page: Page, end: int) -> Page:
    """The page; ValueError if it cannot be."""
    if min(page.stored, page.size, page.values) < 0 or page.start + page.stored > end or page.size > LARGEST_PAGE:
        raise ValueError(f"a page claims {page.stored} bytes of the file, {page.size} in memory, {page.values} values")
    return page


def _longest(page: Page, column: Column, file: BinaryIO) -> int:
    """Bytes of the longest text in a dictionary."""
    if column.kind != TEXT or not page.size:
        return 0
    if column.codec not in (*CODECS, UNCOMPRESSED):
        return page.size  # it is not known better
    file.seek(page.start)
    content = file.read(page.stored)
    if column.codec in CODECS:
        content = pa.Codec(CODECS[column.codec]).decompress(content, page.size, asbytes=True)
    longest = place = 0
    for _ in range(min(page.values, len(content) // LENGTH)):
        size = int.from_bytes(content[place : place + LENGTH], "little")
        longest = max(longest, size)
        place += LENGTH + size
    return longest
