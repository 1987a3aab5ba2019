"""Records that become columns together have the values that they had."""

from __future__ import annotations

import random
from typing import Any
from unittest.mock import ANY

import pytest
from stand_ins import CALL, T

from roastcoffea.log import received
from roastcoffea.log.packing import (
    BASKET,
    BASKET_BYTES,
    BASKETS_LISTED,
    BRANCH_INTEGERS,
    BRANCH_SECONDS,
    COLUMNS_READ,
    INTEGERS,
    NUMBERS,
    PROBLEMS,
    PROFILE,
    SECTIONS,
    TEXTS,
    packed_records,
)
from roastcoffea.log.received import ReceivedRecords
from roastcoffea.records.chunks import CHUNK_COLUMNS

STACKS = [["process", "jets.py"], [-1, 0, 1, 7], [0, 3, 4000, 3000, 0, 1000]]
LARGEST = 2**40


def attempt(draw: random.Random, identity: int) -> dict[str, Any]:
    """A record as a worker may send it; some have values that cannot be."""
    wall = draw.choice((0.5, 2.0))
    record: dict[str, Any] = {name: draw.choice((None, "a", "ünï", "")) for name in TEXTS if draw.random() < 0.8}
    record |= {name: wall * draw.random() for name in NUMBERS if draw.random() < 0.8}
    record |= {name: draw.choice((None, draw.randrange(LARGEST))) for name in INTEGERS}
    start = T + draw.random()
    record |= {"id": identity, "call": CALL, "start": start, "stop": start + wall, "wall_seconds": wall}
    record |= {"outcome": draw.choice(("ok", "error", "checkpoint", None)), "custom": None}
    for name, odd in (("cpu_seconds", 99.0), ("stop", T - 5), ("memory_peak", -3), ("wall_seconds", None)):
        if draw.random() < 0.03:
            record[name] = odd
    if draw.random() < 0.5:
        names = draw.choice((["Jet_pt", "Jet_eta"], ["ünï"]))
        record["branch_reads"] = branches = {"branch": names}
        branches |= {name: [draw.choice((3, LARGEST))] * len(names) for name in (*BRANCH_INTEGERS, BASKET_BYTES)}
        branches |= {name: [draw.random()] * len(names) for name in BRANCH_SECONDS}
        branches |= {BASKETS_LISTED: [1] * len(names), BASKET: [5] * len(names)}
        record[COLUMNS_READ] = draw.choice((None, {f"{name}-data" for name in names}, {"Jet_pt-data", "nJet"}))
    elif draw.random() < 0.2:
        record[COLUMNS_READ] = {"nJet"}
    more = {PROFILE: STACKS, SECTIONS: [{"name": "jets", "count": 2}], PROBLEMS: [f"odd {identity}"]}
    more |= {"imports": ["awkward"], "dataset": "two\nlines", "preprocessing": True}
    return record | {name: value for name, value in more.items() if draw.random() < 0.1}


def is_possible(record: dict[str, Any]) -> bool:
    return record["stop"] >= record["start"]


def expected(record: dict[str, Any]) -> dict[str, Any]:
    """The row of a chunk, where an unknown wall time bounds nothing."""
    row = {column.name: record.get(column.name) for column in CHUNK_COLUMNS} | {"attempt": ANY}
    if row[COLUMNS_READ] is not None:
        row[COLUMNS_READ] = sorted(row[COLUMNS_READ])
    if row["cpu_seconds"] == 99.0 and row["wall_seconds"] is not None:
        row["cpu_seconds"] = None
    return row | {"memory_peak": None if row["memory_peak"] == -3 else row["memory_peak"]}


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 7, 4096])
def test_records_become_the_columns_that_they_were(monkeypatch: pytest.MonkeyPatch, batch: int) -> None:
    monkeypatch.setattr(received, "BATCH", batch)
    draw = random.Random(batch)
    records = [attempt(draw, identity) for identity in range(300)]
    home = ReceivedRecords()
    for record in records[:200]:
        home.take(packed_records([record]))
    home.take(packed_records(records[100:]))
    possible = [record for record in records if is_possible(record)]
    chunks = [record for record in possible if not record.get("preprocessing")]
    table = home.chunks({CALL})
    by_identity = {row["id"]: row for row in table.to_pylist()}
    assert by_identity == {record["id"]: expected(record) for record in chunks}
    reads = [
        (record["id"], name)
        for record in chunks
        if "branch_reads" in record
        for name in record["branch_reads"]["branch"]
    ]
    found = home.branch_reads(table)
    assert sorted(zip(found["chunk"].to_pylist(), found["branch"].to_pylist(), strict=True)) == sorted(reads)
    sections = [record["id"] for record in chunks if SECTIONS in record]
    assert sorted(home.sections(table)["chunk"].to_pylist()) == sections
    profiled = sum(PROFILE in record for record in chunks)
    assert sum(home.profile(table)["samples"].to_pylist()) == 3 * profiled
    openings = [record["id"] for record in possible if record.get("preprocessing")]
    assert sorted(home.preprocessing()["id"].to_pylist()) == openings
    assert {problem for problem in home.problems if problem.startswith("odd")} == {
        problem for record in records for problem in record.get(PROBLEMS, ())
    }
    discarded = [problem for problem in home.problems if "discarded" in problem]
    assert any(problem.startswith(f"{len(records) - len(possible)} record") for problem in discarded)
    useful = [record for record in chunks if record["outcome"] in ("ok", "checkpoint")]
    assert (home.tally.chunks, home.tally.events) == (len(useful), sum(record["events"] or 0 for record in useful))


def test_a_text_that_no_column_can_have_takes_no_other_record_with_it() -> None:
    home = ReceivedRecords()
    for identity, file in enumerate(("a.root", "\ud800", "b.root")):
        home.take(packed_records([{"id": identity, "call": CALL, "file": file, "outcome": "ok"}]))
    assert home.tally.chunks == 2
    assert home.chunks({CALL})["file"].to_pylist() == ["a.root", "b.root"]
    (problem,) = home.problems
    assert "1 chunk records could not be read and are left out" in problem


def test_what_waits_is_counted_when_it_is_asked_for() -> None:
    home = ReceivedRecords()
    for identity in range(3):
        home.take(packed_records([{"id": identity, "call": CALL, "outcome": "ok", "events": 5, "wall_seconds": 2.0}]))
        assert (home.tally.chunks, home.tally.events, home.tally.wall_squares) == (
            identity + 1,
            5 * (identity + 1),
            4.0 * (identity + 1),
        )
    assert home.calls() == {CALL}
