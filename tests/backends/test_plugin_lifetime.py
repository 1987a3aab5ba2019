"""The scheduler is sampled when a sample is due, and is as it was when the plugin has left."""

from __future__ import annotations

import asyncio
import os
import random
import selectors
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import analyses
import numpy as np
import pandas as pd
import pytest
from analyses import Jets, runner_for
from conftest import wait_until, what_stays
from distributed import Client, Event, wait
from stand_ins import CLIENT, NAME, TOKEN, Scheduler

from roastcoffea import MetricsCollector
from roastcoffea.backends.dask import DaskRecorder
from roastcoffea.backends.scheduler import ClusterPlugin
from roastcoffea.instrument.calls import active
from roastcoffea.log.workers import ClusterLog

T = 1_700_000_000.0


class Jumping(selectors.SelectSelector):
    """Waits for no time: it tells the clock that the time has passed."""

    now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        self.now += timeout or 0.0
        return super().select(0)


class FakeLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock goes on only where the loop waits, and where a callback takes time."""

    def __init__(self) -> None:
        self.clock = Jumping()
        super().__init__(self.clock)

    def time(self) -> float:
        return self.clock.now

    def take(self, seconds: float) -> None:
        """Block the loop for so long."""
        self.clock.now += seconds


def sampled(
    monkeypatch: pytest.MonkeyPatch,
    seconds: float,
    interval: float | None,
    disturb: Callable[[FakeLoop], object] = lambda _: None,
) -> pd.DataFrame:
    """Samples of a scheduler with two workers that was watched for so long."""
    loop, real, here = FakeLoop(), time.time, threading.get_ident()
    # the loops of other threads would wait for years
    monkeypatch.setattr("time.time", lambda: T + loop.time() if threading.get_ident() == here else real())

    async def watch() -> ClusterPlugin:
        plugin = ClusterPlugin(NAME, CLIENT, TOKEN, None, interval)
        await plugin.start(Scheduler(2))
        disturb(loop)
        await asyncio.sleep(seconds)
        await plugin.close()
        return plugin

    try:
        plugin = loop.run_until_complete(watch())
    finally:
        loop.close()
        monkeypatch.undo()
    log = ClusterLog()
    log.feed(plugin.drain(10**9, 0)["data"])
    assert plugin.problems.failures == 0
    found = log.sampling.sampling(T).to_pandas()
    assert log.sampling.states(T)["time"].to_pylist() == found["time"].repeat(2).tolist()
    return found


SHORTLY = 1e-6
"""What is due at the very end of the time is no part of it."""


@pytest.mark.parametrize(("interval", "seconds", "samples"), [(0.1, 3, 30), (0.05, 3, 60), (1.0, 3, 3), (0.7, 0.5, 1)])
def test_samples_come_exactly_when_they_are_due(
    monkeypatch: pytest.MonkeyPatch, interval: float, seconds: float, samples: int
) -> None:
    found = sampled(monkeypatch, seconds - SHORTLY, interval)
    assert len(found) == samples
    assert found["time"].to_numpy() == pytest.approx(interval * np.arange(samples), abs=1e-6)
    assert found["late_seconds"].max() < 1e-6
    assert found["missed"].sum() == 0
    assert set(found["workers"]) == {2}


def test_what_a_blocked_loop_kept_out_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    # due were those of 1.1, 1.2, 1.3 and 1.4 s, of which the last one is taken when the loop goes on
    found = sampled(monkeypatch, 3 - SHORTLY, 0.1, lambda loop: loop.call_later(1.01, loop.take, 0.45))
    assert len(found) == 27
    (row,) = found.index[found["missed"] > 0]
    assert found["missed"][row] == 3
    assert found["time"][row] == pytest.approx(1.46, abs=1e-6)
    assert found["late_seconds"][row] == pytest.approx(0.06, abs=1e-6)
    assert found["time"].to_numpy()[row + 1 :] == pytest.approx(0.1 * np.arange(15, 30), abs=1e-6)


def test_work_in_the_loop_does_not_make_samples_drift(monkeypatch: pytest.MonkeyPatch) -> None:
    def work(loop: FakeLoop) -> None:
        loop.take(0.03)
        loop.call_later(0.04, work, loop)

    found = sampled(monkeypatch, 30 - SHORTLY, 0.1, lambda loop: loop.call_later(0.01, work, loop))
    assert len(found) + found["missed"].sum() == 300
    assert found["missed"].sum() == 0
    due = found["time"] - found["late_seconds"]
    assert due.to_numpy() == pytest.approx(0.1 * np.arange(300), abs=1e-5)


INTERVAL = 0.1


def test_no_sample_is_missing_but_where_the_loop_was_blocked(client: Client) -> None:
    backend = DaskRecorder(client)
    earliest = time.monotonic()
    backend.open(INTERVAL)
    latest = time.monotonic()
    time.sleep(0.4)
    client.run_on_scheduler(block, seconds=0.45)
    time.sleep(0.2)
    closing = time.monotonic()
    backend.close()
    closed = time.monotonic()
    tracking = backend.tracking_data()
    found = backend.sampling().to_pandas()
    assert (closing - latest) // INTERVAL <= len(found) + found["missed"].sum() <= (closed - earliest) // INTERVAL + 2
    assert closing < closed - (time.time() - found["time"].iloc[-1]) + 0.05  # the last one is of the end
    assert found["missed"].max() >= 3
    assert (found["time"].diff().dropna() > 0).all()
    moments = [moment.timestamp() for moment in tracking["worker_counts"]]
    assert moments == pytest.approx(found["time"].tolist())
    assert set(tracking["worker_counts"].values()) == {2}
    by_scheduler = ("worker_active_tasks", "worker_nbytes", "worker_occupancy")
    for field in ("worker_counts", *by_scheduler):
        assert tracking[field].pace == "at the sampling interval, by the scheduler"
    for field in by_scheduler:
        for points in tracking[field].values():
            assert [moment.timestamp() for moment, _ in points] == pytest.approx(moments)
    for field in tracking.keys() - {"worker_counts", *by_scheduler}:
        assert tracking[field].pace == "at each sample of the worker; on Dask, at its heartbeats"


def block(seconds: float, dask_scheduler: Any = None) -> None:
    time.sleep(seconds)


BURSTS = 20


@pytest.mark.slow
def test_bursts_of_two_intervals_are_in_the_series_20_of_20(client: Client) -> None:
    with MetricsCollector(client, worker_tracking_interval=INTERVAL) as collector:
        for burst in range(BURSTS):
            client.gather(client.map(hold, [burst] * 4, [2.2 * INTERVAL / 2] * 4, pure=False))
    measurement = collector.measurement
    tasks, samples, states = measurement.tasks, measurement.sampling, measurement.worker_states
    assigned = states.groupby("time")["processing"].sum()
    # each sample tells what the scheduler's transitions tell; a stolen task has the time at which its thief got it
    for moment, processing in assigned.items():
        told = ((tasks["assigned"] <= moment) & (moment < tasks["seen"])).sum()
        before = (tasks["stolen"] > 0) & (tasks["runnable"] <= moment) & (moment < tasks["assigned"])
        assert told <= processing <= told + before.sum()
    found = blocked = 0
    for first in range(0, len(tasks), 4):
        burst = tasks.sort_values("runnable").iloc[first : first + 4]
        # not from being assigned: a thief gets its task when the burst is half over
        begin, end = burst["runnable"].max(), burst["seen"].max()
        assert end - begin >= 2 * INTERVAL
        inside = assigned[(begin < assigned.index) & (assigned.index < end)]
        found += bool((inside > 0).any())
        after = samples[samples["time"] >= end]["missed"]
        blocked += len(inside) == 0 and bool(after.iloc[:1].sum())
    assert (found, blocked) == (BURSTS - blocked, blocked)
    assert found > 0


def hold(burst: int, seconds: float) -> int:
    time.sleep(seconds)
    return burst


def test_a_pace_that_would_burden_the_scheduler_is_told(client: Client) -> None:
    with MetricsCollector(client, worker_tracking_interval=0.001) as collector:
        client.submit(abs, 1, pure=False).result()
    (problem,) = collector.measurement.problems
    assert problem == "an interval of 0.001 s would burden the scheduler: it was sampled every 0.05 s"


# how it leaves


@pytest.mark.slow
def test_tasks_that_the_user_keeps_hold_nothing_of_ours(client: Client, sample: Any) -> None:
    release = f"release-{random.random()}"
    with MetricsCollector(client):
        output, _ = runner_for(client, 4000)(sample, processor_instance=Jets())
        kept = client.map(str, range(5), pure=False)
        failed = client.submit(int, "no number", pure=False)
        wait([*kept, failed])
        with pytest.raises(Exception, match="planted"):
            runner_for(client, 4000, retries=0)(sample, processor_instance=analyses.Raising(0))
        running = client.submit(wait_for_release, release, pure=False)
        assert wait_until(lambda: running.key in [key for keys in client.processing().values() for key in keys])
    Event(release, client).set()
    assert running.result() == release
    assert wait_until(lambda: what_tasks_hold(client) == []), what_tasks_hold(client)
    assert output


def wait_for_release(name: str) -> str:
    Event(name).wait(30)
    return name


def what_tasks_hold(client: Client) -> list[str]:
    places = [client.run_on_scheduler(_held_on_scheduler), *client.run(_held_on_worker).values()]
    return [name for names in places for name in names]


def _held_on_scheduler(dask_scheduler: Any) -> list[str]:
    tasks = dask_scheduler.tasks.values()
    return [
        f"{task.key}: {name}"
        for task in tasks
        for held in (task.metadata, task.annotations)
        for name in held or ()
        if "roastcoffea" in name
    ]


def _held_on_worker(dask_worker: Any) -> list[str]:
    tasks = dask_worker.state.tasks.values()
    return [
        f"{task.key}: {name}"
        for task in tasks
        for held in (task.metadata, task.annotations)
        for name in held or ()
        if "roastcoffea" in name
    ]


@pytest.mark.slow
def test_an_event_that_comes_when_the_plugin_has_gone_is_forgotten(client: Any) -> None:
    with MetricsCollector(client):
        topic = active[-1].topic
    client.log_event(topic, {"chunk": b""})
    assert client.get_events(topic)
    assert wait_until(lambda: what_stays(client) == [])


@pytest.mark.slow
def test_a_client_process_that_is_killed_leaves_nothing(shared_client: Any, tmp_path: Path) -> None:
    script = tmp_path / "client.py"
    script.write_text(
        textwrap.dedent(f"""
        import time
        from distributed import Client
        from roastcoffea.collector import MetricsCollector
        with Client({shared_client.scheduler.address!r}) as client, MetricsCollector(client):
            print("open", flush=True)
            time.sleep(60)
        """)
    )
    process = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"open\n"
    assert what_stays(shared_client) != []
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert wait_until(lambda: what_stays(shared_client) == [])
    with MetricsCollector(shared_client) as collector:
        shared_client.submit(sum, [1, 2], pure=False).result()
    assert collector.measurement.problems == []


def test_chunks_that_fail_after_the_collector_was_left(client: Any, sample: Any) -> None:
    with pytest.raises(Exception, match="planted"), MetricsCollector(client):
        runner_for(client, 500, retries=0)(sample, processor_instance=analyses.RaisingLate(0.4))
    # the fixture checks that the last chunks, which fail when nobody listens, leave nothing on the scheduler
    assert wait_until(lambda: not any(client.processing().values()))


class Unreachable(Scheduler):
    """Has a worker that two messages do not reach."""

    def __init__(self) -> None:
        super().__init__(2)
        self.lost, _ = self.workers
        self.worker_plugins = {NAME: b""}
        self.asked: list[set[str]] = []
        self._broker = SimpleNamespace(_topics={})

    async def broadcast(self, *, msg: Any, workers: set[str], on_error: str) -> dict[str, Any]:
        assert (msg, on_error) == ({"op": "plugin-remove", "name": NAME}, "return")
        self.asked.append(workers)
        answers: dict[str, Any] = {address: {"status": "OK"} for address in workers}
        return answers | ({self.lost: OSError("no route to host")} if len(self.asked) <= 2 else {})


def test_a_worker_that_is_not_reached_is_asked_again_to_remove_the_plugin() -> None:
    loop, scheduler = FakeLoop(), Unreachable()

    async def leave() -> None:
        plugin = ClusterPlugin(NAME, CLIENT, TOKEN, None)
        await plugin.start(scheduler)
        await plugin.stop(10.0)

    loop.run_until_complete(leave())
    loop.close()
    assert scheduler.worker_plugins == {}
    assert scheduler.asked == [set(scheduler.workers), {scheduler.lost}, {scheduler.lost}]
