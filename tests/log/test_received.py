"""Records of chunks as they come: which are the same, and values that cannot be."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest
from stand_ins import CALL, T

from roastcoffea.log import received
from roastcoffea.log.batches import MOST_BYTES, MOST_CORES
from roastcoffea.log.packing import packed_records
from roastcoffea.log.received import Growing, ReceivedRecords
from roastcoffea.records import arrow
from roastcoffea.records.arrow import row_codes, table_of_rows
from roastcoffea.records.chunks import CHUNK_COLUMNS
from roastcoffea.records.run import ASKED_COLUMNS


def chunk(identity: int, **values: Any) -> dict[str, Any]:
    times = {"start": T, "stop": T + 2, "wall_seconds": 2.0, "cpu_seconds": 1.0}
    return {"id": identity, "call": CALL, "file": "a.root"} | times | values


@pytest.mark.parametrize(
    "values",
    [
        {"cpu_seconds": 1e9},
        {"cpu_seconds": -1.0},
        {"process_seconds": 50.0},
        {"helper_cpu_seconds": 1e9},
        {"process_cpu_seconds": float("inf")},
        {"memory_peak": -5},
        {"bytes_requested": 1 << 62},
        {"cpu_seconds": 2.31},
        {"read_seconds": -0.2},
        {"helper_cpu_seconds": MOST_CORES * 2.31},
    ],
)
def test_a_value_that_cannot_be_is_set_aside(values: dict[str, Any]) -> None:
    received = ReceivedRecords()
    received.take(packed_records([chunk(1, **values), chunk(2)]))
    rows = received.chunks({CALL}).to_pylist()
    (name,) = values
    assert [row[name] for row in rows] == [None, chunk(2).get(name)]
    (problem,) = received.problems
    assert problem.startswith("1 impossible value in records was discarded")
    assert f"{name} of " in problem


@pytest.mark.parametrize(
    "values",
    [
        {"cpu_seconds": 2.29, "read_seconds": -0.1},
        {"helper_cpu_seconds": MOST_CORES * 2.29, "memory_peak": MOST_BYTES},
        {"wall_seconds": None, "cpu_seconds": 1e12},
        {"start": 0.0, "stop": 0.0, "wall_seconds": 0.0, "cpu_seconds": 0.1},
    ],
)
def test_a_value_that_can_be_stays(values: dict[str, Any]) -> None:
    received = ReceivedRecords()
    received.take(packed_records([chunk(1, **values)]))
    (row,) = received.chunks({CALL}).to_pylist()
    assert {name: row[name] for name in values} == values
    assert received.problems == []


@pytest.mark.parametrize(
    "values", [{"stop": T - 1}, {"start": -1.0}, {"stop": 1e12}, {"wall_seconds": -1.0}, {"wall_seconds": float("inf")}]
)
def test_a_record_whose_times_cannot_be_is_set_aside(values: dict[str, Any]) -> None:
    received = ReceivedRecords()
    received.take(packed_records([chunk(1, **values), chunk(2)]))
    assert received.chunks({CALL})["id"].to_pylist() == [2]
    assert received.tally.chunks == 0
    (problem,) = received.problems
    assert problem.startswith("1 record with impossible times was discarded")


@pytest.mark.parametrize("largest", [2**62, 10])
def test_rows_have_equal_codes_where_they_are_equal(monkeypatch: pytest.MonkeyPatch, largest: int) -> None:
    monkeypatch.setattr(arrow, "LARGEST_CODE", largest)
    draw = random.Random(1)
    rows: list[dict[str, Any]] = [
        {name: draw.choice((None, "1", "2")) for name in ("call", "file", "tree")} for _ in range(100)
    ]
    codes = row_codes(table_of_rows(ASKED_COLUMNS, rows))
    by_code = dict(zip(codes.tolist(), rows, strict=True))
    assert all(by_code[code] == row for code, row in zip(codes.tolist(), rows, strict=True))
    assert len(by_code) == len({tuple(row.values()) for row in rows}) > 10
    assert len(row_codes(table_of_rows(ASKED_COLUMNS, []))) == 0


def test_a_record_that_comes_by_two_ways_counts_once() -> None:
    came = ReceivedRecords()
    for values in ({}, {"outcome": "error"}, {"outcome": "ok", "events": 5, "bytes_requested": 70}):
        blob = packed_records([chunk(len(values), **values)])
        came.take(blob)
        came.take(blob)
    assert came.chunks({CALL})["id"].to_pylist() == [0, 1, 3]
    assert (came.tally.chunks, came.tally.events, came.tally.failed, came.tally.bytes) == (1, 5, 2, 70)


def test_a_record_without_an_identity_is_told_unless_it_has_only_problems() -> None:
    received = ReceivedRecords()
    nameless = chunk(1)
    del nameless["id"]
    received.take(packed_records([{"problems": ["the meter failed"]}, nameless, chunk(2)]))
    assert len(received.chunks({CALL})) == 1
    assert received.problems == ["the meter failed", "a chunk record has no ID and is left out"]


def test_an_item_that_does_not_fit_takes_no_other_with_it() -> None:
    table = Growing("records of tests", lambda items: pa.table({"x": pa.array(items, pa.int8())}), batch=4)
    for item in (1, 2, 1000, 3, 4, 5, -1000, 6, 7):
        table.add(item)
    assert table.table()["x"].to_pylist() == [1, 2, 3, 4, 5, 6, 7]
    (problem,) = table.problems()
    assert problem.startswith("2 records of tests could not be read and are left out; the first: ArrowInvalid: ")
    assert "1000" in problem


def test_attempts_of_one_key_are_numbered_and_those_without_are_first() -> None:
    keys = pa.array(["a", None, "b", "a", None, "a"])
    assert received.attempt_numbers(keys).tolist() == [1, 1, 1, 2, 1, 3]
    assert received.attempt_numbers(pa.array([], pa.string())).tolist() == []


def test_attempts_without_a_task_are_numbered_by_their_chunk() -> None:
    rows = [
        {"key": key, "call": "call", "file": file, "entry_start": start}
        for key, file, start in (("k", "a", 0), (None, "a", 0), (None, "a", 9), (None, "a", 0), ("k", "a", 0))
    ]
    table = received.numbered_attempts(table_of_rows(CHUNK_COLUMNS, rows))
    assert table["attempt"].to_pylist() == [1, 1, 1, 2, 2]
