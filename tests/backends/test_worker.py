"""The worker's half of a collector, on a worker that only holds data."""

from __future__ import annotations

import asyncio
import os
import time
from types import SimpleNamespace
from typing import Any

import pytest

from roastcoffea.backends import worker as worker_module
from roastcoffea.backends.worker import WorkerHalf, flush
from roastcoffea.log.marks import ANNOTATION, METADATA_KEY

NAME, TOKEN = "roastcoffea-test", "token-1"
CPU = ("execute", "span-1", "Jets", "thread-cpu", "seconds")
OTHER_SPAN = ("execute", "span-2", "Jets", "thread-cpu", "seconds")
NETWORK = ("get-data", "network", "seconds")


class Worker:
    """What the plugin reads of a `Worker`."""

    address = "tcp://10.0.0.1:1"
    scheduler_delay = 0.25

    def __init__(self) -> None:
        self.digests_total: dict[Any, float] = {CPU: 1.0, "tick": 5.0}
        self.metrics: dict[str, Any] = {}
        self.status = SimpleNamespace(name="running")
        self.state = SimpleNamespace(tasks={}, threads={})
        self.plugins: dict[str, Any] = {}
        self.sent: list[tuple[str, dict[str, Any]]] = []

    def log_event(self, topic: str, message: dict[str, Any]) -> None:
        self.sent.append((topic, message))

    async def heartbeat(self) -> None:
        self.sent.append(("heartbeat", {}))

    def add_task(self, key: str, **others: Any) -> SimpleNamespace:
        self.state.tasks[key] = SimpleNamespace(metadata={}, annotations=None, **others)
        return self.state.tasks[key]


