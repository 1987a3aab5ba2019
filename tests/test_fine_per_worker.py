"""Dask's own metrics, worker by worker: they add up, also where workers leave or die."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from analyses import Sleeping, runner_for
from conftest import wait_until
from distributed import Client, LocalCluster

from roastcoffea import load
from roastcoffea.collector import MetricsCollector
from roastcoffea.measurement import Measurement


def in_tasks(counted: dict[tuple[Any, ...], float]) -> dict[tuple[Any, ...], float]:
    return {key: value for key, value in counted.items() if key[0] == "execute" and key[1] != "N/A"}


def summed(measurement: Measurement) -> dict[tuple[Any, ...], float]:
    """What the workers counted in tasks, together."""
    total: dict[tuple[Any, ...], float] = {}
    for counted in measurement.fine_metrics_per_worker.values():
        for key, value in in_tasks(counted).items():
            total[key] = total.get(key, 0.0) + value
    return total


@pytest.mark.slow
def test_workers_add_up_to_the_span(client: Any, sample: Any, tmp_path: Path) -> None:
    with MetricsCollector(client) as collector:
        runner_for(client, 1000)(sample, processor_instance=Sleeping(0.05))
    measurement = collector.measurement
    assert set(measurement.fine_metrics_per_worker) == set(client.scheduler_info()["workers"])
    assert summed(measurement) == pytest.approx(in_tasks(measurement.fine_metrics))
    workers = measurement.metrics["fine_metrics_per_worker"]
    waiting = sum(worker.get("processor_noncpu_time_seconds", 0.0) for worker in workers.values())
    assert waiting == pytest.approx(measurement.metrics["processor_noncpu_time_seconds"])
    assert waiting >= 16 * 0.05
    assert load(measurement.save(tmp_path)).fine_metrics_per_worker == measurement.fine_metrics_per_worker


@pytest.mark.slow
@pytest.mark.parametrize("compression", [1, None])
def test_the_processor_is_told_from_the_rest(client: Any, sample: Any, compression: int | None) -> None:
    with MetricsCollector(client) as collector:
        runner_for(client, 4000, compression=compression)(sample, processor_instance=Sleeping(0.2))
    workers = collector.metrics["fine_metrics_per_worker"].values()
    tasks = collector.measurement.tasks
    rest = (tasks["stop"] - tasks["start"]).sum() - 4 * 0.2
    assert sum(worker.get("processor_noncpu_time_seconds", 0.0) for worker in workers) >= 4 * 0.2
    assert sum(worker.get("overhead_noncpu_time_seconds", 0.0) for worker in workers) < rest + 0.1


@pytest.mark.slow
def test_a_worker_that_retires_leaves_its_share(sample: Any) -> None:
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0", silence_logs=50) as cluster,
        Client(cluster) as own,
    ):
        with MetricsCollector(own) as collector:
            runner_for(own, 1000)(sample, processor_instance=Sleeping(0.05))
            first, _ = own.scheduler_info()["workers"]
            own.retire_workers([first])
        measurement = collector.measurement
    tasks = measurement.tasks
    mine = tasks[(tasks["worker"] == first) & (tasks["outcome"] == "ok") & (tasks["kind"] != "other")]
    busy = (mine["stop"] - mine["start"]).sum()
    counted = in_tasks(measurement.fine_metrics_per_worker[first])
    told = sum(value for key, value in counted.items() if key[2].startswith("thread-"))
    assert told == pytest.approx(busy, rel=0.02)
    assert [problem for problem in measurement.problems if "was lost" in problem] == []


@pytest.mark.slow
def test_a_worker_that_is_killed_is_told(sample: Any) -> None:
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0", silence_logs=50) as cluster,
        Client(cluster) as own,
    ):
        with MetricsCollector(own) as collector:
            runner_for(own, 4000)(sample, processor_instance=Sleeping(0.05))
            (first, process), *_ = own.run(os.getpid).items()
            os.kill(process, signal.SIGKILL)
            assert wait_until(lambda: first not in own.scheduler_info(n_workers=-1)["workers"])
        measurement = collector.measurement
    assert any(first in problem and "last 5 s" in problem for problem in measurement.run.problems)


@pytest.mark.slow
def test_a_worker_that_retires_at_the_very_end_is_counted_once(sample: Any) -> None:
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0", silence_logs=50) as cluster,
        Client(cluster) as own,
    ):
        with MetricsCollector(own) as collector:
            runner_for(own, 1000)(sample, processor_instance=Sleeping(0.02))
            time.sleep(0.3)
            own.retire_workers(list(own.scheduler_info()["workers"])[:1])
        measurement = collector.measurement
    assert len(measurement.fine_metrics_per_worker) == 2
    tasks = measurement.tasks[measurement.tasks["kind"] != "other"]
    counted = sum(value for key, value in summed(measurement).items() if key[2].startswith("thread-"))
    assert counted == pytest.approx((tasks["stop"] - tasks["start"]).sum(), rel=0.02)
