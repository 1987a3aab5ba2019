"""A backend is a module with its class, and an entry in the table: nothing else has to know it."""

from __future__ import annotations

import time
from typing import Any

import pytest
from analyses import Jets, runner_for
from coffea.nanoevents import NanoAODSchema
from coffea.processor import IterativeExecutor, Runner
from distributed import Client

from roastcoffea import MetricsCollector, load
from roastcoffea.backends.base import AbstractMetricsBackend
from roastcoffea.backends.dask import DaskMetricsBackend, DaskRecorder
from roastcoffea.backends.local import ProcessRecorder
from roastcoffea.backends.registry import BACKENDS, backend_for


class Toy(AbstractMetricsBackend):
    """All that a backend needs: one worker, which was there from beginning to end."""

    kind = "toy"

    def start_tracking(self, interval: float = 1.0) -> None:
        self.began = time.time()

    def stop_tracking(self) -> dict[str, Any]:
        times = (self.began, time.time())
        return {
            "worker_counts": dict.fromkeys(times, 1),
            "worker_cores": {"toy": [(moment, 2) for moment in times]},
            "worker_memory": {"toy": [(moment, 1000) for moment in times]},
        }


@pytest.fixture
def toys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BACKENDS, Toy.kind, Toy)


def test_a_toy_backend_measures_a_run(toys: None, sample: Any, tmp_path: Any) -> None:
    with MetricsCollector(backend="toy") as collector:
        local = Runner(IterativeExecutor(status=False), chunksize=4000, schema=NanoAODSchema, savemetrics=True)
        local(sample, processor_instance=Jets())
    measurement = load(collector.save_measurement(tmp_path))
    assert measurement.problems == []
    assert measurement.run.backend == "toy"
    assert measurement.metrics["num_chunks"] == 4
    assert measurement.metrics["peak_workers"] == 1
    assert measurement.lifetimes["worker"].tolist() == ["toy"]
    assert "Toy has no fine metrics" in measurement.metrics.missing["processor_cpu_time_seconds"]
    assert set(collector.tracking_data or ()) > {"worker_counts", "worker_memory"}


@pytest.mark.slow
def test_an_instance_says_where_and_measures_as_the_name_does(client: Client, sample: Any) -> None:
    given = DaskMetricsBackend(client)
    for _ in range(2):
        with MetricsCollector(backend=given) as collector:
            runner_for(client, 4000)(sample, processor_instance=Jets())
        measurement = collector.measurement
        assert measurement.problems == []
        assert measurement.run.backend == "dask"
        assert (measurement.tasks["kind"] == "processor").sum() == len(measurement.chunks) == 4
        assert len(measurement.fine_metrics) > 0
    assert given.stop_tracking()["worker_memory"] == {}  # it was not used itself


def test_a_recorder_may_be_used_twice(toys: None) -> None:
    backend = backend_for("toy", None, None)
    for _ in range(2):
        backend.open(1.0)
        backend.close()
        assert set(backend.tracking_data()["worker_memory"]) == {"toy"}


def test_a_client_means_dask_and_none_means_this_machine(client: Client) -> None:
    assert isinstance(backend_for(None, client, None), DaskRecorder)
    assert isinstance(backend_for(None, None, None), ProcessRecorder)
    assert isinstance(backend_for("local", client, None), ProcessRecorder)
    given = DaskMetricsBackend(client)
    made = backend_for(given, client, None)
    assert isinstance(made, DaskRecorder)
    assert made.name != backend_for(given, client, None).name
    with pytest.raises(ValueError, match=r"needs a distributed\.Client"):
        backend_for("dask", None, None)
    with pytest.raises(ValueError, match='unknown backend \'slurm\'; choose from "dask" and "local"'):
        backend_for("slurm", None, None)
    with pytest.raises(ValueError, match="have different clients"):
        backend_for(given, object(), None)
    with pytest.raises(TypeError, match="not the class Toy"):
        backend_for(Toy, None, None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="AbstractMetricsBackend, not int"):
        backend_for(4, None, None)  # type: ignore[arg-type]
