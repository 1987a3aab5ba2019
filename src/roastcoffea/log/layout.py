"""Numbered strings and the fixed fields of entries. Fields are checked on arrival and read in bulk."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pyarrow as pa

from roastcoffea.log.kinds import NO_STRING, TEXT, Fields, format_of, packing

Rows = np.ndarray[Any, Any]

MOST_INFLATED: Final = 2**26
"""Maximum decompressed size of part of an entry, in bytes. This is about the size of an entire log."""


def inflated(packed: bytes) -> bytes:
    """Decompress part of an entry; raise a ValueError if the part is truncated or implausibly large."""
    unpacking = zlib.decompressobj()
    found = unpacking.decompress(packed, MOST_INFLATED)
    if not unpacking.eof:
        raise ValueError(f"it is truncated, or has more than {MOST_INFLATED} bytes")
    return found


class Texts:
    """Numbered strings in a log.

    A string may have several numbers. `known` contains each string once, and `places` maps the numbers to indices in
    `known`.
    """

    def __init__(self) -> None:
        self.known: list[str] = []
        self.places: list[int] = []
        self._place_of: dict[str, int] = {}

    def __getitem__(self, number: int) -> str | None:
        return None if number == NO_STRING else self.known[self.places[number]]

    def take(self, payload: bytes) -> None:
        text = text_of(payload)
        if text not in self._place_of:
            self._place_of[text] = len(self.known)
            self.known.append(text)
        self.places.append(self._place_of[text])

    def renumbered(self, rows: Rows, names: list[str]) -> Rows:
        """Replace the string numbers in rows with unique numbers, which are indices in `known`."""
        if len(self.known) == len(self.places):
            return rows
        places = np.append(np.array(self.places, np.uint32), np.uint32(NO_STRING))
        rows = rows.copy()
        for name in names:
            rows[name] = places[np.minimum(rows[name], len(self.places))]
        return rows

    def column(self, places: Rows) -> pa.Array:
        known = pa.array(self.known, pa.string())
        return known.take(pa.array(places.astype(np.int64), mask=places == NO_STRING))


class Layout:
    def __init__(self, fields: Fields, texts: Texts) -> None:
        self.names = [name for name, _ in fields]
        self.dtype = np.dtype([(name, "<" + format_of(code)) for name, code in fields])
        self.size = self.dtype.itemsize
        self._texts = texts
        self._numbered = texts.places
        self._text_names = [name for name, code in fields if code == TEXT]
        self._text_places = [place for place, (_, code) in enumerate(fields) if code == TEXT]
        self._struct = struct.Struct(packing(fields))

    def values(self, payload: bytes) -> tuple[Any, ...]:
        """Unpack the field values at the start of an entry.

        Raises
        ------
        struct.error, LookupError
            If the entry is too short, or refers to a string that was not received.
        """
        values = self._struct.unpack_from(payload)
        texts = len(self._numbered)
        for place in self._text_places:
            if texts <= values[place] != NO_STRING:
                raise LookupError(f"unknown text {values[place]}")
        return values

    def reader(self, take: Callable[[dict[str, Any], bytes], None]) -> Callable[[bytes], None]:
        """Return a reader that calls `take` with an entry's row and the data after the row."""
        return lambda payload: take(self.row(payload), payload[self.size :])

    def row(self, payload: bytes) -> dict[str, Any]:
        """Field values by name, including strings. Raises a LookupError if the worker is missing."""
        row = dict(zip(self.names, self.values(payload), strict=True))
        row |= {name: self._texts[row[name]] for name in self._text_names}
        if row.get("worker", "") is None:
            raise LookupError("it has no worker")
        return row

    def check(self, rows: Rows) -> None:
        for name in self._text_names:
            numbers = rows[name][rows[name] != NO_STRING]
            if len(numbers) and numbers.max() >= len(self._numbered):
                raise LookupError(f"unknown text {numbers.max()}")

    def rows(self, packed: bytearray, places: Rows | None = None) -> Rows:
        """All rows, or only the rows at `places`. Strings become indices in `known`."""
        rows = np.frombuffer(packed, self.dtype)
        return self._texts.renumbered(rows if places is None else rows[places], self._text_names)


def text_of(payload: bytes) -> str:
    return payload.decode("utf-8", "replace")
