"""Files that may be damaged or not regular, values checked against the types of records, and values as plain JSON.

Plain values are in the types of standard JSON: None, truth, numbers, text, lists, and dictionaries with text as keys.

Numbers and arrays of numpy become Python's, tuples and sets become lists, times become ISO text, and durations seconds.
A key that is not text becomes its repr, as in 0.1.2, from which a tuple can be restored. A number that is not finite
becomes the text "NaN", "Infinity" or "-Infinity", as in `metrics.json`, and is read as a number. A text equal to one of
these, apart from leading backslashes, gets another backslash.
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
"""Errors that indicate damage, from reading files and from building records of their content."""

LARGEST_FILE: Final = 2**30
"""Largest file that is read at once, in bytes; the largest `run.json` seen had some tens of MB."""
OF_CHARACTER: Final = 3
OF_VALUE: Final = {b",": 150, b"{": 300, b"[": 100}
"""Bytes of memory for each character of JSON, and for each value in a list or object: they are small ones at worst."""
ALWAYS_FITS: Final = 2**25
"""Bytes of memory that are available anywhere: asking for what is takes as long as reading a small table."""
BEGINNING: Final = 1000
"""Bytes of a damaged file in which its format is looked for."""


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn any error caused by a missing or damaged file into one that names it."""
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
    """Open a regular file; OSError for anything else, because opening a pipe would wait for its writer."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def content_of(path: Path, most: int | None = None) -> bytes:
    """Content of a regular file; ValueError if it is too large to be one of ours."""
    most = LARGEST_FILE if most is None else most
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise ValueError(f"it has {size} bytes; the maximum is {most}")
        return file.read()


def json_of(path: Path, **settings: Any) -> Any:
    """Parsed JSON of a regular file.

    Raises
    ------
    MemoryError
        If its values need more memory than there is.
    """
    content = content_of(path)
    needed = len(content) * OF_CHARACTER + sum(size * content.count(sign) for sign, size in OF_VALUE.items())
    check_memory(needed, "its values need up to")
    return json.loads(content, **settings)


def check_memory(needed: int, what: str) -> None:
    """Raise MemoryError if so many bytes are not available."""
    if needed > ALWAYS_FITS and needed > (available := psutil.virtual_memory().available):
        raise MemoryError(f"{what} {needed} bytes of memory; {available} are available")


def has_format(file: Path, mark: str) -> bool:
    """Whether a file is JSON of a format; for a damaged one, its beginning decides, where our writers put it."""
    content = b""
    try:
        with opened(file) as opened_file:
            content = opened_file.read(BEGINNING)
        found = json_of(file)
    except (MemoryError, OSError, ValueError, RecursionError):
        return re.match(rb'\s*\{\s*"format":\s*"%s"' % re.escape(mark.encode()), content) is not None
    return isinstance(found, dict) and found.get("format") == mark


LATEST_TIME: Final = 253_370_764_800
"""The year 9999, near the end of what `datetime` can show."""


@cache
def _form(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """A type without its arguments, and these."""
    return get_origin(hint) or hint, get_args(hint)


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is of an annotated type; a list is accepted for a tuple, and an integer for a float."""
    kind, arguments = _form(hint)
    if kind is Any:
        return True
    check = CHECKS.get(kind)
    return isinstance(value, kind) if check is None else check(value, *arguments)


def _is_mapping_of(value: Any, of_key: Any, of_value: Any) -> bool:
    return isinstance(value, Mapping) and all(fits(key, of_key) and fits(item, of_value) for key, item in value.items())


def _is_whole(value: Any) -> bool:
    """Whether it is an integer that tables can hold."""
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
"""Types with more than an instance check, with a function of a value and the type's arguments."""


@cache
def _hints(record: type) -> Mapping[str, Any]:
    """Types of a record's fields."""
    return get_type_hints(record, localns={"pa": pa})


def check_fields(values: Mapping[str, Any], record: type, what: str) -> None:
    """Raise TypeError or ValueError if a value does not fit its field in a record, or is NaN."""
    hints = _hints(record)
    for name, value in values.items():
        if name in hints and not fits(value, hints[name]):
            raise TypeError(f"{name} of {what} is {type(value).__name__}")
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{name} of {what} is {value}")


def literal(text: str) -> Hashable:
    """Value of a Python literal that can be a key; ValueError for any other text."""
    try:
        if len(text) > 4096:  # the parser needs a hundred times that, and may exhaust its stack
            raise ValueError(f"it has {len(text)} characters")
        value: Hashable = ast.literal_eval(text)
        hash(value)
    except (MemoryError, RecursionError, SyntaxError, TypeError, ValueError) as error:
        raise ValueError(f"{text[:100]!r} is not a literal that can be a key") from error
    return value


def check_times(start: float, stop: float) -> None:
    """Raise ValueError if these cannot be the times of a run."""
    if not (0 <= start < LATEST_TIME and 0 <= stop < LATEST_TIME):
        raise ValueError("start and stop are not times")


def deeper_than(value: Any, levels: int) -> bool:
    """Whether lists and dictionaries of parsed JSON are nested deeper than this."""
    level = [value]
    for _ in range(levels + 1):
        items = chain.from_iterable(each.values() if isinstance(each, dict) else each for each in level)
        level = [item for item in items if isinstance(item, dict | list)]
        if not level:
            return False
    return True


NOT_FINITE: Final[Mapping[str, float]] = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
LIKE_A_NUMBER: Final = re.compile(rf"\\*({'|'.join(NOT_FINITE)})")
"""Texts that are written with one more backslash."""
DEEPEST: Final = 64
"""Most levels of nesting kept; the parser's own limit is a few hundred."""
MOST_BITS_OF_PLAIN: Final = 1000
"""Largest integer in bits that is kept as one: a larger one has no float."""
LONGEST_TEXT: Final = 10_000
"""Most characters of a value that is kept only as text."""

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
"""Values without parts: their standard forms, bypassing overrides in subclasses."""

ITEMS: Final[Mapping[type, Callable[[Any], Iterable[Any]]]] = {
    **{kind: kind.__iter__ for kind in (list, tuple, set, frozenset)},
    dict: dict.items,
    np.void: np.void.item,
}
"""Items of collections, in the same way."""


def plain(value: Any, name: str, problems: list[str]) -> Any:
    """Standard form of a value; `problems` gets a line for each type that could only be kept as text."""
    walk = _Walk()
    form = walk.form(value, (name,))
    for what, places in walk.as_text.items():
        more = f" and {len(places) - 1} more" if len(places) > 1 else ""
        problems.append(f"{places[0]}{more} held {what}; it was kept as text")
    return form


def restored(form: Any) -> Any:
    """A value read back, with numbers restored from their texts.

    Raises
    ------
    OverflowError
        A number is larger than any that would be written.
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
    """A number, or the text for one that is not finite."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


class _Walk:
    """One pass through a value."""

    def __init__(self) -> None:
        self._above: set[int] = set()
        """Identities of the collections around the current value."""
        self.as_text: dict[str, list[str]] = {}
        """Types kept as text, and where."""
        self._keys = 0
        """Keys around the current value: no number is restored from their text."""

    def form(self, value: Any, path: tuple[Any, ...]) -> Any:
        """Standard form of the value at a path."""
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
            # 1 and "1" are two keys
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
