"""Samples and pauses of workers, as the scheduler's plugin writes them."""

from __future__ import annotations

from typing import Any

from stand_ins import NAME, SAMPLES, TOKEN, WORKERS, Clock, Scheduler, drained, started_plugin, take_samples
from stand_ins import STARTED as T

from roastcoffea.records.workers import OF_SCHEDULER


def test_a_sample_takes_less_than_100_bytes() -> None:
    scheduler = Scheduler(WORKERS)
    plugin = started_plugin(scheduler)
    before = plugin.log.size
    take_samples(scheduler, plugin, SAMPLES)
    assert (plugin.log.size - before) / (WORKERS * SAMPLES) < 100


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
        {"worker": second.address, "start": known + 2, "stop": known + 5},
    ]
    closing = {row["worker"]: row["closing"] for row in log.workers.lifetimes(0.0, T, T + 10_000).to_pylist()}
    assert closing == {first.address: known + 4, second.address: None, third.address: None}
    assert log.workers.pauses(1.0, known + 1.5, known + 2).to_pylist() == [
        {"worker": third.address, "start": known + 1.5, "stop": known + 2},
        {"worker": first.address, "start": known + 1.5, "stop": known + 2},
        {"worker": second.address, "start": known + 1.5, "stop": known + 2},
    ]
    assert plugin.problems.failures == 0


def test_a_worker_s_last_words_count_whenever_they_come(clock: Clock) -> None:
    scheduler = Scheduler(3)
    plugin = started_plugin(scheduler)
    plugin.loss = "its last seconds"
    addresses = [*scheduler.workers]
    before, after, never = addresses

    def say(address: str) -> None:
        key = ("execute", "span-1", "Jets", "thread-cpu", "seconds")
        plugin.log_event(
            NAME,
            {"token": TOKEN, "worker": address, "digests": [(key, 2.0)], "cpu_seconds": 1.5, "last": True}
            | {"loads": [{"host": address}]},
        )

    say(before)
    for address in addresses:
        plugin.log_event("all", {"action": "remove-worker", "worker": address, "expected": address != never})
        del scheduler.workers[address]
        plugin.remove_worker(scheduler, address)
    say(after)
    clock.now += 1000
    plugin.workers.forget_overdue()
    log = drained(plugin)
    assert log.workers.loads == [{"host": before}, {"host": after}]
    assert log.workers.silent == [1000]
    lifetimes = log.workers.lifetimes(0.0, T, T + 10_000).to_pylist()
    assert [row["cpu_seconds"] for row in lifetimes] == [1.5, 1.5, None]
    counted = log.workers.counted((), ["span-1"])
    assert counted == {address: {("execute", "Jets", "thread-cpu", "seconds"): 2.0} for address in (before, after)}
    assert log.problems == [f"{never} was lost: its last seconds"]
    assert plugin.problems.failures == 0


def test_what_a_nanny_says_counts_before_and_after_its_worker_left(clock: Clock) -> None:
    scheduler = Scheduler(3)
    plugin = started_plugin(scheduler)
    before, after, never = addresses = [*scheduler.workers]

    def say(message: Any) -> None:
        plugin.log_event("worker-restart-memory", message)

    say({"worker": before, "pid": 1, "rss": 7_700_000_000})
    for address in addresses:
        plugin.remove_worker(scheduler, address)
    say({"worker": after, "pid": 2, "rss": 7_800_000_000})
    # others may write to that topic
    for message in (None, "killed", {"worker": never}, {"worker": 5, "rss": 1}, {"worker": never, "rss": "much"}):
        say(message)
    say({"worker": "tcp://elsewhere:1", "pid": 3, "rss": 1})
    log = drained(plugin)
    lifetimes = log.workers.lifetimes(0.0, T, T + 100).to_pylist()
    assert [row["killed_memory"] for row in lifetimes] == [7_700_000_000, 7_800_000_000, None]
    assert (log.problems, plugin.problems.failures) == ([], 0)
