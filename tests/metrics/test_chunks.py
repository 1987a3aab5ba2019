"""Chunks, their datasets and phases by hand; `test_workflow.py` has the values of single metrics."""

from __future__ import annotations

import pytest
from handmade import CHUNKS, SPAN, chunk, handmade_run, with_chunks

from roastcoffea.metrics import Metrics, evaluate


@pytest.fixture(scope="module")
def metrics() -> Metrics:
    return evaluate(handmade_run())


def test_a_deviation_takes_two() -> None:
    metrics = evaluate(with_chunks(CHUNKS[0]))
    assert metrics["chunk_duration_mean"] == 2.0
    assert metrics.missing["chunk_duration_std"] == "a standard deviation needs at least two chunks"


def test_memory_that_was_not_measured() -> None:
    metrics = evaluate(with_chunks(chunk("d", "k", 1, "ok", wall_seconds=1.0)))
    assert metrics.missing["chunk_mem_delta_mean_mb"] == "not measured for any chunk"


def test_datasets(metrics: Metrics) -> None:
    assert metrics["per_dataset"] == {
        "data": {
            "num_chunks": 2,
            "total_duration": 10.0,
            "total_events": 400,
            "mean_duration": 5.0,
            "mean_events_per_chunk": 200.0,
            "cpu_seconds": 9.5,
            "num_failed": 1,
            "bytes_requested": 5450,
            "bytes_payload": 2800,
            "bytes_reread": 700,
            "bytes_metadata": 450,
            "bytes_other_files": 0,
            "bytes_preprocessing": 150,
            "bytes_failed": 1300,
            "bytes_residual": 50,
        },
        "mc": {
            "num_chunks": 1,
            "total_duration": 8.0,
            "total_events": 50,
            "mean_duration": 8.0,
            "mean_events_per_chunk": 50.0,
            "cpu_seconds": 6.25,
            "num_failed": 1,
            "bytes_requested": 600,
            "bytes_payload": 400,
            "bytes_reread": 0,
            "bytes_metadata": 100,
            "bytes_other_files": 0,
            "bytes_preprocessing": 50,
            "bytes_failed": 50,
            "bytes_residual": 0,
        },
    }
    total = sum(dataset["cpu_seconds"] for dataset in metrics["per_dataset"].values())
    assert total == metrics["total_cpu_time"]


def test_a_dataset_in_which_all_failed() -> None:
    breakdown = evaluate(with_chunks(chunk("d", "k", 1, "error", cpu_seconds=1.0)))["per_dataset"]["d"]
    assert (breakdown["num_chunks"], breakdown["mean_duration"], breakdown["num_failed"]) == (0, None, 1)


def test_raw_structures_are_built_once(metrics: Metrics) -> None:
    assert metrics["tracking_data"] is metrics["tracking_data"]
    assert metrics["raw_span_metrics"] == SPAN


def test_phases_that_an_attempt_did_not_come_to_count_as_nothing() -> None:
    metrics = evaluate(with_chunks(chunk("d", "k", 1, "error", open_seconds=0.5)))
    assert (metrics["chunk_open_seconds"], metrics["chunk_compute_seconds"]) == (0.5, 0.0)


def test_phases_that_were_not_measured_are_missing() -> None:
    metrics = evaluate(with_chunks(chunk("d", "k", 1, "ok", open_seconds=0.5)))
    assert metrics["chunk_open_seconds"] == 0.5
    assert metrics.missing["chunk_compute_seconds"] == "unknown for 1 of 1 chunk attempts"
