"""The client's side of a monitor's log: states of tasks, snapshots of them, and the workers' views."""

from __future__ import annotations

import json
import math
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from dask.utils import key_split

from roastcoffea.log.kinds import NO_SIZE, NO_STATE, NO_STRING, STATE, STATE_FIELDS, STATES, VIEWS
from roastcoffea.log.layout import Layout, inflated
from roastcoffea.log.reader import ClusterLog
from roastcoffea.records.tasks import KINDS, OTHER, PROCESSOR
from roastcoffea.redaction import redacted

FORGOTTEN: Final = STATES.index("forgotten")
MEMORY: Final = STATES.index("memory")
STATE_SIZE: Final = struct.calcsize(STATE.packing)

NO_TIMES: Final = dict.fromkeys(("start", "stop", "transfer", "disk", "deserialize", "compute"))
ACTIONS: Final = {"disk-read": "disk", "disk-write": "disk"}
"""Dask's actions that are summed under one name; all others have their own."""

TASK_PARTS: Final = ("key", "state", "worker", "nbytes", "type")
"""Fields of a task in a snapshot."""

Rows = npt.NDArray[Any]
Key = str | int | float | tuple[Any, ...]
"""Key of a task in Dask's form."""

LINKS: Final = ("dependencies", "dependents", "waiting_for_data")
"""Lists of keys in a worker's view."""

GROWING: Final = ("transitions", "dependents")
"""Lists of a worker's view that arrive piece by piece."""

FINISHED: Final = "finished"
ALL: Final = "all"
"""Counts of tasks in addition to their states."""

CHUNK: Final = "chunk"
OF_CHUNK: Final = ("dataset", "file", "tree", "entry_start", "entry_stop")


class Named(NamedTuple):
    """A task by its key, with its kind, and for a chunk the fields in `OF_CHUNK`."""

    key: Key
    kind: str = OTHER
    chunk: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, parts: Sequence[Any]) -> Self:
        """A task as written by the scheduler."""
        key, *described = parts
        kind = KINDS[described[0]] if described else OTHER
        chunk = dict(zip(OF_CHUNK, described[1:], strict=False)) if len(described) > 1 else None
        if chunk is not None:
            chunk |= {name: redacted(str(chunk[name])) for name in ("dataset", "file", "tree")}
            chunk["events"] = chunk["entry_stop"] - chunk["entry_start"]
        return cls(hashable(key), CHUNK if kind == PROCESSOR else kind, chunk)


def hashable(key: Any) -> Key:
    """A key before it became JSON, which has no tuples."""
    if isinstance(key, list):
        return tuple(map(hashable, key))
    if not isinstance(key, str | int | float):
        raise TypeError(f"{key!r} is not the key of a task")
    return key


@dataclass(frozen=True)
class History:
    """States that tasks entered, in order of time (the client's clock, Unix seconds).

    `rows` has `STATE_FIELDS`; `tasks` are the tasks by their number, `texts` the workers and types by theirs.
    """

    rows: Rows
    tasks: Sequence[Named]
    texts: Sequence[str]

    def described(self, rows: Rows) -> Iterator[dict[str, Any]]:
        """Rows in words: `TASK_PARTS`, `kind`, `before`, `suspicious`, `expected` and `time`."""
        texts = {NO_STRING: None, **dict(enumerate(self.texts))}
        states = {NO_STATE: None, **dict(enumerate(STATES))}
        for task, before, state, suspicious, worker, type_, nbytes, expected, moment in rows.tolist():
            named = self.tasks[task]
            known = {"key": named.key, "state": states[state], "worker": texts[worker]}
            known |= {"nbytes": None if nbytes == NO_SIZE else nbytes, "type": texts[type_], "kind": named.kind}
            known |= {"before": states[before], "suspicious": suspicious, "time": moment}
            yield known | {"expected": expected if expected >= 0 else None}

    def count_after_each(self) -> npt.NDArray[np.int64]:
        """Number of tasks known to the scheduler after each row."""
        known = np.zeros(len(self.rows), np.int64)
        known[np.unique(self.rows["task"], return_index=True)[1]] += 1
        known[self.rows["state"] == FORGOTTEN] -= 1
        return np.cumsum(known)

    def latest(self, rows: int) -> Rows:
        """Last row of each task among this many rows, without tasks forgotten by then."""
        _, from_end = np.unique(self.rows["task"][:rows][::-1], return_index=True)
        return known_of(self.rows[rows - 1 - from_end])


def known_of(rows: Rows) -> Rows:
    """Rows of the tasks known to the scheduler."""
    remaining: Rows = rows[rows["state"] != FORGOTTEN]
    return remaining


