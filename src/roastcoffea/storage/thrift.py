"""Thrift structures in the compact protocol, in which Parquet files describe themselves.

Arrow's own description of a damaged file can end the process (an exception in C++ that nothing catches), so it is not
asked for one: https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md
"""

from __future__ import annotations

from typing import Any, Final

BOOLS: Final = (1, 2)
BYTE: Final = 3
WHOLE: Final = (4, 5, 6)
DOUBLE: Final = 7
BINARY: Final = 8
LISTS: Final = (9, 10)
STRUCTURE: Final = 12
"""Types of fields; maps are in no file of ours."""

DEEPEST: Final = 10
"""Most levels of structures and lists; those of a footer have seven."""
MOST_BITS: Final = 63

Fields = dict[int, Any]


class Thrift:
    """Reader of structures; IndexError where the bytes end, ValueError where they are none."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.place = 0

    def structure(self, depth: int = 0) -> Fields:
        """Fields of a structure, by number."""
        if depth > DEEPEST:
            raise ValueError(f"it is nested deeper than {DEEPEST} levels")
        fields: Fields = {}
        number = 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self._whole()
            if number in fields:
                raise ValueError(f"it has the field {number} twice")
            fields[number] = head & 15 == 1 if head & 15 in BOOLS else self._value(head & 15, depth)
        return fields

    def _value(self, kind: int, depth: int) -> Any:
        """Value of a field, or of an item of a list."""
        if kind in WHOLE:
            return self._whole()
        if kind == BINARY:
            return self._bytes(self._varint())
        if kind in LISTS:
            return self._list(depth + 1)
        if kind == STRUCTURE:
            return self.structure(depth + 1)
        if kind == DOUBLE:
            return self._bytes(8)
        if kind in (*BOOLS, BYTE):
            return self._byte()
        raise ValueError(f"it has a value of type {kind}")

    def _list(self, depth: int) -> list[Any]:
        if depth > DEEPEST:
            raise ValueError(f"it is nested deeper than {DEEPEST} levels")
        head = self._byte()
        size = head >> 4 if head >> 4 < 15 else self._varint()  # 15: it follows
        return [self._value(head & 15, depth) for _ in range(size)]

    def _byte(self) -> int:
        self.place += 1
        return self.content[self.place - 1]

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:  # the last one
                return value
            shift += 7
            if shift > MOST_BITS:
                raise ValueError("it has a number without end")

    def _whole(self) -> int:
        value = self._varint()
        return value >> 1 ^ -(value & 1)

    def _bytes(self, size: int) -> bytes:
        self.place += size
        if self.place > len(self.content):
            raise IndexError("a text goes on behind the end")
        return self.content[self.place - size : self.place]
