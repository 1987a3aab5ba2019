"""The client's side of a monitor's log: states that tasks came to, and tasks as the workers hold them."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from roastcoffea.log.kinds import NO_SIZE, NO_STRING, STATE, STATE_FIELDS, STATES, VIEWS
from roastcoffea.log.layout import Layout
from roastcoffea.log.reader import ClusterLog

FORGOTTEN: Final = STATES.index("forgotten")
STATE_SIZE: Final = struct.calcsize(STATE.packing)

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
        views = [
            (int(row["number"]), [(str(state), float(time)) for state, time in row["transitions"]], row) for row in rows
        ]
        for number, transitions, row in views:
            view = self._views.setdefault((worker, number), {"worker": worker, "transitions": []})
            view |= row | {"transitions": view["transitions"] + transitions}

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
