"""Client side of a monitor's log: task states, snapshots, and workers' views."""

from __future__ import annotations

import json
import math
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from dask.utils import key_split

from roastcoffea.log.kinds import NO_SIZE, NO_STATE, STATE, STATE_FIELDS, STATES, VIEWS
from roastcoffea.log.layout import Layout, Rows, inflated
from roastcoffea.log.workers import ClusterLog
from roastcoffea.records.workers import KINDS, OTHER, PROCESSOR
from roastcoffea.redaction import redacted

FORGOTTEN: Final = "forgotten"
STATE_SIZE: Final = struct.calcsize(STATE.packing)

NO_TIMES: Final = dict.fromkeys(("start", "stop", "transfer", "disk", "deserialize", "compute"))

Key = str | int | float | tuple[Any, ...]

LINKS: Final = ("dependencies", "dependents", "waiting_for_data")

GROWING: Final = ("transitions", "dependents")
"""Lists in a worker's view to which each message appends."""

FINISHED: Final = "finished"
ALL: Final = "all"

CHUNK: Final = "chunk"


def named(key: Any, kind: int = KINDS.index(OTHER), *chunk: Any) -> dict[str, Any]:
    """Return a task's key and kind and, for a chunk, the fields of coffea's work item."""
    task: dict[str, Any] = {"key": hashable(key), "kind": CHUNK if KINDS[kind] == PROCESSOR else KINDS[kind]}
    item = None
    if chunk:
        *names, start, stop = chunk
        item = dict(zip(("dataset", "file", "tree"), map(redacted, map(str, names)), strict=True))
        item |= {"entry_start": start, "entry_stop": stop, "events": stop - start}
    return task | {"chunk": item}


def hashable(key: Any) -> Key:
    if isinstance(key, list):
        return tuple(map(hashable, key))
    if not isinstance(key, str | int | float):
        raise TypeError(f"{key!r} is not a task key")
    return key


def from_json(view: Mapping[str, Any]) -> dict[str, Any]:
    keys = {name: list(map(hashable, view[name])) for name in LINKS if name in view}
    transitions = [(str(state), float(moment)) for state, moment in view["transitions"]]
    return keys | {"key": hashable(view["key"]) if "key" in view else None, "transitions": transitions}


@dataclass(frozen=True)
class History:
    """State changes of tasks, in chronological order.

    `states` has the columns `STATE_FIELDS`, with strings for states, workers and types. Times are Unix seconds on the
    client's clock. `tasks` is indexed by task number.
    """

    states: pa.Table
    tasks: Sequence[dict[str, Any]]

    def described(self) -> Iterator[dict[str, Any]]:
        """Yield each state with its task: the columns of `states`, plus `key`, `kind` and `chunk`."""
        names = self.states.column_names
        columns = []
        for column in self.states.columns:
            is_text = not pa.types.is_primitive(column.type)
            # converting via NumPy takes a quarter of the time, but would turn missing numbers into NaN
            if column.null_count and not is_text:
                columns.append(column.to_pylist())
            else:
                columns.append((column.cast(pa.string()) if is_text else column).to_numpy().tolist())
        for values in zip(*columns, strict=True):
            row = dict(zip(names, values, strict=True))
            yield row | self.tasks[row["task"]]

    def latest(self, rows: int) -> History:
        """Return each task's last state in the first `rows` rows, omitting forgotten tasks."""
        _, from_end = np.unique(self.states["task"].to_numpy()[:rows][::-1], return_index=True)
        return self.chosen(rows - 1 - from_end).known()

    def chosen(self, rows: Rows) -> History:
        return replace(self, states=self.states.take(pa.array(rows)))

    def known(self) -> History:
        return replace(self, states=self.states.filter(pc.not_equal(self.states["state"], FORGOTTEN)))


