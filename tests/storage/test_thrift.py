"""Structures of Thrift's compact protocol, written down by hand."""

from __future__ import annotations

from typing import Any

import pytest

from roastcoffea.storage.thrift import DEEPEST, structure

WHOLE, TEXT, LIST, STRUCTURE = 5, 8, 9, 12


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("00", {}),
        ("15 02 00", {1: 1}),
        ("15 01 00", {1: -1}),
        ("15 80 01 15 06 00", {1: 64, 2: 3}),
        ("05 2a 02 00", {21: 1}),  # a number of its own
        ("18 02 61 62 00", {1: b"ab"}),
        ("11 12 00", {1: True, 2: False}),
        ("13 07 00", {1: 7}),
        ("17 00 00 00 00 00 00 f0 3f 00", {1: b"\0\0\0\0\0\0\xf0?"}),
        ("19 25 02 04 00", {1: [1, 2]}),
        ("19 38 01 61 00 01 62 00", {1: [b"a", b"", b"b"]}),
        ("1c 15 02 00 00", {1: {1: 1}}),
        ("19 1c 15 02 00 00", {1: [{1: 1}]}),
    ],
)
def test_structures(content: str, expected: dict[int, Any]) -> None:
    assert structure(bytes.fromhex(content) + b"and more") == (expected, len(bytes.fromhex(content)))


def test_a_long_list_has_its_size_behind() -> None:
    assert structure(bytes([0x19, 0xF5, 20, *[2] * 20, 0])) == ({1: [1] * 20}, 24)


@pytest.mark.parametrize("content", ["", "15", "15 80", "18 7f 61", "19 f5 ff ff ff ff 0f 02", "1c 15 02 00"])
def test_what_is_cut_off_ends(content: str) -> None:
    with pytest.raises(IndexError):
        structure(bytes.fromhex(content))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("15 02 05 02 04 00", "field 1 twice"),
        ("1b 00 00", "value of type 11"),
        ("15" + "80" * 20, "number without end"),
        ("1c" * (DEEPEST + 2), "nested deeper"),
        ("19" + "19" * (DEEPEST + 2), "nested deeper"),
    ],
)
def test_what_is_none(content: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        structure(bytes.fromhex(content))
