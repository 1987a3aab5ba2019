"""Values in the types of standard JSON: None, truth, numbers, text, lists, and dictionaries with text as keys.

Numbers and arrays of numpy become Python's, tuples and sets become lists, times become ISO text, and durations seconds.
A key that is not text becomes its repr, as in 0.1.2, from which a tuple can be restored. A number that is not finite
becomes the text "NaN", "Infinity" or "-Infinity", as in `metrics.json`, and is read as a number. A text equal to one of
these, apart from leading backslashes, gets another backslash.
"""

from __future__ import annotations

import math
import re
import reprlib
from collections.abc import Callable, Iterable, Mapping
from datetime import date, timedelta
from itertools import count
from typing import Any, Final

import numpy as np

from roastcoffea.redaction import redacted

NOT_FINITE: Final[Mapping[str, float]] = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
LIKE_A_NUMBER: Final = re.compile(rf"\\*({'|'.join(NOT_FINITE)})")
"""Texts that are written with one more backslash."""
DEEPEST: Final = 64
"""Most levels of nesting kept; the parser's own limit is a few hundred."""
MOST_BITS: Final = 1000
"""Largest integer in bits that is kept as one: a larger one has no float."""
LONGEST_TEXT: Final = 10_000
"""Most characters of a value that is kept only as text."""
LONGEST_PLACE: Final = 60
"""Most characters of a key in the path of a value."""

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
    if isinstance(form, int) and form.bit_length() > MOST_BITS:
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
        if base is None or (base is int and int.bit_length(value) > MOST_BITS):
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
        place = str(path[0]) + "".join(f"[{_printable(part, LONGEST_PLACE)}]" for part in path[1:])
        self.as_text.setdefault(f"{name}{why}", []).append(place)
        return f"<kept as text: {name}> {redacted(_printable(value, LONGEST_TEXT))}"


def _printable(value: Any, longest: int) -> str:
    # reprlib survives a __repr__ that raises
    shortened = reprlib.Repr()
    shortened.maxother = longest
    return shortened.repr_instance(value, 1).encode("utf-8", "backslashreplace").decode()
