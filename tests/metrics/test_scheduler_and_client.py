"""One core of the scheduler, by hand."""

from __future__ import annotations

import numpy as np
import pytest
from handmade import CENTRAL_TASKS as TASKS
from handmade import OF_CENTRAL, SAMPLING, T, central_run, sample

from roastcoffea.metrics import CATALOGUE, evaluate
from roastcoffea.metrics.catalogue import CENTRAL
from roastcoffea.metrics.scheduler_and_client import busiest, inside
from roastcoffea.metrics.statistics import union
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.run import MergedRun
from roastcoffea.records.workers import SAMPLING_COLUMNS, TASK_COLUMNS

SCHEDULER = ("cpu", "queue", "idle", "unaccounted")


def test_values_by_hand() -> None:
    metrics = evaluate(central_run())
    names = [metric.name for metric in CATALOGUE.metrics() if metric.group == CENTRAL]
    assert {name: metrics[name] for name in names} == pytest.approx(OF_CENTRAL, rel=1e-12)


def test_the_classes_sum_to_the_wall_time_whatever_was_sampled() -> None:
    for rows in (SAMPLING, SAMPLING[3:6], [sample(-50, 1.0), sample(150, 161.0)], [sample(10, 0.0), sample(20, 11.0)]):
        metrics = evaluate(central_run(sampling=table_of_rows(SAMPLING_COLUMNS, rows)))
        parts = [metrics[f"scheduler_{name}_seconds"] for name in SCHEDULER]
        assert sum(parts) == pytest.approx(100.0)
    # CPU and contention of 13.2 s in 10 s of time are not made to fit
    assert parts == pytest.approx([11.0, 2.2, 0.0, 86.8])


def test_a_record_that_is_taken_away_is_unaccounted() -> None:
    metrics = evaluate(central_run(sampling=table_of_rows(SAMPLING_COLUMNS, SAMPLING[:7])))
    assert metrics["scheduler_unaccounted_seconds"] == pytest.approx(40.0)
    assert metrics["scheduler_cpu_seconds"] == pytest.approx(20.0)


def test_samples_of_an_older_schema_have_no_cpu_time() -> None:
    rows = [{name: row[name] for name in ("time", "workers", "late_seconds", "missed")} for row in SAMPLING]
    missing = evaluate(central_run(sampling=table_of_rows(SAMPLING_COLUMNS, rows))).missing
    assert (
        missing["scheduler_cpu_seconds"]
        == missing["scheduler_lag_seconds"]
        == ("the scheduler's CPU time was not sampled")
    )


def test_a_system_without_run_queue_times_has_no_contention() -> None:
    rows = [row | {"loop_queue_seconds": None} for row in SAMPLING]
    metrics = evaluate(central_run(sampling=table_of_rows(SAMPLING_COLUMNS, rows)))
    assert metrics["scheduler_idle_seconds"] == pytest.approx(70.0)
    assert "run-queue" in metrics.missing["scheduler_queue_seconds"]


def test_merged_runs_had_schedulers_of_their_own() -> None:
    part = MergedRun(
        id="a", name=None, start=T, stop=T + 100, outcome="finished", error=None, backend="dask", client_host=None
    )
    missing = evaluate(central_run(merged=(part,))).missing
    assert "its own scheduler" in missing["scheduler_cpu_seconds"]
    assert "its own scheduler" in missing["client_submit_seconds"]


def test_tasks_of_others_are_tasks_of_the_scheduler_too() -> None:
    others = [{"worker": "A", "kind": "other", "seen": T + 33.0, "outcome": "ok"} for _ in range(11)]
    metrics = evaluate(central_run(tasks=table_of_rows(TASK_COLUMNS, [*TASKS, *others])))
    assert metrics["scheduler_task_rate"] == pytest.approx(20 / 40)
    assert metrics["scheduler_cpu_per_task_seconds"] == pytest.approx(1.0)


def test_a_peak_is_no_lower_than_the_mean_of_a_short_time() -> None:
    short = [row | {"assigned": T + 30.0, "runnable": T + 30.0, "start": T + 30.0, "seen": T + 32.0} for row in TASKS]
    metrics = evaluate(central_run(tasks=table_of_rows(TASK_COLUMNS, short)))
    assert metrics["scheduler_task_rate"] == pytest.approx(len(TASKS) / 2)
    assert metrics["scheduler_task_rate_peak"] == metrics["scheduler_task_rate"]
    assert metrics["scheduler_core_share_peak"] >= metrics["scheduler_core_share"]


def test_times_that_overlap_are_one() -> None:
    starts, stops = (np.array(edges, np.float64) for edges in ([3, 0, 1, 9], [4, 2, 1.5, 10]))
    assert [edges.tolist() for edges in union(starts, stops)] == [[0, 3, 9], [2, 4, 10]]
    assert [edges.tolist() for edges in union(starts, stops, gap=1.0)] == [[0, 9], [4, 10]]
    assert [edges.tolist() for edges in union(starts[:0], stops[:0])] == [[], []]
    spans = union(starts, stops)
    assert inside(np.array([-1, 0, 2, 2.5, 10, 11]), spans).tolist() == [False, True, True, False, True, False]


def test_the_busiest_time_is_at_most_all_of_it() -> None:
    times, so_far = np.array([0.0, 4.0, 8.0]), np.array([0.0, 1.0, 5.0])
    assert busiest(times, so_far, 4.0) == pytest.approx(1.0)
    assert busiest(times, so_far, 10.0) == pytest.approx(5 / 8)


def test_steps_do_not_depend_on_samples() -> None:
    metrics = evaluate(central_run(sampling=None, absent={"sampling": "track_workers=False"}))
    assert metrics.missing["scheduler_cpu_seconds"] == "track_workers=False"
    assert metrics["client_submit_seconds"] == pytest.approx(6.0)
