"""Sampled stacks in a record, packed on the worker and unpacked by `log.received`.

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
"""Maximum size of a record's profile in bytes, before compression. The stacks with the least time are dropped first."""

LONGEST_NAME: Final = 120

SENT: Final = "<dynamic-code>"
"""File name of functions that cloudpickle sent to a worker."""

Stack = tuple[tuple[int, int], ...]
"""Code ID and line of each frame, with the innermost frame first."""

IN_OTHERS: Final[Stack] = ((0, 1),)
IN_BETWEEN: Final = (0, 2)
UNSAMPLED: Final[Stack] = ((0, 3),)
NAMES: Final = {1: OTHER, 2: DEEPER, 3: NOT_SAMPLED}


def packed_stacks(
    counts: Mapping[Stack, list[float]], codes: Mapping[int, CodeType | None], added: Added | None = None
) -> list[Any]:
    """Pack stacks as lists of strings, frames and stacks. The lists are empty if there are no samples.

    Frames form a tree. Each frame has a parent (-1 if none), a function and a file (as string numbers), and a line.
    Each stack has an innermost frame, a number of samples, seconds, and seconds by state.

    Parameters
    ----------
    counts : mapping
        Samples, seconds, and seconds by state, for each stack.
    codes : mapping
        Code objects by ID.
    added : tuple, optional
        Secret patterns, as for `redacted`.
    """
    texts: dict[str, int] = {}
    frames: list[int] = []
    places: dict[tuple[int, tuple[int, int]], int] = {}
    named: dict[int, tuple[str, str]] = {}

    def names(key: tuple[int, int]) -> tuple[str, str]:
        """Redacted names of a frame's function and file."""
        identity, line = key
        code = codes.get(identity)
        if code is None:
            return NAMES[line], ""
        if identity not in named:
            file = redacted_beginning(place_of(code.co_filename), 240, added)
            named[identity] = redacted_beginning(function_of(code), LONGEST_NAME, added), file
        return named[identity]

    def place(stack: Stack, room: int) -> tuple[int, int] | None:
        """Add a stack; return its innermost frame and the bytes used, or None if there is no room."""
        parent, path = -1, [*reversed(stack)]
        while path and (parent, path[0]) in places:
            parent = places[parent, path.pop(0)]
        new = [(key, names(key)) for key in path]
        fresh = {text for _, both in new for text in both if text not in texts}
        size = 24 + 14 * len(new) + sum(3 + len(text.encode(errors="replace")) for text in fresh)
        if size > room:
            return None
        for key, both in new:
            number = len(frames) // 4
            numbers = [texts.setdefault(text, len(texts)) for text in both]
            frames.extend((parent, *numbers, key[1] if key[0] else 0))
            places[parent, key] = parent = number
        return parent, size

    stacks: list[int] = []
    others = [0.0] * 5
    room = MOST_BYTES
    for stack, sums in sorted(counts.items(), key=lambda each: -each[1][1]):
        if not _units(sums[1]):
            break
        taken = place(stack, room) if room > 0 and stack != IN_OTHERS else None
        if taken is None:
            others = [one + other for one, other in zip(others, sums, strict=True)]
            continue
        room -= taken[1]
        stacks += _row(taken[0], sums)
    if _units(others[1]):
        stacks += _row(place(IN_OTHERS, MOST_BYTES)[0], others)  # type: ignore[index]
    return [list(texts), frames, stacks] if stacks else []


def _row(frame: int, sums: list[float]) -> list[int]:
    return [frame, int(sums[0]), *map(_units, sums[1:])]


def _units(seconds: float) -> int:
    return round(seconds * PROFILE_UNITS)


def function_of(code: CodeType) -> str:
    """Name of a function, prefixed with the names of its enclosing class and functions."""
    return str(getattr(code, "co_qualname", code.co_name)).replace("<locals>.", "")


def place_of(file: str) -> str:
    """Shorten the path of a file in Python's library or an installed package to a relative path."""
    for packages in ("/site-packages/", "/dist-packages/"):
        if packages in file:
            return file.rpartition(packages)[2]
    library = f"{os.path.dirname(os.__file__)}/"  # noqa: PTH120  (pathlib is slow)
    return file[len(library) :] if file.startswith(library) else file
