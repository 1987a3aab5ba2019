"""Numbers against independent sources: the operating system, the cluster itself, counters of the tasks."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import distributed.scheduler
import numpy as np
import psutil
import pytest
from analyses import KernelCounted, Sleeping, Spinning, runner_for
from conftest import wait_until
from distributed import Client, LocalCluster, as_completed

from roastcoffea.collector import MetricsCollector


def cpu_of_task_threads(dask_worker: Any) -> float:
    """CPU seconds of the threads that run tasks, as the kernel counts them."""
    threads = [thread for thread in threading.enumerate() if "Dask-Default-Threads" in thread.name]
    clocks = [Path(f"/proc/self/task/{thread.native_id}/schedstat").read_text() for thread in threads]
    return sum(int(clock.split()[0]) for clock in clocks) / 1e9


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="needs Linux")
@pytest.mark.parametrize(
    "processor", [pytest.param(Sleeping(0.1), marks=pytest.mark.slow), Spinning(0.1)], ids=["sleeping", "spinning"]
)
def test_cpu_time_is_that_of_the_operating_system(client: Any, sample: Any, processor: Any) -> None:
    runner = runner_for(client, 2000)
    chunks = list(runner.preprocess(sample))
    runner.run(list(chunks), Sleeping(0))
    processes = [psutil.Process(pid) for pid in client.run(os.getpid).values()]
    in_threads = sum(client.run(cpu_of_task_threads).values())
    in_processes = sum(sum(process.cpu_times()[:2]) for process in processes)
    with MetricsCollector(client) as collector:
        runner.run(list(chunks), processor)
    in_processes = sum(sum(process.cpu_times()[:2]) for process in processes) - in_processes
    in_threads = sum(client.run(cpu_of_task_threads).values()) - in_threads
    metrics = collector.metrics
    assert metrics["total_cpu_time"] == pytest.approx(in_threads, rel=0.05, abs=0.1)
    # entering and leaving are in the second number alone, and cost more where the cores are shared with others
    assert metrics["worker_cpu_time_seconds"] == pytest.approx(in_processes, rel=0.05, abs=0.1)
    capacity = metrics["elapsed_time_seconds"] * 2
    assert metrics["core_efficiency"] == pytest.approx(metrics["total_cpu_time"] / capacity)
    if isinstance(processor, Spinning):
        assert metrics["total_cpu_time"] > 8 * 0.1
    else:
        assert metrics["total_cpu_time"] < 1.5


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="needs Linux")
def test_cpu_rows_of_the_time_ledger_are_the_kernel_s(client: Any, sample: Any) -> None:
    with MetricsCollector(client) as collector:
        output, _ = runner_for(client, 2000)(sample, processor_instance=KernelCounted(0.1))
    ledger = collector.measurement.time_ledger
    rows = sum(ledger[name] for name in ("compute", "decompress", "interpret"))
    assert rows == pytest.approx(output["kernel"], rel=0.05)
    assert rows >= 8 * 0.1


@contextmanager
def watched_cores(cluster: Any, every: float = 0.002) -> Iterator[list[tuple[float, int]]]:
    """When the cluster has how many threads, watched from outside."""
    seen: list[tuple[float, int]] = []
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(every):
            seen.append((time.time(), sum(worker.nthreads for worker in list(cluster.scheduler.workers.values()))))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        stop.set()
        thread.join()


def check_cores(collector: MetricsCollector, seen: list[tuple[float, int]]) -> None:
    """The collector's cores are the mean over its run, within what the watcher may have missed between two looks."""
    run = collector.measurement.run
    times, threads = (np.array(column) for column in zip(*seen, strict=True))
    ends = np.append(times[1:], run.stop).clip(run.start, run.stop)
    lasted = ends - times.clip(run.start, run.stop)
    mean = lasted @ threads / lasted.sum()
    missed = lasted[:-1] @ np.abs(np.diff(threads)) / lasted.sum()
    clock = 2 * 0.02 / lasted.sum()  # the scheduler's clock is known to half of an answer, at both ends
    assert collector.metrics["total_cores"] == pytest.approx(mean, rel=0.01, abs=missed + clock + 0.02)
    assert missed < 0.5


