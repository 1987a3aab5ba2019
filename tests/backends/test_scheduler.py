"""The log that the scheduler's plugin keeps: small, bounded, and read back as it was written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import count, cycle
from typing import Any

import pytest
from distributed import wait
from stand_ins import CLIENT, NAME, SPAN, TOKEN, Scheduler, Task, Worker, started_plugin

from roastcoffea.backends import attempts, workers
from roastcoffea.backends.scheduler import ClusterPlugin
from roastcoffea.collector import MetricsCollector
from roastcoffea.log.marks import ANNOTATION, METADATA_KEY
from roastcoffea.log.packing import packed_records
from roastcoffea.log.reader import ClusterLog
from roastcoffea.log.writer import BLOCK, MOST_PROBLEMS
from roastcoffea.records.tasks import (
    CANCELLED,
    ERROR,
    LOST,
    MERGE,
    OK,
    OTHER,
    OUTCOMES,
    PREPROCESSING,
    PROCESSOR,
    UNFINISHED,
)
from roastcoffea.records.workers import OF_SCHEDULER

WORKERS, SAMPLES, TASKS = 50, 100, 2000
T = 1_700_000_000.0
SMALL_CAP = 100_000
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


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock that the plugin reads."""
    clock = Clock()
    for module in (attempts, workers):
        monkeypatch.setattr(module, "time", clock)
    return clock


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
        **dict.fromkeys(("arrived", "ready", "seceded")),
        "seen": seen,
        "nbytes": task.nbytes if gave else None,
        "type": task.typename if gave else None,
        "outcome": task.outcome,
        "attempt": 1,
        "stolen": 0,
        "span": task.span,
        "error": task.error,
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


def test_an_answer_that_was_lost_is_given_again(clock: Clock) -> None:
    scheduler = Scheduler(WORKERS)
    plugin = started_plugin(scheduler)
    run_tasks(scheduler, plugin, TASKS, clock)
    log = ClusterLog()
    received = 0
    more = True
    while more:
        lost = plugin.drain(1, received)
        answer = plugin.drain(1, received)
        assert (answer["at"], answer["data"]) == (received, lost["data"])
        received += len(answer["data"])
        log.feed(answer["data"])
        more = answer["more"]
    assert len(log.attempts.table(0.0)) == TASKS


@pytest.mark.parametrize("limit", [1, 300_000, 1_000_000])
def test_what_was_drained_is_what_was_fed(clock: Clock, limit: int) -> None:
    scheduler = Scheduler(WORKERS)
    plugin = started_plugin(scheduler)
    began = clock.now
    samples = take_samples(scheduler, plugin, SAMPLES, clock)
    tasks = run_tasks(scheduler, plugin, TASKS, clock)
    log = drained(plugin, limit)
    assert log.workers.samples(0.0).to_pylist() == samples
    assert log.attempts.table(0.0).to_pylist() == tasks
    assert {task["outcome"] for task in tasks} == set(OUTCOMES) - {UNFINISHED}
    keys_of_chunks = [task["key"] for task in tasks if has_record(task["kind"], task["outcome"])]
    assert log.received.chunks({CALL})["key"].to_pylist() == keys_of_chunks
    lifetimes = log.workers.lifetimes(0.0, T, T + 10_000).to_pylist()
    assert [lifetime["worker"] for lifetime in lifetimes] == list(scheduler.workers)
    assert [lifetime["start"] for lifetime in lifetimes] == [began - WORKERS + 1 + row for row in range(WORKERS)]
    assert {lifetime["stop"] for lifetime in lifetimes} == {T + 10_000}
    assert [lifetime["cpu_seconds"] for lifetime in lifetimes] == [row["cpu_seconds"] for row in samples[-WORKERS:]]
    assert plugin.problems.failures == 0
    assert log.problems == []
    assert plugin.log.dropped == {}


