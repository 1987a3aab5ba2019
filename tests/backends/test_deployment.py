"""Plugins on a cluster that answers late, wrongly or not at all."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import pytest

from roastcoffea.backends.dask import DaskMetricsBackend
from roastcoffea.backends.deployment import Deployment
from roastcoffea.collector import MetricsCollector

BLOCKED, RELEASED = threading.Event(), threading.Event()


def block_scheduler(dask_scheduler: Any) -> None:
    """Let the scheduler, which is in this process, do nothing until it is released."""
    BLOCKED.set()
    assert RELEASED.wait(60)


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
    monkeypatch.setattr("roastcoffea.backends.connection.SCHEDULER_TIMEOUT", 0.5)
    with ExitStack() as stack, MetricsCollector(client) as collector:
        futures = client.map(str, range(50), pure=False)
        client.gather(futures)
        stack.enter_context(blocked_scheduler(client))
    reasons = collector.measurement.metrics.missing
    assert "the connection to the cluster was lost" in reasons["total_cores"]
    assert "the connection to the cluster was lost" in reasons["processor_cpu_time_seconds"]
    assert collector.measurement.problems
    # the fixture checks that the plugins go all the same


def test_rows_survive_an_answer_that_came_too_late(client: Any, sample: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    too_late, drain = threading.Event(), Deployment.drain

    def noted(self: Deployment) -> None:
        in_vain = BLOCKED.is_set()
        try:
            drain(self)
        finally:
            if in_vain:
                too_late.set()

    with MetricsCollector(client) as collector:
        client.gather(client.map(str, range(500), pure=False))
        monkeypatch.setattr("roastcoffea.backends.connection.SCHEDULER_TIMEOUT", 0.3)
        monkeypatch.setattr(Deployment, "drain", noted)
        with blocked_scheduler(client):
            assert too_late.wait(60)
        monkeypatch.undo()
    assert (collector.measurement.tasks["prefix"] == "str").sum() == 500
    assert collector.measurement.run.dropped == {}


@pytest.mark.parametrize("error", [KeyError, TypeError, RuntimeError, OSError, TimeoutError, ConnectionError])
@pytest.mark.parametrize("where", ["in the plugin", "in the client"])
def test_an_error_of_ours_at_the_end_is_no_lost_connection(
    client: Any, monkeypatch: pytest.MonkeyPatch, error: type[Exception], where: str
) -> None:
    backend = DaskMetricsBackend(client)
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
def missing_plugin(client: Any) -> DaskMetricsBackend:
    """A backend whose plugin went away behind its back."""
    backend = DaskMetricsBackend(client)
    backend.open(0.1)
    client.submit(str, 1, pure=False).result()
    backend.drain()
    client.run_on_scheduler(remove_plugin, name=backend.name)
    return backend


async def remove_plugin(name: str, dask_scheduler: Any = None) -> None:
    await dask_scheduler.plugins[name].stop(1)


def test_a_plugin_that_is_gone_is_noted_and_what_was_drained_is_kept(missing_plugin: DaskMetricsBackend) -> None:
    missing_plugin.close()
    assert missing_plugin.tasks().num_rows == 1
    assert "no longer has the collector's plugin" in missing_plugin.absent["span_metrics"]
    assert len(missing_plugin.notes()) == 1
