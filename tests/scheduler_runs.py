"""Tasks and samples that a scheduler's plugin of made states writes, and the rows that must come of them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, cycle
from typing import Any

from stand_ins import CLIENT, NAME, SPAN, Scheduler, Task, Worker

from roastcoffea.backends.scheduler import ClusterPlugin
from roastcoffea.log.marks import ANNOTATION, METADATA_KEY
from roastcoffea.log.packing import packed_records
from roastcoffea.log.reader import ClusterLog
from roastcoffea.records.tasks import (
    CANCELLED,
    ERROR,
    LOST,
    MERGE,
    OK,
    OTHER,
    PREPROCESSING,
    PROCESSOR,
)

WORKERS, SAMPLES, TASKS = 50, 100, 2000
T = 1_700_000_000.0
CALL = "call-1"
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
        self.now = T

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
                metadata={METADATA_KEY: packed_records([chunk_record(key, T + row)])}
                if has_record(kind, outcome)
                else {},
                outcome=outcome,
                start=T + row / 3,
                stop=T + row / 3 + 0.7,
                nbytes=2**33 + row,
                thread=2**47 + row,
                error=f"ZeroDivisionError: {row}" if outcome == ERROR else None,
            ),
        )


def chunk_record(key: str, start: float) -> Row:
    """As much of a chunk's record as tells it from others."""
    return {"id": next(IDENTITIES), "key": key, "start": start, "call": CALL}


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
        scheduler.beat(T + second, second * len(scheduler.workers))
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
