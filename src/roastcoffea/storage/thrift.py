"""Thrift structures in the compact protocol, in which Parquet files describe themselves.

Arrow's own description of a damaged file can end the process (an exception in C++ that nothing catches), so it is not
asked for one: https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md
"""

from __future__ import annotations

from typing import Any, Final

BOOLS: Final = (1, 2)
BYTE: Final = 3
WHOLE: Final = frozenset((4, 5, 6))
DOUBLE: Final = 7
BINARY: Final = 8
LIST: Final = 9
STRUCTURE: Final = 12
"""Types of fields; sets and maps are in no file of ours."""

DEEPEST: Final = 10
"""Most levels of structures and lists; those of a footer have seven."""
MOST_BITS: Final = 63
MOST_NUMBER: Final = 2**15 - 1
"""Largest number of a field: other programs count the next ones from the beginning again."""

Fields = dict[int, Any]


def structure(
    content: bytes, place: int = 0, depth: int = 0, after: int = 0, until: int | None = None
) -> tuple[Fields, int]:
    """Fields of a structure at a place, by number, and the place behind it.

    Most bytes of a measurement's small tables are numbers in structures, so that these are read here. A part of a
    structure begins behind the field `after`, and ends with the field `until`.

    Raises
    ------
    IndexError
        If the bytes end.
    ValueError
        If they are no structure.
    """
    if depth > DEEPEST:
        raise ValueError(f"it is nested deeper than {DEEPEST} levels")
    fields: Fields = {}
    number = after
    while head := content[place]:
        kind, place = head & 15, place + 1
        if head >> 4:
            number += head >> 4
        else:
            number, place = _whole(content, place)
        if number in fields or not 0 < number <= MOST_NUMBER:
            raise ValueError(f"it has the field {number}{' twice' if number in fields else ', which cannot be'}")
        if kind in WHOLE:
            if (byte := content[place]) < 128:  # the only one
                fields[number], place = byte >> 1 ^ -(byte & 1), place + 1
            else:
                fields[number], place = _whole(content, place)
        elif kind == STRUCTURE:
            fields[number], place = structure(content, place, depth + 1)
        elif kind in BOOLS:
            fields[number] = kind == 1
        else:
            fields[number], place = _value(kind, content, place, depth)
        if number == until:
            return fields, place
    return fields, place + 1


def _value(kind: int, content: bytes, place: int, depth: int) -> tuple[Any, int]:
    """Value of a field, or of an item of a list, and the place behind it."""
    if kind == STRUCTURE:
        return structure(content, place, depth + 1)
    if kind == BINARY:
        size, place = _varint(content, place)
        return _bytes(content, place, size)
    if kind == LIST:
        return _list(content, place, depth + 1)
    if kind in WHOLE:
        return _whole(content, place)
    if kind == DOUBLE:
        return _bytes(content, place, 8)
    if kind in (*BOOLS, BYTE):
        return content[place], place + 1
    raise ValueError(f"it has a value of type {kind}")


def _list(content: bytes, place: int, depth: int) -> tuple[list[Any], int]:
    if depth > DEEPEST:
        raise ValueError(f"it is nested deeper than {DEEPEST} levels")
    head, place = content[place], place + 1
    size = head >> 4
    if size == 15:  # it follows
        size, place = _varint(content, place)
    values = []
    kind = head & 15
    for _ in range(size):
        if kind == STRUCTURE:
            value, place = structure(content, place, depth + 1)
        else:
            value, place = _value(kind, content, place, depth)
        values.append(value)
    return values, place


VARINT: Final = rb"[\x80-\xff]{0,9}[\x00-\x7f]"
"""Pattern of an integer."""


def integer(content: bytes) -> int:
    """Signed integer of its bytes."""
    return _whole(content, 0)[0]


def _varint(content: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while (byte := content[place]) > 127:  # not the last one
        value |= (byte & 127) << shift
        shift += 7
        place += 1
        if shift > MOST_BITS:
            raise ValueError("it has a number without end")
    return value | byte << shift, place + 1


def _whole(content: bytes, place: int) -> tuple[int, int]:
    value, place = _varint(content, place)
    return value >> 1 ^ -(value & 1), place


def _bytes(content: bytes, place: int, size: int) -> tuple[bytes, int]:
    end = place + size
    if end > len(content):
        raise IndexError("a text goes on behind the end")
    return content[place:end], end
