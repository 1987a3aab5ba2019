"""Safe reading of files, type checking of record values, and conversion of values to plain JSON.

Plain values have standard JSON types: None, booleans, numbers, strings, lists, and dictionaries with string keys.

NumPy numbers become Python numbers. Arrays, tuples and sets become lists, times become ISO strings, and durations
become seconds. A key that is not a string becomes its repr, as in version 0.1.2, so that a tuple can be restored from
the key. A non-finite number becomes the string "NaN", "Infinity" or "-Infinity", as in `metrics.json`, and is read back
as a number. If a string consists of one of these words, with or without leading backslashes, a backslash is
added in front.
"""

from __future__ import annotations

import ast
import errno
import json
import math
import os
import re
import reprlib
import stat
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import date, timedelta
from functools import cache
from itertools import chain, count
from numbers import Integral, Real
from pathlib import Path
from types import UnionType
from typing import Any, BinaryIO, Final, Union, get_args, get_origin, get_type_hints

import numpy as np
import psutil
import pyarrow as pa

from roastcoffea.errors import MeasurementError, MissingMeasurementError, UnreadableMeasurementError
from roastcoffea.redaction import redacted

DAMAGE: Final = (
    *(MemoryError, OSError, RecursionError, SyntaxError, pa.ArrowException),
    *(ArithmeticError, AttributeError, LookupError, TypeError, ValueError),
)
"""Errors that indicate damage if they occur while reading files or building records from the content."""

LARGEST_FILE: Final = 2**30
"""Maximum size in bytes of a file that is read at once. The largest known `run.json` was a few tens of MB."""
OF_CHARACTER: Final = 3
OF_VALUE: Final = {b",": 150, b"{": 300, b"[": 100}
"""Maximum memory in bytes for each character of JSON, and for each value in a list or object."""
ALWAYS_FITS: Final = 2**25
"""Memory in bytes that is assumed to be available, because a check takes as long as reading a small table."""
BEGINNING: Final = 1000
"""Number of leading bytes of a damaged file to scan for its format."""


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Replace an error caused by a missing or damaged file with an error that names the file."""
    way_out = "restore it from a copy, or repeat the measurement"
    try:
        yield
    except MeasurementError:
        raise
    except FileNotFoundError:
        raise MissingMeasurementError(f"{path} is missing; {way_out}") from None
    except DAMAGE as error:
        raise UnreadableMeasurementError(
            f"{path} cannot be read ({type(error).__name__}: {error}); {way_out}"
        ) from error


def opened(path: Path) -> BinaryIO:
    """Open a regular file. Anything else raises OSError, because opening a pipe would wait for a writer."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def content_of(path: Path, most: int | None = None) -> bytes:
    """Read a regular file, and raise ValueError if the file is larger than any file that roastcoffea writes."""
    most = LARGEST_FILE if most is None else most
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise ValueError(f"it is {size} bytes long; the maximum is {most}")
        return file.read()


def json_of(path: Path, **settings: Any) -> Any:
    """Read and parse a JSON file.

    Raises
    ------
    MemoryError
        If the values need more memory than is available.
    """
    content = content_of(path)
    needed = len(content) * OF_CHARACTER + sum(size * content.count(sign) for sign, size in OF_VALUE.items())
    check_memory(needed, "its values need up to")
    return json.loads(content, **settings)


def check_memory(needed: int, what: str) -> None:
    if needed > ALWAYS_FITS and needed > (available := psutil.virtual_memory().available):
        raise MemoryError(f"{what} {needed} bytes of memory; {available} are available")


def has_format(file: Path, mark: str) -> bool:
    """Whether a JSON file has this format.

    A damaged file is identified by its first bytes, because roastcoffea writes the format at the beginning.
    """
    content = b""
    try:
        with opened(file) as opened_file:
            content = opened_file.read(BEGINNING)
        found = json_of(file)
    except (MemoryError, OSError, ValueError, RecursionError):
        return re.match(rb'\s*\{\s*"format":\s*"%s"' % re.escape(mark.encode()), content) is not None
    return isinstance(found, dict) and found.get("format") == mark


