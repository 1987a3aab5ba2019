"""The client's half of a task monitor: the log of states and views, and the tables made of it."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from distributed.protocol.pickle import dumps

from roastcoffea.backends.byvalue import ByValue
from roastcoffea.backends.dask import WORKERS_TIMEOUT, DaskMetricsBackend
from roastcoffea.backends.worker import WorkerHalf
from roastcoffea.log.reader import ClusterLog, Layout
from roastcoffea.log.wire import NO_SIZE, NO_STRING, STATE, STATE_FIELDS, STATES, STATES_HEADER, VIEWS
from roastcoffea.monitor.task_events import TaskEventsPlugin, WorkerView, send_views

STATE_ROWS: Final = Layout(STATE_FIELDS)
FORGOTTEN: Final = STATES.index("forgotten")
STATES_HEADER_SIZE: Final = struct.calcsize(STATES_HEADER)

NO_TIMES: Final = {"start": None, "stop": None, "transfer": None, "disk": None, "deserialize": None, "compute": None}
ACTIONS: Final = {
    "transfer": "transfer",
    "disk-read": "disk",
    "disk-write": "disk",
    "deserialize": "deserialize",
    "compute": "compute",
}
"""Dask's actions, and the name under which their seconds are summed."""


@dataclass(frozen=True)
class History:
    """States that tasks came to, in order of time (the client's clock, Unix seconds).

    `rows` has `STATE_FIELDS`; `keys` are the tasks' by their number, `texts` the workers and types by theirs.
    """

    rows: npt.NDArray[Any]
    keys: list[str]
    texts: list[str]

    def described(self, rows: npt.NDArray[Any]) -> Iterator[dict[str, Any]]:
        """Rows in words: `key`, `state`, `worker`, `nbytes`, `type`, `suspicious` and `time`."""
        texts = {NO_STRING: None, **dict(enumerate(self.texts))}
        for task, state, suspicious, worker, type_, nbytes, moment in rows.tolist():
            yield {
                "key": self.keys[task],
                "state": STATES[state],
                "worker": texts[worker],
                "nbytes": None if nbytes == NO_SIZE else nbytes,
                "type": texts[type_],
                "suspicious": suspicious,
                "time": moment,
            }

    def count_after_each(self) -> npt.NDArray[np.int64]:
        """How many tasks the scheduler knew after each row."""
        known = np.zeros(len(self.rows), np.int64)
        known[np.unique(self.rows["task"], return_index=True)[1]] += 1
        known[self.rows["state"] == FORGOTTEN] -= 1
        count: npt.NDArray[np.int64] = np.cumsum(known)
        return count

    def latest(self, rows: int) -> npt.NDArray[Any]:
        """The last one of each task among so many rows, of tasks that were not forgotten by then."""
        _, from_end = np.unique(self.rows["task"][:rows][::-1], return_index=True)
        latest = self.rows[rows - 1 - from_end]
        remaining: npt.NDArray[Any] = latest[latest["state"] != FORGOTTEN]
        return remaining


