"""Files that may be damaged, or be no files at all, and values that may be of any type."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from roastcoffea.errors import MeasurementError, MissingMeasurementError, UnreadableMeasurementError
from roastcoffea.records.run import Host
from roastcoffea.storage import reading as readings
from roastcoffea.storage.reading import (
    check_fields,
    content_of,
    deeper_than,
    fits,
    has_format,
    literal,
    opened,
    reading,
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
    with pytest.raises(ValueError, match="it has 10 bytes; the maximum is 9"):
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