LATEST_TIME: Final = 253_370_764_800
"""A time in the year 9999, near the end of the range of `datetime`."""


@cache
def _form(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    return get_origin(hint) or hint, get_args(hint)


def fits(value: Any, hint: Any) -> bool:
    """Whether a value matches a type annotation. Lists are accepted as tuples, and integers as floats."""
    kind, arguments = _form(hint)
    if kind is Any:
        return True
    check = CHECKS.get(kind)
    return isinstance(value, kind) if check is None else check(value, *arguments)


def _is_mapping_of(value: Any, of_key: Any, of_value: Any) -> bool:
    return isinstance(value, Mapping) and all(fits(key, of_key) and fits(item, of_value) for key, item in value.items())


def _is_whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value).bit_length() <= 63


CHECKS: Final[Mapping[Any, Callable[..., bool]]] = {
    int: _is_whole,
    float: lambda value: _is_whole(value) or (isinstance(value, Real) and not isinstance(value, Integral | bool)),
    **dict.fromkeys(
        (list, tuple),
        lambda value, hint, *_: isinstance(value, list | tuple) and all(fits(item, hint) for item in value),
    ),
    Mapping: _is_mapping_of,
    **dict.fromkeys((Union, UnionType), lambda value, *hints: any(fits(value, hint) for hint in hints)),
}
"""Functions that check values of types for which an instance check is not sufficient.

They receive a value and the type's arguments.
"""


@cache
def _hints(record: type) -> Mapping[str, Any]:
    return get_type_hints(record, localns={"pa": pa})


def check_fields(values: Mapping[str, Any], record: type, what: str) -> None:
    """Raise TypeError if a value does not fit its field in a record, and ValueError if it is not finite."""
    hints = _hints(record)
    for name, value in values.items():
        if name in hints and not fits(value, hints[name]):
            raise TypeError(f"{name} of {what} is {type(value).__name__}")
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{name} of {what} is {value}")


def literal(text: str) -> Hashable:
    """Evaluate a Python literal that can be a key, and raise ValueError for any other string."""
    try:
        if len(text) > 4096:  # the parser needs a hundred times as much memory as the text, and may exhaust its stack
            raise ValueError(f"it is {len(text)} characters long")
        value: Hashable = ast.literal_eval(text)
        hash(value)
    except (MemoryError, RecursionError, SyntaxError, TypeError, ValueError) as error:
        raise ValueError(f"{text[:100]!r} is not a literal that can be a key") from error
    return value


def check_times(start: float, stop: float) -> None:
    if not (0 <= start < LATEST_TIME and 0 <= stop < LATEST_TIME):
        raise ValueError("start and stop are not times")


def deeper_than(value: Any, levels: int) -> bool:
    level = [value]
    for _ in range(levels + 1):
        items = chain.from_iterable(each.values() if isinstance(each, dict) else each for each in level)
        level = [item for item in items if isinstance(item, dict | list)]
        if not level:
            return False
    return True


NOT_FINITE: Final[Mapping[str, float]] = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
LIKE_A_NUMBER: Final = re.compile(rf"\\*({'|'.join(NOT_FINITE)})")
"""Strings that are written with an additional backslash."""
DEEPEST: Final = 64
"""Maximum nesting depth to preserve. The limit of the parser is a few hundred levels."""
MOST_BITS_OF_PLAIN: Final = 1000
"""Maximum number of bits in an integer that is stored as a number. Larger integers do not fit in a float."""
LONGEST_TEXT: Final = 10_000
"""Maximum number of characters to keep from a value that is stored as text."""

LEAVES: Final[Mapping[type, Callable[[Any], Any]]] = {
    type(None): lambda _: None,
    bool: bool,
    np.bool_: bool,
    int: int.__int__,
    np.integer: int,
    float: lambda value: number(float.__float__(value)),
    np.floating: lambda value: number(float(value)),
    str: lambda text: str.encode(text, errors="backslashreplace").decode(),
    date: lambda moment: moment.isoformat(),
    timedelta: timedelta.total_seconds,
    np.datetime64: str,
    np.timedelta64: str,
}
"""Functions that convert scalar values to their standard form, bypassing overrides in subclasses."""