def test_times_of_tasks_are_put_on_the_clock_of_the_client(clock: Clock) -> None:
    scheduler = Scheduler(1)
    plugin = started_plugin(scheduler)
    (row,) = run_tasks(scheduler, plugin, 1, clock)
    task = drained(plugin).attempts.table(32.0).to_pylist()[0]
    assert [task[name] for name in ("start", "stop", "seen")] == [row[name] - 32 for name in ("start", "stop", "seen")]


def test_a_sample_takes_less_than_100_bytes() -> None:
    scheduler = Scheduler(WORKERS)
    plugin = started_plugin(scheduler)
    before = plugin.log.size
    take_samples(scheduler, plugin, SAMPLES)
    assert (plugin.log.size - before) / (WORKERS * SAMPLES) < 100


def test_a_task_takes_less_than_200_bytes() -> None:
    scheduler = Scheduler(WORKERS)
    plugin = started_plugin(scheduler)
    before = plugin.log.size
    longest_name = "P" * 50
    for number, worker in zip(range(TASKS), cycle(scheduler.workers.values()), strict=False):
        scheduler.run(plugin, Task(f"{longest_name}-{number:04d}{HASH[4:]}", worker, longest_name))
    assert (plugin.log.size - before) / TASKS < 200


def test_a_worker_without_news_gives_no_sample_and_one_without_metrics_no_numbers() -> None:
    scheduler = Scheduler(2)
    plugin = started_plugin(scheduler)
    plugin.sample()
    silent, terse = scheduler.workers.values()
    terse.metrics = {"time": T}
    plugin.sample()
    plugin.sample()
    (row,) = drained(plugin).workers.samples(0.0).to_pylist()
    known = {"worker", "time", "last_seen", "memory_limit", "executing", *OF_SCHEDULER, "noted"}
    assert row["worker"] == terse.address != silent.address
    assert {name for name, value in row.items() if value is not None} == known


