"""The log that the scheduler's plugin keeps: small, bounded, and read back as it was written."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from analyses import Jets, runner_for
from conftest import wait_until
from distributed import Client, wait
from stand_ins import CALL_ID as CALL
from stand_ins import (
    CLIENT,
    NAME,
    SAMPLES,
    TASKS,
    TOKEN,
    WORKERS,
    Clock,
    Scheduler,
    Task,
    Worker,
    drained,
    has_record,
    record,
    row_of,
    run_tasks,
    started_plugin,
    take_samples,
)
from stand_ins import STARTED as T

from roastcoffea.backends.attempts import MOST_PROBLEMS
from roastcoffea.collector import MetricsCollector
from roastcoffea.instrument.calls import active
from roastcoffea.log import kinds as writer
from roastcoffea.log.kinds import BLOCK
from roastcoffea.log.workers import ClusterLog
from roastcoffea.records.workers import (
    ERROR,
    OTHER,
    OUTCOMES,
    UNFINISHED,
)

SMALL_CAP = 100_000


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
    for worker in [*scheduler.workers.values()][::3]:
        worker.gpu = True
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


def test_errors_of_the_plugin_are_counted_and_told_once() -> None:
    plugin = started_plugin(Scheduler(1))
    for _ in range(3):
        plugin.transition("unknown", "waiting", "processing", stimulus_id="update-graph-1")
    assert plugin.drain(1, 0)["failures"] == 3
    plugin = started_plugin(Scheduler(1))
    for number in range(3 * MOST_PROBLEMS):
        plugin.transition(number // 2, "waiting", "processing", stimulus_id="update-graph-1")
    assert len(set(drained(plugin).problems)) == MOST_PROBLEMS


@pytest.mark.slow
def test_a_run_that_lost_rows_says_so(client: Any) -> None:
    with MetricsCollector(client) as collector:
        client.run_on_scheduler(leave_no_room, name=active[-1].topic)
        wait(client.map(str, range(200), pure=False))
    measurement = collector.measurement
    assert measurement.run.dropped["tasks"] == 200
    assert len(measurement.tasks) == 0
    assert "200 rows of tasks were dropped on the scheduler" in measurement.problems
    assert len(measurement.lifetimes) == 2


def leave_no_room(name: str, dask_scheduler: Any) -> None:
    dask_scheduler.plugins[name].log.cap = -1


def messages_of_others(random_numbers: random.Random) -> Iterator[Any]:
    """Messages that look like ours, or like nothing."""
    worker = "tcp://10.0.0.1:1"
    makers = [
        lambda: {"chunk": "text"},
        lambda: {"chunk": None, "token": "guessed"},
        lambda: {"chunk": record(5), "token": 5},
        lambda: {"digests": [[["execute"], 1.0]], "worker": worker},
        lambda: {"cpu_seconds": 1e9, "worker": worker},
        lambda: {"failed": "Jets-1", "run_id": 1, "times": []},
        lambda: {"last": True, "worker": worker, "token": None},
        lambda: {"problem": ["no text"], "token": ["a list"]},
        random_numbers.random,
        lambda: random_numbers.randbytes(20),
        lambda: [1, {"token": "x"}],
        lambda: None,
    ]
    while True:
        yield random_numbers.choice(makers)()


@pytest.mark.slow
def test_a_thousand_messages_of_another_client_cost_nothing(client: Client, sample: Any) -> None:
    foreign = list(itertools.islice(messages_of_others(random.Random(0)), 1000))
    with Client(client.scheduler.address, set_as_default=False) as other, MetricsCollector(client) as collector:
        for message in foreign[:500]:
            other.log_event(active[-1].topic, message)
        runner_for(client, 4000)(sample, processor_instance=Jets())
        for message in foreign[500:]:
            other.log_event(active[-1].topic, message)
        assert wait_until(lambda: client.run_on_scheduler(refused, active[-1].topic) == 1000)
    measurement = collector.measurement
    assert measurement.chunks["outcome"].tolist() == ["ok"] * 4
    assert (measurement.tasks["kind"] == "processor").sum() == 4
    assert measurement.problems == ["1,000 messages from other senders to the collector's topic were refused"]
    assert measurement.byte_ledger.residual == 0


def refused(name: str, dask_scheduler: Any) -> int:
    return int(dask_scheduler.plugins[name].refused)


def test_events_that_only_look_like_those_of_dask_are_ignored() -> None:
    scheduler = Scheduler(1)
    plugin = started_plugin(scheduler)
    (address,) = scheduler.workers
    nonsense = (
        None,
        5,
        "text",
        [],
        ["confirm"],
        ("confirm", {}, 1, 2, 3, 4),
        {"action": 1},
        {"action": "remove-worker"},
    )
    for topic, message in itertools.product(("stealing", "all", address), nonsense):
        plugin.log_event(topic, message)
    plugin.log_event(address, {"action": "worker-status-change"})
    assert (plugin.problems.failures, plugin.refused) == (0, 0)


def size_of(value: Any, seen: set[int]) -> int:
    """Elements of all containers that can be reached from a plugin, and bytes of its texts."""
    if id(value) in seen or isinstance(value, Scheduler | type):
        return 0
    seen.add(id(value))
    if isinstance(value, str | bytes | bytearray):
        return len(value)
    if isinstance(value, Mapping):
        return len(value) + sum(size_of(item, seen) for pair in value.items() for item in pair)
    if isinstance(value, list | tuple | set | frozenset):
        return len(value) + sum(size_of(item, seen) for item in value)
    return size_of(vars(value), seen) if hasattr(value, "__dict__") else 0


def test_one_worker_that_cannot_be_sampled_leaves_the_others() -> None:
    scheduler = Scheduler(3)
    plugin = started_plugin(scheduler)
    taken: list[str] = []

    def take(address: str, state: Any, now: float) -> None:
        if not taken:
            taken.append("")
            raise TypeError(f"no metrics of {address}")
        taken.append(address)

    plugin.workers.samples.take = take  # type: ignore[method-assign]
    plugin.sample()
    assert len(taken) == 3
    assert plugin.problems.failures == 1


@pytest.mark.slow
def test_the_plugin_does_not_grow_with_workers_that_come_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    now = itertools.count(T)
    monkeypatch.setattr("roastcoffea.backends.scheduler.time", SimpleNamespace(time=lambda: next(now)))
    monkeypatch.setattr(writer, "MOST_TEXTS", 500)
    scheduler = Scheduler(5)
    plugin = started_plugin(scheduler)
    sizes = []
    received = 0
    for number in range(1200):
        worker = Worker(f"tcp://late:{number:05}", f"late-{number:05}")
        scheduler.workers[worker.address] = worker
        plugin.add_worker(scheduler, worker.address)
        worker.beat(T, number)
        plugin.sample()
        name = f"prefix-{number:05}"
        scheduler.run(plugin, Task(f"{name}-{number:05}", worker, name, typename=f"type-{number:05}", client=CLIENT))
        message = {"token": TOKEN, "worker": worker.address}
        plugin.log_event(NAME, message | {"digests": [[["execute", "span-1", name, "thread-cpu", "seconds"], 1.0]]})
        plugin.log_event(NAME, message | {"failed": f"never-{number:05}", "run_id": 1, "times": [T] * 4})
        plugin.log_event("all", {"action": "remove-worker", "worker": worker.address, "expected": True})
        if number % 3 == 0:
            plugin.log_event(NAME, message | {"last": True})
        del scheduler.workers[worker.address]
        plugin.remove_worker(scheduler, worker.address)
        if number % 3 == 1:
            plugin.log_event(NAME, message | {"last": True})
        plugin.workers.forget_overdue()
        while (answer := plugin.drain(1_000_000, received))["data"]:
            received += len(answer["data"])
        if number % 7 == 0:
            sizes.append(size_of(vars(plugin), set()))
    assert plugin.problems.failures == 0
    assert max(sizes[157:]) <= 1.05 * max(sizes[:157])
