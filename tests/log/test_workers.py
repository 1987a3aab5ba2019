"""Workers as the client reads them from the log: pauses, CPU times, and what Dask counted."""

from __future__ import annotations

import math
import struct
import time
from typing import Any

import pytest
from distributed import Client, wait
from stand_ins import NAME, TOKEN, Scheduler, T, packed, started_plugin

from roastcoffea import TaskMonitor
from roastcoffea.collector import MetricsCollector
from roastcoffea.log import kinds
from roastcoffea.log.layout import Texts
from roastcoffea.log.workers import ClusterLog, WorkerLog


def test_a_worker_that_pauses_beside_a_monitor(client: Client) -> None:
    with TaskMonitor(client) as monitor, MetricsCollector(client) as collector:
        (address, *_) = client.scheduler_info()["workers"]
        # the scheduler's clock is known to a few milliseconds on a busy host: the pause is longer, and not at the start
        wait(client.map(str, range(5), pure=False))
        client.run_on_scheduler(has_status, address, "paused")
        time.sleep(0.1)
        client.run_on_scheduler(has_status, address, "running")
        assert monitor.snapshot().num_tasks >= 0
    assert monitor.problems == []
    assert len(monitor.to_dataframe()) >= 5
    assert collector.measurement.run.pauses["worker"].to_pylist() == [address]


def has_status(address: str, status: str, dask_scheduler: Any) -> None:
    """What the scheduler does where a worker reports that it is paused, or runs again."""
    dask_scheduler.handle_worker_status_change(status, address, "test")


def test_counts_of_workers_at_one_address_add_up() -> None:
    scheduler = Scheduler(1)
    (worker,) = scheduler.workers.values()
    plugin = started_plugin(scheduler)
    key = ("execute", "span-1", "Jets", "thread-cpu", "seconds")

    def report(amount: float, **more: Any) -> None:
        message = {"token": TOKEN, "worker": worker.address, "digests": [(key, amount), (("gil", "x"), 1.0)]}
        plugin.log_event(NAME, message | more)

    report(1.0)
    scheduler.workers.clear()
    plugin.remove_worker(scheduler, worker.address)
    report(1.5, last=True)
    scheduler.workers[worker.address] = worker
    plugin.add_worker(scheduler, worker.address)
    report(4.0)
    log = ClusterLog()
    log.feed(plugin.drain(1_000_000, 0)["data"])
    present = [(address, list(counts.items())) for address, counts in plugin.workers.counted.items()]
    counted = log.workers.counted(present, ["span-1"])
    assert counted == {worker.address: {("execute", "Jets", "thread-cpu", "seconds"): 5.5, ("gil", "x"): 2.0}}


def worker_log(*entries: tuple[kinds.Kind, dict[str, float]], clock: float = math.nan) -> WorkerLog:
    """What came of one worker, "w"; its clock is so far ahead of the scheduler's."""
    texts = Texts()
    for text in ("w", "name", "host"):
        texts.take(text.encode())
    log = WorkerLog(texts, lambda: {"w": clock})
    for kind, values in entries:
        log.readers[kind](packed(kind.fields, worker=0, **values))
    return log


ARRIVED = (kinds.ARRIVAL, {"name": 1, "host": 2, "time": T + 5, "threads": 4, "memory_limit": 0, "process": 0})


def test_a_worker_is_there_from_its_arrival_to_its_departure_within_the_run() -> None:
    log = worker_log(ARRIVED, (kinds.DEPARTURE, {"time": T + 20}), ARRIVED, clock=0.25)
    first, second = log.lifetimes(1.0, T + 10, T + 15).to_pylist()
    # the scheduler's clock is a second ahead of the client's
    assert (first["start"], first["stop"]) == (T + 10, T + 15)
    assert (first["worker"], first["name"], first["host"], first["threads"]) == ("w", "name", "host", 4)
    assert first["process"] is first["memory_limit"] is first["cpu_seconds"] is None
    assert first["clock_offset"] == 1.25
    assert log.here == 1
    assert (second["start"], second["stop"]) == (T + 10, T + 15)
    outside = log.lifetimes(0.0, T, T + 3).to_pylist()[0]
    assert (outside["start"], outside["stop"]) == (T + 3, T + 5)


