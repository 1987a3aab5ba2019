"""Data in the shapes of 0.1.2 as a run."""

from __future__ import annotations

from datetime import datetime

import pytest
from handmade import T, handmade_run

from roastcoffea.compat.older import argument_of, run_without_records, with_older


@pytest.mark.parametrize(
    ("data", "argument"),
    [
        ({("execute", "Dijet", "thread-cpu", "seconds"): 1.0}, "span_metrics"),
        ({"worker_counts": {}}, "tracking_data"),
        ({"worker_cpu": {}}, "tracking_data"),
        ({"total_events": 3}, "metrics"),
        ([{"duration": 1.0}], "chunk_metrics"),
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
    assert older.run.absent["chunks"] == "give chunk_metrics=, or a measurement"
    assert "samples" not in older.run.absent


def test_data_stand_in_place_of_those_of_the_run_and_nothing_else_changes() -> None:
    run = handmade_run()
    older = with_older(run, {"chunk_metrics": [{"duration": 1.0}]})
    assert len(older.run.chunks) == 1
    assert older.run.samples is run.samples
    assert (older.run.start, older.run.stop, older.inputs) == (run.start, run.stop, {})
    assert with_older(run, {}).run == run


def test_metrics_that_were_given_are_reported_ones() -> None:
    older = with_older(None, {"metrics": {"wall_time": 3.0, "compression_ratios": [0.5, None, 0.25]}})
    assert older.run.reported is not None
    assert older.run.reported["wall_time"] == 3.0
    things, factors = older.inputs["compression_factors"]
    assert (things, factors.tolist()) == ("files", [2.0, 4.0])


def test_what_a_run_reported_in_these_shapes_is_taken_as_well() -> None:
    run = handmade_run(chunks=None, reported={"raw_chunk_metrics": [{"duration": 1.0}]}, reported_by="it")
    assert with_older(run, {}).run.chunks["wall_seconds"].to_pylist() == [1.0]


def test_of_a_run_without_records_every_record_says_why() -> None:
    run = run_without_records()
    assert (run.start, run.stop) == (0.0, 0.0)
    for name in (
        "chunks",
        "branch_reads",
        "sections",
        "preprocessing",
        "tasks",
        "samples",
        "lifetimes",
        "span_metrics",
    ):
        assert run.absent[name]
