"""Recorded runs as a replay takes them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from made_runs import in_two_calls, made_run, plan, with_call

from roastcoffea.metrics import evaluate
from roastcoffea.metrics.catalogue import NotMeasuredError
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.run import Run
from roastcoffea.records.workers import LIFETIME_COLUMNS, TASK_COLUMNS
from roastcoffea.replay.stages import Recorded, beside_tasks, recorded_run

EIGHT = [plan(1.0)] * 8


def recorded(run: Run) -> Recorded:
    return recorded_run(run, evaluate(run), "this")


def with_rows(run: Run, **changes: Any) -> Run:
    """The same run with what was recorded of its first task or worker changed."""
    assert run.tasks is not None
    assert run.lifetimes is not None
    tasks, lives = run.tasks.to_pylist(), run.lifetimes.to_pylist()
    tasks[0] |= {name: value for name, value in changes.items() if name in tasks[0] and name != "threads"}
    lives[0] |= {name: value for name, value in changes.items() if name in lives[0] and name != "stop"}
    return replace(run, tasks=table_of_rows(TASK_COLUMNS, tasks), lifetimes=table_of_rows(LIFETIME_COLUMNS, lives))


def test_what_lies_outside_of_tasks_is_the_clients() -> None:
    found = recorded(made_run(EIGHT, 2, before=7.0))
    assert (found.seconds, found.client) == pytest.approx((11.0, 7.0))
    assert [stage.kind for stage in found.stages] == ["processor"]
    assert found.stages[0].seconds == pytest.approx(4.0)


def test_cluster_and_work() -> None:
    found = recorded(made_run(EIGHT, 2, cores=6))
    assert found.configuration == (2, 1, 100)
    assert (found.hosts, found.cores, found.workers_of_host, found.events) == (1, 6, 2, 800)
    assert found.own_cluster.hosts == [(2, 6.0)]
    assert found.cluster(5, 3, same_host=False).hosts == [(2, 6.0), (2, 6.0), (1, 3.0)]
    assert found.cluster(5, 3, same_host=True).hosts == [(5, 6.0)]
    assert found.doubts == ()


@pytest.mark.parametrize(("client", "beside"), [("node", 2.5), ("elsewhere", 1.5)])
def test_cpu_time_beside_tasks(client: str, beside: float) -> None:
    run = made_run(EIGHT, 2)
    run = replace(run, environment=replace(run.environment, client_host=client))
    assert {host.name for host in run.environment.hosts} == {"node"}
    names = ("worker_cpu_time_seconds", "total_cpu_time", "tasks_cpu_time_seconds", "scheduler_process_cpu_seconds")
    assert beside_tasks(run, dict(zip(names, (9.5, 7.0, 8.0, 1.0), strict=True))) == pytest.approx(beside)
    assert beside_tasks(run, {"total_cpu_time": 7.0}) == 0.0


def test_each_runner_call_is_a_stage() -> None:
    found = recorded(in_two_calls(made_run(EIGHT, 1), 3))
    assert [len(stage.load) for stage in found.stages] == [3, 5]
    assert found.calls == (("Made", None),) * 2


def test_calls_that_overlapped_cannot_be_told_apart() -> None:
    run = in_two_calls(made_run(EIGHT, 1), 3)
    first, second = run.calls
    with pytest.raises(NotMeasuredError, match="this cannot be replayed: its Runner calls overlapped"):
        recorded(replace(run, calls=(first, replace(second, start=first.start))))


def test_what_is_missing_is_named() -> None:
    run = made_run(EIGHT, 2)
    assert run.chunks is not None
    with pytest.raises(NotMeasuredError, match="this cannot be replayed: no scheduler"):
        recorded(replace(run, tasks=None, absent={"tasks": "no scheduler"}))
    with pytest.raises(NotMeasuredError, match="no chunk has a result"):
        recorded(replace(run, chunks=run.chunks.slice(0, 0)))
    with pytest.raises(NotMeasuredError, match="none of its chunks' tasks were recorded"):
        recorded(with_call(run, start=run.stop + 1, stop=run.stop + 2))


def test_doubts() -> None:
    assert "its hosts' core counts are unknown" in recorded(made_run(EIGHT, 2, cores=None)).doubts[0]
    assert "is incomplete" in recorded(made_run(EIGHT, 2, outcome="failed")).doubts[0]
    (of_threads,) = recorded(with_rows(made_run(EIGHT, 2), threads=3)).doubts
    assert "different numbers of threads" in of_threads
    (late,) = recorded(with_rows(made_run(EIGHT, 2), start=made_run(EIGHT, 2).start + 2.0)).doubts
    assert late == "workers joined late or left during recording: 25 % of the thread time was missing"
    lost = recorded(with_rows(made_run(EIGHT, 2), outcome="error")).doubts
    assert lost[0] == "1 task attempts failed during recording; they are left out"
