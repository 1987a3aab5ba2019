"""Core time of batch jobs, against jobs worked out by hand."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from handmade import MIB, T, handmade_run, life, measured

from roastcoffea.measurement import Measurement
from roastcoffea.metrics.memory import CLASSES
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.run import MergedRun, Run
from roastcoffea.records.workers import SAMPLE_COLUMNS


def job_of(*lives: dict[str, Any]) -> dict[str, Any]:
    (row,) = measured(*lives).metrics.evaluator.value("jobs").to_pylist()
    return dict(row)


def classes(row: dict[str, Any]) -> dict[str, float]:
    return {name: row[name] for name in CLASSES if row[name]}


def test_a_job_from_before_the_run_to_its_end() -> None:
    row = job_of(life("a", 0, 100))
    assert (row["charged"], row["residual"], row["ended"]) == (520.0, 0.0, 0)
    assert classes(row) == {"before_run": 120.0, "threads": 200.0, "threadless": 200.0}
    assert row["startup_seconds"] is None  # its worker was there before the run
    assert row["shutdown_seconds"] is None


def test_a_job_that_starts_and_ends_in_the_run() -> None:
    row = job_of(life("a", 20, 60, job_start=T + 10, job_queued=T - 5, closing=T + 58))
    assert (row["charged"], row["ended"]) == (200.0, 1)
    assert classes(row) == {"startup": 40.0, "threads": 76.0, "threadless": 76.0, "shutdown": 8.0}
    assert (row["queue_seconds"], row["startup_seconds"], row["shutdown_seconds"]) == (15.0, 10.0, 2.0)
    assert row["residual"] == pytest.approx(0.0)


def test_workers_of_a_job_share_its_cores() -> None:
    # two workers, the second of which is killed and comes back: three lives of one job
    lives = life("a", 0, 80, job_start=T), life("b", 10, 30, job_start=T), life("c", 40, 80, job_start=T)
    row = job_of(*lives)
    assert row["workers"] == 3
    assert classes(row) == {"threads": 2 * 80 + 2 * 20 + 2 * 40, "threadless": 2 * 20.0}
    assert row["charged"] == 320.0
    # while nobody is there, all cores are charged for nobody
    row = job_of(life("a", 0, 20, job_start=T), life("b", 30, 50, job_start=T))
    assert classes(row) == {"threads": 80.0, "threadless": 80.0, "replaced": 40.0}
    assert row["residual"] == pytest.approx(0.0)


def test_more_threads_than_cores_are_charged_once() -> None:
    row = job_of(life("a", 0, 100, job_start=T, threads=16))
    assert classes(row) == {"threads": 400.0}


def test_metrics_are_sums_and_means_over_jobs() -> None:
    first = life("a", 20, 60, job_start=T + 10, job_queued=T, closing=T + 58)
    second = life("b", 30, 100, "2", job_start=T + 10, job_queued=T - 10)
    metrics = measured(first, second).metrics
    assert metrics["num_jobs"] == 2
    assert metrics["core_seconds_charged"] == 4 * 50 + 4 * 90
    assert metrics["job_queue_seconds"] == 15.0
    assert metrics["job_startup_seconds"] == 15.0
    assert metrics["job_shutdown_seconds"] == 2.0


def test_what_is_unknown_is_missing_with_its_reason() -> None:
    missing = measured(life("a", 0, 100, None)).metrics.missing
    assert {missing[name] for name in ("num_jobs", "core_seconds_charged", "job_memory_used")} == {
        "no worker reported a batch job"
    }
    metrics = measured(life("a", 0, 100), life("b", 0, 100, "2", job_cores=None)).metrics
    assert metrics["num_jobs"] == 2
    assert metrics.missing["core_seconds_charged"] == "unknown for 1 of 2 batch jobs"
    assert metrics.missing["job_queue_seconds"] == "no job reports when it was submitted"
    assert metrics.missing["job_shutdown_seconds"] == "no job ended during the run"


def test_jobs_of_merged_runs_are_charged_within_their_own_run() -> None:
    def part(identity: str, start: float, stop: float) -> MergedRun:
        known: dict[str, Any] = {"name": None, "outcome": "finished", "error": None, "backend": "local"}
        return MergedRun(id=identity, start=T + start, stop=T + stop, client_host=None, **known)

    lives = (
        life("a", 5, 20, "1", run="x", job_start=T),
        life("b", 55, 90, "1", run="y", job_start=T + 50),  # of another batch system with the same number
    )
    run = measured(*lives, merged=(part("x", 5, 20), part("y", 55, 90)))
    rows = run.metrics.evaluator.value("jobs").to_pylist()
    assert [row["charged"] for row in rows] == [80.0, 160.0]
    assert [row["before_run"] for row in rows] == [20.0, 20.0]
    assert [row["ended"] for row in rows] == [0, 0]


def test_memory_is_that_of_all_workers_of_the_job() -> None:
    def samples(run: Run) -> Any:
        schema = handmade_run().samples.schema
        rows = [{"worker": name, "time": T + 1, "memory": peak} for name, peak in (("a", 100 * MIB), ("b", 300 * MIB))]
        return table_of_rows(SAMPLE_COLUMNS, rows).cast(schema)

    found = measured(life("a", 0, 100), life("b", 0, 100))
    found = Measurement(dataclasses.replace(found.run, samples=samples(found.run)))
    assert found.metrics["job_memory_used"] == 0.4
    (row,) = found.metrics.evaluator.value("jobs").to_pylist()
    assert row["memory_peak"] == 400 * MIB
