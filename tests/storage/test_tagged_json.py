"""Values come back from JSON as they were; what cannot is said."""

import json
import math
import random
from collections import Counter, OrderedDict, namedtuple
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone
from enum import IntEnum
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import hist
import numpy as np
import pytest

from roastcoffea.storage import tagged_json

Point = namedtuple("Point", "x y")
Level = IntEnum("Level", "LOW HIGH")


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no text")


class Liar(dict[str, int]):
    def __iter__(self) -> Any:
        raise RuntimeError("overridden")

    items = keys = values = __iter__


def there_and_back(value: Any, problems: list[str] | None = None) -> Any:
    text = tagged_json.dumps(tagged_json.tagged(value, "field", [] if problems is None else problems))
    json.loads(text, parse_constant=pytest.fail)
    return tagged_json.loads(text)


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
    *(None, True, False, 0, -1, 2**63, -(2**64), 10**5000, 0.1, -0.0, 5e-324, 1.7e308),
    *(math.inf, -math.inf, math.nan, complex(math.nan, -0.0), complex(-math.inf, 1)),
    *("", "$", "of", "tab\t, NUL\0, ü, 日本, 🍩", "\ud800", "\ud83d\ude00", b"", bytes(range(256))),
    *(datetime(2026, 3, 1, 12, 30, 1, 5), datetime(2026, 3, 1, tzinfo=UTC), date(1, 1, 1)),
    *(datetime(2026, 3, 1, tzinfo=timezone(timedelta(hours=-9, minutes=-30))), timedelta.min, timedelta.max),
    *(np.float64(0.1), np.float64("nan"), np.float32(0.1), np.float16(1), np.longdouble(1) / 3, np.int8(-1)),
    *(np.uint64(2**64 - 1), np.bool_(True), np.complex64(1j), np.str_("a\0"), np.str_(""), np.bytes_(b"a\0")),
    *(
        np.datetime64("2026-03-01T12:00:00.000000001"),
        np.datetime64("NaT"),
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


@pytest.mark.parametrize("value", [*LEAVES, *ARRAYS, *BACK], ids=lambda value: f"{type(value).__name__}")
def test_a_value_comes_back_with_its_type(value: Any) -> None:
    problems: list[str] = []
    assert same(there_and_back(value, problems), value)
    assert problems == []


def grown(random_: random.Random, depth: int) -> Any:
    """Random nested structure."""
    grow: Callable[[], Any] = lambda: grown(random_, depth - 1)  # noqa: E731
    size = random_.randrange(4)
    kind = random_.choice(
        ["leaf", "array", "list", "tuple", "set", "frozenset", "dict", "names"] if depth else ["leaf"]
    )
    if kind == "leaf":
        return random_.choice(LEAVES)
    if kind == "array":
        return random_.choice(ARRAYS)
    if kind == "dict":
        return {random_.choice([*LEAVES, (1, frozenset({"a"}))]): grow() for _ in range(size)}
    if kind == "names":
        return {random_.choice(["$", "of", "a", "b", "c"]): grow() for _ in range(size)}
    if kind in ("set", "frozenset"):
        return {"set": set, "frozenset": frozenset}[kind](random_.choice(LEAVES) for _ in range(size))
    return {"list": list, "tuple": tuple}[kind](grow() for _ in range(size))


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
        (Unprintable(), "test_tagged_json.Unprintable"),
        (object, "type"),
        (len, "builtin_function_or_method"),
        (Path("a"), "pathlib.PosixPath"),
        (np.array([None, {}], dtype=object), "numpy.ndarray"),
        (np.array([1], dtype=[("a", object)]), "numpy.ndarray"),
        (np.ma.masked_array([1], [True]), "numpy.ma.MaskedArray"),
        (datetime(2026, 3, 1, tzinfo=ZoneInfo("Europe/Zurich")), "datetime.datetime"),
    ],
)
def test_what_cannot_be_kept_is_kept_as_text(value: Any, what: str) -> None:
    problems: list[str] = []
    back = there_and_back({"a": [1, value], 2: (3,)}, problems)
    assert back["a"][0] == 1
    assert back[2] == (3,)
    assert back["a"][1].startswith(f"<kept as text: {what}> ")
    (problem,) = problems
    assert problem == f"field['a'][1] held {what}; it was kept as text"


def test_text_is_that_of_the_value_and_bounded() -> None:
    assert "Regular(2, 0, 1" in there_and_back(hist.Hist.new.Reg(2, 0, 1).Double())
    big = type("Big", (), {"__repr__": lambda self: "x" * 10**6 + "\ud800"})()
    assert 9_000 < len(there_and_back(big)) < 11_000


@pytest.mark.parametrize(
    ("value", "kept", "plain"),
    [
        (OrderedDict(b=1, a=2), "dict", {"b": 1, "a": 2}),
        (Counter("aab"), "dict", {"a": 2, "b": 1}),
        (Liar(a=1), "dict", {"a": 1}),
        (Point(1, [2]), "tuple", (1, [2])),
        (Level.HIGH, "int", 2),
        (type("Text", (str,), {"__str__": lambda self: "no"})("yes"), "str", "yes"),
        (type("Number", (float,), {})(0.5), "float", 0.5),
    ],
)
def test_a_subclass_is_kept_as_the_built_in_type(value: Any, kept: str, plain: Any) -> None:
    problems: list[str] = []
    assert same(there_and_back([value], problems), [plain])
    assert [problem.partition("; ")[2] for problem in problems] == [f"it was kept as {kept}"]


def test_one_line_tells_of_many_values_of_a_type() -> None:
    problems: list[str] = []
    there_and_back({"a": [object() for _ in range(1000)], "b": Path("x")}, problems)
    assert problems == [
        "field['a'][0] and 999 more held object; it was kept as text",
        "field['b'] held pathlib.PosixPath; it was kept as text",
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
    assert there_and_back((shared, shared, [shared]), problems) == ([1, 2], [1, 2], [[1, 2]])
    assert problems == []


@pytest.mark.parametrize("wrap", [lambda inner: [inner], lambda inner: {(1,): inner}, lambda inner: (inner,)])
def test_depth_is_limited(wrap: Callable[[Any], Any]) -> None:
    kept: Any = 1
    for _ in range(tagged_json.DEEPEST - 1):
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


@pytest.mark.parametrize(
    "text",
    [
        *('{"$": "nonsense", "of": 1}', '{"$": "tuple"}', '{"$": "int", "of": []}', '{"$": [], "of": 1}'),
        *(
            '{"$": "numpy.array", "of": "AAAA"}',
            '{"$": "timedelta", "of": [1e300]}',
            '{"$": "set", "of": [[]]}',
        ),
        *('{"$": "dict", "of": [1]}', '{"$": "bytes", "of": "a"}', "[" * 100_000, "", "\xff", '{"a"'),
    ],
)
def test_a_damaged_text_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        tagged_json.loads(text)


def test_arrays_are_not_unpickled(tmp_path: Path) -> None:
    import base64
    import io

    file = io.BytesIO()
    np.save(file, np.array([{}], dtype=object), allow_pickle=True)
    content = base64.b64encode(file.getvalue()).decode()
    with pytest.raises(ValueError, match="allow_pickle"):
        tagged_json.loads(json.dumps({"$": "numpy.array", "of": content}))
