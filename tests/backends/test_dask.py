"""The backend under the names that users of 0.1.2 know, and what it keeps when things go wrong."""

from __future__ import annotations

import time
from collections import Counter
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from conftest import CommandLineCluster, wait_until
from distributed import Client
from handmade import WORKER_SERIES

import roastcoffea
from roastcoffea.backends.base import AbstractMetricsBackend
from roastcoffea.backends.dask import DaskMetricsBackend, DaskRecorder
from roastcoffea.backends.local import ProcessRecorder
from roastcoffea.backends.recorder import RecordingBackend
from roastcoffea.collector import MetricsCollector
from roastcoffea.errors import RoastcoffeaError
from roastcoffea.instrument.calls import active
from roastcoffea.instrument.channels import CarriedProbe


def sampled_twice(recorder: DaskRecorder, client: Client) -> bool:
    """Whether each worker has two samples."""
    samples = Counter(recorder.samples()["worker"].to_pylist())
    return all(samples[worker] >= 2 for worker in client.scheduler_info()["workers"])


def test_tracking_gives_each_field_of_each_worker(client: Any) -> None:
    recorder = DaskRecorder(client)
    backend = RecordingBackend(recorder)
    assert isinstance(backend, AbstractMetricsBackend)
    assert isinstance(DaskMetricsBackend(client), RecordingBackend)
    assert DaskMetricsBackend(client).supports_fine_metrics()
    before = datetime.now()
    backend.start_tracking(0.05)
    assert wait_until(lambda: recorder.drain() or sampled_twice(recorder, client))
    data = backend.stop_tracking()
    workers = client.scheduler_info()["workers"]
    assert set(data) == {"worker_counts", *WORKER_SERIES}
    assert set(data["worker_counts"].values()) == {2}
    for field in WORKER_SERIES:
        assert set(data[field]) == set(workers)
    for address, worker in workers.items():
        times = [moment for moment, _ in data["worker_memory"][address]]
        assert len(times) >= 2
        assert times == sorted(set(times))
        assert before.timestamp() - 2 < times[0].timestamp() <= times[-1].timestamp() < time.time() + 1
        assert {value for _, value in data["worker_memory_limit"][address]} == {worker["memory_limit"]}
        assert {value for _, value in data["worker_cores"][address]} == {1}
        assert all(10e6 < value < 10e9 for _, value in data["worker_memory"][address])


def test_span_metrics_by_the_span_s_id(client: Any) -> None:
    backend = DaskMetricsBackend(client)
    span = backend.create_span("mine")
    assert span["name"] == "mine"
    with span["context"] as identity:
        client.gather(client.map(task_of_this_span, range(6), pure=False))
    key = ("execute", "task_of_this_span", "thread-cpu", "seconds")
    # workers are asked to report, and a busy host may make them late
    assert wait_until(lambda: backend.get_span_metrics({**span, "id": identity}).get(key, 0) > 0)
    assert backend.get_span_metrics(span) == {}
    assert backend.get_span_metrics({**span, "id": "unknown"}) == {}


def task_of_this_span(number: int) -> str:
    """Be a task of a name of its own: while Dask remembers one, all of its name are in the span of the first."""
    return str(number)


def test_a_backend_needs_a_client() -> None:
    with pytest.raises(ValueError, match=r"needs a distributed\.Client; its client is None"):
        DaskMetricsBackend(None)
    with pytest.raises(TypeError, match="not str"):
        DaskMetricsBackend("tcp://127.0.0.1:8786")


def test_a_long_delay_is_not_slept_through(client: Any) -> None:
    backend = DaskMetricsBackend(client)
    span = backend.create_span("quick")
    with span["context"] as identity:
        client.submit(bin, 1, pure=False).result()
    assert backend.get_span_metrics({**span, "id": identity}, 1e6)  # else it would not end


@pytest.mark.parametrize("kind", ["dask", "local"])
def test_a_backend_begins_afresh_each_time(client: Any, kind: str) -> None:
    backend = DaskRecorder(client) if kind == "dask" else ProcessRecorder()
    names, samples = set(), []
    for cycle in range(3):
        before = time.time()
        backend.open(0.05)
        names.add(backend.name)
        with pytest.raises(RoastcoffeaError, match="already"):
            backend.open(0.05)
        client.gather(client.map(str, range(cycle + 1), pure=False))
        assert wait_until(lambda: backend.samples().num_rows > 0 or backend.drain() is not None)
        backend.close()
        data = backend.tracking_data()
        if kind == "dask":
            assert backend.tasks().num_rows == cycle + 1
        moments = [moment.timestamp() for series in data["worker_memory"].values() for moment, _ in series]
        samples.append(len(moments))
        assert min(moments) > before - 2
        assert min(data["worker_counts"]).timestamp() >= before - 0.1
        assert backend.notes() == []
        backend.close()
    assert min(samples) > 0
    assert len(names) == 3


def test_a_cluster_that_cannot_be_seen_does_not_stop_the_analysis(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from roastcoffea.collector import MetricsCollector

    def refused(*args: Any, **kwargs: Any) -> None:
        raise ValueError("pickles are not allowed")

    monkeypatch.setattr(DaskRecorder, "open", refused)
    with MetricsCollector(client) as collector:
        assert client.submit(str, 1, pure=False).result() == "1"
    measurement = collector.measurement
    assert measurement.outcome == "finished"
    assert any("pickles are not allowed" in problem for problem in measurement.problems)
    assert list(measurement.metrics) == ["elapsed_time_seconds"]
    assert all(measurement.metrics.missing.values())


def test_a_package_that_is_registered_by_value_is_not_in_each_graph(client: Any) -> None:
    """The probe's code, which would be in each, is sent to the workers once."""
    cloudpickle.register_pickle_by_value(roastcoffea)
    try:
        with MetricsCollector(client) as collector:
            packed = active[-1].packed_for_tasks(CarriedProbe)
            assert packed is not None
            assert len(packed) < 10_000
            probes = [
                len(cloudpickle.dumps(CarriedProbe(packed, f"a{i}", active[-1].topic, abs, ()))) for i in range(2)
            ]
            assert max(probes) < 10_000
    finally:
        cloudpickle.unregister_pickle_by_value(roastcoffea)
    assert collector.problems == []


@pytest.mark.slow
def test_workers_with_other_versions_than_the_client_are_said(tmp_path: Path) -> None:
    """The workers' versions are what their bytes and times go by."""
    (tmp_path / "uproot-5.0.0.dist-info").mkdir()
    (tmp_path / "uproot-5.0.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: uproot\nVersion: 5.0.0\n"
    )
    cluster = CommandLineCluster(tmp_path, workers=1, path=str(tmp_path))
    try:
        with Client(scheduler_file=str(cluster.file)) as client:
            client.wait_for_workers(1)
            with MetricsCollector(client, name="older uproot") as collector:
                client.submit(str, 1).result()
            run = collector.measurement.run
    finally:
        cluster.close()
    said = f"5.0.0 on workers, {version('uproot')} on the client"
    assert [problem for problem in run.problems if "versions" in problem] == [
        f"workers and client have different versions; tasks ran with the workers' versions: uproot {said}"
    ]
    assert run.environment.versions["uproot"] == said
    assert run.environment.versions["coffea"] == version("coffea")
