"""Plain values of bounded size, from arbitrary task annotations and metadata.

This module may be pickled by value.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping
from typing import Any, TypeVar

Item = TypeVar("Item")

LONGEST_LIST = 1000
"""Most items of a collection listed, followed by the number of others."""

LONGEST_TEXT = 10_000
"""Most characters of a value, with one for each item."""

LONGEST_INTEGER = 64
"""Most bits of an integer written as a number."""

DEEPEST = 20
"""Most levels of nested collections: one may even contain itself."""


def plain(value: Any) -> Any:
    """JSON form of a value, truncated if large; None for other types.

    Truncated values end with "..." and the size of the rest.
    """
    return Plain().of(value)


class Plain:
    """Makes plain values with a limit on their total characters and items."""

    room = LONGEST_TEXT

    def of(self, value: Any, depth: int = 0) -> Any:
        """JSON form of this value, in the remaining room."""
        self.room -= 1
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, (bool, float)):
            return value
        if isinstance(value, int):
            return value if value.bit_length() < LONGEST_INTEGER else self._text(hex(value))
        if not isinstance(value, (Mapping, list, tuple, set, frozenset)):
            return None
        if depth == DEEPEST:
            return "... (nested too deeply)"
        return self._mapping(value, depth) if isinstance(value, Mapping) else self._items(value, depth)

    def _text(self, text: str) -> str:
        room = max(self.room, 0)
        self.room -= len(text)
        return text if len(text) <= room else f"{text[:room]}... ({len(text) - room} characters more)"

    def _in_room(self, values: Collection[Item]) -> Iterator[Item]:
        """Items until there are too many, or no room is left."""
        return itertools.takewhile(lambda _: self.room > 0, itertools.islice(values, LONGEST_LIST))

    def _mapping(self, values: Mapping[Any, Any], depth: int) -> dict[str, Any]:
        # a value takes its room before its name
        named = [(self.of(value, depth + 1), self._text(str(key))) for key, value in self._in_room(values.items())]
        found = {name: value for value, name in named}
        more = len(values) - len(found)
        return found | {"...": f"... ({more} more)"} if more > 0 else found

    def _items(self, values: Collection[Any], depth: int) -> list[Any]:
        found = [self.of(value, depth + 1) for value in self._in_room(values)]
        more = len(values) - len(found)
        return [*found, f"... ({more} more)"] if more > 0 else found
