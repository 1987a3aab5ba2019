"""A scheduler and its states that only hold data, what plugins and observers write of it, and logs with entries
of each kind.
"""

from __future__ import annotations

import asyncio
import json
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count, cycle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from processes import wait_until

from roastcoffea.backends.attempts import TasksOfRun
from roastcoffea.backends.scheduler import ClusterPlugin
from roastcoffea.log import kinds
from roastcoffea.log.attempts import TOLD
from roastcoffea.log.journals import journals_in
from roastcoffea.log.kinds import LOG_CAP, NO_SIZE, NO_STRING, Fields, Kind
from roastcoffea.log.marks import ANNOTATION, METADATA_KEY
from roastcoffea.log.packing import packed_records
from roastcoffea.log.workers import ClusterLog
from roastcoffea.monitor.history import TaskLog
from roastcoffea.recording.facility import observer as observers
from roastcoffea.recording.facility.index import recorded_in
from roastcoffea.recording.facility.observer import Observer
from roastcoffea.recording.facility.recorder import NAME as RECORDER
from roastcoffea.recording.facility.recorder import FacilityPlugin
from roastcoffea.records.workers import CANCELLED, ERROR, LOST, MERGE, OK, OTHER, PREPROCESSING, PROCESSOR

NAME = "roastcoffea-stand-in"
"""Name of the plugin."""

TOKEN = "token-1"
"""What messages of the plugin's own carry."""

CLIENT = "client-1"
"""Identity of the client whose run it is."""

SPAN = "span-1"
"""Identity of the span of the run."""

ENDS = {
    OK: ("memory", "task-finished-1"),
    ERROR: ("erred", "task-erred-1"),
    LOST: ("released", "handle-worker-cleanup-1"),
    CANCELLED: ("released", "client-releases-keys-1"),
}
"""The state that follows "processing", and how distributed names the reason, by outcome."""


