"""One period in which a monitor watches a cluster: the plugins, their log, and what is read of it."""

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

from roastcoffea.backends.byvalue import ByValue
from roastcoffea.backends.connection import Connection, NoAnswerError
from roastcoffea.backends.deployment import WORKERS_TIMEOUT, Deployment
from roastcoffea.backends.scheduler import Addition, ClusterPlugin
from roastcoffea.backends.worker import WorkerHalf
from roastcoffea.log.reader import ClusterLog
from roastcoffea.monitor.history import History, Key, Snapshot, TaskLog, drawn, known_of
from roastcoffea.monitor.states import TaskStates
from roastcoffea.monitor.tables import take_state
from roastcoffea.monitor.views import SEND_SECONDS, TaskViews, WorkerViews, send_views
from roastcoffea.units import counted

LOSS: Final = f"its view of tasks lacks the last {SEND_SECONDS:g} s at most"
"""What is missing of a worker that is lost."""

CENSUS_TIMEOUT: Final = 30.0
"""Seconds that a snapshot waits for the tasks that were there before; a million takes the scheduler some seconds."""


@dataclass(frozen=True, kw_only=True)
class Watched:
    """What was recorded in one period, on the client's clock (Unix seconds)."""

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
    """One period from start to stop: what was recorded of the cluster, and what is drawn from it.

    Parameters
    ----------
    client : distributed.Client
        A synchronous client.
    worker_view : bool
        Whether the workers send how they hold the tasks.
    run_spec : int
        Characters of what a task calls that they send.
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
        self._deployment = Deployment(Connection(client), f"roastcoffea-{uuid.uuid4().hex[:12]}", self._log, self.note)
        self._final: Watched | None = None

    def open(self) -> None:
        """Begin the period."""
        deployment = self._deployment
        deployment.survey()
        companion = WorkerViews(self._run_spec) if self._worker_view else None
        deployment.open(self._plugin(), WorkerHalf(deployment.name, deployment.token, companion=companion))
        self.start = time.time()

    def close(self) -> None:
        """End the period."""
        self._stop = time.time()
        self._deployment.close(self._learn_silent, lambda _: None)

    def drain(self) -> None:
        """Fetch what was recorded so far; nothing once the period has ended."""
        self._deployment.drain()

    @property
    def was_open(self) -> bool:
        """Whether anything could be recorded."""
        return bool(self._deployment.was_open)

    # what was recorded, on the client's clock

    def watched(self) -> Watched:
        """What was recorded so far; once the period has ended it is made once."""
        if self._final is not None:
            return self._final
        stop = time.time() if self._stop is None else self._stop
        with self._deployment.reading:
            offset = self._deployment.clock_offset
            last = self._deployment.heard_until(self.start, stop)
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
        """What could not be recorded."""
        return [*self.problems, *self._deployment.notes()]

    def note(self, problem: str) -> None:
        """Take note of what could not be recorded."""
        if problem not in self.problems:
            self.problems.append(problem)

    def now(self, question: Callable[..., Any] | None = None) -> Snapshot:
        """The tasks that the scheduler has now, and its reply to a question at the same moment.

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
        """Tasks by prefix, as `TaskLog.count` gives them, and the number of workers; as far as it is known here."""
        with self._deployment.reading:
            return self._tasks.count(), self._log.workers.here

    def since(self, first: int) -> tuple[History, int]:
        """States from a row on, in the order of the scheduler, and the number of rows so far."""
        with self._deployment.reading:
            return self._tasks.since(first, self._deployment.clock_offset), len(self._tasks)

    # how it does that

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
            self.note(f"{who} ({', '.join(silent[:5])}): what they were doing then is not known")


def _rows_of(history: History) -> Any:
    return history.rows


def attempts_of(watched: Iterable[Watched]) -> list[dict[str, Any]]:
    """Attempts of tasks that ended in these periods; their keys are as Dask has them, their kinds those of coffea."""
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
    """The furthest state of each task in these periods, in the order of appearance."""
    states: dict[Key, dict[str, Any]] = {}
    for period in watched:
        for task in period.history.described(period.history.rows):
            take_state(states, task)
    return states
