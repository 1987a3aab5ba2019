"""Profiles of attempts, as they come, summed by Runner call and dataset."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from roastcoffea.log import profiles
from roastcoffea.log.packing import packed_records
from roastcoffea.log.profiles import ReceivedProfiles
from roastcoffea.log.received import ReceivedRecords
from roastcoffea.records.profile import OTHER

PACKED: list[Any] = [
    ["process", "/a.py", "spin"],
    [-1, 0, 1, 7, 0, 2, 1, 3],
    [1, 2, 2000, 1500, 500, 0, 0, 1, 1000, 0, 0, 0],
]


def test_equal_stacks_are_summed() -> None:
    received = ReceivedProfiles()
    for call, dataset in (("c", "tt"), ("c", "tt"), ("c", "dy"), ("other", "tt")):
        received.add(call, dataset, PACKED)
    rows = received.table({"c"}).to_pylist()
    found = {(row["dataset"], tuple(row["functions"])): (row["samples"], row["seconds"]) for row in rows}
    spin, process = ("process", "spin"), ("process",)
    assert found == {
        ("tt", spin): (4, 0.4),
        ("tt", process): (2, 0.2),
        ("dy", spin): (2, 0.2),
        ("dy", process): (1, 0.1),
    }
    assert {row["call"] for row in rows} == {"c"}
    assert [row["lines"] for row in rows if row["functions"] == list(spin)] == [[7, 3]] * 2


@pytest.mark.parametrize(
    "damaged",
    [
        [["process"], [-1, 0, 1, 7], [0, 1, 1, 1, 0, 0]],
        [["process", "a"], [5, 0, 1, 7], [0, 1, 1, 1, 0, 0]],
        [["process", "a"], [-1, 0, 1, 7, 9], [0, 1, 1, 1, 0, 0]],
        [["process", "a"], [-1, 0, 1, 7], [4, 1, 1, 1, 0, 0]],
        [["process", "a"], [-1, 0, 1, 7], [0, 1, -1, 1, 0, 0]],
        [["process", "a"], [-1, 0, 1, 7], [0, 1, 1e300, 1, 0, 0]],
        [["process", "a"], [-1, 0, 1, "x"], [0, 1, 1, 1, 0, 0]],
        ["abc"],
        5,
    ],
)
def test_what_is_damaged_is_left_out_and_said(damaged: Any) -> None:
    received = ReceivedRecords()
    times = {"start": 1e9, "stop": 1e9 + 1, "wall_seconds": 1.0}
    record = {"id": 1, "call": "c", "dataset": "tt", **times}
    received.take(packed_records([record | {"profile": damaged}, record | {"id": 2, "profile": PACKED}]))
    chunks = received.chunks({"c"})
    assert len(chunks) == 2
    assert received.profile(chunks)["seconds"].to_pylist() == [0.2, 0.1]
    (problem,) = received.problems
    assert problem.startswith("the profile of an attempt could not be read")


def test_a_record_that_comes_twice_counts_once() -> None:
    received = ReceivedRecords()
    times = {"start": 1e9, "stop": 1e9 + 1, "wall_seconds": 1.0}
    for _ in range(2):
        received.take(packed_records([{"id": 1, "call": "c", "dataset": "tt", "profile": PACKED, **times}]))
    assert received.profile(received.chunks({"c"}))["samples"].to_pylist() == [2, 1]


def test_different_stacks_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiles, "MOST_STACKS", 5)
    received = ReceivedProfiles()
    for line in range(20):
        received.add("c", "tt", [["process", "/a.py"], [-1, 0, 1, line], [0, 1, 1000, 0, 0, 1000]])
    rows = received.table({"c"}).to_pylist()
    assert len(rows) == 6
    assert rows[-1]["functions"] == [OTHER]
    assert (rows[-1]["samples"], rows[-1]["seconds"]) == (15, pytest.approx(1.5))


def test_memory_does_not_grow_with_names_that_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as those of files that a library makes anew for each chunk."""
    monkeypatch.setattr(profiles, "MOST_STACKS", 5)
    received = ReceivedProfiles()

    def size_after(numbers: range) -> int:
        for number in numbers:
            received.add("c", "tt", [[f"<lambda {number}>", f"/tmp/{number}.py"], [-1, 0, 1, 3], [0, 1, 1, 1, 0, 0]])
        return len(pickle.dumps(received))

    size = size_after(range(10))
    assert size_after(range(10, 1000)) == pytest.approx(size, abs=10)  # a sum that is larger may take more bytes
    (other,) = (row for row in received.table({"c"}).to_pylist() if row["functions"] == [OTHER])
    assert other["samples"] == 995
