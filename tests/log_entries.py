"""A log with entries of each kind, and what a reader makes of it."""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import dataclass
from typing import Any

from roastcoffea.log import kinds
from roastcoffea.log.attempts import OF_CHUNK, OF_MERGE
from roastcoffea.log.kinds import NO_SIZE, NO_STRING, Fields, Kind
from roastcoffea.log.packing import packed_records
from roastcoffea.log.reader import ClusterLog
from roastcoffea.monitor.history import TaskLog

T = 1_700_000_000.0
CALL = "call-1"
OF_NEXT_ENTRIES = ["error", *OF_CHUNK, *OF_MERGE]
"""Columns of a task that come with entries of their own."""

OF_MONITORS = {kinds.STATE, kinds.VIEWS}
READERS = {"collector": set(kinds.ALL) - OF_MONITORS, "monitor": set(kinds.ALL)}
"""What each of them reads."""

WORKER, NAMED, HOST, PREFIX = "tcp://10.0.0.1:1", "first", "10.0.0.1", "Jets"
TEXTS = (WORKER, NAMED, HOST, PREFIX, "dict", "span-1")
JOB = {"node": "n1", "batch_system": "slurm", "job": "7", "job_cores": 4.0, "job_age": 11.0, "closes_in": 100.0}
Entry = tuple[Kind, bytes]


def packed(fields: Fields, **values: Any) -> bytes:
    """Fixed part of an entry; what is not given is 0."""
    return struct.pack(kinds.packing(fields), *(values.get(name, 0) for name, _ in fields))


def task(number: int) -> bytes:
    fixed = {"worker": 0, "prefix": 3, "type": 4, "span": 5, "kind": 1, "start": T, "stop": T + 1, "seen": T + 2}
    return packed(kinds.TASK.fields, **fixed, run_id=number, thread=7) + f"Jets-{number}".encode()


def states(first: int, names: list[str]) -> bytes:
    numbers = {"worker": NO_STRING, "type": NO_STRING, "nbytes": NO_SIZE, "state": 1, "expected": -1}
    rows = b"".join(packed(kinds.STATE_FIELDS, task=first + place, time=T, **numbers) for place in range(len(names)))
    return struct.pack(kinds.STATE.packing, first, len(rows)) + rows + json.dumps([[name] for name in names]).encode()


def views(number: int) -> bytes:
    row = {"number": number, "key": f"Jets-{number}", "transitions": [["memory", T]]}
    return zlib.compress(json.dumps([WORKER, [row]]).encode())


def counted(amount: float) -> bytes:
    counts = [[["execute", "span-1", "Jets", "thread-cpu", "seconds"], amount]]
    return packed(kinds.COUNTED.fields, worker=0) + zlib.compress(json.dumps(counts).encode())


def sampling(number: int) -> bytes:
    state = packed(kinds.WORKER_STATE_FIELDS, worker=0, processing=number, nbytes=0)
    return packed(kinds.SAMPLING.fields, time=T + number, workers=1, whole=number == 0) + state


def record(identity: int) -> bytes:
    return packed_records([{"id": identity, "key": f"Jets-{identity}", "call": CALL, "start": T + identity}])


def entries() -> list[Entry]:
    """A log with entries of each kind."""
    return [
        *((kinds.STRING, text.encode()) for text in TEXTS),
        (kinds.ARRIVAL, packed(kinds.ARRIVAL.fields, worker=0, name=1, host=2, time=T, threads=4)),
        (kinds.PAUSE, packed(kinds.PAUSE.fields, worker=0, time=T + 1, paused=1)),
        (kinds.SAMPLE, packed(kinds.SAMPLE.fields, worker=0, time=T, last_seen=T)),
        (kinds.SAMPLING, sampling(0)),
        (kinds.USAGE, struct.pack(kinds.USAGE.packing, 1.5, 0.25, 2.5, 40)),
        (kinds.STATE, states(0, ["Jets-1", "Jets-2"])),
        (kinds.TASK, task(1)),
        (kinds.TASK_ERROR, b"OSError: planted"),
        (kinds.TASK_CHUNK, json.dumps(["qcd", "a.root", "Events", 0, 100]).encode()),
        (kinds.CHUNK, record(1)),
        (kinds.VIEWS, views(1)),
        (kinds.PROBLEM, b"a worker is slow"),
        (kinds.STATE, states(2, ["Jets-3"])),
        (kinds.TASK, task(2)),
        (kinds.CHUNK, record(2)),
        (kinds.TASK, task(3)),
        (kinds.MERGED, struct.pack(kinds.MERGED.packing, 2, 20, 3_000_000)),
        (kinds.VIEWS, views(2)),
        (kinds.SAMPLE, packed(kinds.SAMPLE.fields, worker=0, time=T + 1, last_seen=T + 1)),
        (kinds.SAMPLING, sampling(1)),
        (kinds.PROCESS_CPU, packed(kinds.PROCESS_CPU.fields, worker=0, cpu_seconds=1.5)),
        (kinds.JOB, packed(kinds.JOB.fields, worker=0, time=T + 1) + json.dumps(JOB).encode()),
        (kinds.CLOSING, packed(kinds.CLOSING.fields, worker=0, time=T + 4)),
        (kinds.KILLED, packed(kinds.KILLED.fields, worker=0, time=T + 5, memory=570_000_000)),
        (kinds.DEPARTURE, packed(kinds.DEPARTURE.fields, worker=0, time=T + 5)),
        (kinds.COUNTED, counted(2.5)),
        *((kinds.STRING, text.encode()) for text in ("tcp://10.0.0.2:2", "second")),
        (kinds.ARRIVAL, packed(kinds.ARRIVAL.fields, worker=6, name=7, host=2, time=T + 6, threads=4)),
        (kinds.RESUMED, packed(kinds.RESUMED.fields, since=T + 7, time=T + 9)),
        (kinds.ARRIVAL, packed(kinds.ARRIVAL.fields, worker=6, name=7, host=2, time=T + 9, threads=4)),
    ]


@dataclass
class Found:
    """What a client makes of a log."""

    log: ClusterLog
    tasks: TaskLog | None

    @property
    def problems(self) -> list[str]:
        return [one for one in (*self.log.problems, *self.log.received.problems) if one != "a worker is slow"]

    def tables(self) -> dict[str, Any]:
        """All that a reader makes of a log."""
        workers = self.log.workers
        found: dict[str, Any] = {
            "tasks": self.log.attempts.table(0.0).drop_columns(OF_NEXT_ENTRIES).to_pylist(),
            "samples": workers.samples(0.0).to_pylist(),
            "lifetimes": workers.lifetimes(0.0, T, T + 100).to_pylist(),
            "pauses": workers.pauses(0.0, T, T + 100).to_pylist(),
            "sampling": self.log.sampling.sampling(0.0).to_pylist(),
            "worker states": self.log.sampling.states(0.0).to_pylist(),
            "chunks": self.log.received.chunks({CALL}).to_pylist(),
            "counted": workers.counted((), ["span-1"]),
        }
        if self.tasks is not None:
            history = self.tasks.history(0.0)
            found |= {"states": list(history.described(history.rows)), "views": self.tasks.views(0.0)}
        return found


def read(reader: str, entries_read: list[Entry]) -> Found:
    log = ClusterLog()
    found = Found(log, TaskLog(log) if reader == "monitor" else None)
    log.feed(b"".join(struct.pack(kinds.HEADER, kind.code, len(payload)) + payload for kind, payload in entries_read))
    return found
