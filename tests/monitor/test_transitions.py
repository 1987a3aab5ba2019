"""A function that is called for each transition, against the scheduler's own log of them."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from conftest import wait_until
from distributed import Client
from processes import PATIENCE

from roastcoffea import TaskMonitor
from roastcoffea.monitor.task_monitor import caller_of


def test_every_transition_is_passed_on_in_the_scheduler_s_order(client: Client) -> None:
    seen: list[tuple[Any, ...]] = []
    details: list[dict[str, Any]] = []

    def follow(*transition: Any, **more: Any) -> None:
        seen.append(transition)
        details.append(more)

    with TaskMonitor(client, on_transition=follow) as monitor:
        futures = client.map(abs, range(20), pure=False)
        client.gather(futures)
        keys = [future.key for future in futures]
        del futures
        assert wait_until(lambda: monitor.snapshot().num_tasks == 0)
    story = client.run_on_scheduler(
        lambda dask_scheduler: [(each.key, each.start, each.finish) for each in dask_scheduler.transition_log]
    )
    assert seen == [each for each in story if each[0] in set(keys)]
    assert {name for more in details for name in more} == {"time", "worker", "nbytes", "type"}
    in_memory = [more for (_, _, finish), more in zip(seen, details, strict=True) if finish == "memory"]
    assert [(more["nbytes"], more["type"]) for more in in_memory] == [(28, "int")] * 20
    assert monitor.problems == []


def test_they_come_while_the_monitor_runs(client: Client) -> None:
    came = threading.Event()
    with TaskMonitor(client, on_transition=lambda key, start, finish: came.set()):
        client.submit(abs, 1, pure=False).result()
        assert came.wait(PATIENCE)


def test_errors_are_counted_and_reach_nobody(client: Client) -> None:
    def fail(key: Any, start: str, finish: str) -> None:
        raise ValueError("planted")

    with TaskMonitor(client, on_transition=fail) as monitor:
        assert client.submit(abs, -1, pure=False).result() == 1
    (problem,) = monitor.problems
    assert "on_transition failed" in problem
    assert problem.endswith("the first: ValueError: planted")
    assert len(monitor.get_all_tasks()) == 1


def test_the_function_may_stop_the_monitor(client: Client) -> None:
    monitors: list[TaskMonitor] = []
    stopped = threading.Event()

    def stop(key: Any, start: str, finish: str) -> None:
        monitors[0].stop()
        stopped.set()

    monitors.append(TaskMonitor(client, on_transition=stop))
    monitors[0].start()
    client.submit(abs, -1, pure=False).result()
    assert stopped.wait(PATIENCE)
    assert not monitors[0].running


@pytest.mark.parametrize("function", [3, lambda key: None, [].append])
def test_what_cannot_be_called_is_refused(client: Client, function: Any) -> None:
    with pytest.raises(TypeError, match=r"on_transition\(key, start, finish, \*\*details\)"):
        TaskMonitor(client, on_transition=function)


def test_a_function_of_three_parameters_gets_no_details() -> None:
    seen = []
    caller_of(lambda key, start, finish: seen.append((key, start, finish)))("a", "waiting", "memory", time=1.0)
    assert seen == [("a", "waiting", "memory")]
