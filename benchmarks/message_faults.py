"""Messages of ours on a Dask cluster, one of which fails: `every_fault.py` counts them as it counts writes.

Ours are the client's calls to the scheduler, the scheduler's to its workers, and the workers' events. A message fails
on its way, or its answer does after it has arrived. An event has no answer, and Dask drops it without an error. Dask's
own messages are left alone.
"""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Protocol
from unittest.mock import patch

import dask
from distributed import Client, LocalCluster, Scheduler, Worker
from distributed.comm import CommClosedError

import roastcoffea
from roastcoffea.log.byvalue import ByValue

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from conftest import CALM, what_stays
from processes import wait_until

CLEAN: Final = 5.0
SPANS_GONE: Final = 20.0
"""Seconds after which nothing of ours, and no span of the run, may be on the cluster."""

OURS: Final = str(Path(roastcoffea.__file__).parent)


class Counted(Protocol):
    """What counts calls."""

    late: bool

    def due(self, name: str) -> bool:
        """Whether this call is to fail."""


@contextmanager
def failing_messages(faults: Counted) -> Iterator[None]:
    """Count messages of ours, and let one of them fail."""
    asked, broadcast, log_event = Client._run_on_scheduler, Scheduler.broadcast, Worker.log_event

    def error(name: str) -> CommClosedError:
        return CommClosedError(f"planted in {name}")

    async def asked_once(client: Any, function: Any, *args: Any, **given: Any) -> Any:
        if not isinstance(function, ByValue):
            return await asked(client, function, *args, **given)
        arguments = given.get("arguments", given)
        name = f"ask {arguments.get('method') or ', '.join(arguments) or 'nothing'}"
        fails = faults.due(name)
        if fails and not faults.late:
            raise error(name)
        answer = await asked(client, function, *args, **given)
        if fails:
            raise error(name)
        return answer

    async def broadcast_once(scheduler: Any, *, msg: Any, on_error: str = "raise", **given: Any) -> Any:
        name = f"broadcast {msg['op']}"
        named = str(msg.get("name", "")) + repr(msg.get("function", ""))
        fails = "roastcoffea" in named and faults.due(name)
        answer = None
        if not fails or faults.late:
            answer = await broadcast(scheduler, msg=msg, on_error=on_error, **given)
        if fails and on_error == "return":
            return dict.fromkeys(given["workers"], error(name))
        if fails:
            raise error(name)
        return answer

    def log_event_once(worker: Any, topic: Any, msg: Any) -> None:
        name = f"event {', '.join(key for key in msg if key not in ('token', 'worker'))}" if "token" in msg else ""
        if not name or not faults.due(name):
            log_event(worker, topic, msg)

    changed = {
        (Client, "_run_on_scheduler"): asked_once,
        (Scheduler, "broadcast"): broadcast_once,
        (Worker, "log_event"): log_event_once,
    }
    patches = [patch.object(*place, each) for place, each in changed.items()]
    for each in patches:
        each.start()
    try:
        yield
    finally:
        for each in patches:
            each.stop()


class Tracebacks(logging.Handler):
    """Errors that were logged and that our code raised."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep an error with our code in its traceback."""
        if record.exc_info and record.exc_info[2]:
            text = "".join(traceback.format_exception(*record.exc_info))
            if OURS in text:
                self.found.append(f"{record.name}: {record.getMessage()}: {text}")


@contextmanager
def raw_errors() -> Iterator[list[str]]:
    """Errors of ours that Dask, tornado and asyncio log."""
    handler = Tracebacks()
    loggers = [logging.getLogger(name) for name in ("distributed", "tornado", "asyncio", "roastcoffea")]
    before = [(one.handlers, one.propagate) for one in loggers]
    for one in loggers:
        one.handlers, one.propagate = [handler], False
    try:
        yield handler.found
    finally:
        for one, (handlers, propagates) in zip(loggers, before, strict=True):
            one.handlers, one.propagate = handlers, propagates


@contextmanager
def cluster_of_threads() -> Iterator[Client]:
    """Scheduler, a worker and a client in this process, that talk over TCP."""
    options = {"dashboard_address": None, "protocol": "tcp://", "host": "127.0.0.1", "silence_logs": False}
    with (
        dask.config.set(CALM),
        LocalCluster(n_workers=1, threads_per_worker=1, processes=False, **options) as cluster,
        Client(cluster) as client,
    ):
        yield client


def check_left(client: Client) -> None:
    """Raise if something of ours stays on a cluster."""
    assert wait_until(lambda: what_stays(client) == [], CLEAN), f"{what_stays(client)} is left on the cluster"
    gone = wait_until(lambda: client.run_on_scheduler(listed_spans) == 0, SPANS_GONE)
    assert gone, "a span is left on the scheduler"


def listed_spans(dask_scheduler: Any = None) -> int:
    """How many spans of ours a scheduler lists."""
    return len(dask_scheduler.extensions["spans"].spans_search_by_tag["roastcoffea"])