class StateLog(ClusterLog):
    """What a monitor's plugin on the scheduler saw."""

    def __init__(self) -> None:
        super().__init__()
        self._states = bytearray()
        self._names: list[str | None] = []
        self._views: dict[tuple[str, int], dict[str, Any]] = {}
        self._readers |= {STATE: self._take_states, VIEWS: self._take_views}

    def _take_states(self, payload: bytes) -> None:
        first, size = struct.unpack_from(STATES_HEADER, payload)
        rows = payload[STATES_HEADER_SIZE : STATES_HEADER_SIZE + size]
        names = json.loads(payload[STATES_HEADER_SIZE + size :])
        if len(rows) < size or size % STATE_ROWS.size or not all(isinstance(name, str) for name in names):
            raise ValueError("states of tasks are cut off")
        found = np.frombuffer(rows, STATE_ROWS.dtype)
        if len(found) and found["state"].max() >= len(STATES):
            raise LookupError(f"there is no state {found['state'].max()}")
        for name in ("worker", "type"):
            numbers = found[name][found[name] != NO_STRING]
            if len(numbers) and numbers.max() >= len(self._places):
                raise LookupError(f"there is no text {numbers.max()}")
        self._names += [None] * (first - len(self._names))  # of an entry that could not be read
        self._names += names
        self._states += rows

    def _take_views(self, payload: bytes) -> None:
        worker, rows = json.loads(zlib.decompress(payload))
        views = [
            (int(row["number"]), [(str(state), float(time)) for state, time in row["transitions"]], row) for row in rows
        ]
        for number, transitions, row in views:
            view = self._views.setdefault((worker, number), {"worker": worker, "transitions": []})
            view |= row | {"transitions": view["transitions"] + transitions}

    def history(self, offset: float) -> History:
        """States of tasks so far."""
        rows = self._rows(STATE_ROWS, self._states).copy()
        rows["time"] -= offset
        named = np.array([*(name is not None for name in self._names), False])
        rows = rows[named[np.minimum(rows["task"], len(self._names))]]
        names = [name or "" for name in self._names]
        return History(rows[np.argsort(rows["time"], kind="stable")], names, list(self._texts))

    def views(self, offset: float) -> list[dict[str, Any]]:
        """Tasks as workers held them, with times on the client's clock; a task that came anew is there anew."""
        clocks = self._clock_of_workers()
        return [
            timed_view(view, float(np.nan_to_num(clocks.get(worker, 0.0))) + offset)
            for (worker, _), view in self._views.items()
            if "key" in view
        ]


def timed_view(view: Mapping[str, Any], clock: float) -> dict[str, Any]:
    """View of a task with its times on another clock, and the seconds of what was timed."""
    spans = [
        {"action": action, "start": start - clock, "stop": stop - clock, "source": source}
        for action, start, stop, source in view.get("startstops", ())
    ]
    transitions = [(state, moment - clock) for state, moment in view["transitions"]]
    return {**view, "transitions": transitions, "startstops": spans, **timing(spans)}


def timing(spans: list[dict[str, Any]]) -> dict[str, float | None]:
    """Start and stop of computing, and seconds of each action; None of what was not done."""
    times: dict[str, float | None] = dict(NO_TIMES)
    for span in spans:
        name = ACTIONS.get(span["action"], span["action"])
        times[name] = (times.get(name) or 0.0) + span["stop"] - span["start"]
        if name == "compute":
            times |= {"start": span["start"], "stop": span["stop"]}
    return times


class MonitorBackend(DaskMetricsBackend):
    """Sees the tasks of the cluster that a client is connected to.

    Parameters
    ----------
    client : distributed.Client
        A synchronous client.
    worker_view : bool
        Whether the workers tell how they hold the tasks.
    """

    log: StateLog

    def __init__(self, client: Any, worker_view: bool) -> None:
        super().__init__(client)
        self._worker_view = worker_view

    def _new_log(self) -> StateLog:
        return StateLog()

    def history(self) -> History:
        """States of tasks so far."""
        with self._draining:
            return self.log.history(self.clock_offset)

    def views(self) -> list[dict[str, Any]]:
        """Tasks as workers held them."""
        with self._draining:
            return self.log.views(self.clock_offset)

    def tasks(self) -> pa.Table:
        """Finished attempts of tasks so far."""
        with self._draining:
            return super().tasks()

    def lifetimes(self, start: float, stop: float) -> pa.Table:
        """Workers that were there between start and stop."""
        with self._draining:
            return super().lifetimes(start, stop)

    def _scheduler_half(self, interval: float | None, span: str | None) -> TaskEventsPlugin:
        views = bytes(dumps(ByValue(send_views))) if self._worker_view else None
        return TaskEventsPlugin(self.name, self.client.id, views, self.token)

    def _worker_half(self, carried: bytes | None) -> WorkerHalf:
        return (WorkerView if self._worker_view else WorkerHalf)(self.name, self.token, carried)

    def _learn_fine_metrics(self, answer: Mapping[str, Any]) -> None:
        self._learn_environment(answer)
        if answer["silent"]:
            self._note(
                f"{len(answer['silent'])} worker(s) did not answer within {WORKERS_TIMEOUT:g} s at the end "
                f"({', '.join(answer['silent'][:5])}): what they were doing then is not known"
            )
