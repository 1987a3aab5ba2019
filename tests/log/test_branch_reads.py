"""Branches of attempts as a table, by hand."""

from __future__ import annotations

import numpy as np

from roastcoffea.log.batches import MOST_BETWEEN, table_of_branches
from roastcoffea.log.packing import BRANCH_INTEGERS, BRANCH_SECONDS, PackedBranches
from roastcoffea.records.chunks import BRANCH_READ_COLUMNS

BASKETS = ["basket_first", "basket_last", "basket_bytes"]


def packed(**baskets: dict[int, int]) -> PackedBranches:
    """Branches that read these baskets: sizes by their numbers."""
    counts, every = [len(one) for one in baskets.values()], [pair for one in baskets.values() for pair in one.items()]
    totals = [sum(one.values()) for one in baskets.values()]
    integers = [np.array(counts if name == "baskets" else totals, np.uint64) for name in BRANCH_INTEGERS]
    seconds = [np.full(len(baskets), np.nan if place else 0.5, np.float32) for place, _ in enumerate(BRANCH_SECONDS)]
    numbers, sizes = (np.array([pair[place] for pair in every], np.uint64) for place in (0, 1))
    return PackedBranches(list(baskets), integers, seconds, np.array(counts, np.uint64), numbers, sizes)


def test_no_record_is_an_empty_table() -> None:
    table = table_of_branches([])
    assert table.column_names == [column.name for column in BRANCH_READ_COLUMNS]
    assert len(table) == 0


def test_each_branch_has_a_row_with_its_attempt() -> None:
    records = [(7, packed(Jet_pt={0: 100, 1: 50}, run={4: 9})), (8, packed(Jet_pt={2: 70}))]
    rows = table_of_branches(records).to_pylist()
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
    rows = table_of_branches([(1, packed(near={5: 10, 3: 30}, far={5: 10, far: 20}, none={}))]).to_pylist()
    assert [[row[name] for name in BASKETS] for row in rows] == [
        [3, 5, [30, 0, 10]],
        [5, far, [10, 20]],
        [None, None, []],
    ]
