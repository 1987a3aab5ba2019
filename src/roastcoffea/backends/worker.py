"""A collector's worker plugin, which reports CPU time and task times.

This module may be pickled by value, so it uses only the standard library, `limits`, `log`, dask and distributed.
"""

from __future__ import annotations

import inspect
import os
import pickle
import platform
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any

from distributed.diagnostics.plugin import WorkerPlugin

from roastcoffea.backends.limits import Withheld, limits, load, versions_of, withheld, withheld_since
from roastcoffea.log.jobs import age_of, job
from roastcoffea.log.marks import added_up, clear_metadata, difference, is_measured, mark_of, unmark

PUSH_SECONDS = 5.0
"""Seconds between messages with a worker's counts; a killed worker loses the counts since its last message."""

RUNNING = ("executing", "long-running")
BEGUN = 4
"""Number of values kept for a started task: its arrival, ready and start times, and Dask's clock offset. If the task
secedes, there is a fifth value."""

STANDS_FOR = "stands_for"
"""Attribute in which a stand-in holds the original task."""


class WorkerHalf(WorkerPlugin):  # type: ignore[misc]
    """Worker plugin that reports CPU time and task times, and holds our task code.

    The CPU time since the plugin started is sent as a metric in each heartbeat, and as an event when the worker leaves.
    The times when a task arrived, became ready and started (on the worker's clock) and Dask's clock offset are stored
    in the task's metadata. If a task fails, they are sent as an event before the failure is reported.

    Parameters
    ----------
    name : str
        Name of the collector's plugins.
    token : str
        Token that identifies our messages to the scheduler plugin.
    carried : bytes, optional
        Our task code, pickled, if the cluster does not have the package.
    companion : optional
        Object with additional code. `setup(half)` starts it and may take over the handling of transitions;
        `teardown(leaving)` stops it.
    functions : optional
        Settings for functions in tasks without a Runner (`instrument.tasks.Settings`).
    counts : bool
        Whether to send Dask's counts. Their number grows with the number of spans and task names that the worker has
        seen.
    """

    idempotent = True

    def __init__(
        self,
        name: str,
        token: str,
        carried: bytes | None = None,
        companion: Any = None,
        functions: Any = None,
        *,
        counts: bool = True,
    ) -> None:
        self.name = name
        self.token = token
        self.companion = companion
        self.functions = functions
        self._counts = counts
        self._carried = carried
        self._unpacked: Any = None

    def unpacked(self) -> Any:
        if self._unpacked is None and self._carried is not None:
            self._unpacked = pickle.loads(self._carried)
        return self._unpacked

    def report(self, message: Mapping[str, Any]) -> None:
        self.worker.log_event(self.name, {**message, "token": self.token})

    def setup(self, worker: Any) -> None:
        from tornado.ioloop import PeriodicCallback

        self.worker = worker
        self.times: dict[Any, list[float]] = {}
        self._before = dict(worker.digests_total)
        self._pushed: dict[Any, float] = {}
        self._pusher = PeriodicCallback(self.push, 1000 * PUSH_SECONDS)
        if self._counts:
            self._pusher.start()
        self._began = time.process_time()
        self.withheld_before = withheld()
        self.load_before = load_of(worker)
        worker.metrics[self.name] = self.cpu_seconds
        self.report({"worker": worker.address, "job": job_of(worker)})
        if self.companion is not None:
            self.companion.setup(self)

    def transition(self, key: Any, start: str, finish: str, **kwargs: Any) -> None:
        now = time.time()
        if start in RUNNING and finish not in RUNNING:
            self._let_be(self.worker.state.tasks.get(key))
        if finish == "waiting":
            self.times[key] = [now]
        elif key not in self.times:
            return
        elif finish in ("ready", "constrained"):
            self.times[key].append(now)
        elif finish == "executing":
            times = self.times[key] = [*(self.times[key] * 2)[:2], now, self.worker.scheduler_delay]
            self.worker.state.tasks[key].metadata[self.name] = times
            self._measure(self.worker.state.tasks[key])
        elif finish == "long-running":
            self.times[key].append(now)
        elif start not in RUNNING or finish != "released":
            self._ended(key, start, finish)

    def _measure(self, task: Any) -> None:
        """Replace a task with a stand-in that measures it, if the collector measures every task."""
        make = None if self.functions is None else self.functions.stand_in
        mark = None if make is None else mark_of(task, self.name)
        if make is None or mark is None or mark["step"] is not None or is_measured(task):
            return
        work, arguments = _parts_of(task)
        is_coroutine = getattr(work, "is_coro", True) if arguments is None else inspect.iscoroutinefunction(work)
        if callable(work) and not is_coroutine and not hasattr(type(work), STANDS_FOR):
            task.run_spec = make(work) if arguments is None else (make(work), *arguments)

    def _let_be(self, task: Any) -> None:
        work, arguments = _parts_of(task)
        if hasattr(type(work), STANDS_FOR):
            task.run_spec = getattr(work, STANDS_FOR) if arguments is None else (getattr(work, STANDS_FOR), *arguments)

    def _ended(self, key: Any, start: str, finish: str) -> None:
        times = self.times.pop(key)
        if start in RUNNING and finish == "error":
            task, thread = self.worker.state.tasks[key], self.worker.state.threads.get(key)
            computed = {"startstops": task.startstops, "thread": thread, "run_id": task.run_id}
            self.report({"failed": key, "times": times, **computed})

    def counted(self) -> dict[Any, float]:
        """Dask's counts on this worker since `setup`: time and bytes by activity."""
        grown = difference(self.worker.digests_total, self._before)
        return {key: value for key, value in grown.items() if isinstance(key, tuple)}

    def push(self) -> None:
        counted = self.counted()
        if counted != self._pushed:
            self._pushed = counted
            self.report({"worker": self.worker.address, "digests": list(counted.items())})

    def running(self) -> dict[Any, list[float]]:
        return {key: times for key, times in self.times.items() if len(times) >= BEGUN}

    def cpu_seconds(self, worker: Any) -> float:
        """The process's CPU time (user and system, all threads) since `setup`."""
        return time.process_time() - self._began

    def withheld(self) -> Withheld:
        """Throttling of the process and steal time on its host since `setup`.

        Both are requested at the end of a run, so they are unknown for workers that left earlier.
        """
        return withheld_since(self.withheld_before)

    def teardown(self, worker: Any) -> None:
        leaving = worker.status.name in ("closing", "closing_gracefully", "closed", "stopping")
        if self.companion is not None:
            self.companion.teardown(leaving)
        worker.metrics.pop(self.name, None)
        self._pusher.stop()
        self.times.clear()
        for task in list(worker.state.tasks.values()):  # tasks stay here as long as the user keeps their futures
            self._let_be(task)
            clear_metadata(task, self.name)
            unmark(task, self.name)
        if leaving:
            message = {"worker": worker.address, "cpu_seconds": self.cpu_seconds(worker)}
            counted = {"digests": list(self.counted().items())} if self._counts else {}
            self.report(message | counted | {"loads": [self.load_before, load_of(worker)], "last": True})


