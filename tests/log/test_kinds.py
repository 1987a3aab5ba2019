"""Kinds of entries of the scheduler's log."""

from __future__ import annotations

import struct

from stand_ins import entries

from roastcoffea.log import kinds


def test_every_kind_of_entry_is_in_the_example_and_is_one_of_its_own() -> None:
    assert {kind for kind, _ in entries()} == set(kinds.ALL)
    assert len(set(kinds.ALL)) == len(kinds.ALL)
    assert [kind.code for kind in kinds.ALL] == [bytes([place]) for place in range(len(kinds.ALL))]


def test_a_text_is_packed_as_its_number() -> None:
    fields = (*kinds.of(kinds.TEXT, "worker"), *kinds.of("d", "time"), *kinds.of("H", "executing"))
    assert fields == (("worker", "text"), ("time", "d"), ("executing", "H"))
    assert kinds.packing(fields) == "<IdH"
    assert struct.calcsize(kinds.packing(fields)) == 4 + 8 + 2
