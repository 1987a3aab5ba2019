"""Shapes of 0.1.2, there and back."""

from __future__ import annotations

import json
from datetime import datetime

import pytest
from handmade import CHUNKS, WORKER_SERIES, A, T, handmade_run, run_without_tables

from roastcoffea.compat.shapes import (
    CHUNK_KEYS,
    argument_of,
    chunks_of,
    chunks_of_info,
    counts_of,
    samples_of,
    sections_of,
    with_older,
)
from roastcoffea.metrics import evaluate
from roastcoffea.metrics.facts import counted_chunks
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.chunks import CHUNK_COLUMNS
from roastcoffea.records.workers import SAMPLE_COLUMNS, SAMPLING_COLUMNS, WORKER_STATE_COLUMNS


def local(after: float) -> datetime:
    return datetime.fromtimestamp(T + after)


def test_tracking_data() -> None:
    tracking = evaluate(handmade_run())["tracking_data"]
    assert tracking["worker_counts"] == {
        local(0): 1,
        local(10): 1,
        local(20): 2,
        local(30): 2,
        local(40): 2,
        local(60): 2,
        local(80): 1,
        local(100): 1,
    }
    assert tracking["worker_memory"] == {
        "A": [(local(0), 100), (local(10), 300), (local(40), 300)],
        "B": [(local(30), 500)],
    }
    assert tracking["worker_cores"]["B"] == [(local(30), 4)]
    assert tracking["worker_active_tasks"] == {"A": [(local(0), 0), (local(10), 2), (local(40), 2)], "B": []}
    assert tracking["worker_cpu"]["A"] == [(local(10), 98.0), (local(40), 50.0)]
    assert set(tracking) == {"worker_counts", *WORKER_SERIES}


def test_series_of_the_scheduler_have_its_pace() -> None:
    states = [
        {"worker": "A", "time": T + 1, "processing": 3, "nbytes": 7, "occupancy": 0.5},
        {"worker": "B", "time": T + 1, "processing": 0, "nbytes": 0, "occupancy": 0.0},
        {"worker": "A", "time": T + 2, "processing": 1, "nbytes": 7, "occupancy": 0.25},
    ]
    samples = [{"time": T + 1, "workers": 2}, {"time": T + 2, "workers": 1}]
    run = handmade_run(
        sampling=table_of_rows(SAMPLING_COLUMNS, samples), worker_states=table_of_rows(WORKER_STATE_COLUMNS, states)
    )
    before, tracking = evaluate(handmade_run())["tracking_data"], evaluate(run)["tracking_data"]
    assert tracking["worker_counts"] == {local(1): 2, local(2): 1}
    assert tracking["worker_active_tasks"] == {"A": [(local(1), 3), (local(2), 1)], "B": [(local(1), 0)]}
    assert tracking["worker_nbytes"]["A"] == [(local(1), 7), (local(2), 7)]
    assert tracking["worker_occupancy"]["A"] == [(local(1), 0.5), (local(2), 0.25)]
    paces = {name: series.pace for name, series in tracking.items()}
    at_interval = {name for name, pace in paces.items() if "by the scheduler" in pace}
    assert at_interval == {
        "worker_counts",
        "worker_active_tasks",
        "worker_nbytes",
        "worker_occupancy",
    }
    for name in tracking.keys() - at_interval:
        assert tracking[name] == before[name]
        assert "heartbeats" in paces[name]
    assert before["worker_counts"].pace == "whenever a worker arrives, departs or is sampled"


def test_samples_without_a_time_are_no_points() -> None:
    run = handmade_run(samples=table_of_rows(SAMPLE_COLUMNS, [{"worker": "A", "memory": 1}]))
    assert evaluate(run)["tracking_data"]["worker_memory"] == {}


def test_samples_made_of_series_are_those_that_these_were_made_of() -> None:
    run = handmade_run()
    tracking = evaluate(run)["tracking_data"]
    again = {(row["worker"], row["time"]): row["memory"] for row in samples_of(tracking).to_pylist()}
    rows = run.samples.to_pylist()
    assert again == {(row["worker"], row["time"]): row["memory"] for row in rows if row["memory"] is not None}
    times, counts = counts_of(tracking)
    assert (times[0], counts.max()) == (T, 2)


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
        "contention_seconds": 0.25,
        "write_cpu_seconds": 0.0,
        "write_wait_seconds": 0.0,
        "measuring_seconds": 0.5,
        "lock_seconds": 0.125,
        "blocked_seconds": 0.125,
        "wait_seconds": None,
        "gc_seconds": None,
        "connect_seconds": None,
        "request_seconds": None,
        "shortest_request_seconds": None,
        "metadata_request_seconds": None,
        "checkpoint_seconds": 0.25,
        "result_seconds": 0.125,
        "timestamp": T,
        "accessed_bytes": 800,
        "accessed_uncompressed_bytes": 2000,
        "branches_read_percent": 50.0,
        "bytes_read_percent": pytest.approx(100 * 800 / 4800),
        "file_metadata": {"filename": A, "total_branches": 4},
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