ITEMS: Final[Mapping[type, Callable[[Any], Iterable[Any]]]] = {
    **{kind: kind.__iter__ for kind in (list, tuple, set, frozenset)},
    dict: dict.items,
    np.void: np.void.item,
}
"""Functions that return the items of a collection, bypassing overrides in subclasses."""


def plain(value: Any, name: str, problems: list[str]) -> Any:
    """Convert a value to its standard form, and add to `problems` a line for each type of value kept as text."""
    walk = _Walk()
    form = walk.form(value, (name,))
    for what, places in walk.as_text.items():
        more = f" and {len(places) - 1} more" if len(places) > 1 else ""
        problems.append(f"{places[0]}{more} held {what}; it was kept as text")
    return form


def restored(form: Any) -> Any:
    """Restore numbers and strings in a value that was read from disk.

    Raises
    ------
    OverflowError
        If a number is larger than any number that roastcoffea writes.
    """
    if isinstance(form, dict):
        return {key: restored(item) for key, item in form.items()}
    if isinstance(form, list):
        return [restored(item) for item in form]
    if isinstance(form, int) and form.bit_length() > MOST_BITS_OF_PLAIN:
        raise OverflowError(f"a number has {form.bit_length()} bits")
    if isinstance(form, str):
        return NOT_FINITE[form] if form in NOT_FINITE else form[1:] if LIKE_A_NUMBER.fullmatch(form) else form
    return form


def number(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


class _Walk:
    def __init__(self) -> None:
        self._above: set[int] = set()
        """IDs of the collections that contain the current value."""
        self.as_text: dict[str, list[str]] = {}
        """Types that were kept as text, with the paths where they occur."""
        self._keys = 0
        """Number of enclosing keys. Numbers in keys are not restored."""

    def form(self, value: Any, path: tuple[Any, ...]) -> Any:
        if type(value) is np.ndarray:
            return self.form((value.astype(str) if value.dtype.kind in "mM" else value).tolist(), path)
        base = next((base for base in type(value).__mro__ if base in LEAVES or base in ITEMS), None)
        if base is None or (base is int and int.bit_length(value) > MOST_BITS_OF_PLAIN):
            return self._text(value, path)
        if base in LEAVES:
            leaf = LEAVES[base](value)
            return f"\\{leaf}" if base is str and not self._keys and LIKE_A_NUMBER.fullmatch(leaf) else leaf
        if id(value) in self._above:
            return self._text(value, path, " that contains itself")
        if len(path) > DEEPEST:
            return self._text(value, path, f", nested deeper than {DEEPEST} levels")
        self._above.add(id(value))
        items = enumerate(ITEMS[base](value))
        form = self._dict(value, path) if base is dict else [self.form(item, (*path, place)) for place, item in items]
        self._above.discard(id(value))
        return sorted(form, key=repr) if base in (set, frozenset) else form

    def _dict(self, value: dict[Any, Any], path: tuple[Any, ...]) -> dict[str, Any]:
        forms: dict[str, Any] = {}
        for key, item in ITEMS[dict](value):
            self._keys += 1
            form = self.form(key, (*path, key))
            self._keys -= 1
            name = form if isinstance(form, str) else str(tuple(form) if isinstance(form, list) else form)
            # 1 and "1" are different keys
            name = next(each for n in count(1) if (each := name if n == 1 else f"{name} ({n})") not in forms)
            forms[name] = self.form(item, (*path, key))
        return forms

    def _text(self, value: Any, path: tuple[Any, ...], why: str = "") -> str:
        kind = type(value)
        name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
        place = str(path[0]) + "".join(f"[{_printable(part, 60)}]" for part in path[1:])
        self.as_text.setdefault(f"{name}{why}", []).append(place)
        return f"<kept as text: {name}> {redacted(_printable(value, LONGEST_TEXT))}"


def _printable(value: Any, longest: int) -> str:
    # reprlib survives a __repr__ that raises
    shortened = reprlib.Repr()
    shortened.maxother = longest
    return shortened.repr_instance(value, 1).encode("utf-8", "backslashreplace").decode()
