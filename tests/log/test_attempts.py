"""Attempts as the client reads them from the log."""

from __future__ import annotations

from log_entries import T
from stand_ins import CLIENT, NAME, TOKEN, Scheduler, Task, started_plugin

from roastcoffea.log.reader import ClusterLog


def test_tasks_and_workers_with_impossible_times() -> None:
    scheduler = Scheduler(1)
    (worker,) = scheduler.workers.values()
    plugin = started_plugin(scheduler)
    scheduler.run(plugin, Task("inc-1", worker, start=T + 5, stop=T, client=CLIENT))
    scheduler.run(plugin, Task("inc-2", worker, start=T, stop=T + 5, client=CLIENT))
    plugin.log_event(NAME, {"token": TOKEN, "worker": worker.address, "cpu_seconds": 1e9})
    log = ClusterLog()
    log.feed(plugin.drain(1_000_000, 0)["data"])
    assert log.attempts.table(0.0)["start"].to_pylist() == [None, T]
    assert log.workers.lifetimes(0.0, T, T + 10)["cpu_seconds"].to_pylist() == [None]
    assert log.problems == [
        "1 task(s) ended before they began: their times were set aside",
        "1 CPU time(s) of workers were impossible and set aside",
    ]
