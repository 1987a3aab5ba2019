"""Standard JSON that keeps Python's values: what JSON has no word for becomes an object with a tag."""

from __future__ import annotations

import ast
import base64
import io
import json
import math
import reprlib
import tokenize
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta, timezone
from typing import Any, Final

import numpy as np

from roastcoffea.redaction import redacted

TAG: Final = "$"
CONTENT: Final = "of"
LONGEST_HEADER: Final = 10_000
"""Bytes of an array's header, which is a Python literal; numpy's own limit."""
DEEPEST: Final = 64
"""Levels of nesting that are kept; the parser's own limit lies at a few hundred."""
LONGEST_TEXT: Final = 10_000
"""Characters kept of a value that only its text can stand for."""
LONGEST_PLACE: Final = 60
"""Characters of a key that names the place of a value."""


def dumps(value: Any) -> str:
    """Text of a value that went through `tagged`."""
    return json.dumps(value, allow_nan=False, indent=1)


def loads(text: str | bytes) -> Any:
    """Value of a text, with the types that it had; ValueError where the text is damaged."""
    try:
        return json.loads(text, object_hook=_untagged)
    except (ArithmeticError, LookupError, MemoryError, RecursionError, SyntaxError, TypeError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def tagged(value: Any, name: str, problems: list[str]) -> Any:
    """JSON form of a value.

    What cannot be kept as it is becomes text, and an instance of a subclass of a built-in type becomes that
    type; for each type that this happens to, `problems` gets a line.
    """
    tagging = _Tagging()
    form = tagging.form(value, (name,))
    problems += tagging.problems()
    return form


@dataclass(frozen=True, slots=True)
class _Leaf:
    """A type without parts of its own, and its way to JSON and back."""

    type: type
    write: Callable[[Any], Any]
    read: Callable[[Any], Any]


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")


def _npy(value: Any) -> str:
    file = io.BytesIO()
    np.lib.format.write_array(file, np.asarray(value), allow_pickle=False)
    return _base64(file.getvalue())


def _array(text: str) -> Any:
    content = base64.b64decode(text)
    try:
        _check_size(content)
        return np.lib.format.read_array(io.BytesIO(content), allow_pickle=False)
    except tokenize.TokenError as error:
        raise ValueError(f"an array cannot be read: {error}") from None


def _check_size(npy: bytes) -> None:
    """Raise where the header declares more than there is: numpy reserves memory for all that is declared."""
    file = io.BytesIO(npy)
    version = np.lib.format.read_magic(file)
    length = int.from_bytes(file.read(2 if version == (1, 0) else 4), "little")
    if length > LONGEST_HEADER:
        raise ValueError(f"an array has a header of {length} bytes")
    header = ast.literal_eval(file.read(length).decode("utf-8" if version == (3, 0) else "latin1"))
    size = np.lib.format.descr_to_dtype(header["descr"]).itemsize
    declared = math.prod(header["shape"]) * max(size, 1)
    if declared > len(npy):
        raise ValueError(f"an array of {declared} bytes has only {len(npy) - file.tell()}")


def _scalar(text: str) -> Any:
    array = _array(text)
    array.setflags(write=False)  # else a structured scalar is not hashable, which it may have to be
    return array[()]


_LEAVES: Final[dict[str, _Leaf]] = {
    "float": _Leaf(float, repr, float),
    "int": _Leaf(int, hex, lambda text: int(text, 16)),
    # An unpaired surrogate is no Unicode, and JSON's escapes would join two of them into one character.
    "str": _Leaf(
        str,
        lambda text: _base64(text.encode("utf-8", "surrogatepass")),
        lambda text: base64.b64decode(text).decode("utf-8", "surrogatepass"),
    ),
    "bytes": _Leaf(bytes, _base64, base64.b64decode),
    "complex": _Leaf(
        complex,
        lambda number: [repr(number.real), repr(number.imag)],
        lambda parts: complex(float(parts[0]), float(parts[1])),
    ),
    "datetime": _Leaf(datetime, datetime.isoformat, datetime.fromisoformat),
    "date": _Leaf(date, date.isoformat, date.fromisoformat),
    "timedelta": _Leaf(
        timedelta,
        lambda duration: [duration.days, duration.seconds, duration.microseconds],
        lambda parts: timedelta(*parts),
    ),
    # As arrays these two would lose the NUL characters at their end.
    "numpy.str": _Leaf(
        np.str_,
        lambda text: _base64(text.encode("utf-8", "surrogatepass")),
        lambda text: np.str_(base64.b64decode(text).decode("utf-8", "surrogatepass")),
    ),
    "numpy.bytes": _Leaf(np.bytes_, _base64, lambda text: np.bytes_(base64.b64decode(text))),
    "numpy.array": _Leaf(np.ndarray, _npy, _array),
    "numpy.scalar": _Leaf(np.generic, _npy, _scalar),
}
_TAG_OF: Final = {leaf.type: tag for tag, leaf in _LEAVES.items()}
_READERS: Final[dict[str, Callable[[Any], Any]]] = {
    **{tag: leaf.read for tag, leaf in _LEAVES.items()},
    **{collection.__name__: collection for collection in (tuple, set, frozenset, dict)},
}
# To the built-in type itself, past what a subclass has overridden.
_BUILT_IN: Final[dict[type, Callable[[Any], Any]]] = {
    dict: lambda value: dict(dict.items(value)),
    list: lambda value: list(list.__iter__(value)),
    tuple: lambda value: tuple(tuple.__iter__(value)),
    set: lambda value: set(set.__iter__(value)),
    frozenset: lambda value: frozenset(frozenset.__iter__(value)),
    str: str.__str__,
    int: int.__int__,
    float: float.__float__,
}


def _untagged(found: dict[str, Any]) -> Any:
    return _READERS[found[TAG]](found[CONTENT]) if TAG in found else found


def _tag_of_leaf(value: Any) -> str | None:
    """Tag of a value that can be kept whole; None where it has none."""
    kind = type(value)
    if kind is np.ndarray or (issubclass(kind, np.generic) and kind not in _TAG_OF):
        kept = value.dtype.kind in "biufcmMSUV" and _survives(value.dtype)
        return _TAG_OF[np.ndarray if kind is np.ndarray else np.generic] if kept else None
    if kind is datetime and type(value.tzinfo) not in (type(None), timezone):
        return None
    return _TAG_OF.get(kind)


def _survives(dtype: np.dtype[Any]) -> bool:
    # Types of other packages call themselves "V" and come back as plain bytes.
    if dtype.hasobject:
        return False
    return bool(np.lib.format.descr_to_dtype(np.lib.format.dtype_to_descr(dtype)) == dtype)


def _is_json(value: Any) -> bool:
    kind = type(value)
    if kind is int:
        return bool(value.bit_length() <= 64)  # Python refuses to read integers of some thousand digits
    if kind is float:
        return math.isfinite(value)
    if kind is str:
        return _is_unicode(value)
    return value is None or kind is bool


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


@dataclass(slots=True)
class _Tagging:
    """One walk through a value."""

    above: set[int] = field(default_factory=set)
    """Identities of the collections that the walk is inside of."""
    changed: dict[str, list[str]] = field(default_factory=dict)
    """What was not kept as it was, and where."""

    def problems(self) -> list[str]:
        return [
            f"{places[0]}{f' and {len(places) - 1} more' if len(places) > 1 else ''} held {what}"
            for what, places in self.changed.items()
        ]

    def form(self, value: Any, path: tuple[Any, ...]) -> Any:
        if _is_json(value):
            return value
        tag = _tag_of_leaf(value)
        if tag is not None:
            return {TAG: tag, CONTENT: _LEAVES[tag].write(value)}
        base = next((base for base in _BUILT_IN if issubclass(type(value), base)), None)
        if base is None:
            return self._text(value, path, "")
        if id(value) in self.above:
            return self._text(value, path, " that contains itself")
        if len(path) > DEEPEST:
            return self._text(value, path, f", nested deeper than {DEEPEST} levels")
        if type(value) is not base:
            self._note(value, path, f"; it was kept as {base.__name__}")
        self.above.add(id(value))
        form = self._built_in(_BUILT_IN[base](value), path)
        self.above.discard(id(value))
        return form

    def _built_in(self, value: Any, path: tuple[Any, ...]) -> Any:
        if isinstance(value, dict):
            return self._dict(value, path)
        if isinstance(value, str | int | float):
            return self.form(value, path)
        forms = [self.form(item, (*path, place)) for place, item in enumerate(value)]
        return forms if isinstance(value, list) else {TAG: type(value).__name__, CONTENT: forms}

    def _dict(self, value: dict[Hashable, Any], path: tuple[Any, ...]) -> Any:
        if TAG not in value and all(type(key) is str and _is_unicode(key) for key in value):
            return {key: self.form(item, (*path, key)) for key, item in value.items()}
        pairs = [[self.form(key, (*path, key)), self.form(item, (*path, key))] for key, item in value.items()]
        return {TAG: "dict", CONTENT: pairs}

    def _text(self, value: Any, path: tuple[Any, ...], why: str) -> Any:
        self._note(value, path, f"{why}; it was kept as text")
        return f"<kept as text: {_type_name(value)}> {redacted(_printable(value, LONGEST_TEXT))}"

    def _note(self, value: Any, path: tuple[Any, ...], what: str) -> None:
        self.changed.setdefault(f"{_type_name(value)}{what}", []).append(_place(path))


def _type_name(value: Any) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _place(path: tuple[Any, ...]) -> str:
    return str(path[0]) + "".join(f"[{_printable(part, LONGEST_PLACE)}]" for part in path[1:])


def _printable(value: Any, longest: int) -> str:
    # reprlib survives a __repr__ that raises.
    shortened = reprlib.Repr()
    shortened.maxother = longest
    text = shortened.repr_instance(value, 1)
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
