"""Files that may be damaged, or be no files at all, and values that may be of any type."""

from __future__ import annotations

import json
import math
import os
import random
from collections import Counter, OrderedDict, namedtuple
from collections.abc import Callable, Mapping
from datetime import date, datetime, timedelta, timezone
from enum import IntEnum
from pathlib import Path
from typing import Any

import hist
import numpy as np
import pytest

from roastcoffea.errors import MeasurementError, MissingMeasurementError, UnreadableMeasurementError
from roastcoffea.records.run import Host
from roastcoffea.storage import reading as readings
from roastcoffea.storage.reading import (
    DEEPEST,
    check_fields,
    content_of,
    deeper_than,
    fits,
    has_format,
    literal,
    opened,
    plain,
    reading,
    restored,
)

DESCRIPTORS = Path("/proc/self/fd")


def test_a_missing_file_is_named() -> None:
    with (
        pytest.raises(MissingMeasurementError, match=r"runs/a.json is missing; restore it from a copy"),
        reading(Path("runs/a.json")),
    ):
        Path("/nowhere/at/all").read_bytes()


@pytest.mark.parametrize(
    "error", [OSError("gone"), KeyError("id"), ValueError("odd"), RecursionError("deep")], ids=repr
)
def test_a_damaged_file_is_named_with_what_was_found(error: Exception) -> None:
    name = type(error).__name__
    with (
        pytest.raises(UnreadableMeasurementError, match=rf"a.json cannot be read \({name}: .*; restore it") as found,
        reading(Path("a.json")),
    ):
        raise error
    assert found.value.__cause__ is error


@pytest.mark.parametrize("error", [MeasurementError("ours"), KeyboardInterrupt(), RuntimeError("a bug")], ids=repr)
def test_other_errors_come_out_as_they_are(error: BaseException) -> None:
    with pytest.raises(type(error)) as found, reading(Path("a.json")):
        raise error
    assert found.value is error


def test_a_regular_file_is_read_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"0123456789")
    assert content_of(file) == b"0123456789"
    monkeypatch.setattr(readings, "LARGEST_FILE", 9)
    with pytest.raises(ValueError, match="it is 10 bytes long; the maximum is 9"):
        content_of(file)


def times_open(path: Path) -> int:
    """How many descriptors of this process a file has."""
    return sum(each.readlink() == path.resolve() for each in DESCRIPTORS.iterdir() if each.is_symlink())


@pytest.mark.skipif(not DESCRIPTORS.exists(), reason="needs Linux")
@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("/dev/zero")])
def test_what_is_no_regular_file_is_not_waited_for(make: Any, tmp_path: Path) -> None:
    path = tmp_path / "odd"
    make(path)
    before = times_open(path)
    with pytest.raises(OSError, match="regular file"):
        opened(path)
    assert times_open(path) == before


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b'{"format": "ours", "schema": 8}', True),
        (b'{"schema": 8, "format": "ours"}', True),
        (b'{"format": "theirs"}', False),
        (b'["ours"]', False),
        (b'{\n "format": "ours", "sche', True),  # cut off
        (b'{"schema": 8, "format": "ours', False),
        (b'{"format": "ours-too", ', False),
        (b"", False),
        (b"\xff\xfe", False),
    ],
)
def test_a_format_is_told_also_of_a_damaged_file(content: bytes, expected: bool, tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    file.write_bytes(content)
    assert has_format(file, "ours") is expected


def test_a_file_that_is_not_there_has_no_format(tmp_path: Path) -> None:
    assert not has_format(tmp_path / "run.json", "ours")


@pytest.mark.parametrize(
    ("value", "hint", "expected"),
    [
        (1, int, True),
        (np.int64(1), int, True),
        (True, int, False),
        (1.0, int, False),
        (2**63 - 1, int, True),
        (2**63, int, False),
        (2**63, float, False),
        (1, float, True),
        (0.5, float, True),
        (False, float, False),
        ("1", float, False),
        (None, str | None, True),
        (3, str | None, False),
        (["a", "b"], tuple[str, ...], True),
        (("a", 1), tuple[str, ...], False),
        ("ab", tuple[str, ...], False),
        ({"a": 1}, Mapping[str, int], True),
        ({"a": "b"}, Mapping[str, int], False),
        ({1: 1}, Mapping[str, int], False),
        ([("a", 1)], Mapping[str, int], False),
        (object(), Any, True),
    ],
)
def test_values_and_types(value: Any, hint: Any, expected: bool) -> None:
    assert fits(value, hint) is expected


def test_fields_that_do_not_fit_are_named() -> None:
    good = {"name": "h", "cores": 4, "memory": None, "of a later version": object()}
    check_fields(good, Host, "a host")
    with pytest.raises(TypeError, match="cores of a host is str"):
        check_fields(good | {"cores": "4"}, Host, "a host")
    with pytest.raises(ValueError, match="speed of a host is nan"):
        check_fields(good | {"speed": float("nan")}, Host, "a host")


@pytest.mark.parametrize(
    ("text", "levels"), [("[]", 0), ('{"a": 1}', 0), ('{"a": 1, "b": []}', 1), ('[1, [2, {"a": [3]}], []]', 3)]
)
def test_what_lies_within_another_is_a_level_deeper(text: str, levels: int) -> None:
    value = json.loads(text)
    assert [deeper_than(value, most) for most in range(5)] == [levels > most for most in range(5)]


@pytest.mark.parametrize("value", ["a", b"a", 3, -1.5, True, None, (), ("a", (1, None))], ids=repr)
def test_literals_that_can_be_keys_are_read(value: Any) -> None:
    assert literal(repr(value)) == value


@pytest.mark.parametrize("text", ["", "(", "x", "x()", "[1]", "({},)", "1\0", "__import__('os').abort()", "(" * 10_000])
def test_other_text_is_no_literal(text: str) -> None:
    with pytest.raises(ValueError, match="is not a literal that can be a key"):
        literal(text)


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
        (datetime(2026, 3, 1, tzinfo=timezone.utc), "2026-03-01T00:00:00+00:00"),
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
