"""Records that become columns together are the same as those that are unpacked one by one."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest
from log_entries import CALL, T

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


def everything(home: ReceivedRecords) -> dict[str, Any]:
    """All that a client has of records, in an order of its own."""
    chunks = home.chunks({CALL})
    tables = {"chunks": chunks, "branches": home.branch_reads(chunks), "sections": home.sections(chunks)}
    # of equally long chunks the first to come has stacks of its own
    tables |= {"profile": home.profile(chunks).drop_columns("chunk"), "preprocessing": home.preprocessing()}
    return {name: sorted(map(repr, table.to_pylist())) for name, table in tables.items()}


@pytest.mark.parametrize("batch", [1, 7, 4096])
def test_records_that_become_columns_together_are_those_unpacked_one_by_one(
    monkeypatch: pytest.MonkeyPatch, batch: int
) -> None:
    monkeypatch.setattr(received, "BATCH", batch)
    draw = random.Random(batch)
    records = [attempt(draw, identity) for identity in range(300)]
    together, one_by_one = ReceivedRecords(), ReceivedRecords()
    for record in records:
        packed = packed_records([record])
        together.take(packed)
        together.take(packed)
    one_by_one.take(packed_records(records))
    assert everything(together) == everything(one_by_one)
    tallies = [dataclasses.asdict(home.tally) for home in (together, one_by_one)]
    seconds = [tally.pop("seconds") for tally in tallies]
    assert tallies[0] == pytest.approx(tallies[1])
    assert seconds[0] == pytest.approx(seconds[1])
    assert sorted(problem for problem in together.problems if "odd" in problem) == sorted(
        problem for problem in one_by_one.problems if "odd" in problem
    )
    counts = [
        sorted(p.split("; the first")[0] for p in home.problems if "discarded" in p) for home in (together, one_by_one)
    ]
    assert counts[0] == counts[1]
    assert len(counts[0]) == 2


def test_a_text_that_no_column_can_have_takes_no_other_record_with_it() -> None:
    home = ReceivedRecords()
    for identity, file in enumerate(("a.root", "\ud800", "b.root")):
        home.take(packed_records([{"id": identity, "call": CALL, "file": file, "outcome": "ok"}]))
    assert home.tally.chunks == 3
    assert home.chunks({CALL})["file"].to_pylist() == ["a.root", "b.root"]
    (problem,) = home.problems
    assert "1 records of chunks could not be read and are left out" in problem


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
