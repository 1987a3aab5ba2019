"""One period in which a monitor watches a cluster: the plugins, their log, and its content."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import pyarrow as pa
from distributed.protocol.pickle import dumps

from roastcoffea.backends.connection import Connection, NoAnswerError
from roastcoffea.backends.deployment import WORKERS_TIMEOUT, Deployment
from roastcoffea.backends.scheduler import Addition, ClusterPlugin
from roastcoffea.backends.worker import WorkerHalf
from roastcoffea.log.byvalue import ByValue
from roastcoffea.log.reader import ClusterLog
from roastcoffea.monitor.history import History, Key, Snapshot, TaskLog, drawn, known_of
from roastcoffea.monitor.states import TaskStates
from roastcoffea.monitor.tables import take_state
from roastcoffea.monitor.views import SEND_SECONDS, TaskViews, WorkerViews, send_views
from roastcoffea.units import counted

LOSS: Final = f"its view of tasks may lack the last {SEND_SECONDS:g} s"
"""What is missing for a lost worker."""

CENSUS_TIMEOUT: Final = 30.0
"""Seconds that a snapshot waits for tasks that existed before; a million takes the scheduler some seconds."""


@dataclass(frozen=True, kw_only=True)
class Watched:
    """Records of one period, on the client's clock (Unix seconds)."""

    start: float
    stop: float
    history: History
    attempts: pa.Table
    """With `TASK_COLUMNS`."""
    lifetimes: pa.Table
    """With `LIFETIME_COLUMNS`."""
    views: list[dict[str, Any]]
    problems: list[str]

    def snapshots(self, interval: float) -> list[Snapshot]:
        """Snapshots at each interval."""
        return drawn(self.history, self.lifetimes, self.start, self.stop, interval)


class Watch:
    """One period from start to stop: records of the cluster, and results from them.

    Parameters
    ----------
    client : distributed.Client
        A synchronous client.
    worker_view : bool
        Whether the workers send their views of the tasks.
    run_spec : int
        Characters of a task's call to send.
    """

    def __init__(self, client: Any, worker_view: bool, run_spec: int) -> None:
        self.problems: list[str] = []
        self.start = time.time()
        self._stop: float | None = None
        self._client = client
        self._worker_view = worker_view
        self._run_spec = run_spec
        self._log = ClusterLog()
        self._tasks = TaskLog(self._log)
        self._deployment = Deployment(
            Connection(client), f"roastcoffea-{uuid.uuid4().hex[:12]}", self.note, log=self._log
        )
        self._final: Watched | None = None

    def open(self) -> None:
        """Start the period."""
        ours = (self._deployment.name, self._deployment.token)
        companion = WorkerViews(self._run_spec) if self._worker_view else None
        self._deployment.open(lambda _: (self._plugin(), WorkerHalf(*ours, companion=companion)))
        self.start = time.time()

    def close(self) -> None:
        """End the period."""
        self._stop = time.time()
        self._deployment.close(self._learn_silent, lambda _: None)

    def drain(self) -> None:
        """Fetch the records so far; nothing once the period has ended."""
        self._deployment.drain()

    @property
    def was_open(self) -> bool:
        """Whether anything could be recorded."""
        return bool(self._deployment.was_open)

    # records, on the client's clock

    def watched(self) -> Watched:
        """Records so far; after the end of the period they are built once."""
        if self._final is not None:
            return self._final
        stop = time.time() if self._stop is None else self._stop
        with self._deployment.reading:
            offset = self._deployment.clock_offset
            last = self._deployment.last_contact(self.start, stop)
            found = Watched(
                start=self.start,
                stop=stop,
                history=self._tasks.history(offset),
                attempts=self._log.attempts.table(offset),
                lifetimes=self._log.workers.lifetimes(offset, self.start, last),
                views=self._tasks.views(offset),
                problems=self.notes(),
            )
        if self._stop is not None:
            self._final = found
        return found

    def notes(self) -> list[str]:
        """Problems of the recording."""
        return [*self.problems, *self._deployment.notes()]

    def note(self, problem: str) -> None:
        """Note a problem of the recording."""
        if problem not in self.problems:
            self.problems.append(problem)

    def now(self, question: Callable[..., Any] | None = None) -> Snapshot:
        """The scheduler's tasks now, and its reply to a question at the same moment.

        Raises
        ------
        NoAnswerError
            The scheduler does not answer, or no longer has the plugin.
        """
        asked = None if question is None else bytes(dumps(ByValue(question)))
        deadline = time.monotonic() + CENSUS_TIMEOUT
        while True:
            with self._deployment.reading:
                answer = self._deployment.drain(asked)
                if answer is None:
                    raise NoAnswerError("the monitor is no longer on the scheduler")
                if not answer["pending"] or time.monotonic() > deadline:
                    return self._snapshot(answer)
            time.sleep(0.01)

    def count(self) -> tuple[dict[str, Counter[str]], int]:
        """Tasks by prefix, as returned by `TaskLog.count`, and the number of workers, as far as received."""
        with self._deployment.reading:
            return self._tasks.count(), self._log.workers.here

    def since(self, first: int) -> tuple[History, int]:
        """States from a row on, in the scheduler's order, and the number of rows so far."""
        with self._deployment.reading:
            return self._tasks.since(first, self._deployment.clock_offset), len(self._tasks)

    # implementation

    def _snapshot(self, answer: Mapping[str, Any]) -> Snapshot:
        offset, workers = self._deployment.clock_offset, self._log.workers.here
        history = self._tasks.last(offset)
        history = replace(history, rows=known_of(history.rows))
        moment, count = answer["time"] - offset, len(history.rows)
        return Snapshot(moment, count, workers, history, partial(_rows_of, history), answer["reply"])

    def _plugin(self) -> ClusterPlugin:
        additions: list[Addition] = [TaskStates()]
        if self._worker_view:
            additions.append(TaskViews(bytes(dumps(ByValue(send_views)))))
        ours = (self._deployment.name, self._client.id, self._deployment.token)
        loss = LOSS if self._worker_view else None
        return ClusterPlugin(*ours, None, loss=loss, additions=tuple(additions))

    def _learn_silent(self, answer: Mapping[str, Any]) -> None:
        if silent := answer["silent"]:
            who = f"{counted(len(silent), 'worker')} did not answer within {WORKERS_TIMEOUT:g} s at the end"
            self.note(f"{who} ({', '.join(silent[:5])}): their last actions are unknown")


def _rows_of(history: History) -> Any:
    return history.rows


def attempts_of(watched: Iterable[Watched]) -> list[dict[str, Any]]:
    """Attempts of tasks that ended in these periods, with keys in Dask's form and coffea's kinds."""
    attempts = []
    for period in watched:
        named = {str(task.key): task for task in period.history.tasks}
        for attempt in period.attempts.to_pylist():
            task = named.get(attempt["key"])
            if task is not None:
                attempt |= {"key": task.key, "kind": task.kind, "chunk": task.chunk}
            attempts.append(attempt)
    return attempts


def states_of(watched: Iterable[Watched]) -> dict[Key, dict[str, Any]]:
    """Furthest state of each task in these periods, in order of appearance."""
    states: dict[Key, dict[str, Any]] = {}
    for period in watched:
        for task in period.history.described(period.history.rows):
            take_state(states, task)
    return states
