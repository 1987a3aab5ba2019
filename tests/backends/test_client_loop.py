"""Samples of a client's event loop."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from roastcoffea.backends.dask import ClientLoop


class Loop:
    """An event loop that calls back when it is told to."""

    def __init__(self) -> None:
        self.called: list[Callable[[], Any]] = []
        self.is_closed = False

    def add_callback(self, callback: Callable[[], Any]) -> None:
        if self.is_closed:
            raise RuntimeError("Event loop is closed")
        self.called.append(callback)

    def turn(self) -> None:
        for callback in self.called:
            callback()
        self.called.clear()


def looked(loop: Loop, **client: Any) -> tuple[ClientLoop, list[dict[str, Any]]]:
    found: list[dict[str, Any]] = []
    return ClientLoop(SimpleNamespace(loop=loop, **client), found.append), found


def test_a_sample_has_what_was_used_since_the_one_before() -> None:
    loop = Loop()
    client, found = looked(loop)
    client.look()
    loop.turn()
    assert found == []
    busy_until = time.thread_time() + 0.01
    while time.thread_time() < busy_until:
        pass
    client.look()
    loop.turn()
    (row,) = found
    assert row["step"] == "event loop"
    assert 0.01 <= row["cpu_seconds"] <= row["stop"] - row["start"] + 0.001
    assert row["process_cpu_seconds"] >= row["cpu_seconds"] - 0.001


def test_an_event_loop_that_does_not_come_to_it_is_asked_once_and_is_late() -> None:
    loop = Loop()
    client, found = looked(loop)
    client.look()
    loop.turn()
    for _ in range(3):
        client.look()
    assert len(loop.called) == 1
    time.sleep(0.01)
    loop.turn()
    assert found[0]["late_seconds"] >= 0.009


@pytest.mark.parametrize("is_shared", [True, False])
def test_the_event_loop_of_a_local_cluster_is_shared(is_shared: bool) -> None:
    loop = Loop()
    cluster = SimpleNamespace(scheduler=SimpleNamespace(loop=loop if is_shared else Loop()))
    client, found = looked(loop, cluster=cluster)
    for _ in range(2):
        client.look()
        loop.turn()
    assert found[0]["step"] == ("shared event loop" if is_shared else "event loop")


def test_a_closed_event_loop_is_not_sampled() -> None:
    loop = Loop()
    client, found = looked(loop)
    loop.is_closed = True
    client.look()
    assert found == []
