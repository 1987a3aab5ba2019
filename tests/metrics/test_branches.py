"""Branches of files."""

from __future__ import annotations

import random
from collections import defaultdict

import numpy as np
import pytest
from handmade import BRANCH_READS, A, B, handmade_run

from roastcoffea.measurement import Measurement
from roastcoffea.metrics import branches
from roastcoffea.metrics.branches import (
    CAUSES,
    OTHER_DATASET,
    SAME_ATTEMPT,
    SAME_DATASET,
    SAME_LOOP,
    branches_of,
    split_reads,
)
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.chunks import BRANCH_READ_COLUMNS, CHUNK_COLUMNS


def test_what_is_not_known_of_one_read_is_not_known_of_the_branch():
    reads = [row | ({"read_seconds": None} if row["chunk"] == 14 else {}) for row in BRANCH_READS]
    reads = [row | ({"bytes_uncompressed": None} if row["chunk"] == 16 else {}) for row in reads]
    run = handmade_run(branch_reads=table_of_rows(BRANCH_READ_COLUMNS, reads))
    rows = {(row["file"], row["branch"]): row for row in branches_of(run).to_pylist()}
    assert [rows[A, "run"][f"{step}_seconds"] for step in ("read", "decompress", "interpret")] == [None, 0.25, 0.125]
    assert rows[B, "run"]["read_seconds"] == 0.25
    assert Measurement(run).byte_ledger.by("branch")["uncompressed"].isna().all()
    assert "unknown for 2 of 4 branches" in Measurement(run).metrics.missing["total_bytes_uncompressed"]


FILES = ("a.root", "b.root")
BRANCHES = ("pt", "eta", "run")


def sizes_of(file, branch, number=40):
    made = random.Random(f"{file}{branch}")
    return [made.randrange(1, 1000) for _ in range(number)]


def random_records(seed, whole):
    """Chunks of random ranges of baskets; of some reads the inner sizes are told, of the others not."""
    rng = random.Random(seed)
    chunks, reads = [], []
    for _ in range(60):
        identity = rng.randrange(1, 2**62)
        chunk = {"id": identity, "file": rng.choice(FILES), "tree": "Events", "start": rng.random()}
        chunk |= {"dataset": rng.choice("AB"), "call": rng.choice("12"), "uuid": rng.choice([None, "u"])}
        chunks.append(chunk)
        for branch in rng.sample(BRANCHES, rng.randrange(len(BRANCHES) + 1)):
            sizes = sizes_of(chunk["file"], branch)
            first = rng.randrange(len(sizes))
            last = min(first + rng.randrange(9), len(sizes) - 1)
            mine = sizes[first : last + 1]
            reads.append(
                {
                    "chunk": identity,
                    "branch": branch,
                    "bytes_payload": sum(mine),
                    "bytes_again": rng.choice([0, 0, 7]),
                    "baskets": len(mine),
                    "basket_first": first,
                    "basket_last": last,
                    "basket_bytes": mine if rng.random() < whole or len(mine) <= 2 else [mine[0], mine[-1]],
                }
            )
    rng.shuffle(reads)
    return table_of_rows(CHUNK_COLUMNS, chunks), table_of_rows(BRANCH_READ_COLUMNS, reads)


def naive(chunks, reads, counted):
    """Bytes by cause ("first" for first reads) of each read, basket by basket in order of time."""
    by_id = {chunk["id"]: chunk for chunk, counts in zip(chunks.to_pylist(), counted, strict=True) if counts}
    rows = [read for read in reads.to_pylist() if read["chunk"] in by_id]
    seen = defaultdict(set)
    results = []
    for number, read in sorted(enumerate(rows), key=lambda row: by_id[row[1]["chunk"]]["start"]):
        chunk = by_id[read["chunk"]]
        result = defaultdict(int, {SAME_ATTEMPT: read["bytes_again"]})
        sizes = sizes_of(chunk["file"], read["branch"])
        for basket in range(read["basket_first"], read["basket_last"] + 1):
            before = seen[chunk["file"], chunk["uuid"], chunk["tree"], read["branch"], basket]
            loops = {(dataset, call) for dataset, call in before}
            if not before:
                cause = "first"
            elif (chunk["dataset"], chunk["call"]) in loops:
                cause = SAME_LOOP
            else:
                cause = SAME_DATASET if chunk["dataset"] in {dataset for dataset, _ in loops} else OTHER_DATASET
            result[cause] += sizes[basket]
            result["baskets"] += cause == "first"
            before.add((chunk["dataset"], chunk["call"]))
        results.append((number, result))
    return [result for _, result in sorted(results, key=lambda row: row[0])]


