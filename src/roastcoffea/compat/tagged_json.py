"""JSON of schemas 1 to 7, in which tagged objects stand for types unknown to JSON; it is only read."""

from __future__ import annotations

import ast
import base64
import io
import math
import tokenize
from collections.abc import Callable
from datetime import date, datetime, timedelta
from typing import Any, Final

import numpy as np

TAG: Final = "$"
CONTENT: Final = "of"
LONGEST_HEADER: Final = 10_000
"""Bytes of an array's header, which is a Python literal; numpy's own limit."""


def untagged(found: Any) -> Any:
    """Value of parsed JSON with its original types; raises any error if it is damaged."""
    if isinstance(found, list):
        return [untagged(item) for item in found]
    if not isinstance(found, dict):
        return found
    items = {key: untagged(item) for key, item in found.items()}
    return _READERS[items[TAG]](items[CONTENT]) if TAG in items else items


def _text(content: str) -> str:
    return base64.b64decode(content).decode("utf-8", "surrogatepass")


def _array(content: str) -> Any:
    npy = base64.b64decode(content)
    try:
        _check_size(npy)
        return np.lib.format.read_array(io.BytesIO(npy), allow_pickle=False)
    except tokenize.TokenError as error:
        raise ValueError(f"an array cannot be read: {error}") from None


def _check_size(npy: bytes) -> None:
    """Raise if the header declares more than there is: numpy allocates all that is declared."""
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


def _scalar(content: str) -> Any:
    array = _array(content)
    array.setflags(write=False)  # otherwise a structured scalar is not hashable, which it may have to be
    return array[()]


_READERS: Final[dict[str, Callable[[Any], Any]]] = {
    **{kind.__name__: kind for kind in (float, tuple, set, frozenset, dict)},
    "int": lambda text: int(text, 16),
    "str": _text,
    "bytes": base64.b64decode,
    "complex": lambda parts: complex(*map(float, parts)),
    "datetime": datetime.fromisoformat,
    "date": date.fromisoformat,
    "timedelta": lambda parts: timedelta(*parts),
    "numpy.str": lambda content: np.str_(_text(content)),
    "numpy.bytes": lambda content: np.bytes_(base64.b64decode(content)),
    "numpy.array": _array,
    "numpy.scalar": _scalar,
}
