"""Branches of attempts as a table, by hand."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from roastcoffea.log.batches import MOST_BETWEEN
from roastcoffea.log.packing import BRANCH_INTEGERS, BRANCH_SECONDS, packed_records
from roastcoffea.log.received import ReceivedRecords

BASKETS = ["basket_first", "basket_last", "basket_bytes"]


def table_of(*records: dict[str, dict[int, int]]) -> pa.Table:
    """Table of attempts, numbered from 7, whose branches read these baskets: sizes by their numbers."""
    home = ReceivedRecords()
    for identity, branches in enumerate(records, 7):
        counts, totals = ([kind(one.values()) for one in branches.values()] for kind in (len, sum))
        every = [pair for one in branches.values() for pair in one.items()]
        columns: dict[str, Any] = {"branch": list(branches), "baskets_listed": counts}
        columns |= {name: counts if name == "baskets" else totals for name in BRANCH_INTEGERS}
        columns |= {name: [None if place else 0.5] * len(branches) for place, name in enumerate(BRANCH_SECONDS)}
        columns |= {"basket": [number for number, _ in every], "basket_bytes": [size for _, size in every]}
        home.take(packed_records([{"id": identity, "call": "ours", "branch_reads": columns}]))
    return home.branch_reads(home.chunks({"ours"}))


def test_each_branch_has_a_row_with_its_attempt() -> None:
    rows = table_of({"Jet_pt": {0: 100, 1: 50}, "run": {4: 9}}, {"Jet_pt": {2: 70}}).to_pylist()
    assert [(row["chunk"], row["branch"], row["baskets"], row["bytes_payload"]) for row in rows] == [
        (7, "Jet_pt", 2, 150),
        (7, "run", 1, 9),
        (8, "Jet_pt", 1, 70),
    ]
    assert [[row[name] for name in BASKETS] for row in rows] == [[0, 1, [100, 50]], [4, 4, [9]], [2, 2, [70]]]
    first, *others = BRANCH_SECONDS
    assert [row[first] for row in rows] == [0.5] * 3
    assert {row[name] for row in rows for name in others} == {None}


def test_baskets_that_were_not_read_have_no_size() -> None:
    far = 5 + MOST_BETWEEN + 2
    rows = table_of({"near": {5: 10, 3: 30}, "far": {5: 10, far: 20}, "none": {}}).to_pylist()
    assert [[row[name] for name in BASKETS] for row in rows] == [
        [3, 5, [30, 0, 10]],
        [5, far, [10, 20]],
        [None, None, []],
    ]