class Snapshot(Mapping[str, Any]):
    """The scheduler's tasks at one moment; its fields are attributes as well as items.

    Attributes
    ----------
    timestamp : datetime.datetime
        The moment, with the local time zone, on the client's clock.
    time : float
        The same in Unix seconds.
    num_tasks : int
        Number of tasks.
    num_workers : int
        Number of workers.
    tasks : list of dict
        `key` (tuples are kept), `state`, `worker` (None if no worker has it), `nbytes` (int, B) and `type` (None if not
        known yet).
    states : collections.Counter
        Number of tasks by state.
    prefixes : dict of collections.Counter
        The same by task prefix.
    reply : object
        Result of the question passed to `TaskMonitor.snapshot`.
    """

    PARTS = ("timestamp", "time", "num_tasks", "num_workers", "tasks")

    def __init__(  # noqa: PLR0917
        self, time: float, num_tasks: int, num_workers: int, history: History, latest: Callable[[], Rows], reply: Any
    ) -> None:
        self.time = time
        self.num_tasks = num_tasks
        self.num_workers = num_workers
        self.reply = reply
        self._history = history
        self._latest = latest

    @property
    def timestamp(self) -> datetime:
        """The moment, with the local time zone."""
        return datetime.fromtimestamp(self.time, UTC).astimezone()

    @property
    def tasks(self) -> list[dict[str, Any]]:
        """The tasks, in new objects at each access."""
        return [{part: task[part] for part in TASK_PARTS} for task in self._history.described(self._latest())]

    @property
    def states(self) -> Counter[str]:
        """Number of tasks by state."""
        counts = np.bincount(self._latest()["state"], minlength=len(STATES)).tolist()
        return Counter({state: count for state, count in zip(STATES, counts, strict=True) if count})

    @property
    def prefixes(self) -> dict[str, Counter[str]]:
        """Number of tasks by prefix and state."""
        counts: dict[str, Counter[str]] = {}
        rows = self._latest()
        for task, state in zip(rows["task"].tolist(), rows["state"].tolist(), strict=True):
            counts.setdefault(key_split(self._history.tasks[task].key), Counter())[STATES[state]] += 1
        return counts

    def __getitem__(self, part: str) -> Any:
        if part not in self.PARTS:
            raise KeyError(part)
        return getattr(self, part)

    def __iter__(self) -> Iterator[str]:
        return iter(self.PARTS)

    def __len__(self) -> int:
        return len(self.PARTS)

    def __repr__(self) -> str:
        return f"<Snapshot at {self.timestamp:%H:%M:%S.%f}: {self.num_tasks} tasks, {self.num_workers} workers>"


def drawn(history: History, lifetimes: pa.Table, start: float, stop: float, interval: float) -> list[Snapshot]:
    """Snapshots at each interval from start to stop with any task; `lifetimes` are those of the workers."""
    moments = start + interval * np.arange(1 + math.floor((stop - start) / interval))
    rows = np.searchsorted(history.rows["time"], moments, side="right")
    tasks = np.concatenate([[0], history.count_after_each()])[rows]
    arrived, left = (np.sort(lifetimes[name].to_numpy()) for name in ("start", "stop"))
    workers = np.searchsorted(arrived, moments, side="right") - np.searchsorted(left, moments, side="left")
    counts = zip(moments.tolist(), tasks.tolist(), workers.tolist(), rows.tolist(), strict=True)
    return [
        Snapshot(moment, known, here, history, partial(history.latest, row), None)
        for moment, known, here, row in counts
        if known
    ]


