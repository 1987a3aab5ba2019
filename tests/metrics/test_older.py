"""Metrics of 0.1.2 in its shapes, by hand."""

from __future__ import annotations

import pytest
from handmade import CHUNKS, A, handmade_run, run_without_tables

from roastcoffea.metrics import evaluate
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.chunks import CHUNK_COLUMNS

B = "/data/b.root"


def test_files() -> None:
    metrics = evaluate(handmade_run())
    files = metrics["file_metadata"]
    # of both chunks of A that counted: 800 + 2000 B of 2000 + 5200 B
    assert files[A] == {"filename": A, "total_branches": 4, "compression_ratio": pytest.approx(2800 / 7200)}
    assert metrics["compression_ratios"] == [files[B]["compression_ratio"], files[A]["compression_ratio"]]
    shares = {name: file["bytes_read_percent"] for name, file in metrics["file_read_metrics"].items()}
    assert metrics["bytes_read_percent_per_file"] == list(shares.values())


def test_a_file_of_unknown_size_has_no_ratio() -> None:
    rows = [row | {"bytes_uncompressed": None, "tree_branches": None} for row in CHUNKS]
    metrics = evaluate(handmade_run(chunks=table_of_rows(CHUNK_COLUMNS, rows)))
    assert metrics["file_metadata"][A] == {"filename": A, "total_branches": None, "compression_ratio": None}
    assert {**metrics}["compression_ratios"] == []


def test_without_records_they_are_missing_with_the_reason() -> None:
    missing = evaluate(run_without_tables()).missing
    for name in ("chunk_info", "file_metadata", "compression_ratios", "bytes_read_percent_per_file"):
        assert missing[name]


def test_dictionaries_that_another_program_reported_need_not_have_ranges() -> None:
    reported = {"raw_chunk_metrics": [{"file": A, "entry_start": 0, "entry_stop": 7, "bytes_read": 5}, {"a": 1}]}
    metrics = evaluate(handmade_run(reported=reported, reported_by="it"))
    assert metrics["chunk_info"] == {(A, 0, 7): (None, None, 5)}
