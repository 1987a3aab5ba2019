"""Plugins on a cluster that answers late, wrongly or not at all."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any

import pytest
from analyses import Sleeping, runner_for
from conftest import left_on_tasks, what_stays
from processes import wait_until

from roastcoffea.backends import deployment
from roastcoffea.backends import deployment as connection
from roastcoffea.backends.dask import DaskRecorder
from roastcoffea.backends.deployment import Connection, Deployment, NoAnswerError
from roastcoffea.collector import MetricsCollector
from roastcoffea.instrument.calls import active

BLOCKED, RELEASED = threading.Event(), threading.Event()
TIMED_OUT: list[bool] = []


def block_scheduler(dask_scheduler: Any) -> None:
    """Let the scheduler, which is in this process, do nothing until it is released."""
    BLOCKED.set()
    if not RELEASED.wait(60):
        TIMED_OUT.append(True)


@contextmanager
def blocked_scheduler(client: Any) -> Iterator[None]:
    """A scheduler that is asked in vain."""
    RELEASED.clear()
    blocking = threading.Thread(target=client.run_on_scheduler, args=(block_scheduler,))
    blocking.start()
    assert BLOCKED.wait(60)
    try:
        yield
    finally:
        RELEASED.set()
        blocking.join()
        BLOCKED.clear()


def test_a_scheduler_that_answers_too_late(client: Any, sample: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roastcoffea.backends.deployment.SCHEDULER_TIMEOUT", 0.5)
    with ExitStack() as stack, MetricsCollector(client) as collector:
        futures = client.map(str, range(50), pure=False)
        client.gather(futures)
        stack.enter_context(blocked_scheduler(client))
    reasons = collector.measurement.metrics.missing
    assert "the scheduler did not answer within" in reasons["total_cores"]
    assert "the scheduler did not answer within" in reasons["processor_cpu_time_seconds"]
    assert collector.measurement.problems
    # the fixture checks that the plugins go all the same


def test_an_interrupt_ends_the_wait_for_a_silent_scheduler(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roastcoffea.backends.deployment.SCHEDULER_TIMEOUT", 50)
    late_result = Connection.late_result
    signals = [signal.SIGINT]  # a second one could come after the block

    def interrupting(self: Connection, *arguments: Any) -> Any:
        while signals:
            os.kill(os.getpid(), signals.pop())
        return late_result(self, *arguments)

    monkeypatch.setattr(Connection, "late_result", interrupting)
    with blocked_scheduler(client), pytest.raises(KeyboardInterrupt), MetricsCollector(client):
        pytest.fail("it was entered")
    assert not TIMED_OUT
    # the fixture checks that nothing comes later


def test_records_that_come_after_the_end_are_kept(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roastcoffea.backends.deployment.DRAIN_INTERVAL", 100.0)
    blocked = ExitStack()
    with MetricsCollector(client) as collector:
        client.gather(client.map(str, range(50), pure=False))
        blocked.enter_context(blocked_scheduler(client))
    blocked.close()
    assert wait_until(lambda: what_stays(client) == [])
    run = collector.measurement.run
    assert len(collector.measurement.tasks) == 50
    (problem,) = [problem for problem in run.problems if "did not answer" in problem]
    assert "when recording ended, but later 50 task attempts and 0 chunk records were received" in problem


@pytest.mark.parametrize("ahead", [0.0, -100.0])
def test_late_answers_do_not_move_a_clock_that_may_be_equal(
    client: Any, ahead: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = Deployment.ask

    def ask_late(self: Deployment, *args: Any, **arguments: Any) -> dict[str, Any]:
        answer = ask(self, *args, **arguments)
        time.sleep(0.05)
        return {**answer, "time": answer["time"] + ahead} if "time" in answer else answer

    monkeypatch.setattr(Deployment, "ask", ask_late)
    with MetricsCollector(client) as collector:
        client.gather(client.map(str, range(5), pure=False))
    offset = collector.measurement.run.scheduler_clock_offset
    assert offset == pytest.approx(ahead, abs=30)
    assert (offset == 0) == (ahead == 0)


def test_a_clock_that_is_reset_does_not_move_the_tasks(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ask, behind, asking = Deployment.ask, [0.0], []

    def ask_behind(self: Deployment, *args: Any, **arguments: Any) -> dict[str, Any]:
        asking.append(self)
        answer = ask(self, *args, **arguments)
        return {**answer, "time": answer["time"] - behind[0]}

    monkeypatch.setattr(Deployment, "ask", ask_behind)
    with MetricsCollector(client) as collector:
        client.gather(client.map(str, range(5), pure=False))
        behind[0] = 100.0
        asking[0].drain()
    run = collector.measurement.run
    assert run.scheduler_clock_offset == 0
    assert (collector.measurement.tasks["start"] > run.start).all()
    assert [*run.problems] == ["the client's or the scheduler's clock was reset, so some times are wrong by that much"]


@pytest.mark.slow
@pytest.mark.parametrize("error", [None, KeyError("mine")])
def test_a_blocked_scheduler_costs_two_seconds_at_the_exit(
    client: Any, sample: Any, error: Exception | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked, in_vain, silent = ExitStack(), [], connection.silent

    def noted(seconds: float) -> NoAnswerError:
        in_vain.append(seconds)
        return silent(seconds)

    for module in (connection, deployment):
        monkeypatch.setattr(module, "silent", noted)
    with suppress(KeyError), MetricsCollector(client) as collector:
        client.gather(client.map(str, range(5), pure=False))
        time.sleep(1.2)
        blocked.enter_context(blocked_scheduler(client))
        began = time.monotonic()
        active[-1].fetch_records()
        if error is not None:
            raise error
    seconds = time.monotonic() - began
    blocked.close()
    assert seconds > 2
    assert sum(in_vain) <= 2.5  # seconds of all waits, however much longer a busy host makes them
    assert any("did not answer within" in problem for problem in collector.measurement.problems)
    assert (collector.measurement.tasks["prefix"] == "str").sum() == 5


@pytest.mark.slow
def test_rows_survive_an_answer_that_came_too_late(client: Any, sample: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    too_late, drain = threading.Event(), Deployment.drain

    def noted(self: Deployment, **options: Any) -> None:
        in_vain = BLOCKED.is_set()
        try:
            drain(self, **options)
        finally:
            if in_vain:
                too_late.set()

    with MetricsCollector(client) as collector:
        client.gather(client.map(str, range(500), pure=False))
        monkeypatch.setattr("roastcoffea.backends.deployment.SCHEDULER_TIMEOUT", 0.3)
        monkeypatch.setattr(Deployment, "drain", noted)
        with blocked_scheduler(client):
            assert too_late.wait(60)
        monkeypatch.undo()
    assert (collector.measurement.tasks["prefix"] == "str").sum() == 500
    assert collector.measurement.run.dropped == {}


def test_a_drain_while_the_plugins_are_removed_does_not_install_them_again(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend, answer = DaskRecorder(client), Connection.answer

    def answered(self: Connection, function: Any, *arguments: Any) -> Any:
        result = answer(self, function, *arguments)
        if function.__name__ == "remove_plugin":
            draining = threading.Thread(target=backend.drain)
            draining.start()
            draining.join()
        return result

    monkeypatch.setattr(Connection, "answer", answered)
    backend.open(0.1)
    backend.close()
    assert what_stays(client) == []


@pytest.mark.parametrize("error", [KeyError, TypeError, RuntimeError, OSError, TimeoutError, ConnectionError])
@pytest.mark.parametrize("where", ["in the plugin", "in the client"])
def test_an_error_of_ours_at_the_end_is_no_lost_connection(
    client: Any, monkeypatch: pytest.MonkeyPatch, error: type[Exception], where: str
) -> None:
    backend = DaskRecorder(client)
    backend.open(0.1)
    client.gather(client.map(str, range(5), pure=False))
    if where == "in the plugin":
        client.run_on_scheduler(break_finish, name=backend.name, error=error)
    else:
        monkeypatch.setattr("roastcoffea.backends.dask.hosts_of", partial(raise_error, error))
    backend.close()
    (note,) = backend.notes()
    assert note.startswith("roastcoffea failed")
    assert f"{error.__name__}: " in note
    assert "planted" in note
    assert "lost" not in note
    assert backend.absent == {"span_metrics": note}
    assert backend.tasks().num_rows == 5
    # the fixture checks that the plugins are gone


def raise_error(error: type[Exception], *arguments: Any, **others: Any) -> None:
    raise error("planted")


def break_finish(name: str, error: type[Exception], dask_scheduler: Any) -> None:
    def broken(**arguments: Any) -> None:
        raise error("planted")

    dask_scheduler.plugins[name].finish = broken


@pytest.fixture
def missing_plugin(client: Any) -> DaskRecorder:
    """A backend whose plugin went away behind its back."""
    backend = DaskRecorder(client)
    backend.open(0.1)
    client.submit(str, 1, pure=False).result()
    backend.drain()
    client.run_on_scheduler(remove_plugin, name=backend.name)
    return backend


async def remove_plugin(name: str, dask_scheduler: Any = None) -> None:
    await dask_scheduler.plugins[name].stop(1)


def test_a_plugin_that_is_gone_is_installed_again_and_what_was_drained_is_kept(
    client: Any, missing_plugin: DaskRecorder
) -> None:
    client.submit(str, 2, pure=False).result()
    missing_plugin.drain()
    client.submit(str, 3, pure=False).result()
    missing_plugin.close()
    assert missing_plugin.tasks().num_rows == 2
    assert missing_plugin.tasks()["prefix"].to_pylist() == ["str", "str"]
    (note,) = missing_plugin.notes()
    assert "nothing was recorded for" in note
    ((since, until),) = missing_plugin.gaps
    assert 0 < until - since < 60
    assert missing_plugin.attempts is None
    assert "span_metrics_per_worker" in missing_plugin.absent
    assert len(missing_plugin.lifetimes(since - 1, until + 1)) == 2


def test_a_plugin_that_is_gone_at_the_end_is_installed_again_for_it(missing_plugin: DaskRecorder) -> None:
    missing_plugin.close()
    assert missing_plugin.tasks().num_rows == 1
    assert missing_plugin.span_metrics is not None or "span_metrics" in missing_plugin.absent
    assert ["nothing was recorded for" in note for note in missing_plugin.notes()] == [True]


async def give_up(name: str, dask_scheduler: Any = None) -> None:
    plugin = dask_scheduler.plugins[name]
    await plugin.stay.leave(1, may_return=True)


@pytest.mark.slow
def test_tasks_of_a_run_are_known_again_after_a_gap(client: Any, sample: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roastcoffea.backends.deployment.DRAIN_INTERVAL", 0.1)
    with MetricsCollector(client) as collector:
        runner = runner_for(client, 1000)
        arguments = {"processor_instance": Sleeping(0.15)}
        running = threading.Thread(target=runner, args=[sample], kwargs=arguments)
        running.start()
        assert client.run_on_scheduler(has_processed, number=4)
        client.run_on_scheduler(give_up, name=active[-1].topic)
        running.join()
    run = collector.measurement.run
    (gap,) = run.gaps
    chunks = collector.measurement.chunks
    assert (chunks["stop"] < gap[0] + 0.1).any()
    assert (chunks["start"] > gap[1] - 0.1).any()
    assert set(collector.measurement.tasks["kind"]) <= {"processor", "merge", "preprocessing", "other"}
    processed = collector.measurement.tasks[collector.measurement.tasks["kind"] == "processor"]
    assert (processed["seen"] > gap[1]).any()
    lacking = 16 - len(chunks)
    assert any(f"{lacking} of 16 chunks have no record" in problem for problem in run.problems) == (lacking > 0)
    assert client.run_on_scheduler(left_on_tasks) == []
    assert "nothing was recorded for" in str(collector.measurement.time_ledger.certificate)


async def has_processed(number: int, dask_scheduler: Any = None) -> bool:
    """Wait until so many chunks have ended."""
    while True:
        prefix = dask_scheduler.task_prefixes.get("Sleeping")
        if prefix is not None and prefix.states["memory"] + prefix.states["forgotten"] >= number:
            return True
        await asyncio.sleep(0.02)
