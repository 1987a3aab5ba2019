"""One period in which a monitor watches a cluster: the plugins, their log, and what is read of it."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
from distributed.protocol.pickle import dumps

from roastcoffea.backends.byvalue import ByValue
from roastcoffea.backends.connection import Connection
from roastcoffea.backends.deployment import WORKERS_TIMEOUT, Deployment
from roastcoffea.backends.scheduler import Addition, ClusterPlugin
from roastcoffea.backends.worker import WorkerHalf
from roastcoffea.log.reader import ClusterLog
from roastcoffea.monitor.history import History, Snapshot, TaskLog, drawn
from roastcoffea.monitor.states import TaskStates
from roastcoffea.monitor.tables import take_state
from roastcoffea.monitor.views import SEND_SECONDS, TaskViews, WorkerViews, send_views

LOSS = f"its view of tasks lacks the last {SEND_SECONDS:g} s at most"
"""What is missing of a worker that is lost."""


class Watch:
    """One period from start to stop: what was recorded of the cluster, and what is drawn from it.

    Parameters
    ----------
    client : distributed.Client
        A synchronous client.
    worker_view : bool
        Whether the workers send how they hold the tasks.
    """

    def __init__(self, client: Any, worker_view: bool) -> None:
        self.problems: list[str] = []
        self.start = time.time()
        self.stop: float | None = None
        self._client = client
        self._worker_view = worker_view
        self._log = ClusterLog()
        self._tasks = TaskLog(self._log)
        self._deployment = Deployment(Connection(client), f"roastcoffea-{uuid.uuid4().hex[:12]}", self._log, self._note)
        self._snapshots: list[Snapshot] | None = None

    def open(self) -> None:
        """Begin the period."""
        deployment = self._deployment
        deployment.survey()
        companion = WorkerViews() if self._worker_view else None
        deployment.open(self._plugin(), WorkerHalf(deployment.name, deployment.token, companion=companion))
        self.start = time.time()

    def close(self) -> None:
        """End the period."""
        self.stop = time.time()
        self._deployment.close(self._learn_silent, lambda _: None)

    def drain(self) -> None:
        """Fetch what was recorded so far."""
        self._deployment.drain()

    # what was recorded, on the client's clock

    def notes(self) -> list[str]:
        """What could not be recorded."""
        return [*self.problems, *self._deployment.notes()]

    def history(self) -> History:
        """States of tasks so far."""
        with self._deployment.reading:
            return self._tasks.history(self._deployment.clock_offset)

    def views(self) -> list[dict[str, Any]]:
        """Tasks as workers held them."""
        with self._deployment.reading:
            return self._tasks.views(self._deployment.clock_offset)

    def attempts(self) -> pa.Table:
        """Attempts of tasks that ended so far."""
        with self._deployment.reading:
            return self._log.attempts.table(self._deployment.clock_offset)

    def snapshots(self, interval: float) -> list[Snapshot]:
        """Snapshots at each interval; once the period has ended they are kept."""
        if self._snapshots is not None:
            return self._snapshots
        end = time.time() if self.stop is None else self.stop
        with self._deployment.reading:
            last = self._deployment.heard_until(self.start, end)
            lifetimes = self._log.workers.lifetimes(self._deployment.clock_offset, self.start, last)
            snapshots = drawn(self.history(), lifetimes, self.start, end, interval)
        if self.stop is not None:
            self._snapshots = snapshots
        return snapshots

    # how it does that

    def _plugin(self) -> ClusterPlugin:
        additions: list[Addition] = [TaskStates()]
        if self._worker_view:
            additions.append(TaskViews(bytes(dumps(ByValue(send_views)))))
        ours = (self._deployment.name, self._client.id, self._deployment.token)
        loss = LOSS if self._worker_view else None
        return ClusterPlugin(*ours, None, loss=loss, additions=tuple(additions))

    def _note(self, problem: str) -> None:
        if problem not in self.problems:
            self.problems.append(problem)

    def _learn_silent(self, answer: Mapping[str, Any]) -> None:
        if silent := answer["silent"]:
            who = f"{len(silent)} worker(s) did not answer within {WORKERS_TIMEOUT:g} s at the end"
            self._note(f"{who} ({', '.join(silent[:5])}): what they were doing then is not known")


def attempts_of(watches: Iterable[Watch]) -> list[dict[str, Any]]:
    """Attempts of tasks that ended in these periods."""
    return [attempt for watch in watches for attempt in watch.attempts().to_pylist()]


def states_of(watches: Iterable[Watch]) -> dict[str, dict[str, Any]]:
    """The furthest state of each task in these periods, in the order of appearance."""
    states: dict[str, dict[str, Any]] = {}
    for watch in watches:
        history = watch.history()
        for task in history.described(history.rows):
            take_state(states, task)
    return states
