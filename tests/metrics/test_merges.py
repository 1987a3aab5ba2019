"""Merges by level, by hand."""

from __future__ import annotations

from handmade import CENTRAL_TASKS as TASKS
from handmade import T, central_run

from roastcoffea.measurement import Measurement
from roastcoffea.metrics import evaluate
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.workers import TASK_COLUMNS


def test_levels_by_hand() -> None:
    found = Measurement(central_run()).merges
    assert found["level"].tolist() == [1, 2]
    assert found["merges"].tolist() == [2, 1]
    assert found["inputs"].tolist() == [6, 2]
    assert found["inputs_max"].tolist() == [3, 2]
    assert found["input_bytes"].tolist() == [600, 300]
    assert found["output_bytes"].tolist() == [300, 200]
    assert found["largest_bytes"].tolist() == [150, 200]
    assert found["thread_seconds"].tolist() == [2.0, 1.0]
    assert found["start"].tolist() == [T + 53, T + 58]
    assert found["stop"].tolist() == [T + 54, T + 59]


def test_a_merge_that_failed_merged_nothing() -> None:
    failed = {"key": "r4", "kind": "merge", "outcome": "error", "assigned": T + 20, "seen": T + 30}
    metrics = evaluate(central_run(tasks=table_of_rows(TASK_COLUMNS, [*TASKS, failed])))
    assert (metrics["num_merges"], metrics["merged_bytes"]) == (3, 900)


def test_merges_of_an_older_schema_have_no_level() -> None:
    rows = [{name: value for name, value in row.items() if name != "merge_level"} for row in TASKS]
    missing = evaluate(central_run(tasks=table_of_rows(TASK_COLUMNS, rows))).missing
    assert missing["merge_levels"] == "the level of 3 of 3 merges was not recorded"
