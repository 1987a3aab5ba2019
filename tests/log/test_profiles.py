"""Profiles of attempts, as they come, summed by Runner call and dataset."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from roastcoffea.log import received as module
from roastcoffea.log.packing import packed_records
from roastcoffea.log.received import ReceivedProfiles, ReceivedRecords
from roastcoffea.records.chunks import OTHER

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
    found = dict[tuple[str, tuple[str, ...]], tuple[int, float]]()
    for row in rows:
        key = row["dataset"], tuple(row["functions"])
        samples, seconds = found.get(key, (0, 0.0))
        found[key] = samples + row["samples"], seconds + row["seconds"]
    spin, process = ("process", "spin"), ("process",)
    assert found == {
        ("tt", spin): (4, 0.4),
        ("tt", process): (2, 0.2),
        ("dy", spin): (2, 0.2),
        ("dy", process): (1, 0.1),
    }
    assert {row["call"] for row in rows} == {"c"}
    assert [row["lines"] for row in rows if row["functions"] == list(spin)] == [[7, 3]] * 3


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
    assert problem.startswith("an attempt's profile could not be read")


def test_a_record_that_comes_twice_counts_once() -> None:
    received = ReceivedRecords()
    times = {"start": 1e9, "stop": 1e9 + 1, "wall_seconds": 1.0}
    for _ in range(2):
        received.take(packed_records([{"id": 1, "call": "c", "dataset": "tt", "profile": PACKED, **times}]))
    assert received.profile(received.chunks({"c"}))["samples"].to_pylist() == [2, 1]


def test_different_stacks_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_STACKS", 5)
    received = ReceivedProfiles()
    for line in range(20):
        received.add("c", "tt", [["process", "/a.py"], [-1, 0, 1, line], [0, 1, 1000, 0, 0, 1000]])
    rows = received.table({"c"}).to_pylist()
    assert len(rows) == 6
    (other,) = (row for row in rows if row["functions"] == [OTHER])
    assert (other["samples"], other["seconds"]) == (15, pytest.approx(1.5))


def test_the_longest_attempt_of_a_dataset_has_rows_of_its_own() -> None:
    received = ReceivedProfiles()
    long = [PACKED[0], PACKED[1], [1, 30, 30_000, 30_000, 0, 0, 0, 1, 1000, 0, 0, 0]]
    for chunk, packed in enumerate([PACKED, long, PACKED]):
        received.add("c", "tt", packed, chunk)
    received.add("c", "dy", PACKED, 7)
    rows = received.table({"c"}).to_pylist()
    found = {(row["chunk"], row["dataset"], len(row["functions"])): row["seconds"] for row in rows}
    assert found == {
        (None, "tt", 2): pytest.approx(0.4),
        (None, "tt", 1): pytest.approx(0.2),
        (1, "tt", 2): 3.0,
        (1, "tt", 1): 0.1,
        (7, "dy", 2): 0.2,
        (7, "dy", 1): 0.1,
    }


def test_memory_does_not_grow_with_names_that_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as those of files that a library makes anew for each chunk."""
    monkeypatch.setattr(module, "MOST_STACKS", 5)
    received = ReceivedProfiles()

    def size_after(numbers: range) -> int:
        for number in numbers:
            received.add("c", "tt", [[f"<lambda {number}>", f"/tmp/{number}.py"], [-1, 0, 1, 3], [0, 1, 1, 1, 0, 0]])
        return len(pickle.dumps(received))

    size = size_after(range(10))
    assert size_after(range(10, 1000)) == pytest.approx(size, abs=10)  # a sum that is larger may take more bytes
    (other,) = (row for row in received.table({"c"}).to_pylist() if row["functions"] == [OTHER])
    assert other["samples"] == 995