class TaskLog:
    """States and views of tasks, from the log of a monitor's plugin."""

    def __init__(self, log: ClusterLog) -> None:
        self._texts = log.texts
        self._clocks = log.attempts.clocks
        self._layout = Layout(STATE_FIELDS, log.texts)
        self._states = bytearray()
        self._tasks: list[Named] = []
        self._lost: list[int] = []
        """Numbers of tasks whose names could not be read."""
        self._last = np.zeros(0, np.int64)
        """Index of the last row of each task; -1 if there is none."""
        self._had_result = np.zeros(0, bool)
        """Whether each task ever had a result."""
        self._views: dict[tuple[str, int], dict[str, Any]] = {}
        log.read_also({STATE: self._take_states, VIEWS: self._take_views})

    def _take_states(self, payload: bytes) -> None:
        first, size = struct.unpack_from(STATE.packing, payload)
        rows = payload[STATE_SIZE : STATE_SIZE + size]
        names = [Named.of(parts) for parts in json.loads(payload[STATE_SIZE + size :])]
        if len(rows) < size or size % self._layout.size:
            raise ValueError("states of tasks are truncated")
        found = np.frombuffer(rows, self._layout.dtype)
        codes = np.append(found["state"], found["before"][found["before"] != NO_STATE])
        if codes.max(initial=0) >= len(STATES):
            raise LookupError(f"unknown state {codes.max()}")
        self._layout.check(found)
        lost = range(len(self._tasks), first)
        self._lost += lost
        self._tasks += [Named("")] * len(lost) + names
        if (more := len(self._tasks) - len(self._last)) > 0:
            more = max(more, len(self._last))
            self._last = np.append(self._last, np.full(more, -1, np.int64))
            self._had_result = np.append(self._had_result, np.zeros(more, bool))
        named = np.flatnonzero(found["task"] < len(self._tasks))
        self._last[found["task"][named]] = len(self) + named
        self._had_result[found["task"][named][found["state"][named] == MEMORY]] = True
        self._states += rows

    def _take_views(self, payload: bytes) -> None:
        worker, rows = json.loads(inflated(payload))
        for row in rows:  # all are checked before any is taken
            row["number"] = int(row["number"])
            row["key"] = hashable(row["key"]) if "key" in row else None
            row["transitions"] = [(str(state), float(time)) for state, time in row["transitions"]]
            row |= {name: list(map(hashable, row[name])) for name in LINKS if name in row}
            row.setdefault("dependents", [])
        for row in rows:
            view = self._views.setdefault((worker, row["number"]), {"worker": worker} | {name: [] for name in GROWING})
            grown = {name: view[name] + row[name] for name in GROWING}
            view |= {name: value for name, value in row.items() if value is not None} | grown

    def __len__(self) -> int:
        """Rows of states so far."""
        return len(self._states) // self._layout.size

    def history(self, offset: float) -> History:
        """States of tasks so far; `offset` is the scheduler's clock minus the client's."""
        found = self._of(self._layout.rows(self._states), offset)
        return replace(found, rows=found.rows[np.argsort(found.rows["time"], kind="stable")])

    def since(self, first: int, offset: float) -> History:
        """States from this row on, in the order written by the scheduler."""
        return self._of(self._layout.rows(self._states, np.arange(first, len(self))), offset)

    def last(self, offset: float) -> History:
        """Last state of each task, including forgotten ones."""
        return self._of(self._layout.rows(self._states, self._last[self._last >= 0]), offset)

    def count(self) -> dict[str, Counter[str]]:
        """Tasks by prefix: number in each state, with a result so far, and in total."""
        counts: dict[str, Counter[str]] = {}
        last = self._of(self._layout.rows(self._states, self._last[self._last >= 0]), 0.0).rows
        for task, state, had_result in zip(
            last["task"].tolist(), last["state"].tolist(), self._had_result[last["task"]].tolist(), strict=True
        ):
            prefix = counts.setdefault(key_split(self._tasks[task].key), Counter())
            prefix[STATES[state]] += 1
            prefix[FINISHED] += had_result
            prefix[ALL] += 1
        return counts

    def views(self, offset: float) -> list[dict[str, Any]]:
        """Workers' views of tasks, with times on the client's clock; a task that returned is listed again."""
        clocks = self._clocks()
        return [
            timed_view(view, float(np.nan_to_num(clocks.get(worker, 0.0))) + offset)
            for (worker, _), view in self._views.items()
            if "key" in view
        ]

    def _of(self, rows: Rows, offset: float) -> History:
        """History of rows, without tasks whose names are lost; it shares names and texts with later ones."""
        rows = rows[(rows["task"] < len(self._tasks)) & ~np.isin(rows["task"], self._lost)]
        rows["time"] -= offset
        return History(rows, self._tasks, self._texts.known)


def timed_view(view: Mapping[str, Any], clock: float) -> dict[str, Any]:
    """View of a task with its times on another clock, and the durations of its actions."""
    spans = [
        {"action": action, "start": start - clock, "stop": stop - clock, "source": source}
        for action, start, stop, source in view.get("startstops", ())
    ]
    transitions = [(state, moment - clock) for state, moment in view["transitions"]]
    times: dict[str, float | None] = dict(NO_TIMES)  # None did not happen
    for span in spans:
        name = ACTIONS.get(span["action"], span["action"])
        times[name] = (times.get(name) or 0.0) + span["stop"] - span["start"]
        if name == "compute":
            times |= {"start": span["start"], "stop": span["stop"]}
    own = {name: view[name] - clock for name in ("start_time", "stop_time") if view.get(name) is not None}
    return {**view, "transitions": transitions, "startstops": spans, **times, "stop_time": times["stop"], **own}