class Snapshot(Mapping[str, Any]):
    """The scheduler's tasks at one moment.

    The first five attributes can also be read as items, such as `snapshot["tasks"]`.

    Attributes
    ----------
    timestamp : datetime.datetime
        Time of the snapshot in the local time zone, according to the client's clock.
    time : float
        Time of the snapshot in Unix seconds, according to the client's clock.
    num_tasks : int
        Number of tasks.
    num_workers : int
        Number of workers.
    tasks : list of dict
        Each task's `key` (tuples stay tuples), `state`, `worker` (None unless a worker holds the task), `nbytes` (int,
        B) and `type` (None until it is known).
    states : collections.Counter
        Number of tasks in each state.
    prefixes : dict of collections.Counter
        Number of tasks for each prefix and state.
    reply : object
        Return value of the `question` passed to `TaskMonitor.snapshot`.
    """

    PARTS = ("timestamp", "time", "num_tasks", "num_workers", "tasks")

    def __init__(
        self, time: float, num_tasks: int, num_workers: int, latest: Callable[[], History], reply: Any = None
    ) -> None:
        self.time = time
        self.num_tasks = num_tasks
        self.num_workers = num_workers
        self.reply = reply
        self._latest = latest

    @property
    def timestamp(self) -> datetime:
        """Time of the snapshot in the local time zone."""
        return datetime.fromtimestamp(self.time, timezone.utc).astimezone()

    @property
    def tasks(self) -> list[dict[str, Any]]:
        """The tasks, as a new list on every access."""
        parts = ("key", "state", "worker", "nbytes", "type")
        return [{part: task[part] for part in parts} for task in self._latest().described()]

    @property
    def states(self) -> Counter[str]:
        """Number of tasks in each state."""
        counts = self._latest().states["state"].value_counts().to_pylist()
        return Counter({count["values"]: count["counts"] for count in counts})

    @property
    def prefixes(self) -> dict[str, Counter[str]]:
        """Number of tasks for each prefix and state."""
        counts: dict[str, Counter[str]] = {}
        for task in self._latest().described():
            counts.setdefault(key_split(task["key"]), Counter())[task["state"]] += 1
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


@dataclass(frozen=True, kw_only=True)
class Watched:
    """Records of one period between start and stop.

    Times are Unix seconds on the client's clock. `attempts` has the columns `TASK_COLUMNS`, and `lifetimes` has
    `LIFETIME_COLUMNS`.
    """

    start: float
    stop: float
    history: History
    attempts: pa.Table
    lifetimes: pa.Table
    views: list[dict[str, Any]]
    problems: list[str]

    def snapshots(self, interval: float) -> list[Snapshot]:
        moments = self.start + interval * np.arange(1 + math.floor((self.stop - self.start) / interval))
        states = self.history.states
        known = np.zeros(len(states) + 1, np.int64)
        known[1 + np.unique(states["task"].to_numpy(), return_index=True)[1]] += 1
        known[1:] -= pc.equal(states["state"], FORGOTTEN).to_numpy()
        rows = np.searchsorted(states["time"].to_numpy(), moments, side="right")
        arrived, left = (np.sort(self.lifetimes[name].to_numpy()) for name in ("start", "stop"))
        workers = np.searchsorted(arrived, moments, side="right") - np.searchsorted(left, moments, side="left")
        counts = (numbers.tolist() for numbers in (moments, np.cumsum(known)[rows], workers, rows))
        return [
            Snapshot(moment, tasks, here, partial(self.history.latest, row))
            for moment, tasks, here, row in zip(*counts, strict=True)
            if tasks
        ]


