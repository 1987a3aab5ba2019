"""The backend under the names that users of 0.1.2 know, and what it keeps when things go wrong."""

from __future__ import annotations

import time
from collections import Counter
from datetime import datetime
from typing import Any

import pytest
from conftest import wait_until
from distributed import Client

from roastcoffea.backends.base import AbstractMetricsBackend
from roastcoffea.backends.dask import DaskMetricsBackend
from roastcoffea.backends.local import LocalMetricsBackend
from roastcoffea.errors import RoastcoffeaError

FIELDS = (
    "worker_memory",
    "worker_memory_limit",
    "worker_active_tasks",
    "worker_cores",
    "worker_nbytes",
    "worker_occupancy",
    "worker_executing",
    "worker_last_seen",
    "worker_cpu",
)


def sampled_twice(backend: DaskMetricsBackend, client: Client) -> bool:
    """Whether each worker has two samples."""
    samples = Counter(backend.samples()["worker"].to_pylist())
    return all(samples[worker] >= 2 for worker in client.scheduler_info()["workers"])


def test_tracking_gives_each_field_of_each_worker(client: Any) -> None:
    backend = DaskMetricsBackend(client)
    assert isinstance(backend, AbstractMetricsBackend)
    assert backend.supports_fine_metrics()
    before = datetime.now()
    backend.start_tracking(0.05)
    assert wait_until(lambda: backend.drain() or sampled_twice(backend, client), 30)
    data = backend.stop_tracking()
    workers = client.scheduler_info()["workers"]
    assert set(data) == {"worker_counts", *FIELDS}
    assert set(data["worker_counts"].values()) == {2}
    for field in FIELDS:
        assert set(data[field]) == set(workers)
    for address, worker in workers.items():
        times = [moment for moment, _ in data["worker_memory"][address]]
        assert len(times) >= 2
        assert times == sorted(set(times))
        assert before.timestamp() - 2 < times[0].timestamp() <= times[-1].timestamp() < time.time() + 1
        assert {value for _, value in data["worker_memory_limit"][address]} == {worker["memory_limit"]}
        assert {value for _, value in data["worker_cores"][address]} == {1}
        assert all(10e6 < value < 10e9 for _, value in data["worker_memory"][address])


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", ["dask", "local"])
def test_a_backend_begins_afresh_each_time(client: Any, kind: str) -> None:
    backend = DaskMetricsBackend(client) if kind == "dask" else LocalMetricsBackend()
    names, samples = set(), []
    for cycle in range(3):
        before = time.time()
        backend.start_tracking(0.05)
        names.add(backend.name)
        with pytest.raises(RoastcoffeaError, match="already"):
            backend.start_tracking(0.05)
        client.gather(client.map(str, range(cycle + 1), pure=False))
        assert wait_until(lambda: backend.samples().num_rows > 0 or backend.drain() is not None, 20)
        data = backend.stop_tracking()
        if kind == "dask":
            assert backend.tasks().num_rows == cycle + 1
        moments = [moment.timestamp() for series in data["worker_memory"].values() for moment, _ in series]
        samples.append(len(moments))
        assert min(moments) > before - 2
        assert min(data["worker_counts"]).timestamp() >= before - 0.1
        assert backend.notes() == []
        assert backend.stop_tracking() is not None
    assert min(samples) > 0
    assert len(names) == 3


def test_a_cluster_that_cannot_be_seen_does_not_stop_the_analysis(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from roastcoffea.collector import MetricsCollector

    def refused(*args: Any, **kwargs: Any) -> None:
        raise ValueError("pickles are not allowed")

    monkeypatch.setattr(DaskMetricsBackend, "open", refused)
    with MetricsCollector(client) as collector:
        assert client.submit(str, 1, pure=False).result() == "1"
    measurement = collector.measurement
    assert measurement.outcome == "finished"
    assert any("pickles are not allowed" in problem for problem in measurement.problems)
    assert list(measurement.metrics) == ["elapsed_time_seconds"]
    assert all(measurement.metrics.missing.values())
