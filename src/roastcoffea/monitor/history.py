"""The client's side of a monitor's log: states of tasks, snapshots of them, and tasks as the workers hold them."""

from __future__ import annotations

import json
import math
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from roastcoffea.log.kinds import NO_SIZE, NO_STRING, STATE, STATE_FIELDS, STATES, VIEWS
from roastcoffea.log.layout import Layout
from roastcoffea.log.reader import ClusterLog

FORGOTTEN: Final = STATES.index("forgotten")
STATE_SIZE: Final = struct.calcsize(STATE.packing)

NO_TIMES: Final = dict.fromkeys(("start", "stop", "transfer", "disk", "deserialize", "compute"))
ACTIONS: Final = {"disk-read": "disk", "disk-write": "disk"}
"""Dask's actions that are summed under one name; each other has its own."""

TASK_PARTS: Final = ("key", "state", "worker", "nbytes", "type")
"""What a snapshot tells of a task."""


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
            size = None if nbytes == NO_SIZE else nbytes
            known = {"key": self.keys[task], "state": STATES[state], "worker": texts[worker], "nbytes": size}
            yield known | {"type": texts[type_], "suspicious": suspicious, "time": moment}

    def count_after_each(self) -> npt.NDArray[np.int64]:
        """How many tasks the scheduler knew after each row."""
        known = np.zeros(len(self.rows), np.int64)
        known[np.unique(self.rows["task"], return_index=True)[1]] += 1
        known[self.rows["state"] == FORGOTTEN] -= 1
        return np.cumsum(known)

    def latest(self, rows: int) -> npt.NDArray[Any]:
        """The last one of each task among so many rows, of tasks that were not forgotten by then."""
        _, from_end = np.unique(self.rows["task"][:rows][::-1], return_index=True)
        latest = self.rows[rows - 1 - from_end]
        remaining: npt.NDArray[Any] = latest[latest["state"] != FORGOTTEN]
        return remaining


class Snapshot(Mapping[str, Any]):
    """The tasks that the scheduler knew at one moment; its parts are attributes, and entries as well.

    Attributes
    ----------
    timestamp : float
        Unix seconds, on the client's clock.
    num_tasks : int
        Tasks that the scheduler knew.
    num_workers : int
        Workers that the scheduler knew.
    tasks : list of dict
        `key`, `state`, `worker` (None where no worker has it), `nbytes` and `type` (None where not known yet).
    """

    PARTS = ("timestamp", "num_tasks", "num_workers", "tasks")

    def __init__(self, timestamp: float, num_tasks: int, num_workers: int, history: History, rows: int) -> None:
        self.timestamp = timestamp
        self.num_tasks = num_tasks
        self.num_workers = num_workers
        self._history = history
        self._rows = rows

    @property
    def tasks(self) -> list[dict[str, Any]]:
        """The tasks, made anew at each access."""
        latest = self._history.described(self._history.latest(self._rows))
        return [{part: task[part] for part in TASK_PARTS} for task in latest]

    def __getitem__(self, part: str) -> Any:
        if part not in self.PARTS:
            raise KeyError(part)
        return getattr(self, part)

    def __iter__(self) -> Iterator[str]:
        return iter(self.PARTS)

    def __len__(self) -> int:
        return len(self.PARTS)

    def __repr__(self) -> str:
        return f"<Snapshot at {self.timestamp:.3f}: {self.num_tasks} tasks, {self.num_workers} workers>"


def drawn(history: History, lifetimes: pa.Table, start: float, stop: float, interval: float) -> list[Snapshot]:
    """Snapshots at each interval from start to stop; `lifetimes` are those of the workers."""
    moments = start + interval * np.arange(1 + math.floor((stop - start) / interval))
    rows = np.searchsorted(history.rows["time"], moments, side="right")
    tasks = np.concatenate([[0], history.count_after_each()])[rows]
    arrived, left = (np.sort(lifetimes[name].to_numpy()) for name in ("start", "stop"))
    workers = np.searchsorted(arrived, moments, side="right") - np.searchsorted(left, moments, side="left")
    counts = zip(moments.tolist(), tasks.tolist(), workers.tolist(), rows.tolist(), strict=True)
    return [Snapshot(moment, known, here, history, row) for moment, known, here, row in counts]


class TaskLog:
    """States and views of tasks, of the log of a monitor's plugin."""

    def __init__(self, log: ClusterLog) -> None:
        self._texts = log.texts
        self._clocks = log.attempts.clocks
        self._layout = Layout(STATE_FIELDS, log.texts)
        self._states = bytearray()
        self._names: list[str | None] = []
        self._views: dict[tuple[str, int], dict[str, Any]] = {}
        log.read_also({STATE: self._take_states, VIEWS: self._take_views})

    def _take_states(self, payload: bytes) -> None:
        first, size = struct.unpack_from(STATE.packing, payload)
        rows = payload[STATE_SIZE : STATE_SIZE + size]
        names = json.loads(payload[STATE_SIZE + size :])
        if len(rows) < size or size % self._layout.size or not all(isinstance(name, str) for name in names):
            raise ValueError("states of tasks are cut off")
        found = np.frombuffer(rows, self._layout.dtype)
        if len(found) and found["state"].max() >= len(STATES):
            raise LookupError(f"there is no state {found['state'].max()}")
        self._layout.check(found)
        self._names += [None] * (first - len(self._names))  # of an entry that could not be read
        self._names += names
        self._states += rows

    def _take_views(self, payload: bytes) -> None:
        worker, rows = json.loads(zlib.decompress(payload))
        for row in rows:  # all are looked at before one is taken
            row["number"] = int(row["number"])
            row["transitions"] = [(str(state), float(time)) for state, time in row["transitions"]]
        for row in rows:
            view = self._views.setdefault((worker, row["number"]), {"worker": worker, "transitions": []})
            view |= row | {"transitions": view["transitions"] + row["transitions"]}

    def history(self, offset: float) -> History:
        """States of tasks so far; `offset` is the scheduler's clock less the client's."""
        rows = self._layout.rows(self._states).copy()
        rows["time"] -= offset
        named = np.array([*(name is not None for name in self._names), False])
        rows = rows[named[np.minimum(rows["task"], len(self._names))]]
        names = [name or "" for name in self._names]
        return History(rows[np.argsort(rows["time"], kind="stable")], names, list(self._texts.known))

    def views(self, offset: float) -> list[dict[str, Any]]:
        """Tasks as workers held them, with times on the client's clock; a task that came anew is there anew."""
        clocks = self._clocks()
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
    times: dict[str, float | None] = dict(NO_TIMES)  # None is what was not done
    for span in spans:
        name = ACTIONS.get(span["action"], span["action"])
        times[name] = (times.get(name) or 0.0) + span["stop"] - span["start"]
        if name == "compute":
            times |= {"start": span["start"], "stop": span["stop"]}
    return {**view, "transitions": transitions, "startstops": spans, **times}
