"""Worker samples as series of 0.1.2, there and back."""

from __future__ import annotations

from datetime import datetime

from handmade import T, handmade_run

from roastcoffea.compat.tracking import counts_of, samples_of, seconds
from roastcoffea.metrics import evaluate
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.workers import SAMPLE_COLUMNS


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
    assert set(tracking) == {
        "worker_counts",
        "worker_memory",
        "worker_memory_limit",
        "worker_active_tasks",
        "worker_cores",
        "worker_nbytes",
        "worker_occupancy",
        "worker_executing",
        "worker_last_seen",
        "worker_cpu",
    }


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


def test_a_moment_is_local_or_in_unix_seconds() -> None:
    assert seconds(local(3)) == seconds(T + 3) == T + 3
