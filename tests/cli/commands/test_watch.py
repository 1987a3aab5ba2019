"""`roastcoffea watch` beside a client that drives the cluster."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from conftest import CommandLineCluster, wait_until
from distributed import Client, Event, LocalCluster
from processes import PATIENCE

from roastcoffea import TaskMonitor
from roastcoffea.cli import main


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """A client of a cluster of its own: on the shared one errors of earlier tests may keep their tasks."""
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=False, protocol="tcp", dashboard_address=":0", silence_logs=50
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


def wait_for(event: str, number: int) -> int:
    Event(event).wait()
    return number


@contextmanager
def waiting_tasks(client: Client, name: str) -> Iterator[None]:
    """Five tasks that are there until the end."""
    futures = client.map(wait_for, [name] * 5, range(5), pure=False)
    assert wait_until(lambda: sum(map(len, client.processing().values())) >= 2)
    try:
        yield
    finally:
        Event(name, client=client).set()
    client.gather(futures)


@pytest.mark.slow
def test_each_look_as_json_is_what_the_scheduler_has(client: Client, capsys: Any, tmp_path: Path) -> None:
    with waiting_tasks(client, "roastcoffea-json"):
        options = ["--interval", "0.1", "--seconds", "0.5", "--json", "--output", str(tmp_path)]
        assert main(["watch", client.scheduler.address, *options]) == 0
        truth = client.run_on_scheduler(
            lambda dask_scheduler: sorted(task.state for task in dask_scheduler.tasks.values())
        )
        assert main(["watch", client.scheduler.address, *options[:5]]) == 0
    captured = capsys.readouterr()
    looks = [json.loads(line) for line in captured.out.splitlines()]
    assert len(looks) >= 6
    for look in looks:
        assert look["workers"] == 2
        (states,) = look["tasks"].values()
        assert sorted(state for state, count in states.items() for _ in range(count)) == truth
    loaded = TaskMonitor.load(captured.err.strip())
    assert [task["prefix"] for task in loaded.get_all_tasks()] == ["wait_for"] * 5


def test_a_line_for_each_change_and_a_table(client: Client, capsys: Any, tmp_path: Path) -> None:
    with waiting_tasks(client, "roastcoffea-lines"):
        assert main(["watch", client.scheduler.address, "--interval", "0.1", "--seconds", "0.5"]) == 0
        assert capsys.readouterr().out.count("5 tasks") == 1
        options = ["--interval", "0.1", "--seconds", "0.5", "-o", str(tmp_path)]
        assert main(["watch", client.scheduler.address, *options]) == 0
    line, *rest = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"\d\d:\d\d:\d\d  2 workers, 5 tasks: .*processing.*", line)
    assert any(row.split()[:4] == ["wait_for", "other", "5", "0"] for row in rest)


@pytest.mark.parametrize(
    ("words", "status", "reason"),
    [
        (["watch"], 2, "Missing argument 'SCHEDULER'"),
        (["watch", "nowhere://x:1"], 1, "no scheduler answers at nowhere://x:1 (unknown address scheme"),
        (["watch", "http://127.0.0.1:8786"], 1, "(unknown address scheme 'http'"),
        (["watch", ""], 1, "no scheduler answers at (missing port number"),
        (["watch", "localhost"], 1, "no scheduler answers at localhost (missing port number"),
        (["watch", "tcp://127.0.0.1:notaport"], 1, "; use tcp://HOST:PORT"),
        (["watch", "tls://127.0.0.1:8786"], 1, "no scheduler answers at tls://127.0.0.1:8786 (TLS expects"),
        (["watch", "tcp://x:1", "--interval", "0"], 2, "--interval"),
    ],
)
def test_what_cannot_be_watched(words: list[str], status: int, reason: str, capsys: Any) -> None:
    assert main(words) == status
    found = capsys.readouterr().err
    assert reason in found
    assert len(found.splitlines()) == 1 or status == 2


@pytest.mark.slow
def test_ctrl_c_ends_it_and_a_lost_scheduler_is_a_failure(command_line_cluster: Any) -> None:
    cluster: CommandLineCluster = command_line_cluster(workers=1)
    address = json.loads(cluster.file.read_text())["address"]
    assert ended_watch(address, lambda watching: watching.send_signal(signal.SIGINT)) == (0, "")
    lost = ended_watch(address, lambda _: cluster.processes[0].kill())
    assert lost == (1, f"roastcoffea: the scheduler at {address} is gone")


def ended_watch(address: str, end: Callable[[subprocess.Popen[str]], None]) -> tuple[int, str]:
    """Status and errors of a watch that is ended once it has shown the worker."""
    lines: list[str] = []
    command = [sys.executable, "-m", "roastcoffea", "watch", address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        reader = threading.Thread(target=lambda: lines.extend(process.stdout or ()))
        reader.start()
        assert wait_until(lambda: any("1 worker" in line for line in lines))
        end(process)
        status = process.wait(PATIENCE)
        reader.join()
        errors = process.stderr.read() if process.stderr else ""
    return status, errors.strip()