class TaskLog:
    def __init__(self) -> None:
        log = self.cluster = ClusterLog()
        self._texts = log.texts
        self._layout = Layout(STATE_FIELDS, log.texts)
        self._packed = bytearray()
        self._tasks: list[dict[str, Any]] = []
        self._lost: list[int] = []
        """Numbers of tasks with unreadable names."""
        self._last: dict[int, int] = {}
        self._had_result: set[int] = set()
        self._views: dict[tuple[str, int], dict[str, Any]] = {}
        log.read_also({STATE: self._take_states, VIEWS: self._take_views})

    def _take_states(self, payload: bytes) -> None:
        first, size = struct.unpack_from(STATE.packing, payload)
        rows = payload[STATE_SIZE : STATE_SIZE + size]
        names = [named(*parts) for parts in json.loads(payload[STATE_SIZE + size :])]
        if len(rows) < size or size % self._layout.size:
            raise ValueError("task states are truncated")
        found = np.frombuffer(rows, self._layout.dtype)
        codes = np.append(found["state"], found["before"][found["before"] != NO_STATE])
        if codes.max(initial=0) >= len(STATES):
            raise LookupError(f"unknown state {codes.max()}")
        self._layout.check(found)
        lost = range(len(self._tasks), first)
        self._lost += lost
        self._tasks += [named("")] * len(lost) + names
        self._last |= zip(found["task"].tolist(), range(len(self), len(self) + len(found)), strict=True)
        self._had_result.update(found["task"][found["state"] == STATES.index("memory")].tolist())
        self._packed += rows

    def _take_views(self, payload: bytes) -> None:
        worker, rows = json.loads(inflated(payload))
        for row in rows:  # check all rows before accepting any
            row.update({"number": int(row["number"]), "dependents": row.get("dependents", [])} | from_json(row))
        for row in rows:
            view = self._views.setdefault((worker, row["number"]), {"worker": worker} | {name: [] for name in GROWING})
            grown = {name: view[name] + row[name] for name in GROWING}
            view |= {name: value for name, value in row.items() if value is not None} | grown

    def __len__(self) -> int:
        return len(self._packed) // self._layout.size

    def history(self, offset: float) -> History:
        """Return all task states so far.

        `offset` is the scheduler's clock minus the client's clock.
        """
        found = self.since(0, offset)
        return found.chosen(np.argsort(found.states["time"].to_numpy(), kind="stable"))

    def since(self, first: int, offset: float) -> History:
        """Return the task states from row `first` on, in the order in which the scheduler recorded them."""
        return self._of(np.arange(first, len(self)), offset)

    def last(self, offset: float) -> History:
        return self._of(np.fromiter(self._last.values(), np.int64), offset)

    def count(self) -> dict[str, Counter[str]]:
        """Count each prefix's tasks: in each state, with a result so far, and in total."""
        counts: dict[str, Counter[str]] = {}
        states = self.last(0.0).states
        for task, state in zip(states["task"].to_pylist(), states["state"].to_pylist(), strict=True):
            prefix = counts.setdefault(key_split(self._tasks[task]["key"]), Counter())
            prefix[state] += 1
            prefix[FINISHED] += task in self._had_result
            prefix[ALL] += 1
        return counts

    def views(self, offset: float) -> list[dict[str, Any]]:
        """Return the workers' views, with times on the client's clock.

        A task that is forgotten by a worker and returns to the same worker has two views.
        """
        clocks = self.cluster.attempts.clocks()
        return [
            timed_view(view, float(np.nan_to_num(clocks.get(worker, 0.0))) + offset)
            for (worker, _), view in self._views.items()
            if "key" in view
        ]

    def _of(self, places: Rows, offset: float) -> History:
        """Return the history of these rows, omitting tasks whose names were lost."""
        rows = self._layout.rows(self._packed, places)
        rows = rows[(rows["task"] < len(self._tasks)) & ~np.isin(rows["task"], self._lost)]
        columns: dict[str, Any] = {name: rows[name] for name in self._layout.names}
        for name in ("before", "state"):
            codes = pa.array(rows[name], mask=rows[name] == NO_STATE)
            columns[name] = pa.DictionaryArray.from_arrays(codes, STATES)
        for name in ("worker", "type"):
            columns[name] = self._texts.column(rows[name]).dictionary_encode()
        columns["nbytes"] = pa.array(rows["nbytes"], mask=rows["nbytes"] == NO_SIZE)
        columns["expected"] = pa.array(rows["expected"], mask=rows["expected"] < 0)
        columns["time"] = rows["time"] - offset
        return History(pa.table(columns), self._tasks)


def timed_view(view: Mapping[str, Any], clock: float) -> dict[str, Any]:
    """Convert the times in a task view to another clock, and add the duration of each action."""
    spans = [
        {"action": action, "start": start - clock, "stop": stop - clock, "source": source}
        for action, start, stop, source in view.get("startstops", ())
    ]
    transitions = [(state, moment - clock) for state, moment in view["transitions"]]
    times: dict[str, float | None] = dict(NO_TIMES)  # None: the action did not happen
    for span in spans:
        name = "disk" if span["action"].startswith("disk-") else span["action"]
        times[name] = (times.get(name) or 0.0) + span["stop"] - span["start"]
        if name == "compute":
            times |= {"start": span["start"], "stop": span["stop"]}
    own = {name: view[name] - clock for name in ("start_time", "stop_time") if view.get(name) is not None}
    return {**view, "transitions": transitions, "startstops": spans, **times, "stop_time": times["stop"], **own}