@pytest.fixture
def lone_worker() -> Iterator[tuple[LocalCluster, Client]]:
    with (
        LocalCluster(n_workers=1, threads_per_worker=2, dashboard_address=":0", silence_logs=50) as cluster,
        Client(cluster) as client,
    ):
        yield cluster, client


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_cores_are_weighted_with_time_while_workers_come_and_go(lone_worker: Any) -> None:
    cluster, client = lone_worker
    with watched_cores(cluster) as seen, MetricsCollector(client, worker_tracking_interval=5) as collector:
        for workers in (4, 1):
            cluster.scale(workers)
            assert wait_until(lambda n=workers: len(cluster.scheduler.workers) == n)
            time.sleep(0.4)
    check_cores(collector, seen)
    metrics = collector.metrics
    assert 2 < metrics["total_cores"] < 8
    assert metrics["avg_workers"] == pytest.approx(metrics["total_cores"] / 2)
    assert metrics["peak_workers"] == 4
    assert metrics["cores_per_worker"] == pytest.approx(2)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_killed_worker_does_not_raise_the_cores() -> None:
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0", silence_logs=50) as cluster,
        Client(cluster) as client,
    ):
        pids = client.run(os.getpid)
        with watched_cores(cluster) as seen, MetricsCollector(client) as collector:
            time.sleep(0.2)
            psutil.Process(next(iter(pids.values()))).kill()
            assert wait_until(lambda: set(cluster.scheduler.workers) != set(pids))
            time.sleep(0.5)
    check_cores(collector, seen)
    assert collector.metrics["total_cores"] <= 2
    assert collector.metrics["peak_workers"] == 2


@pytest.mark.slow
def test_each_of_many_short_tasks_is_recorded(client: Any) -> None:
    count = 3_000
    with MetricsCollector(client) as collector:
        futures = client.map(lambda number: number, range(count), pure=False)
        keys = {future.key for future in futures}
        for future in as_completed(futures):
            future.release()
        del futures, future
    tasks = collector.measurement.tasks
    assert set(tasks["key"]) == keys
    assert len(tasks) == count
    assert set(tasks["outcome"]) == {"ok"}
    assert (tasks["stop"] >= tasks["start"]).all()
    assert collector.measurement.run.dropped == {}


@pytest.fixture
def slow_heartbeats(client: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A client of workers that report each 5 s of themselves."""
    monkeypatch.setattr(distributed.scheduler, "heartbeat_interval", lambda workers: 5.0)
    client.run(send_heartbeat)
    yield client
    monkeypatch.undo()
    client.run(send_heartbeat)


async def send_heartbeat(dask_worker: Any) -> None:
    await dask_worker.heartbeat()


def counted(number: int) -> int:
    from distributed.metrics import context_meter

    context_meter.digest_metric("counted", 1, "count")
    return number


@pytest.mark.slow
def test_fine_metrics_are_complete_whatever_the_heartbeats(slow_heartbeats: Any) -> None:
    client = slow_heartbeats
    for round_ in range(6):
        with MetricsCollector(client) as collector:
            client.gather(client.map(counted, range(20), pure=False))
        found = sum(value for key, value in collector.span_metrics.items() if key[2] == "counted")
        assert found == 20, f"round {round_}"


@pytest.mark.slow
def test_fine_metrics_tell_computing_from_waiting(client: Any, sample: Any) -> None:
    for processor, cpu, other in ((Sleeping(0.1), 0, 0.8), (Spinning(0.1), 0.8, 0)):
        with MetricsCollector(client) as collector:
            runner_for(client, 2000)(sample, processor_instance=processor)
        metrics = collector.metrics
        # opening and building events cost some of both
        assert cpu <= metrics["processor_cpu_time_seconds"] <= cpu + 1.5
        assert other <= metrics["processor_noncpu_time_seconds"]
        tasks = collector.measurement.tasks
        busy = (tasks["stop"] - tasks["start"])[tasks["kind"] == "processor"].sum()
        assert metrics["processor_cpu_time_seconds"] + metrics["processor_noncpu_time_seconds"] == pytest.approx(
            busy, rel=0.05
        )


def confirmed_steals(dask_scheduler: Any) -> list[str]:
    """Keys that work stealing has moved, one for each time, as Dask's own log has them."""
    entries = dask_scheduler.get_events("stealing")
    return [message[1] for _, message in entries if isinstance(message, tuple | list) and message[0] == "confirm"]


@pytest.mark.slow
def test_what_is_stolen_is_what_dask_s_log_tells(client: Any) -> None:
    victim = sorted(client.scheduler_info()["workers"])[0]
    client.submit(time.sleep, 0.11, pure=False).result()  # stealing needs to know how long they take
    before = len(client.run_on_scheduler(confirmed_steals))
    with MetricsCollector(client) as collector:
        tasks = [
            client.submit(time.sleep, 0.1, pure=False, workers=[victim], allow_other_workers=True) for _ in range(20)
        ]
        client.gather(tasks)
    stolen = client.run_on_scheduler(confirmed_steals)[before:]
    rows = collector.measurement.tasks.set_index("key")["stolen"]
    assert len(stolen) > 0
    assert rows.to_dict() == {task.key: stolen.count(task.key) for task in tasks}
