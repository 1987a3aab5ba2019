"""What the client did with its time, by hand."""

from __future__ import annotations

from typing import Any

import pytest
from handmade import LOOP, STEPS, T, call, central_run, loop, step

from roastcoffea.metrics import Metrics, evaluate
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.run import Run
from roastcoffea.records.workers import CLIENT_STEP_COLUMNS, TASK_COLUMNS

CLASSES = ("submit", "merge", "gather", "preparing", "waiting", "outside", "unaccounted")


def with_steps(*rows: dict[str, Any], **changes: Any) -> Run:
    return central_run(client_steps=table_of_rows(CLIENT_STEP_COLUMNS, rows), **changes)


def classes(metrics: Metrics) -> list[float]:
    return [metrics[f"client_{name}_seconds"] for name in CLASSES]


@pytest.mark.parametrize("removed", range(len(STEPS)))
def test_they_sum_to_the_wall_time_whatever_was_recorded(removed: int) -> None:
    rows = [*STEPS[:removed], *STEPS[removed + 1 :]]
    assert sum(classes(evaluate(with_steps(*rows)))) == pytest.approx(100.0)


def test_a_call_on_another_executor_is_unaccounted() -> None:
    metrics = evaluate(central_run(calls=(call("c1", T + 10, T + 90, None), call("c2", T + 92, T + 99, None))))
    assert metrics["client_unaccounted_seconds"] == pytest.approx(7.0)
    assert metrics["client_outside_seconds"] == pytest.approx(13.0)


def test_of_calls_at_once_the_one_that_works_counts() -> None:
    other = [row | {"call": "c2", "start": row["start"] + 30, "stop": row["stop"] + 30} for row in STEPS]
    calls = (call("c1", T + 10, T + 90, None), call("c2", T + 40, T + 120, None))
    metrics = evaluate(with_steps(*STEPS, *other, calls=calls, stop=T + 150))
    assert sum(classes(metrics)) == pytest.approx(150.0)
    # the second call is prepared and submitted (40 to 51) while the first one waits; its results are there from 51
    assert classes(metrics) == pytest.approx([12, 20, 30, 5 + 5 + 10, 19 + 9, 40, 0])


def test_a_result_that_was_there_is_only_gathered() -> None:
    early = table_of_rows(TASK_COLUMNS, [{"key": "k", "kind": "merge", "assigned": T + 15, "seen": T + 18}])
    metrics = evaluate(central_run(tasks=early))
    assert (metrics["client_waiting_seconds"], metrics["client_gather_seconds"]) == pytest.approx((0.0, 49.0))


@pytest.mark.parametrize(("seen", "shares"), [([T + 99], (49.0, 0.0)), ([], (0.0, 49.0))])
def test_a_task_that_was_seen_to_end_late_was_waited_for(seen: list[float], shares: tuple[float, float]) -> None:
    rows = [{"key": "k", "kind": "merge", "assigned": T + 15, "seen": each} for each in seen]
    metrics = evaluate(central_run(tasks=table_of_rows(TASK_COLUMNS, rows)))
    assert (metrics["client_waiting_seconds"], metrics["client_gather_seconds"]) == pytest.approx(shares)


def test_tasks_without_a_runner_leave_the_client_unknown() -> None:
    missing = evaluate(central_run(calls=(call("tasks: f", T + 10, T + 90, None),))).missing
    assert "without a Runner" in missing["client_submit_seconds"]


def test_an_event_loop_that_is_the_schedulers_has_its_lag_only() -> None:
    metrics = evaluate(with_steps(*STEPS, loop(0, 10, 2.0, 3.0, 0.5, step="shared event loop")))
    assert "LocalCluster" in metrics.missing["client_loop_cpu_seconds"]
    assert metrics["client_loop_lag_seconds"] == pytest.approx(0.5)


def test_graphs_of_unknown_size_have_no_sum() -> None:
    metrics = evaluate(with_steps(*STEPS, step("submit", 22, 23), *LOOP))
    assert metrics.missing["graph_bytes"] == "unknown for 1 of 3 graphs"
    assert metrics["client_submit_seconds"] == pytest.approx(7.0)


def test_without_a_dask_client_there_is_the_reason() -> None:
    missing = evaluate(central_run(client_steps=None, absent={"client_steps": "there is no Dask client"})).missing
    assert {missing[f"client_{name}_seconds"] for name in CLASSES} == {"there is no Dask client"}
