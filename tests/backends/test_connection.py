"""Calls of functions on the scheduler, and what is raised where there is no answer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import analyses
import pytest
from distributed import Client
from processes import PATIENCE

from roastcoffea.backends.deployment import Connection, NoAnswerError, SchedulerSideError


def number_of_workers(least: int, dask_scheduler: Any) -> int:
    if len(dask_scheduler.workers) < least:
        raise ValueError(f"fewer than {least}")
    return len(dask_scheduler.workers)


async def later(value: str, dask_scheduler: Any) -> str:
    return value


def test_functions_run_on_the_scheduler_whether_they_wait_or_not(client: Client) -> None:
    connection = Connection(client)
    assert connection.answer(number_of_workers, {"least": 2}) == 2
    assert connection.answer(later, {"value": "came"}) == "came"


def test_an_error_of_a_function_is_no_lost_connection(client: Client) -> None:
    with pytest.raises(SchedulerSideError, match="ValueError: fewer than 3"):
        Connection(client).answer(number_of_workers, {"least": 3})


def test_what_is_no_connected_client_is_refused(client: Client) -> None:
    with pytest.raises(TypeError, match="not str"):
        Connection("tcp://127.0.0.1:8786")
    closed = Client(client.scheduler.address, set_as_default=False)
    closed.close()
    with pytest.raises(ValueError, match="this one is closed"):
        Connection(closed)


class Gone:
    """Ways in which a scheduler cannot be asked any more: what is done to it."""

    @staticmethod
    def killed(client: Client, cluster: Any) -> None:
        cluster.processes[0].kill()
        cluster.processes[0].wait()

    @staticmethod
    def stopped(client: Client, cluster: Any) -> None:
        cluster.processes[0].send_signal(signal.SIGSTOP)

    @staticmethod
    def client_closed(client: Client, cluster: Any) -> None:
        client.close()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("how", ["killed", "stopped", "client_closed"])
def test_a_scheduler_that_is_gone_gives_no_answer(
    command_line_cluster: Any, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    cluster = command_line_cluster(workers=0, path=str(Path(analyses.__file__).parent))
    client = Client(scheduler_file=str(cluster.file))
    # only a stopped one keeps its connection, so that nothing but the time tells
    monkeypatch.setattr("roastcoffea.backends.deployment.SCHEDULER_TIMEOUT", 0.5 if how == "stopped" else 60.0)
    it_goes_during_the_call, it_was_gone_before = Connection(client), Connection(client)
    ending = threading.Timer(0.2, partial(getattr(Gone, how), client, cluster))
    ending.start()
    for connection in (it_goes_during_the_call, it_was_gone_before):
        with pytest.raises(NoAnswerError, match="did not answer" if how == "stopped" else "was lost"):
            connection.answer(analyses.wait_long, {})
        ending.join()
    cluster.processes[0].kill()
    client.close()


LOOP_STOPPED = """
import os, sys, threading
from distributed import Client
from roastcoffea.backends import deployment as connection
from analyses import wait_long

connection.SCHEDULER_TIMEOUT = 0.5
client = Client(sys.argv[1])
scheduler, loop = connection.Connection(client), client.loop.asyncio_loop
threading.Timer(0.2, loop.call_soon_threadsafe, [loop.stop]).start()
for _ in range(2):
    try:
        scheduler.answer(wait_long, {})
    except connection.NoAnswerError as error:
        print(error, flush=True)
os._exit(0)
"""


@pytest.mark.slow
def test_a_client_whose_loop_has_ended_gives_no_answer(client: Client) -> None:
    script = [sys.executable, "-c", LOOP_STOPPED, client.scheduler.address]
    paths = {"PYTHONPATH": str(Path(analyses.__file__).parent)}
    done = subprocess.run(script, check=False, capture_output=True, text=True, timeout=PATIENCE, env=os.environ | paths)
    lines = done.stdout.splitlines()
    assert len(lines) == 2, done.stderr
    # a loop that has stopped may or may not be closed already
    texts = "the connection to the cluster was lost", "the scheduler did not answer within 0.5 s"
    assert all(line.startswith(texts) for line in lines), lines