@dataclass(slots=True)
class Worker:
    """What the plugin reads of a `WorkerState`."""

    address: str
    name: str
    host: str = "10.0.0.1"
    nthreads: int = 4
    memory_limit: int = 8_000_000_000
    pid: int = 1000
    gpu: bool = False
    last_seen: float = 0.0
    nbytes: int = 0
    occupancy: float = 0.0
    status: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(name="running"))
    metrics: dict[str, Any] = field(default_factory=dict)
    processing: dict[Any, Any] = field(default_factory=dict)
    executing: dict[Any, Any] = field(default_factory=dict)

    def beat(self, time: float, number: int) -> None:
        """Report figures that differ from those of other numbers; each is a fraction that 32 bits hold exactly."""
        self.last_seen = time + 0.25
        self.nbytes = 1000 * number
        self.occupancy = number / 4
        self.metrics = {
            "time": time,
            "cpu": 50 + number / 8,
            "memory": 1_000_000_000 + number,
            "spilled_bytes": {"memory": number, "disk": number // 2},
            "event_loop_interval": 0.0625,
            "num_fds": 30 + number % 7,
            "host_net_io": {"read_bps": 4.0 * number, "write_bps": 2.0 * number},
            "host_disk_io": {"read_bps": 8.0 * number, "write_bps": 0.0},
            NAME: number / 16,
        }
        if self.gpu:
            # a part of a GPU (MIG) has no utilisation
            self.metrics |= {"gpu_utilization": number % 101 or None, "gpu_memory_used": 1_000_000 * number or None}


@dataclass(slots=True)
class Task:
    """One attempt of a task: what the plugin reads of a `TaskState`, and how the attempt goes."""

    key: str
    worker: Worker
    prefix_name: str = "DijetProcessor"
    run_id: int = 1
    annotations: dict[str, Any] | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    outcome: str = OK
    start: float = 0.0
    stop: float = 0.0
    nbytes: int = 0
    thread: int = 140_000_000_000_000
    error: str | None = None
    typename: str = "dict"
    span: str = SPAN
    client: str | None = None
    dependencies: tuple[Task, ...] = ()

    @property
    def who_wants(self) -> list[SimpleNamespace] | None:
        return None if self.client is None else [SimpleNamespace(client_key=self.client)]

    @property
    def prefix(self) -> SimpleNamespace:
        return SimpleNamespace(name=self.prefix_name)

    @property
    def group(self) -> SimpleNamespace:
        return SimpleNamespace(span_id=self.span)

    @property
    def processing_on(self) -> Worker:
        return self.worker

    def told(self) -> dict[str, Any]:
        """What distributed tells plugins with the end of this attempt."""
        begin = {"action": "transfer", "start": self.start - 1, "stop": self.start}
        compute = {"action": "compute", "start": self.start, "stop": self.stop}
        seen = {"worker": self.worker.address, "startstops": [begin, compute], "thread": self.thread}
        if self.outcome == OK:
            return seen | {
                "metadata": dict(self.metadata),
                "nbytes": self.nbytes,
                "typename": self.typename,
                "type": b"",
            }
        return seen | {"exception_text": self.error, "cause": self.key} if self.outcome == ERROR else {}


class Scheduler:
    """What the plugin reads of a `Scheduler`."""

    def __init__(self, workers: int) -> None:
        addresses = [f"tcp://10.0.{number // 256}.{number % 256}:{40_000 + number}" for number in range(workers)]
        self.workers = {address: Worker(address, f"worker-{address}") for address in addresses}
        self.tasks: dict[str, Task] = {}
        self.plugins: dict[str, Any] = {}
        self.transition_counter = 39

    def beat(self, time: float, number: int = 0) -> None:
        """Have every worker report."""
        for offset, worker in enumerate(self.workers.values()):
            worker.beat(time, number + offset)

    def run(self, plugin: ClusterPlugin, task: Task) -> None:
        """Bring a task to its end, and tell the plugin of the five transitions that distributed makes for it."""
        state, reason = ENDS[task.outcome]
        self.tasks[task.key] = task
        plugin.transition(task.key, "released", "waiting", stimulus_id="update-graph-1")
        plugin.transition(task.key, "waiting", "processing", stimulus_id="update-graph-1")
        plugin.transition(task.key, "processing", state, stimulus_id=reason, **task.told())
        if state != "released":
            plugin.transition(task.key, state, "released", stimulus_id="client-releases-keys-2")
        plugin.transition(task.key, "released", "forgotten", stimulus_id="client-releases-keys-2")
        del self.tasks[task.key]


def started_plugin(scheduler: Scheduler, cap: int = LOG_CAP) -> ClusterPlugin:
    """A plugin on this scheduler that samples when it is told to, and whose log may hold so many bytes."""
    plugin = ClusterPlugin(NAME, CLIENT, TOKEN, TasksOfRun(NAME, CLIENT, SPAN))

    async def start() -> None:
        await plugin.start(scheduler)
        plugin.log.cap = cap
        await plugin.close()

    asyncio.run(start())
    return plugin


T = 1_700_000_000.0
CALL = "call-1"
OF_NEXT_ENTRIES = [*TOLD]
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
        (kinds.GPU, packed(kinds.GPU.fields, worker=0, time=T)),
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
            found |= {"states": list(self.tasks.history(0.0).described()), "views": self.tasks.views(0.0)}
        return found


def read(reader: str, entries_read: list[Entry]) -> Found:
    tasks = TaskLog() if reader == "monitor" else None
    log = ClusterLog() if tasks is None else tasks.cluster
    found = Found(log, tasks)
    log.feed(b"".join(struct.pack(kinds.HEADER, kind.code, len(payload)) + payload for kind, payload in entries_read))
    return found


WORKERS, SAMPLES, TASKS = 50, 100, 2000
STARTED = 1_700_000_000.0
CALL_ID = "call-1"
HASH = "0123456789abcdef" * 2
PREFIXES = {PROCESSOR: "DijetProcessor", MERGE: "reduce", PREPROCESSING: "automatic_retries", OTHER: "inc"}
STEPS = {PROCESSOR: "processing", MERGE: "processing", PREPROCESSING: "preprocessing"}
GONE = Worker("tcp://10.9.9.9:9999", "gone")
OF_USER = ("key", "run_id", "prefix", "type", "nbytes", "span", "error")
"""What is kept of tasks of the run's own user only."""

Row = dict[str, Any]
IDENTITIES = count()


class Clock:
    """Time that goes on by a second whenever it is read."""

    def __init__(self) -> None:
        self.now = STARTED

    def time(self) -> float:
        self.now += 1
        return self.now


def tasks_of(scheduler: Scheduler, number: int) -> Iterator[tuple[str, Task]]:
    """Kinds and tasks of them, with every outcome, on one worker after the other; each chunk has a record."""
    workers, kinds = cycle(scheduler.workers.values()), cycle(PREFIXES)
    outcomes = cycle((OK, ERROR, CANCELLED, OK, LOST))
    for row, worker, kind, outcome in zip(range(number), workers, kinds, outcomes, strict=False):
        key = f"{PREFIXES[kind]}-{row:04d}{HASH[4:]}"
        yield (
            kind,
            Task(
                key=key,
                worker=GONE if outcome == LOST else worker,
                prefix_name=PREFIXES[kind],
                run_id=7 * row,
                annotations=None if kind == OTHER else annotations(STEPS[kind]),
                metadata={METADATA_KEY: packed_records([chunk_record(key, STARTED + row)])}
                if has_record(kind, outcome)
                else {},
                outcome=outcome,
                start=STARTED + row / 3,
                stop=STARTED + row / 3 + 0.7,
                nbytes=2**33 + row,
                thread=2**47 + row,
                error=f"ZeroDivisionError: {row}" if outcome == ERROR else None,
            ),
        )


def chunk_record(key: str, start: float) -> Row:
    """As much of a chunk's record as tells it from others."""
    return {"id": next(IDENTITIES), "key": key, "start": start, "call": CALL_ID}


def annotations(step: str) -> Row:
    """What a task of the run carries."""
    mark = {"collectors": [NAME], "step": step, "prefix": PREFIXES[PROCESSOR]}
    return {ANNOTATION: mark, "span": {"name": ("roastcoffea",), "ids": (SPAN,)}}


def has_record(kind: str, outcome: str) -> bool:
    """Whether the record of a chunk comes with the end of such a task."""
    return kind == PROCESSOR and outcome == OK


def run_tasks(scheduler: Scheduler, plugin: ClusterPlugin, number: int, clock: Clock) -> list[Row]:
    """Have tasks run; give the rows that must come home."""
    rows = []
    for kind, task in tasks_of(scheduler, number):
        scheduler.run(plugin, task)
        rows.append(row_of(kind, task, seen=clock.now))
        assert METADATA_KEY not in task.metadata
    return rows


def row_of(kind: str, task: Task, seen: float) -> Row:
    ran, gave = task.outcome in (OK, ERROR), task.outcome == OK
    return {
        "key": task.key,
        "run_id": task.run_id,
        "prefix": task.prefix_name,
        "kind": kind,
        "worker": task.worker.address,
        "thread": task.thread if ran else None,
        "start": task.start if ran else None,
        "stop": task.stop if ran else None,
        **dict.fromkeys(("runnable", "assigned"), seen - 1),
        **dict.fromkeys(("arrived", "ready", "startup_seconds", "seceded")),
        "seen": seen,
        "nbytes": task.nbytes if gave else None,
        "type": task.typename if gave else None,
        "outcome": task.outcome,
        "attempt": 1,
        "stolen": 0,
        "span": task.span,
        "error": task.error,
        # these stand-ins hold no work items of coffea's
        **dict.fromkeys(("dataset", "file", "entry_start", "entry_stop")),
        # nor inputs
        **dict.fromkeys(("inputs", "input_bytes"), 0 if kind == MERGE else None),
        "merge_level": 1 if kind == MERGE else None,
    } | (dict.fromkeys(OF_USER) if task.annotations is None and task.client != CLIENT else {})


def take_samples(scheduler: Scheduler, plugin: ClusterPlugin, number: int, clock: Clock | None = None) -> list[Row]:
    """Have workers report and be sampled so often; give the rows that must come home."""
    rows = []
    for second in range(number):
        scheduler.beat(STARTED + second, second * len(scheduler.workers))
        plugin.sample()
        taken = None if clock is None else clock.now
        rows += [sample_of(worker) | {"noted": taken} for worker in scheduler.workers.values()]
    return rows


def sample_of(worker: Worker) -> Row:
    metrics = worker.metrics
    return {
        "worker": worker.address,
        "time": metrics["time"],
        "last_seen": worker.last_seen,
        "cpu_percent": metrics["cpu"],
        "memory": metrics["memory"],
        "memory_limit": worker.memory_limit,
        "processing": len(worker.processing),
        "executing": len(worker.executing),
        "nbytes": worker.nbytes,
        "occupancy": worker.occupancy,
        "spilled": metrics["spilled_bytes"]["memory"],
        "cpu_seconds": metrics[NAME],
        "event_loop_seconds": metrics["event_loop_interval"],
        "file_descriptors": metrics["num_fds"],
        "network_read": metrics["host_net_io"]["read_bps"],
        "network_write": metrics["host_net_io"]["write_bps"],
        "disk_read": metrics["host_disk_io"]["read_bps"],
        "disk_write": metrics["host_disk_io"]["write_bps"],
        "gpu_percent": metrics.get("gpu_utilization"),
        "gpu_memory": metrics.get("gpu_memory_used"),
    }


def drained(plugin: ClusterPlugin, limit: int = 1_000_000, log: ClusterLog | None = None) -> ClusterLog:
    """What the client makes of all that the log holds."""
    log = log or ClusterLog()
    more = True
    received = plugin.log.given
    while more:
        answer = plugin.drain(limit, received)
        received += len(answer["data"])
        log.feed(answer["data"])
        more = answer["more"]
    assert plugin.log.size == 0
    return log


BEGINNING = 1_700_000_000.0
FILE = "root://xrootd-3.example.org//store/user/jane/secret-name.root"


class Observed:
    """Feeds an observer with what distributed tells plugins."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, workers: int = 2) -> None:
        self.now = BEGINNING
        monkeypatch.setattr(observers, "time", SimpleNamespace(time=lambda: self.now))
        self.scheduler: Any = Scheduler(workers)
        self.scheduler.queued = self.scheduler.unrunnable = ()
        self.worker = next(iter(self.scheduler.workers.values()))
        self.closed: list[bool] = []
        self.observer = Observer(self.scheduler, lambda: self.closed.append(True))

    def recorded_in(self, folder: Path) -> FacilityPlugin:
        """The observer, which records in this folder from now on."""
        self.observer = recorder = FacilityPlugin(self.scheduler, lambda: self.closed.append(True), folder)
        recorder.tokens[RECORDER] = "token"
        return recorder

    def pass_time(self, seconds: int) -> None:
        """Let seconds pass, in which the workers are sampled."""
        for _ in range(seconds):
            self.now += 1
            self.observer.tick(self.now)

    def chunk(self, number: int, call: str = "call-1", collector: str = "c-1", **options: Any) -> Task:
        """A task of a Runner call that a collector measures."""
        mark = {"collectors": [collector], "step": "processing", "prefix": "Dijet", "call": call}
        task = Task(f"Dijet-{number}", self.worker, "Dijet", number, {ANNOTATION: mark}, client="Client-1", **options)
        self.submit(task)
        return task

    def preprocessed(self, number: int, call: str = "call-1") -> None:
        """Have a task of preprocessing of a Runner call end."""
        mark = {"collectors": ["c-1"], "step": "preprocessing", "prefix": "metadata", "call": call}
        task = Task(f"metadata-{number}", self.worker, "metadata", number, {ANNOTATION: mark}, client="Client-1")
        self.submit(task)
        self.end(task, 1.0)
        self.forget(task)

    def submit(self, task: Task) -> None:
        self.scheduler.tasks[task.key] = task
        self.observer.transition(task.key, "released", "waiting", stimulus_id="update-graph-1")
        self.observer.transition(task.key, "waiting", "processing", stimulus_id="update-graph-1")

    def end(self, task: Task, seconds: float = 10.0, state: str = "memory", reason: str = "", **record: Any) -> None:
        """End an attempt that took these seconds, with this record."""
        task.start, task.stop = self.now - seconds, self.now
        if record:
            task.metadata = {METADATA_KEY: packed_records([made_record(task.run_id, seconds) | record])}
        known = task.told() if state == "memory" else {}
        self.observer.transition(task.key, "processing", state, stimulus_id=reason or "task-finished-1", **known)

    def forget(self, task: Task) -> None:
        self.observer.transition(task.key, "released", "forgotten", stimulus_id="client-releases-keys-1")
        self.scheduler.tasks.pop(task.key, None)


def made_record(number: int, seconds: float) -> dict[str, Any]:
    """Record of a chunk of 1000 events; half of its time is CPU."""
    return {
        "id": number,
        "dataset": "ttbar",
        "file": FILE,
        "tree": "Events",
        "outcome": "ok",
        "events": 1000,
        "wall_seconds": 0.9 * seconds,
        "cpu_seconds": 0.5 * seconds,
        "compute_seconds": 0.5 * seconds,
        "read_seconds": 0.3 * seconds,
        "open_seconds": 0.1 * seconds,
        "bytes_requested": 100,
        "bytes_payload": 80,
        "bytes_metadata": 20,
    }


def recorded(observed: Observed, folder: Path) -> FacilityPlugin:
    """A run that ended, with metered chunks, and one that goes on, without."""
    recorder = observed.recorded_in(folder)
    for number in range(4):
        task = observed.chunk(number, "call-1")
        observed.pass_time(1)
        observed.end(task, 36.0, call="call-1", thread=number, worker=observed.worker.address, key=task.key)
    lost = observed.chunk(9, "call-1")
    observed.end(lost, 1.0, state="released", reason="handle-worker-cleanup-1")
    observed.forget(lost)
    observed.pass_time(40)
    observed.end(observed.chunk(10, "call-2"), 9.0)
    observed.pass_time(1)
    assert wait_until(lambda: len(journals_in(folder)[0]) == 3)  # threads write them
    assert wait_until(lambda: any(recorded_in(one).run.get("ended") for one in journals_in(folder)[0]))
    return recorder
