"""Whether values that were read from a file have the types that the records' annotations give."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import chain
from numbers import Integral, Real
from types import UnionType
from typing import Any, Final, Union, get_args, get_origin

MOST_BITS: Final = 63
"""Of a whole number in a record: tables and other programs have no larger ones."""


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is of an annotated type; a list will do for a tuple, and a whole number for a float."""
    kind, arguments = get_origin(hint) or hint, get_args(hint)
    if kind is Any:
        return True
    check = CHECKS.get(kind)
    return isinstance(value, kind) if check is None else check(value, *arguments)


def _is_any_of(value: Any, *hints: Any) -> bool:
    return any(fits(value, hint) for hint in hints)


def _is_mapping_of(value: Any, of_key: Any, of_value: Any) -> bool:
    return isinstance(value, Mapping) and all(fits(key, of_key) and fits(item, of_value) for key, item in value.items())


def _is_whole(value: Any) -> bool:
    """Whether it is a whole number that tables can hold."""
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value).bit_length() <= MOST_BITS


CHECKS: Final[Mapping[Any, Callable[..., bool]]] = {
    int: _is_whole,
    float: lambda value: _is_whole(value) or (isinstance(value, Real) and not isinstance(value, Integral | bool)),
    tuple: lambda value, hint, *_: isinstance(value, list | tuple) and all(fits(item, hint) for item in value),
    Mapping: _is_mapping_of,
    Union: _is_any_of,
    UnionType: _is_any_of,
}
"""Types for which more is asked than to be an instance, with the check of a value and the type's arguments."""


def check_fields(values: Mapping[str, Any], hints: Mapping[str, Any], what: str) -> None:
    """Raise TypeError or ValueError where a value does not fit its field, or is a number that is none."""
    for name, value in values.items():
        if name in hints and not fits(value, hints[name]):
            raise TypeError(f"{name} of {what} is {type(value).__name__}")
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{name} of {what} is {value}")


def deeper_than(value: Any, levels: int) -> bool:
    """Whether lists and dictionaries of parsed JSON are nested deeper than so many levels."""
    level = [value]
    for _ in range(levels + 1):
        items = chain.from_iterable(each.values() if isinstance(each, dict) else each for each in level)
        level = [item for item in items if isinstance(item, dict | list)]
        if not level:
            return False
    return True
