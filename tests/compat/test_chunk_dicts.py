"""Chunks as dictionaries of 0.1.2, there and back."""

from __future__ import annotations

import json

from handmade import CHUNKS, A, T, handmade_run, run_without_tables

from roastcoffea.compat.chunk_dicts import CHUNK_KEYS, chunks_of
from roastcoffea.metrics import evaluate
from roastcoffea.metrics.facts import counted_chunks
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.chunks import CHUNK_COLUMNS


def test_chunk_dictionaries() -> None:
    first, second, third = evaluate(handmade_run())["raw_chunk_metrics"]
    by_task = {entry["task"]: entry for entry in (first, second, third)}
    assert by_task["k1"] == {
        "t_start": T + 1,
        "t_end": T,
        "duration": 4.0,
        "num_events": 100,
        "bytes_read": 1000,
        "task": "k1",
        "peak_memory_bytes": 130 * 2**20,
        "dataset": "data",
        "file": A,
        "uuid": "ab",
        "entry_start": 0,
        "entry_stop": 100,
        "worker": "A",
        "attempt": 2,
        "cpu_seconds": 2.5,
        "outcome": "ok",
        "mem_before_mb": 100.0,
        "mem_after_mb": 104.0,
        "mem_delta_mb": 4.0,
        "accessed_branches": ["Jet_pt", "run"],
        "num_branches_accessed": 2,
        "timing": {"jets": 1.0, "jets/read": 0.5},
        "memory": {},
        "bytes": {"jets/read": 600},
        "open_seconds": 0.125,
        "build_seconds": 0.5,
        "process_seconds": 3.0,
        "read_seconds": 0.5,
        "decompress_seconds": 0.25,
        "interpret_seconds": 0.25,
        "compute_seconds": 1.5,
        "wait_seconds": 0.5,
        "checkpoint_seconds": 0.25,
        "result_seconds": 0.125,
    }
    assert by_task["k2"]["timing"] == {}
    assert by_task[None]["memory"] == {"jets": 3.0}
    assert sum(entry["num_events"] for entry in by_task.values()) == 450
    assert "raw_chunk_metrics" in evaluate(run_without_tables()).missing
    json.dumps(first)


def test_chunk_dictionaries_without_our_meter_have_what_coffea_counted() -> None:
    rows = [row | {"bytes_requested": None, "coffea_bytes_read": 77} for row in CHUNKS]
    run = handmade_run(chunks=table_of_rows(CHUNK_COLUMNS, rows), branch_reads=None, sections=None)
    by_task = {entry["task"]: entry for entry in evaluate(run)["raw_chunk_metrics"]}
    assert by_task["k1"]["accessed_branches"] == ["Jet_pt", "run"]
    assert by_task["k1"]["num_branches_accessed"] == 2
    assert by_task["k1"]["bytes_read"] == 77
    assert by_task["k1"]["timing"] == {}
    assert "accessed_branches" not in by_task["k2"]


def test_records_made_of_dictionaries_are_those_that_these_were_made_of() -> None:
    run = handmade_run()
    counted, again = counted_chunks(run.chunks), chunks_of(evaluate(run)["raw_chunk_metrics"])
    for column in {*CHUNK_KEYS.values(), "memory_before", "memory_after"}:
        assert again[column].to_pylist() == counted[column].to_pylist(), column


def test_a_dictionary_of_little_is_a_chunk_of_little() -> None:
    first, second = chunks_of([{"duration": 2.0}, {"error": "gone", "bytes_read": 7}]).to_pylist()
    assert (first["outcome"], first["wall_seconds"], first["events"]) == ("ok", 2.0, None)
    assert (second["outcome"], second["bytes_requested"], second["id"]) == ("error", 7, 1)
