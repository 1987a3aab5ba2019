"""Recorded runs as a replay takes them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow.compute as pc
import pytest
from made_runs import in_two_calls, made_run, plan, with_call

from roastcoffea.metrics import evaluate
from roastcoffea.metrics.catalogue import NotMeasuredError
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.run import Run
from roastcoffea.records.workers import LIFETIME_COLUMNS, TASK_COLUMNS
from roastcoffea.replay.stages import Known, Recorded, cpu_outside_tasks, recorded_run, recorded_with

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


@pytest.mark.parametrize("as_it_was", [False, True])
def test_chunks_are_in_the_order_of_their_tasks(as_it_was: bool) -> None:
    """Whatever order the table has, and whether or not all of its chunks have tasks."""
    run = made_run([plan(1.0 + number, wait=0.5 * number) for number in range(8)], 2)
    assert run.chunks is not None
    assert run.tasks is not None
    run = replace(run, tasks=run.tasks.filter(pc.not_equal(run.tasks["key"], run.chunks["key"][3])))
    order = [5, 2, 7, 0, 3, 6, 1, 4]
    shuffled = replace(run, chunks=run.chunks.take(order))
    (stage,), (other,) = (
        recorded_with(each, Known(2.0), "this", as_it_was=as_it_was).stages for each in (run, shuffled)
    )
    chunks, others = stage.chunks, other.chunks
    assert chunks is not None
    assert others is not None
    assert [order[row] for row in others.row] == chunks.row.tolist()
    assert (3 in chunks.row, len(chunks)) == (False, 7)
    for one, two in zip(chunks.parts, others.parts, strict=True):
        assert one.tolist() == two.tolist()
    assert chunks.parts.cpu.tolist() == pytest.approx([1.0 + row for row in chunks.row])
    assert (chunks.start.tolist(), chunks.stop.tolist()) == (others.start.tolist(), others.stop.tolist())


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


CPU = {
    "worker_cpu_time_seconds": 12.0,
    "total_cpu_time": 8.0,
    "processor_cpu_time_seconds": 7.0,
    "overhead_cpu_time_seconds": 1.5,
    "scheduler_process_cpu_seconds": 1.0,
}


def run_from(client: str, worker: str = "w0") -> Run:
    run = with_rows(made_run(EIGHT, 2), worker=worker)
    return replace(run, environment=replace(run.environment, client_host=client))


def test_cpu_time_outside_tasks() -> None:
    """12 s of workers, of which 8 in chunks with their helpers and 1.5 in other tasks, and 1 s of the scheduler."""
    here, elsewhere = run_from("node"), run_from("elsewhere")
    assert {host.name for host in here.environment.hosts} == {"node"}
    assert (cpu_outside_tasks(here, CPU), cpu_outside_tasks(elsewhere, CPU)) == pytest.approx((3.5, 2.5))


def test_cpu_time_outside_tasks_that_was_not_measured_is_none() -> None:
    assert cpu_outside_tasks(run_from("node"), {"total_cpu_time": 7.0}) is None
    assert cpu_outside_tasks(run_from("elsewhere"), {"worker_cpu_time_seconds": 50.0}) is None
    (doubt,) = recorded_with(made_run(EIGHT, 2), Known(2.0), "this").doubts
    assert doubt.startswith("CPU time outside tasks (workers, and a scheduler on their host) is unknown")
    assert recorded_with(made_run(EIGHT, 2), Known(2.0, outside_tasks=0.0), "this").doubts == ()


def test_cpu_time_outside_tasks_is_unknown_if_a_cluster_is_one_process() -> None:
    """Its scheduler and its workers have the same process as the client."""
    assert cpu_outside_tasks(run_from("node", "inproc://10.0.0.1/1/1"), CPU) is None


def test_cpu_time_outside_tasks_goes_with_the_time_of_chunks() -> None:
    """Of 8 s in a run of 4 s, two processes always use 4 % of a core; eight chunks of 1 s take the rest with them.

    The scheduler's own 1.1 ms for a task are simulated apart.
    """
    here, elsewhere = (
        recorded_with(run_from(client), Known(2.0, outside_tasks=8.0), "this") for client in ("node", "elsewhere")
    )
    costs = [run.stages[0].costs for run in (here, elsewhere)]
    assert [each.process for each in costs] == [0.04, 0.04]
    assert [each.outside for each in costs] == pytest.approx([0.96 - 1.1e-3, 0.96])


def test_little_cpu_time_outside_tasks_is_that_of_processes() -> None:
    (stage,) = recorded_with(run_from("elsewhere"), Known(2.0, outside_tasks=0.16), "this").stages
    assert (stage.costs.process, stage.costs.outside) == pytest.approx((0.02, 0.0))


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
