"""Snapshots are drawn from a history of states that is written down here."""

from __future__ import annotations

import struct
from datetime import datetime, timezone
from typing import Any

import pytest

from roastcoffea.log import kinds
from roastcoffea.log.kinds import NO_SIZE, NO_STATE, NO_STRING, STATES
from roastcoffea.monitor.history import Snapshot, TaskLog, Watched
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.workers import LIFETIME_COLUMNS

T = 1_700_000_000.0
WORKER = "tcp://10.0.0.1:1"


def state(task: int, name: str, time: float) -> bytes:
    """A state that a task came to; in memory it has 8 bytes on the worker."""
    placed = (0, NO_STRING, 8) if name == "memory" else (NO_STRING, NO_STRING, NO_SIZE)
    return struct.pack(kinds.packing(kinds.STATE_FIELDS), task, NO_STATE, STATES.index(name), 0, *placed, -1, T + time)


@pytest.fixture
def snapshots() -> list[Snapshot]:
    """Two tasks of which one is forgotten, and a worker that leaves."""
    tasks = TaskLog()
    log = tasks.cluster
    rows = [
        state(0, "waiting", 0.5),
        state(1, "waiting", 0.6),
        state(0, "memory", 1.5),
        state(0, "forgotten", 2.5),
    ]
    payload = struct.pack(kinds.STATE.packing, 0, len(b"".join(rows))) + b"".join(rows) + b'[["a-0"], [["b", 1]]]'
    entries: list[tuple[kinds.Kind, bytes]] = [(kinds.STRING, WORKER.encode()), (kinds.STATE, payload)]
    for kind, content in entries:
        log.feed(struct.pack(kinds.HEADER, kind.code, len(content)) + content)
    assert log.problems == []
    lifetimes = table_of_rows(LIFETIME_COLUMNS, [{"worker": WORKER, "start": T, "stop": T + 1.8}])
    history, attempts = tasks.history(0.0), log.attempts.table(0.0)
    return Watched(
        start=T, stop=T + 3.5, history=history, attempts=attempts, lifetimes=lifetimes, views=[], problems=[]
    ).snapshots(1.0)


def test_numbers_at_each_interval(snapshots: list[Snapshot]) -> None:
    assert [snapshot.time - T for snapshot in snapshots] == [1, 2, 3]  # before that there was no task
    assert [snapshot.num_tasks for snapshot in snapshots] == [2, 2, 1]
    assert [snapshot.num_workers for snapshot in snapshots] == [1, 0, 0]


def test_the_moment_is_a_datetime_with_a_zone(snapshots: list[Snapshot]) -> None:
    first, last = snapshots[0], snapshots[-1]
    assert last.timestamp == last["timestamp"] == datetime.fromtimestamp(T + 3, timezone.utc)
    assert last.timestamp.utcoffset() == datetime.now().astimezone().utcoffset()
    assert (last["timestamp"] - first["timestamp"]).total_seconds() == 2


def test_tasks_are_those_that_were_known_then(snapshots: list[Snapshot]) -> None:
    waiting: dict[str, Any] = {"state": "waiting", "worker": None, "nbytes": None, "type": None}
    memory = {"state": "memory", "worker": WORKER, "nbytes": 8, "type": None}
    assert [snapshot.tasks for snapshot in snapshots] == [
        [{"key": "a-0"} | waiting, {"key": ("b", 1)} | waiting],
        [{"key": "a-0"} | memory, {"key": ("b", 1)} | waiting],
        [{"key": ("b", 1)} | waiting],
    ]
    assert [snapshot.states for snapshot in snapshots] == [{"waiting": 2}, {"memory": 1, "waiting": 1}, {"waiting": 1}]


def test_a_snapshot_is_a_mapping_of_its_parts(snapshots: list[Snapshot]) -> None:
    last = snapshots[-1]
    counts = {"num_tasks": 1, "num_workers": 0, "tasks": last.tasks}
    assert dict(last) == {"timestamp": last.timestamp, "time": T + 3} | counts
    assert "1 tasks" in repr(last)
    with pytest.raises(KeyError):
        last["history"]