def check(found, expected):
    assert found.payload.tolist() == [result["first"] for result in expected]
    for cause in CAUSES:
        assert found.reread[cause].tolist() == [result[cause] for result in expected], cause
    assert found.baskets.tolist() == [result["baskets"] for result in expected]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("at_once", [1, 50, 10**6])
def test_as_a_loop_over_sets(seed, at_once, monkeypatch):
    monkeypatch.setattr(branches, "BASKETS_AT_ONCE", at_once)
    chunks, reads = random_records(seed, whole=1.0)
    counted = np.random.default_rng(seed).random(len(chunks)) < 0.9
    found = split_reads(chunks, counted, reads)
    check(found, naive(chunks, reads, counted))
    assert not found.estimated.any()


@pytest.mark.parametrize("seed", range(6))
def test_where_sizes_are_not_told_the_sum_holds_and_what_is_estimated_is_said(seed):
    chunks, reads = random_records(seed, whole=0.5)
    counted = np.ones(len(chunks), dtype=bool)
    found = split_reads(chunks, counted, reads)
    expected = naive(chunks, reads, counted)
    given = reads["bytes_payload"].to_numpy() + reads["bytes_again"].to_numpy()
    assert (found.payload + found.all_reread).tolist() == given.tolist()
    assert found.payload.min() >= 0
    assert found.all_reread.min() >= 0
    wrong = found.payload != np.array([result["first"] for result in expected])
    assert not (wrong & ~found.estimated).any()
    assert found.baskets.tolist() == [result["baskets"] for result in expected]


def one_file(*reads):
    """Split of reads (first, last, bytes told, payload) of one branch, by chunks one after the other."""
    chunks = [{"id": number, "file": "a", "start": float(number), "dataset": "A"} for number in range(len(reads))]
    rows = [
        {"chunk": number, "branch": "pt", "basket_first": first, "basket_last": last}
        | {"basket_bytes": told, "bytes_payload": payload, "baskets": last - first + 1, "bytes_again": 0}
        for number, (first, last, told, payload) in enumerate(reads)
    ]
    counted = np.ones(len(reads), dtype=bool)
    return split_reads(table_of_rows(CHUNK_COLUMNS, chunks), counted, table_of_rows(BRANCH_READ_COLUMNS, rows))


def test_untold_sizes_that_are_not_needed():
    found = one_file((0, 9, [5, 7], 100), (9, 19, [7, 8], 100), (0, 9, [5, 7], 100))
    assert found.payload.tolist() == [100, 93, 0]
    assert found.estimated.tolist() == [False, False, False]


def test_untold_sizes_come_from_their_mean():
    # The second knows 5 and 14 by itself and 9 from the first: 65 B are left for 6 to 8 and 10 to 13.
    found = one_file((0, 9, [5, 15], 100), (5, 14, [11, 9], 100))
    assert found.payload.tolist() == [100, 100 - 11 - 28 - 15]
    assert found.estimated.tolist() == [False, True]
    assert found.baskets.tolist() == [10, 5]


def test_the_largest_part_of_a_cluster_holds_the_others():
    found = one_file((0, 1, [50, 10], 60), (1, 2, [40, 20], 60), (1, 1, [10], 10))
    assert found.payload.tolist() == [60, 50, 0]
    assert found.all_reread.tolist() == [0, 10, 10]


def test_embedded_baskets_have_no_bytes():
    found = one_file((0, 1, [0, 0], 0), (0, 1, [0, 0], 0))
    assert found.payload.tolist() == found.all_reread.tolist() == [0, 0]
    assert found.baskets.tolist() == [2, 0]


def test_nothing():
    nothing = table_of_rows(CHUNK_COLUMNS, []), np.ones(0, dtype=bool), table_of_rows(BRANCH_READ_COLUMNS, [])
    assert len(split_reads(*nothing).payload) == 0
    orphan = table_of_rows(BRANCH_READ_COLUMNS, [{"chunk": 1, "branch": "pt"}])
    assert len(split_reads(nothing[0], nothing[1], orphan).payload) == 0
