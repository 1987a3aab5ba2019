"""Values of the JSON of schemas 1 to 7 are read as they were written; damaged ones are errors."""

import base64
import io
import json
import math
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from roastcoffea.compat.legacy import untagged

STORED = json.loads((Path(__file__).parents[1] / "data" / "tagged.json").read_text())
"""What the last version that wrote such JSON made of the values below."""


def same(one: Any, other: Any) -> bool:
    """Equality of type and content in which NaN equals NaN."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return len(one) == len(other) and all(map(same_pair, one.items(), other.items()))
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, set | frozenset):
        return all(any(same(a, b) for b in other) for a in one) and len(one) == len(other)
    if isinstance(one, np.ndarray | np.generic):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    if isinstance(one, float):
        return math.copysign(1, one) == math.copysign(1, other) and (one == other or one != one != other)
    if isinstance(one, complex):
        return same(one.real, other.real) and same(one.imag, other.imag)
    return bool(one == other)


def same_pair(one: tuple[Any, Any], other: tuple[Any, Any]) -> bool:
    return same(one[0], other[0]) and same(one[1], other[1])


FROZEN = np.array([(1, 0.5)], dtype=[("a", "i4"), ("b", "f8")])
FROZEN.setflags(write=False)

LEAVES: list[Any] = [
    *(None, True, False, 0, -1, 2**63, -(2**64), 0.1, -0.0, 5e-324, 1.7e308),
    *(math.inf, -math.inf, math.nan, complex(math.nan, -0.0), complex(-math.inf, 1)),
    *("", "$", "of", "tab\t, NUL\0, ü, 日本, 🍩", "\ud800", "\ud83d\ude00", b"", bytes(range(256))),
    *(datetime(2026, 3, 1, 12, 30, 1, 5), datetime(2026, 3, 1, tzinfo=timezone.utc), date(1, 1, 1)),
    *(datetime(2026, 3, 1, tzinfo=timezone(timedelta(hours=-9, minutes=-30))), timedelta.min, timedelta.max),
    *(np.float64(0.1), np.float64("nan"), np.float32(0.1), np.float16(1), np.longdouble(1) / 3, np.int8(-1)),
    *(np.uint64(2**64 - 1), np.bool_(True), np.complex64(1j), np.str_("a\0"), np.str_(""), np.bytes_(b"a\0")),
    *(
        np.datetime64("2026-03-01T12:00:00.000000001"),
        np.array([-(2**63)]).view("M8")[0],  # NaT of no unit, which later versions of NumPy do not make any more
        np.timedelta64(3, "h"),
        FROZEN[0],
    ),
]
ARRAYS: list[Any] = [
    np.arange(6, dtype=">i2").reshape(2, 3),
    np.asfortranarray(np.eye(2)),
    np.zeros((0, 3)),
    np.array(5),
    np.array(["a", "ü"]),
    np.array([True, False]),
    np.array([(1, 0.5, "x")], dtype=[("a", "i4"), ("b", "f8"), ("c", "U3")]),
    np.array(["2026-03-01", "NaT"], dtype="M8[s]"),
    np.array([math.nan, math.inf]),
]
BACK: list[Any] = [
    *([], (), {}, set(), frozenset(), [[]], ((),), {"a": {}}, {(): ()}, {frozenset({1}): {2}}),
    *({1: "a", "1": "b", None: 0, (1, "x"): [2], 2.5: 3, b"k": 4}, {True: 1}, {0: {"$": 1}}),
    *({"$": "tuple", "of": [1]}, {"of": [1]}, {"$": {"$": {"$": "float", "of": "nan"}}}),
    *({"\ud800": 1}, {math.nan: math.nan}, {np.float64(2): np.int64(2)}, {np.str_("a"): 1}),
]


VALUES = [*LEAVES, *ARRAYS, *BACK]


@pytest.mark.parametrize(("form", "value"), [*zip(STORED, VALUES, strict=True)], ids=[type(v).__name__ for v in VALUES])
def test_a_value_comes_back_with_its_type(form: Any, value: Any) -> None:
    assert same(untagged(form), value)


def test_integers_of_any_size_come_back() -> None:
    assert untagged({"$": "int", "of": hex(10**5000)}) == 10**5000


DAMAGED = [
    *({"$": "nonsense", "of": 1}, {"$": "tuple"}, {"$": "int", "of": []}, {"$": [], "of": 1}),
    *({"$": "numpy.array", "of": "AAAA"}, {"$": "timedelta", "of": [1e300]}, {"$": "set", "of": [[]]}),
    *({"$": "dict", "of": [1]}, {"$": "bytes", "of": "a"}),
]


@pytest.mark.parametrize("form", DAMAGED, ids=str)
def test_what_is_damaged_is_an_error(form: Any) -> None:
    with pytest.raises((ArithmeticError, LookupError, TypeError, ValueError)):
        untagged([form])


def test_arrays_are_not_unpickled() -> None:
    file = io.BytesIO()
    np.save(file, np.array([{}], dtype=object), allow_pickle=True)
    content = base64.b64encode(file.getvalue()).decode()
    with pytest.raises(ValueError, match="allow_pickle"):
        untagged({"$": "numpy.array", "of": content})


def test_an_array_that_claims_to_be_huge_is_an_error() -> None:
    huge = io.BytesIO()
    np.lib.format.write_array_header_1_0(huge, {"descr": "<f8", "fortran_order": False, "shape": (2**40,)})
    with pytest.raises(ValueError, match="has only"):
        untagged({"$": "numpy.array", "of": base64.b64encode(huge.getvalue()).decode()})