def test_a_log_that_nobody_drains_is_bounded_and_counts_what_it_drops(clock: Clock) -> None:
    scheduler = Scheduler(WORKERS)
    plugin = started_plugin(scheduler, cap=SMALL_CAP)
    tasks, samples, sizes = [], [], []
    for _ in range(10):
        tasks += run_tasks(scheduler, plugin, TASKS // 10, clock)
        samples += take_samples(scheduler, plugin, SAMPLES // 10)
        sizes.append(plugin.log.size)
    dropped = plugin.log.dropped
    log = drained(plugin)
    assert SMALL_CAP < max(sizes) < SMALL_CAP + BLOCK
    kept_tasks, kept_samples = log.attempts.table(0.0).to_pylist(), log.workers.samples(0.0).to_pylist()
    assert [row["outcome"] for row in kept_tasks] == [row["outcome"] for row in tasks[: len(kept_tasks)]]
    assert len(kept_tasks) + dropped["tasks"] == len(tasks)
    assert len(kept_samples) + dropped["samples"] == len(samples)
    chunks = sum(has_record(row["kind"], row["outcome"]) for row in tasks)
    assert len(log.received.chunks({CALL})) + dropped["chunks"] == chunks
    outcomes = Counter(row["outcome"] for row in kept_tasks if row["kind"] != OTHER)
    errors = sum(row["error"] is not None for row in kept_tasks)
    assert errors + dropped.get("errors of tasks", 0) == outcomes[ERROR]


def test_what_others_build_upon_is_never_dropped(clock: Clock) -> None:
    scheduler = Scheduler(WORKERS)
    plugin = started_plugin(scheduler, cap=-1)
    late = scheduler.workers["tcp://late:1"] = Worker("tcp://late:1", "late")
    plugin.add_worker(scheduler, late.address)
    arrived = clock.now
    scheduler.run(plugin, Task("new-1", late, "new", span="span-2", typename="tuple", client=CLIENT))
    plugin.log_event(NAME, {"token": TOKEN, "worker": late.address, "cpu_seconds": 1.5, "problem": "a record was lost"})
    del scheduler.workers[late.address]
    plugin.remove_worker(scheduler, late.address)
    left = clock.now
    log = drained(plugin)
    *_, lifetime = log.workers.lifetimes(0.0, T, T + 10_000).to_pylist()
    assert (lifetime["worker"], lifetime["start"], lifetime["stop"]) == (late.address, arrived, left)
    assert lifetime["cpu_seconds"] == 1.5
    assert log.problems == ["a record was lost"]
    assert plugin.log.dropped == {"tasks": 1}

    plugin.log.cap = SMALL_CAP
    again = Task("new-2", late, "new", span="span-2", typename="tuple", start=T, stop=T + 1, client=CLIENT)
    scheduler.run(plugin, again)
    seen = clock.now
    (row,) = drained(plugin, log=log).attempts.table(0.0).to_pylist()
    assert row == row_of(OTHER, again, seen=seen)


def test_a_task_that_was_stolen_belongs_to_the_thief() -> None:
    scheduler = Scheduler(2)
    plugin = started_plugin(scheduler)
    victim, thief = scheduler.workers.values()
    task = Task("inc-1", victim, "inc", outcome=CANCELLED)
    scheduler.tasks[task.key] = task
    plugin.transition(task.key, "waiting", "processing", stimulus_id="update-graph-1")
    plugin.log_event("stealing", ("confirm", task.key, "processing", victim.address, thief.address, "steal-1"))
    plugin.transition(task.key, "processing", "released", stimulus_id="client-releases-keys-1")
    (row,) = drained(plugin).attempts.table(0.0).to_pylist()
    assert (row["worker"], row["stolen"]) == (thief.address, 1)


def test_pauses_are_told_from_when_to_when(clock: Clock) -> None:
    scheduler = Scheduler(3)
    first, second, third = scheduler.workers.values()
    third.status.name = "paused"
    plugin = started_plugin(scheduler)
    known = clock.now
    changes = ((first, "paused"), (second, "paused"), (first, "running"), (first, "closing_gracefully"))
    for worker, status in changes:
        plugin.log_event(worker.address, {"action": "worker-status-change", "status": status})
    plugin.log_event("tcp://unknown:1", {"action": "worker-status-change", "status": "paused"})
    plugin.log_event(first.address, "a word of the user's own")
    del scheduler.workers[second.address]
    plugin.remove_worker(scheduler, second.address)
    log = drained(plugin)
    assert log.workers.pauses(0.0, T, T + 10_000).to_pylist() == [
        {"worker": third.address, "start": known, "stop": T + 10_000},
        {"worker": first.address, "start": known + 1, "stop": known + 3},
        {"worker": second.address, "start": known + 2, "stop": known + 4},
    ]
    assert log.workers.pauses(1.0, known + 1.5, known + 2).to_pylist() == [
        {"worker": third.address, "start": known + 1.5, "stop": known + 2},
        {"worker": first.address, "start": known + 1.5, "stop": known + 2},
        {"worker": second.address, "start": known + 1.5, "stop": known + 2},
    ]
    assert plugin.problems.failures == 0


def test_errors_of_the_plugin_are_counted_and_told_once() -> None:
    plugin = started_plugin(Scheduler(1))
    for _ in range(3):
        plugin.transition("unknown", "waiting", "processing", stimulus_id="update-graph-1")
    assert plugin.drain(1, 0)["failures"] == 3
    plugin = started_plugin(Scheduler(1))
    for number in range(3 * MOST_PROBLEMS):
        plugin.transition(number // 2, "waiting", "processing", stimulus_id="update-graph-1")
    assert len(set(drained(plugin).problems)) == MOST_PROBLEMS


def test_a_run_that_lost_rows_says_so(client: Any) -> None:
    with MetricsCollector(client) as collector:
        client.run_on_scheduler(leave_no_room, name=collector.topic)
        wait(client.map(str, range(200), pure=False))
    measurement = collector.measurement
    assert measurement.run.dropped["tasks"] == 200
    assert len(measurement.tasks) == 0
    assert "200 row(s) of tasks were dropped on the scheduler" in measurement.problems
    assert len(measurement.lifetimes) == 2


def leave_no_room(name: str, dask_scheduler: Any) -> None:
    dask_scheduler.plugins[name].log.cap = -1