def begun(worker: Worker, **options: Any) -> WorkerHalf:
    """A plugin on the worker, which reports only where it is asked to."""

    async def begin() -> WorkerHalf:
        half = WorkerHalf(NAME, TOKEN, **options)
        half.setup(worker)
        worker.plugins[NAME] = half
        return half

    half = asyncio.run(begin())
    # the node and the batch job come first, whatever a test looks at
    assert [[*message] for _, message in worker.sent if message] == [["worker", "job", "token"]]
    worker.sent.clear()
    return half


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds since 1970 that are next to be read."""
    times: list[float] = []
    clock = SimpleNamespace(time=lambda: times.pop(0), process_time=time.process_time)
    monkeypatch.setattr(worker_module, "time", clock)
    return times


def test_times_of_a_task_travel_in_its_own_metadata(now: list[float]) -> None:
    worker = Worker()
    half = begun(worker)
    task = worker.add_task("a")
    now += [1.0, 2.0, 4.0, 7.0, 8.0]
    half.transition("a", "released", "waiting")
    half.transition("a", "waiting", "ready")
    assert half.running() == {}
    half.transition("a", "ready", "executing")
    assert task.metadata == {NAME: [1.0, 2.0, 4.0, 0.25]}
    half.transition("a", "executing", "long-running")
    assert task.metadata == {NAME: [1.0, 2.0, 4.0, 0.25, 7.0]} == {NAME: half.running()["a"]}
    half.transition("a", "long-running", "memory")
    assert half.running() == {}
    assert worker.sent == []


def test_a_task_that_fails_is_reported_before_the_scheduler_learns_of_it(now: list[float]) -> None:
    worker = Worker()
    half = begun(worker)
    spans = [{"action": "compute", "start": 4.0, "stop": 5.0}]
    worker.add_task("a", startstops=spans, run_id=7)
    worker.state.threads["a"] = 99
    now += [1.0, 2.0, 4.0, 5.0]
    for start, finish in (
        ("released", "waiting"),
        ("waiting", "ready"),
        ("ready", "executing"),
        ("executing", "error"),
    ):
        half.transition("a", start, finish)
    of_task = {"failed": "a", "times": [1.0, 2.0, 4.0, 0.25], "startstops": spans, "thread": 99, "run_id": 7}
    assert worker.sent == [(NAME, of_task | {"token": TOKEN})]


def test_what_was_counted_before_is_not_of_the_run_and_what_stands_still_is_not_sent() -> None:
    worker = Worker()
    half = begun(worker)
    assert half.counted() == {}
    half.push()
    worker.digests_total |= {CPU: 3.5, NETWORK: 0.5, "tick": 9.0}
    assert half.counted() == {CPU: 2.5, NETWORK: 0.5}
    half.push()
    half.push()
    (sent,) = worker.sent
    assert sent == (NAME, {"worker": worker.address, "digests": [(CPU, 2.5), (NETWORK, 0.5)], "token": TOKEN})


@pytest.mark.parametrize("status", ["running", "closing_gracefully"])
def test_only_a_worker_that_leaves_has_last_words_and_nothing_of_ours_stays(status: str) -> None:
    worker = Worker()
    half = begun(worker)
    assert worker.metrics == {NAME: half.cpu_seconds}
    task = worker.add_task("a")
    task.metadata |= {NAME: [1.0], METADATA_KEY: b"record", "theirs": 5}
    task.annotations = {ANNOTATION: {"collectors": [NAME], "step": None, "prefix": None}, "priority": 1}
    worker.status.name = status
    worker.digests_total[CPU] += 2.0
    half.teardown(worker)
    assert (worker.metrics, task.metadata, task.annotations) == ({}, {"theirs": 5}, {"priority": 1})
    assert half.times == {}
    if status == "running":
        assert worker.sent == []
        return
    ((topic, last),) = worker.sent
    assert (topic, last["last"], last["digests"], last["token"]) == (NAME, True, [(CPU, 2.0)], TOKEN)
    assert 0 <= last["cpu_seconds"] <= time.process_time()
    assert [[process["pid"] for process in load["processes"]] for load in last["loads"]] == [[os.getpid()]] * 2


def test_a_worker_reports_the_spans_that_are_asked_for_after_a_heartbeat() -> None:
    worker = Worker()
    without = asyncio.run(flush(["span-1"], NAME, dask_worker=worker))
    assert worker.sent == [("heartbeat", {})]
    assert (without["running"], without["counted"]) == ([], None)
    half = begun(worker)
    worker.digests_total |= {CPU: 3.0, OTHER_SPAN: 7.0}
    half.times["a"] = [1.0, 2.0, 3.0, 0.0]
    answer = asyncio.run(flush(["span-1"], NAME, dask_worker=worker))
    assert answer["digests"] == {("execute", "Jets", "thread-cpu", "seconds"): 3.0}
    assert answer["counted"] == [(CPU, 2.0), (OTHER_SPAN, 7.0)]
    assert answer["running"] == [("a", [1.0, 2.0, 3.0, 0.0])]


class Measuring:
    """Stands for the function of a task."""

    def __init__(self, task: Any) -> None:
        self.task = task

    def __call__(self, *arguments: Any) -> Any:
        return self.task(*arguments)


setattr(Measuring, worker_module.STANDS_FOR, property(lambda measuring: measuring.task))


async def waits() -> None: ...


@pytest.mark.parametrize("function", [sum, waits])
def test_of_a_task_of_dask_until_2024_11_the_function_is_measured(function: Any) -> None:
    """It is in a tuple with its arguments, and comes back as it was."""
    worker = Worker()
    begun(worker, functions=SimpleNamespace(stand_in=Measuring))
    half, task = worker.plugins[NAME], worker.add_task("a", run_spec=(function, ([1, 2],), {}))
    task.annotations = {ANNOTATION: {"collectors": [NAME], "step": None}}
    half.transition("a", "released", "waiting")
    half.transition("a", "ready", "executing")
    assert isinstance(task.run_spec[0], Measuring) == (function is sum)
    if function is sum:
        assert task.run_spec[0](*task.run_spec[1]) == 3
    half.transition("a", "executing", "memory")
    assert task.run_spec == (function, ([1, 2],), {})