def _parts_of(task: Any) -> tuple[Any, Sequence[Any] | None]:
    """A task's callable, and its arguments if Dask stores them separately, as it did until 2024.11."""
    work = getattr(task, "run_spec", None)
    return (work[0], work[1:]) if isinstance(work, tuple) and work else (work, None)


def job_of(worker: Any) -> dict[str, Any]:
    """A worker's batch job, and the time in seconds until the worker's --lifetime ends."""
    found, lifetime, age = job(), getattr(worker, "lifetime", None), age_of()
    return found | ({} if not lifetime or age is None else {"closes_in": lifetime - age})


def load_of(worker: Any) -> dict[str, Any]:
    return load(parent=getattr(worker, "nanny", None) is not None)


def description() -> dict[str, Any]:
    process = {"process": os.getpid(), "host": socket.gethostname(), "python": platform.python_version()}
    versions = versions_of(("coffea", "awkward", "uproot"))
    return {"package": importable_package(), "versions": versions, **process, **limits()}


def importable_package() -> str | None:
    """Return the version of roastcoffea that this process can import, without importing it."""
    from importlib.metadata import PackageNotFoundError, version
    from importlib.util import find_spec

    try:
        return version("roastcoffea") if find_spec("roastcoffea") else None
    except (PackageNotFoundError, ValueError):
        return None


async def flush(spans: Sequence[str] = (), plugin: str | None = None, dask_worker: Any = None) -> dict[str, Any]:
    """Send a heartbeat, and return the worker's description, running tasks and counts."""
    await dask_worker.heartbeat()
    ours = dask_worker.plugins.get(plugin)
    of_spans = (
        {(key[0], *key[2:]): value}
        for key, value in dask_worker.digests_total.items()
        if isinstance(key, tuple) and len(key) > 2 and key[1] in spans
    )
    answer: dict[str, Any] = {"digests": added_up(of_spans), "description": description()}
    loads = answer["description"]["loads"] = [load_of(dask_worker)]
    if ours is None:
        return answer | {"running": [], "counted": None}
    answer["description"]["withheld"] = ours.withheld()
    loads.insert(0, ours.load_before)
    return answer | {"running": list(ours.running().items()), "counted": list(ours.counted().items())}