def test_cpu_time_is_that_of_the_last_sample_until_the_last_message_comes() -> None:
    sample = {"last_seen": T + 8, "time": T + 8, "cpu_seconds": 2.5}
    entries = (ARRIVED, (kinds.SAMPLE, sample), (kinds.SAMPLE, sample | {"last_seen": T + 9, "cpu_seconds": 3.5}))
    (lifetime,) = worker_log(*entries).lifetimes(0.0, T, T + 10).to_pylist()
    assert (lifetime["cpu_seconds"], lifetime["clock_offset"]) == (3.5, None)
    last = (kinds.PROCESS_CPU, {"cpu_seconds": 4.5})
    assert worker_log(*entries, last).lifetimes(0.0, T, T + 10)["cpu_seconds"].to_pylist() == [4.5]


def test_threads_that_execute_are_known_from_the_first_sample_to_the_departure() -> None:
    assert worker_log(ARRIVED).threads is None
    sample = (kinds.SAMPLE, {"time": T + 8, "executing": 3})
    assert worker_log(ARRIVED, sample).threads == (4, 3)
    # a thread that left the pool for a long task still counts one
    assert worker_log(ARRIVED, sample, (kinds.SAMPLE, {"time": T + 9, "executing": 6})).threads == (4, 4)
    assert worker_log(ARRIVED, sample, (kinds.DEPARTURE, {"time": T + 20})).threads is None


RESUMED = (kinds.RESUMED, {"since": T + 10, "time": T + 20})


def test_a_worker_that_is_still_there_after_a_gap_is_the_same_one() -> None:
    sample = {"last_seen": T + 8, "time": T + 8, "cpu_seconds": 2.5}
    again = (kinds.ARRIVAL, ARRIVED[1] | {"time": T + 20})
    entries = (ARRIVED, (kinds.PAUSE, {"time": T + 6, "paused": 1}), (kinds.SAMPLE, sample), RESUMED, again)
    log = worker_log(*entries)
    (lifetime,) = log.lifetimes(0.0, T, T + 30).to_pylist()
    # what it took in the gap is unknown
    assert (lifetime["start"], lifetime["stop"], lifetime["cpu_seconds"]) == (T + 5, T + 30, 2.5)
    assert log.pauses(0.0, T, T + 30)["stop"].to_pylist() == [T + 10]
    assert (log.here, log.threads, log.gaps) == (1, None, [(T + 10, T + 20)])
    # after it, its CPU time is counted from 0
    later = (kinds.SAMPLE, sample | {"last_seen": T + 25, "cpu_seconds": 0.5})
    for more, cpu in (([later], 3.0), ([later, (kinds.PROCESS_CPU, {"cpu_seconds": 0.75})], 3.25)):
        assert worker_log(*entries, *more).lifetimes(0.0, T, T + 30)["cpu_seconds"].to_pylist() == [cpu]


def test_a_worker_that_is_not_there_after_a_gap_ends_where_it_began() -> None:
    other = (kinds.ARRIVAL, ARRIVED[1] | {"time": T + 20, "process": 7})
    log = worker_log(ARRIVED, RESUMED, other)
    assert [(row["start"], row["stop"]) for row in log.lifetimes(0.0, T, T + 30).to_pylist()] == [
        (T + 5, T + 10),
        (T + 20, T + 30),
    ]
    assert worker_log(ARRIVED, RESUMED).lifetimes(0.0, T, T + 30)["stop"].to_pylist() == [T + 10]


def test_a_sample_of_no_worker_is_refused() -> None:
    log = worker_log(ARRIVED)
    with pytest.raises(LookupError, match="it has no worker"):
        log.readers[kinds.SAMPLE](packed(kinds.SAMPLE.fields, worker=kinds.NO_STRING))
    with pytest.raises(struct.error):
        log.readers[kinds.SAMPLE](b"")
    assert len(log.samples(0.0)) == 0
