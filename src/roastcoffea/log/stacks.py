"""Sampled stacks in the record of an attempt: packed on the worker, unpacked by `log.received`.

This module may be pickled by value.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import CodeType
from typing import Any, Final

from roastcoffea.log.packing import PROFILE_UNITS
from roastcoffea.records.chunks import DEEPER, NOT_SAMPLED, OTHER
from roastcoffea.redaction import Added, redacted_beginning

MOST_BYTES: Final = 16_000
"""Most bytes of the profile in a record, before compression; stacks with the least time are dropped first."""

LONGEST_NAME: Final = 120
LONGEST_PATH: Final = 240
"""Most characters kept."""

BYTES_OF_A_FRAME: Final = 14
BYTES_OF_A_STACK: Final = 24

SENT: Final = "<dynamic-code>"
"""File of functions that cloudpickle has sent to a worker."""

PACKAGES: Final = ("/site-packages/", "/dist-packages/")

Stack = tuple[tuple[int, int], ...]
"""Identities of code and lines, innermost first."""

IN_OTHERS: Final[Stack] = ((0, 1),)
IN_BETWEEN: Final = (0, 2)
UNSAMPLED: Final[Stack] = ((0, 3),)
NAMES: Final = {1: OTHER, 2: DEEPER, 3: NOT_SAMPLED}
"""Placeholders for frames, and their names."""


def packed_stacks(
    counts: Mapping[Stack, list[float]], codes: Mapping[int, CodeType | None], added: Added | None = None
) -> list[Any]:
    """Texts, frames and stacks with any time, as numbers in lists; empty if nothing was sampled.

    Frames are a tree: for each its parent (-1: none), function and file (numbers of texts) and line. For each stack:
    its innermost frame, samples, seconds, and those by state.

    Parameters
    ----------
    counts : mapping
        Samples, seconds, and those by state, of each stack.
    codes : mapping
        Code by its identity.
    added : tuple, optional
        Patterns of secrets, as for `redacted`.
    """
    tree = _Tree(codes, added)
    stacks: list[int] = []
    others = [0.0] * 5
    room = MOST_BYTES
    for stack, sums in sorted(counts.items(), key=lambda each: -each[1][1]):
        if not _units(sums[1]):
            break
        taken = tree.add(stack, room) if room > 0 and stack != IN_OTHERS else None
        if taken is None:
            others = [one + other for one, other in zip(others, sums, strict=True)]
            continue
        frame, used = taken
        room -= used
        stacks += _row(frame, sums)
    if _units(others[1]):
        stacks += _row(tree.add(IN_OTHERS, MOST_BYTES)[0], others)  # type: ignore[index]
    return [list(tree.texts), tree.frames, stacks] if stacks else []


def _row(frame: int, sums: list[float]) -> list[int]:
    return [frame, int(sums[0]), *map(_units, sums[1:])]


def _units(seconds: float) -> int:
    return round(seconds * PROFILE_UNITS)


class _Tree:
    """Frames of stacks, with common outer frames stored once."""

    def __init__(self, codes: Mapping[int, CodeType | None], added: Added | None) -> None:
        self.texts: dict[str, int] = {}
        self.frames: list[int] = []
        self._codes, self._added = codes, added
        self._places: dict[tuple[int, tuple[int, int]], int] = {}
        self._named: dict[int, tuple[str, str]] = {}

    def add(self, stack: Stack, room: int) -> tuple[int, int] | None:
        """Number of the innermost frame of a stack, and bytes used; None if there is not enough room."""
        parent, path = -1, list(reversed(stack))
        known = 0
        for key in path:
            if (parent, key) not in self._places:
                break
            parent, known = self._places[parent, key], known + 1
        new = [(key, self._names(key)) for key in path[known:]]
        texts = {text for _, names in new for text in names if text not in self.texts}
        size = (
            BYTES_OF_A_STACK
            + BYTES_OF_A_FRAME * len(new)
            + sum(3 + len(text.encode(errors="replace")) for text in texts)
        )
        if size > room:
            return None
        for key, (function, file) in new:
            number = len(self.frames) // 4
            line = key[1] if key[0] else 0
            self.frames += [parent, self._text(function), self._text(file), line]
            self._places[parent, key] = parent = number
        return parent, size

    def _text(self, text: str) -> int:
        return self.texts.setdefault(text, len(self.texts))

    def _names(self, key: tuple[int, int]) -> tuple[str, str]:
        """Function and file of a frame, without secrets."""
        identity, line = key
        code = self._codes.get(identity)
        if code is None:
            return NAMES[line], ""
        if identity not in self._named:
            self._named[identity] = (
                redacted_beginning(function_of(code), LONGEST_NAME, self._added),
                redacted_beginning(place_of(code.co_filename), LONGEST_PATH, self._added),
            )
        return self._named[identity]


def function_of(code: CodeType) -> str:
    """Name of a function, with those of the class and functions around it."""
    return str(getattr(code, "co_qualname", code.co_name)).replace("<locals>.", "")


def place_of(file: str) -> str:
    """A file of Python or of an installed package, relative to their directory; any other unchanged."""
    for packages in PACKAGES:
        if packages in file:
            return file.rpartition(packages)[2]
    library = f"{os.path.dirname(os.__file__)}/"  # noqa: PTH120  (pathlib is slow)
    return file[len(library) :] if file.startswith(library) else file
