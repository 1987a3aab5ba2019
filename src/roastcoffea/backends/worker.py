"""The worker's half of a collector: CPU time of the process, and when tasks arrived, were ready and started.

This module may be pickled by value. It uses only the standard library, `records`, dask and distributed.
"""

from __future__ import annotations

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
"""Seconds between a worker's messages with its counts, and the most that is missing for a killed one."""

RUNNING = ("executing", "long-running")
BEGUN = 4
"""Times of a started task: arrived, ready, started, and Dask's shift; a fifth if it seceded."""

STANDS_FOR = "stands_for"
"""Attribute of what a worker runs in place of a task: the task itself."""


class WorkerHalf(WorkerPlugin):  # type: ignore[misc]
    """Reports the CPU time of the worker's process since this plugin started, and holds our code for tasks.

    The time is a worker metric in each heartbeat, and is sent again as an event when the worker leaves. The times at
    which a task arrived, was ready and started (this clock), and Dask's shift of its times, are in the task's own
    metadata; for a failed task they are sent as an event ahead of its failure.

    Parameters
    ----------
    name : str
        Name of the collector's plugins.
    token : str
        Mark of our messages, by which the scheduler's plugin recognizes them.
    carried : bytes, optional
        Pickle of our code for tasks, on a cluster without the package.
    companion : optional
        Additional code: its `setup(half)` may take over transitions; `teardown(leaving)` ends it.
    functions : optional
        Settings for functions that tasks run without a Runner: `instrument.tasks.Settings`.
    counts : bool
        Whether Dask's counts are sent: their number grows with the spans and names of tasks that a worker has seen.
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
        """The carried code, unpickled; None if there is none."""
        if self._unpacked is None and self._carried is not None:
            self._unpacked = pickle.loads(self._carried)
        return self._unpacked

    def report(self, message: Mapping[str, Any]) -> None:
        """Send a message to the scheduler's plugin."""
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
        """Have a task of the collector's client measured, where each is, and nothing else measures it."""
        make = None if self.functions is None else self.functions.stand_in
        mark = None if make is None else mark_of(task, self.name)
        if make is None or mark is None or mark["step"] is not None or is_measured(task):
            return
        work = task.run_spec
        if callable(work) and not getattr(work, "is_coro", True) and not hasattr(type(work), STANDS_FOR):
            task.run_spec = make(work)

    def _let_be(self, task: Any) -> None:
        """Give a task back what it ran."""
        work = getattr(task, "run_spec", None)
        if hasattr(type(work), STANDS_FOR):
            task.run_spec = getattr(work, STANDS_FOR)

    def _ended(self, key: Any, start: str, finish: str) -> None:
        times = self.times.pop(key)
        if start in RUNNING and finish == "error":
            task, thread = self.worker.state.tasks[key], self.worker.state.threads.get(key)
            computed = {"startstops": task.startstops, "thread": thread, "run_id": task.run_id}
            self.report({"failed": key, "times": times, **computed})

    def counted(self) -> dict[Any, float]:
        """Dask's counts on this worker since `setup`: seconds and bytes by activity."""
        grown = difference(self.worker.digests_total, self._before)
        return {key: value for key, value in grown.items() if isinstance(key, tuple)}

    def push(self) -> None:
        """Send the counts if they have changed."""
        counted = self.counted()
        if counted != self._pushed:
            self._pushed = counted
            self.report({"worker": self.worker.address, "digests": list(counted.items())})

    def running(self) -> dict[Any, list[float]]:
        """Times of the tasks executing now."""
        return {key: times for key, times in self.times.items() if len(times) >= BEGUN}

    def cpu_seconds(self, worker: Any) -> float:
        """CPU time of the process since `setup`, all threads, user and system."""
        return time.process_time() - self._began

    def withheld(self) -> Withheld:
        """Throttling and steal of the process and its host since `setup`.

        It is requested at the end of a run, so it is unknown for workers that left earlier.
        """
        return withheld_since(self.withheld_before)

    def teardown(self, worker: Any) -> None:
        leaving = worker.status.name in ("closing", "closing_gracefully", "closed", "stopping")
        if self.companion is not None:
            self.companion.teardown(leaving)
        worker.metrics.pop(self.name, None)
        self._pusher.stop()
        self.times.clear()
        for task in list(worker.state.tasks.values()):  # tasks stay here while their futures are kept
            self._let_be(task)
            clear_metadata(task, self.name)
            unmark(task, self.name)
        if leaving:
            message = {"worker": worker.address, "cpu_seconds": self.cpu_seconds(worker)}
            counted = {"digests": list(self.counted().items())} if self._counts else {}
            self.report(message | counted | {"loads": [self.load_before, load_of(worker)], "last": True})


def job_of(worker: Any) -> dict[str, Any]:
    """Batch job of a worker's process, and in how many seconds its --lifetime has it close."""
    found, lifetime, age = job(), getattr(worker, "lifetime", None), age_of()
    return found | ({} if not lifetime or age is None else {"closes_in": lifetime - age})


def load_of(worker: Any) -> dict[str, Any]:
    """Load of this process and of its nanny, if it has one."""
    return load(parent=getattr(worker, "nanny", None) is not None)


def description() -> dict[str, Any]:
    """Facts about this process, our version that it can import, and the versions of what reads and analyses events."""
    process = {"process": os.getpid(), "host": socket.gethostname(), "python": platform.python_version()}
    versions = versions_of(("coffea", "awkward", "uproot"))
    return {"package": importable_package(), "versions": versions, **process, **limits()}


def importable_package() -> str | None:
    """Version of this package that this process could import, without importing it."""
    from importlib.metadata import PackageNotFoundError, version
    from importlib.util import find_spec

    try:
        return version("roastcoffea") if find_spec("roastcoffea") else None
    except (PackageNotFoundError, ValueError):
        return None


async def flush(spans: Sequence[str] = (), plugin: str | None = None, dask_worker: Any = None) -> dict[str, Any]:
    """Send a heartbeat now; return this worker's facts, running tasks, and counts for these spans so far."""
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
