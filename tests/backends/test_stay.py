"""How a plugin leaves: tasks, topics and workers are as they were."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import analyses
import pytest
from analyses import Jets, runner_for
from conftest import wait_until, what_stays
from distributed import Client, Event, wait

from roastcoffea.collector import MetricsCollector


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


def test_an_event_that_comes_when_the_plugin_has_gone_is_forgotten(client: Any) -> None:
    with MetricsCollector(client) as collector:
        pass
    client.log_event(collector.topic, {"chunk": b""})
    assert client.get_events(collector.topic)
    assert wait_until(lambda: what_stays(client) == [])


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
    assert wait_until(lambda: what_stays(shared_client) == [], 30)
    with MetricsCollector(shared_client) as collector:
        shared_client.submit(sum, [1, 2], pure=False).result()
    assert collector.measurement.problems == []


def test_chunks_that_fail_after_the_collector_was_left(client: Any, sample: Any) -> None:
    with pytest.raises(Exception, match="planted"), MetricsCollector(client):
        runner_for(client, 500, retries=0)(sample, processor_instance=analyses.RaisingLate(0.4))
    # the fixture checks that the last chunks, which fail when nobody listens, leave nothing on the scheduler
    assert wait_until(lambda: not any(client.processing().values()), 30)
