"""Values have a form of standard types in JSON; what has none is text, and a problem."""

import json
import math
import random
from collections import Counter, OrderedDict, namedtuple
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from enum import IntEnum
from pathlib import Path
from typing import Any

import hist
import numpy as np
import pytest

from roastcoffea.storage.plain import DEEPEST, plain, restored

Point = namedtuple("Point", "x y")
Level = IntEnum("Level", "LOW HIGH")

PATH = f"{type(Path()).__module__}.{type(Path()).__name__}"
"""Python 3.13 has it in a module of its own."""


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no text")


class Liar(dict[str, int]):
    def __iter__(self) -> Any:
        raise RuntimeError("overridden")

    items = keys = values = __iter__


def there_and_back(value: Any, problems: list[str] | None = None) -> Any:
    text = json.dumps(plain(value, "field", [] if problems is None else problems), allow_nan=False)
    return restored(json.loads(text, parse_constant=pytest.fail))


def same(one: Any, other: Any) -> bool:
    """Equality of type and content in which NaN equals NaN."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float):
        return math.copysign(1, one) == math.copysign(1, other) and (one == other or one != one != other)
    return bool(one == other)


STANDARD: list[Any] = [
    *(None, True, False, 0, -1, 2**63, -(2**64), 10**30, 0.1, -0.0, 5e-324, 1.7e308, math.inf, -math.inf, math.nan),
    *("NaN", "Infinity", "-Infinity", "\\NaN", "\\\\-Infinity", "\\nan", "\\", ["NaN", math.nan], {"NaN": "NaN"}),
    *("", "$", "nan", "tab\t, NUL\0, ü, 日本, 🍩", [], {}, [[]], {"a": {}}, {"": [None]}, {"$": "tuple", "of": [1]}),
]


@pytest.mark.parametrize("value", STANDARD, ids=repr)
def test_standard_values_come_back(value: Any) -> None:
    problems: list[str] = []
    assert same(there_and_back(value, problems), value)
    assert problems == []


@pytest.mark.parametrize(
    ("value", "form"),
    [
        (np.float64(0.1), 0.1),
        (np.float32(0.5), 0.5),
        (np.longdouble(1) / 4, 0.25),
        (np.float64("nan"), math.nan),
        (np.uint64(2**64 - 1), 2**64 - 1),
        (np.int8(-1), -1),
        (np.bool_(True), True),
        (np.str_("a"), "a"),
        (np.datetime64("2026-03-01T12:00:00.000000001"), "2026-03-01T12:00:00.000000001"),
        (np.timedelta64(3, "h"), "3 hours"),
        (np.arange(6, dtype=">i2").reshape(2, 3), [[0, 1, 2], [3, 4, 5]]),
        (np.array(5), 5),
        (np.array([math.nan, 1]), [math.nan, 1.0]),
        (np.array(["2026-03-01"], dtype="M8[ns]"), ["2026-03-01T00:00:00.000000000"]),
        (np.array([(1, 0.5)], dtype=[("a", "i4"), ("b", "f8")]), [[1, 0.5]]),
        (np.array([(1, 0.5)], dtype=[("a", "i4"), ("b", "f8")])[0], [1, 0.5]),
        (np.array([None, {"a": 1}], dtype=object), [None, {"a": 1}]),
        ((1, (2,)), [1, [2]]),
        ({"b", "a"}, ["a", "b"]),
        (frozenset({2, 1}), [1, 2]),
        (datetime(2026, 3, 1, 12, 30, 1, 5), "2026-03-01T12:30:01.000005"),
        (datetime(2026, 3, 1, tzinfo=UTC), "2026-03-01T00:00:00+00:00"),
        (date(1, 1, 1), "0001-01-01"),
        (timedelta(minutes=1), 60.0),
        ("\ud800", "\\ud800"),
        (OrderedDict(b=1, a=2), {"b": 1, "a": 2}),
        (Counter("aab"), {"a": 2, "b": 1}),
        (Liar(a=1), {"a": 1}),
        (Point(1, [2]), [1, [2]]),
        (Level.HIGH, 2),
        (type("Text", (str,), {"__str__": lambda self: "no"})("yes"), "yes"),
        (type("Number", (float,), {})(0.5), 0.5),
    ],
    ids=lambda value: type(value).__name__,
)
def test_others_become_standard_values(value: Any, form: Any) -> None:
    problems: list[str] = []
    assert same(there_and_back(value, problems), form)
    assert problems == []


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (("execute", "p", "thread-cpu", "seconds"), "('execute', 'p', 'thread-cpu', 'seconds')"),
        (("a", np.int64(1)), "('a', 1)"),
        ((), "()"),
        (1, "1"),
        (0.5, "0.5"),
        (None, "None"),
        (True, "True"),
        (math.nan, "NaN"),
        (datetime(2026, 3, 1), "2026-03-01T00:00:00"),
        ("NaN", "NaN"),
        (("w", "-Infinity"), "('w', '-Infinity')"),
    ],
)
def test_keys_become_text(key: Any, text: str) -> None:
    assert there_and_back({key: 1}) == {text: 1}


def test_no_key_takes_the_place_of_another() -> None:
    assert there_and_back({1: "a", "1": "b", "1 (2)": "c"}) == {"1": "a", "1 (2)": "b", "1 (2) (2)": "c"}


def grown(random_: random.Random, depth: int) -> Any:
    """Random nested structure."""
    grow: Callable[[], Any] = lambda: grown(random_, depth - 1)  # noqa: E731
    size = random_.randrange(4)
    kind = random_.choice(["leaf", "list", "dict"] if depth else ["leaf"])
    if kind == "leaf":
        return random_.choice(STANDARD)
    if kind == "dict":
        return {random_.choice(["$", "of", "a", "b", ""]): grow() for _ in range(size)}
    return [grow() for _ in range(size)]


@pytest.mark.parametrize("seed", range(20))
def test_nested_structures_come_back(seed: int) -> None:
    random_ = random.Random(seed)
    for _ in range(100):
        value = grown(random_, depth=6)
        assert same(there_and_back(value), value)


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (hist.Hist.new.Reg(2, 0, 1).Double(), "hist.hist.Hist"),
        (Unprintable(), f"{__name__}.Unprintable"),
        (object, "type"),
        (len, "builtin_function_or_method"),
        (Path("a"), PATH),
        (np.ma.masked_array([1], [True]), "numpy.ma.MaskedArray"),
        (b"bytes", "bytes"),
        (1j, "complex"),
        (np.complex64(1j), "numpy.complex64"),
        (10**5000, "int"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_cannot_be_kept_is_kept_as_text(value: Any, what: str) -> None:
    problems: list[str] = []
    back = there_and_back({"a": [1, value], "b": (3,)}, problems)
    assert back["a"][0] == 1
    assert back["b"] == [3]
    assert back["a"][1].startswith(f"<kept as text: {what}> ")
    (problem,) = problems
    assert problem == f"field['a'][1] held {what}; it was kept as text"


def test_text_is_that_of_the_value_and_bounded() -> None:
    assert "Regular(2, 0, 1" in there_and_back(hist.Hist.new.Reg(2, 0, 1).Double())
    big = type("Big", (), {"__repr__": lambda self: "x" * 10**6 + "\ud800"})()
    assert 9_000 < len(there_and_back(big)) < 11_000


def test_one_line_tells_of_many_values_of_a_type() -> None:
    problems: list[str] = []
    there_and_back({"a": [object() for _ in range(1000)], "b": Path("x")}, problems)
    assert problems == [
        "field['a'][0] and 999 more held object; it was kept as text",
        f"field['b'] held {PATH}; it was kept as text",
    ]


def test_recursion_ends() -> None:
    inside: list[Any] = [1]
    inside.append({"again": inside})
    problems: list[str] = []
    back = there_and_back({"twice": [inside, inside]}, problems)
    assert back["twice"][0] == back["twice"][1] == [1, {"again": "<kept as text: list> [1, {'again': [...]}]"}]
    assert problems == ["field['twice'][0][1]['again'] and 1 more held list that contains itself; it was kept as text"]


def test_a_list_that_is_there_twice_is_no_recursion() -> None:
    shared = [1, 2]
    problems: list[str] = []
    assert there_and_back((shared, shared, [shared]), problems) == [[1, 2], [1, 2], [[1, 2]]]
    assert problems == []


@pytest.mark.parametrize("wrap", [lambda inner: [inner], lambda inner: {"a": inner}, lambda inner: [1, inner]])
def test_depth_is_limited(wrap: Callable[[Any], Any]) -> None:
    kept: Any = 1
    for _ in range(DEEPEST - 1):
        kept = wrap(kept)
    deep = kept
    for _ in range(10_000):
        deep = wrap(deep)
    problems: list[str] = []
    assert there_and_back(kept, problems) == kept
    assert problems == []
    there_and_back(deep, problems)
    assert problems
    assert all("nested deeper than 64 levels; it was kept as text" in problem for problem in problems)


def test_numbers_that_are_not_finite_are_the_texts_of_metrics_json() -> None:
    assert plain([math.nan, math.inf, -math.inf], "field", []) == ["NaN", "Infinity", "-Infinity"]
    assert str(restored(["NaN", "Infinity", "-Infinity"])) == "[nan, inf, -inf]"


def test_numbers_that_are_too_large_are_not_read() -> None:
    assert restored([2**999]) == [2**999]
    with pytest.raises(OverflowError, match="1329 bits"):
        restored({"a": [10**400]})
