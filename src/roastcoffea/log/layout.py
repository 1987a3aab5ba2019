"""Fixed fields of entries, checked on arrival and read in bulk, and the numbered texts they refer to."""

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
"""Largest decompressed part of an entry, in bytes: a whole log has as many."""


def inflated(packed: bytes) -> bytes:
    """Decompressed part of an entry; ValueError if it is too large to be one of ours."""
    unpacking = zlib.decompressobj()
    found = unpacking.decompress(packed, MOST_INFLATED)
    if not unpacking.eof:
        raise ValueError(f"it is cut off, or has more than {MOST_INFLATED} bytes")
    return found


class Texts:
    """Texts of a log. One may have several numbers; `known` has each once, and `places` where, by its number."""

    def __init__(self) -> None:
        self.known: list[str] = []
        self.places: list[int] = []
        self._place_of: dict[str, int] = {}

    def __getitem__(self, number: int) -> str | None:
        """Text of a number; None for the number of no text."""
        return None if number == NO_STRING else self.known[self.places[number]]

    def take(self, payload: bytes) -> None:
        """Take the text with the next number."""
        text = text_of(payload)
        if text not in self._place_of:
            self._place_of[text] = len(self.known)
            self.known.append(text)
        self.places.append(self._place_of[text])

    def renumbered(self, rows: Rows, names: list[str]) -> Rows:
        """Rows in which each text has only one number, its index in `known`."""
        if len(self.known) == len(self.places):
            return rows
        places = np.append(np.array(self.places, np.uint32), np.uint32(NO_STRING))
        rows = rows.copy()
        for name in names:
            rows[name] = places[np.minimum(rows[name], len(self.places))]
        return rows

    def column(self, places: Rows) -> pa.Array:
        """Texts of these places in `known` as an Arrow column."""
        known = pa.array(self.known, pa.string())
        return known.take(pa.array(places.astype(np.int64), mask=places == NO_STRING))


class Layout:
    """Fields of one kind of rows in a log."""

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
        """Values at the beginning of an entry.

        Raises
        ------
        struct.error, LookupError
            If the entry is too short, or holds the number of a text that was not received.
        """
        values = self._struct.unpack_from(payload)
        texts = len(self._numbered)
        for place in self._text_places:
            if texts <= values[place] != NO_STRING:
                raise LookupError(f"unknown text {values[place]}")
        return values

    def reader(self, take: Callable[[dict[str, Any], bytes], None]) -> Callable[[bytes], None]:
        """What reads an entry, and passes on its row and the data after it."""
        return lambda payload: take(self.row(payload), payload[self.size :])

    def row(self, payload: bytes) -> dict[str, Any]:
        """Values of an entry by name, with texts for their numbers; a worker that it is of is known."""
        row = dict(zip(self.names, self.values(payload), strict=True))
        row |= {name: self._texts[row[name]] for name in self._text_names}
        if row.get("worker", "") is None:
            raise LookupError("it has no worker")
        return row

    def check(self, rows: Rows) -> None:
        """Raise a LookupError if rows hold the number of a text that was not received."""
        for name in self._text_names:
            numbers = rows[name][rows[name] != NO_STRING]
            if len(numbers) and numbers.max() >= len(self._numbered):
                raise LookupError(f"unknown text {numbers.max()}")

    def rows(self, packed: bytearray, places: Rows | None = None) -> Rows:
        """Rows of all entries, or at these places; each text has the number of its place among those that are known."""
        rows = np.frombuffer(packed, self.dtype)
        return self._texts.renumbered(rows if places is None else rows[places], self._text_names)


def text_of(payload: bytes) -> str:
    """Text after the fields of an entry."""
    return payload.decode("utf-8", "replace")
