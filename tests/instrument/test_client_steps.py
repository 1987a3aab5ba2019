"""Steps of a client while executors work with it."""

from __future__ import annotations

import threading
import time
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from analyses import Jets, runner_for
from distributed import Client

from roastcoffea import MetricsCollector
from roastcoffea.instrument.calls import Watchers
from roastcoffea.instrument.hook import recorded_steps
from roastcoffea.metrics.scheduler_and_client import TABLE

FRAMES = SimpleNamespace(frames=[b"12345", bytearray(5), memoryview(b"12")])


class FakeClient:
    """A client that keeps what it sends."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def map(self, *items: int, fails: bool = False) -> list[int]:
        self.sync(len)  # an own call is a part of the same step
        self._send_to_scheduler({"op": "update-graph", "expr_ser": FRAMES, "keys": {*items}})
        if fails:
            raise OSError("planted")
        return [*items]

    def submit(self, item: int) -> int:
        self._send_to_scheduler({"op": "update-graph", "graph_frames": [b"123"], "keys": {item}})
        return item

    def sync(self, function: Any) -> Any:
        return function

    def _send_to_scheduler(self, message: Any) -> None:
        self.sent.append(message)


UNPATCHED = dict(vars(FakeClient))


class OddClient(FakeClient):
    """Its messages have forms that nobody knows."""

    def submit(self, item: int) -> int:
        for message in ("text", None, {"op": "update-graph"}, {"op": "update-graph", "expr_ser": 3, "keys": {item}}):
            self._send_to_scheduler(message)
        return item


def steps_of(work: Any, client: FakeClient) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    with MetricsCollector():
        with recorded_steps(client, "c1", "processing", watchers(found.extend)):
            work(client)
        assert FakeClient.map is not UNPATCHED["map"]
    assert dict(vars(FakeClient)) == UNPATCHED
    return found


def watchers(take: Any) -> Watchers:
    return Watchers([SimpleNamespace(client_steps=take, note=print)])


def test_graphs_results_and_the_merge_are_steps_one_after_the_other() -> None:
    def work(client: FakeClient) -> None:
        assert client.map(1, 2, 3) == [1, 2, 3]
        assert client.submit(4) == 4
        assert client.sync("a result") == "a result"

    executor, *others = steps_of(work, FakeClient())
    assert (executor["step"], [row["step"] for row in others]) == ("executor", ["submit", "submit", "results", "merge"])
    assert [(row["graph_bytes"], row["tasks"]) for row in others[:2]] == [(12, 3), (3, 1)]
    assert all((row["call"], row["work"]) == ("c1", "processing") for row in (executor, *others))
    edges = [executor["start"], *(row[edge] for row in others for edge in ("start", "stop")), executor["stop"]]
    assert edges == sorted(edges)
    assert abs(time.time() - edges[-1]) < 60


def test_what_fails_is_a_step_and_the_error_is_the_users() -> None:
    client, found = FakeClient(), []
    recorded = recorded_steps(client, None, "processing", watchers(found.extend))
    with pytest.raises(OSError, match="planted"), MetricsCollector(), recorded:
        client.map(1, fails=True)
    assert [row["step"] for row in found] == ["executor", "submit", "results"]


def test_messages_of_unknown_form_are_sent_and_have_no_size() -> None:
    client = OddClient()
    _, submit, _ = steps_of(lambda client: client.submit(1), client)
    assert len(client.sent) == 4
    assert (submit["graph_bytes"], submit["tasks"]) == (None, None)


def test_threads_with_one_client_have_steps_of_their_own() -> None:
    client, found, both, first_left = FakeClient(), {}, threading.Barrier(2), threading.Event()

    def work(number: int) -> None:
        with recorded_steps(client, str(number), "processing", watchers(partial(found.__setitem__, number))):
            both.wait()
            client.map(*range(number))
            if number == 1:
                first_left.wait()  # which restored nothing
                client.submit(1)
        first_left.set()

    threads = [threading.Thread(target=work, args=(number,)) for number in (1, 2)]
    with MetricsCollector():
        for thread in threads:
            thread.start()
        client.submit(7)  # of no executor
        for thread in threads:
            thread.join()
    tasks = {number: [row["tasks"] for row in rows if row["step"] == "submit"] for number, rows in found.items()}
    assert tasks == {1: [1, 1], 2: [2]}


def test_a_run_on_dask_has_steps_graphs_and_merges(client: Client, sample: Any) -> None:
    attributes, method = set(vars(client)), Client.map
    with MetricsCollector(client) as collector:
        runner_for(client, 4000, treereduction=2)(sample, processor_instance=Jets())
    assert set(vars(client)) <= attributes
    assert Client.map is method
    measurement, metrics = collector.measurement, collector.measurement.metrics
    steps, tasks = measurement.client_steps, measurement.tasks
    submits = steps[steps["step"] == "submit"]
    sent = submits[submits["work"] == "preprocessing"]
    assert sent["tasks"].sum() == (tasks["kind"] == "preprocessing").sum() > 0
    sent = submits[submits["work"] == "processing"]
    ours = tasks["kind"].isin({"processor", "merge"})
    assert sent["tasks"].sum() - ours.sum() in {0, 1}  # the function itself, if coffea sends it as a task
    assert (submits["graph_bytes"] > 0).all()
    assert sum(metrics[f"client_{name}_seconds"] for name in TABLE) == pytest.approx(metrics["elapsed_time_seconds"])
    # a binary tree merges each result of a chunk once, and each merged one but the last
    merges, chunks = measurement.merges, (tasks["kind"] == "processor").sum()
    levels = [-(-chunks // 2**level) for level in range(int(chunks - 1).bit_length() + 1)]
    assert merges["merges"].tolist() == levels[1:]
    assert merges["inputs"].tolist() == levels[:-1]
    assert merges["input_bytes"].iloc[0] == tasks.loc[tasks["kind"] == "processor", "nbytes"].sum()