@pytest.mark.parametrize(
    ("data", "argument"),
    [
        ({("execute", "Dijet", "thread-cpu", "seconds"): 1.0}, "span_metrics"),
        ({"worker_counts": {}}, "tracking_data"),
        ({"worker_cpu": {}}, "tracking_data"),
        ({"total_events": 3}, "metrics"),
        ([{"duration": 1.0}], "chunk_metrics"),
        ({("a.root", 0, 10): (1.0, 2.0, 30)}, "chunk_info"),
        ("a text", None),
        (handmade_run(), None),
        (None, None),
    ],
)
def test_data_are_known_by_their_shape(data: object, argument: str | None) -> None:
    assert argument_of(data) == argument


def test_data_alone_are_a_run_from_their_first_to_their_last_moment() -> None:
    counts = {datetime.fromtimestamp(T + after): 2 for after in (5, 10)}
    older = with_older(None, {"tracking_data": {"worker_counts": counts, "worker_memory": {"A": [(T + 7, 100)]}}})
    assert (older.run.start, older.run.stop) == (T + 5, T + 10)
    assert older.run.samples["memory"].to_pylist() == [100]
    assert older.inputs["worker_counts"][1].tolist() == [2, 2]
    assert older.run.absent["chunks"] == "pass chunk_metrics=, or a measurement"
    assert "samples" not in older.run.absent


def test_data_stand_in_place_of_those_of_the_run_and_nothing_else_changes() -> None:
    run = handmade_run()
    older = with_older(run, {"chunk_metrics": [{"duration": 1.0}]})
    assert len(older.run.chunks) == 1
    assert older.run.samples is run.samples
    assert (older.run.start, older.run.stop, older.inputs) == (run.start, run.stop, {})
    assert with_older(run, {}).run == run


def test_chunk_info_there_and_back() -> None:
    metrics = evaluate(handmade_run())
    info = metrics["chunk_info"]
    assert info[A, 0, 100] == (T + 1, T, 1000)
    assert len(info) == metrics["num_chunks"]
    one, *_ = chunks_of_info({("a.root", 0, 10): (1.0, 2.5, 30)}).to_pylist()
    assert (one["file"], one["entry_start"], one["entry_stop"]) == ("a.root", 0, 10)
    assert (one["start"], one["stop"], one["wall_seconds"], one["bytes_requested"]) == (1.0, 2.5, 1.5, 30)
    assert chunks_of_info({("a.root", 0, 10): (None, None, None)})["wall_seconds"].to_pylist() == [None]


def test_sections_by_name_over_chunks() -> None:
    chunks = [{"timing": {"jets": 1.0}, "bytes": {"jets": 8}}, {"timing": {"jets": 3.0}}, {"memory": {"muons": -0.5}}]
    jets = {"total_duration": 4.0, "mean_duration": 2.0, "min_duration": 1.0, "max_duration": 3.0}
    once = {f"{statistic}_bytes": 8 for statistic in ("total", "mean", "min", "max")}
    found = sections_of(chunks)
    assert found["jets"] == {"count": 2, **jets, **once}
    assert (found["muons"]["count"], found["muons"]["mean_mem_delta_mb"]) == (1, -0.5)
    assert sections_of([]) == {}


def test_metrics_hold_the_other_arguments() -> None:
    run = handmade_run()
    metrics = evaluate(run).built()
    older = with_older(None, {"metrics": metrics})
    assert len(older.run.chunks) == metrics["num_chunks"]
    assert older.run.span_metrics == run.span_metrics
    assert len(older.run.samples)
    alone = with_older(None, {"metrics": metrics, "chunk_info": {("a.root", 0, 10): (1.0, 2.0, 30)}})
    assert alone.run.chunks["file"].to_pylist() == ["a.root"]


def test_metrics_that_were_given_are_reported_ones() -> None:
    older = with_older(None, {"metrics": {"wall_time": 3.0, "compression_ratios": [0.5, None, 0.25]}})
    assert older.run.reported is not None
    assert older.run.reported["wall_time"] == 3.0
    things, factors = older.inputs["compression_factors"]
    assert (things, factors.tolist()) == ("files", [2.0, 4.0])


def test_what_a_run_reported_in_these_shapes_is_taken_as_well() -> None:
    run = handmade_run(chunks=None, reported={"raw_chunk_metrics": [{"duration": 1.0}]}, reported_by="it")
    assert with_older(run, {}).run.chunks["wall_seconds"].to_pylist() == [1.0]
