"""Samples and pauses of workers, as the scheduler's plugin writes them."""

from __future__ import annotations

from scheduler_runs import SAMPLES, WORKERS, Clock, T, drained, take_samples
from stand_ins import Scheduler, started_plugin

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
        {"worker": second.address, "start": known + 2, "stop": known + 4},
    ]
    assert log.workers.pauses(1.0, known + 1.5, known + 2).to_pylist() == [
        {"worker": third.address, "start": known + 1.5, "stop": known + 2},
        {"worker": first.address, "start": known + 1.5, "stop": known + 2},
        {"worker": second.address, "start": known + 1.5, "stop": known + 2},
    ]
    assert plugin.problems.failures == 0
