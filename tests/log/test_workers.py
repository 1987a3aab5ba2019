"""Workers as the client reads them from the log: pauses, CPU times, and what Dask counted."""

from __future__ import annotations

from typing import Any

from distributed import Client, wait
from stand_ins import NAME, TOKEN, Scheduler, started_plugin

from roastcoffea import TaskMonitor
from roastcoffea.collector import MetricsCollector
from roastcoffea.log.reader import ClusterLog


def test_a_worker_that_pauses_beside_a_monitor(client: Client) -> None:
    with TaskMonitor(client) as monitor, MetricsCollector(client) as collector:
        (address, *_) = client.scheduler_info()["workers"]
        client.run_on_scheduler(pause_and_go_on, address)
        wait(client.map(str, range(5), pure=False))
        assert monitor.snapshots[-1].num_tasks >= 0
    assert monitor.problems == []
    assert len(monitor.to_dataframe()) >= 5
    assert collector.measurement.run.pauses["worker"].to_pylist() == [address]


def pause_and_go_on(address: str, dask_scheduler: Any) -> None:
    """What the scheduler does where a worker tells that it is paused, and then that it runs again."""
    for status in ("paused", "running"):
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
