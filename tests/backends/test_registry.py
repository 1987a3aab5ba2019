"""A backend is a module with its class, and an entry in the table: nothing else has to know it."""

from __future__ import annotations

import time
from typing import Any

import pyarrow as pa
import pytest
from analyses import Jets, runner_for
from coffea.nanoevents import NanoAODSchema
from coffea.processor import IterativeExecutor, Runner
from distributed import Client

from roastcoffea import MetricsCollector, load
from roastcoffea.backends.base import AbstractMetricsBackend
from roastcoffea.backends.dask import DaskMetricsBackend
from roastcoffea.backends.local import LocalMetricsBackend
from roastcoffea.backends.registry import BACKENDS, backend_for
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.workers import LIFETIME_COLUMNS, SAMPLE_COLUMNS


class Toy(AbstractMetricsBackend):
    """All that a backend needs: one worker, which was there from beginning to end."""

    kind = "toy"
    elsewhere = "it does not run where toys do"

    def open(self, interval: float | None, span: str | None = None) -> None:
        self._begin()
        self._period.is_open = self._period.was_open = True

    def close(self) -> None:
        self._period.is_open = False

    def reaches(self, executor: Any) -> bool:
        return not hasattr(executor, "client")

    def lifetimes(self, start: float, stop: float) -> pa.Table:
        return table_of_rows(LIFETIME_COLUMNS, [{"worker": "toy", "threads": 2, "start": start, "stop": stop}])

    def samples(self) -> pa.Table:
        return table_of_rows(SAMPLE_COLUMNS, [{"worker": "toy", "time": time.time(), "memory": 1000}])


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
    assert "no Dask tasks" in measurement.metrics.missing["processor_cpu_time_seconds"]
    assert set(collector.tracking_data or ()) > {"worker_counts", "worker_memory"}


def test_what_a_toy_does_not_reach_says_so(toys: None, client: Client, sample: Any) -> None:
    with MetricsCollector(backend="toy") as collector:
        runner_for(client, 4000)(sample, processor_instance=Jets())
    assert any(Toy.elsewhere in problem for problem in collector.measurement.problems)


def test_a_backend_may_be_used_without_a_collector(toys: None) -> None:
    backend = backend_for("toy", None, None)
    for _ in range(2):
        backend.start_tracking(1.0)
        assert set(backend.stop_tracking()["worker_memory"]) == {"toy"}
    with backend.create_span("mine")["context"]:
        assert backend.get_span_metrics({"id": "mine"}) == {}
    assert not backend.supports_fine_metrics()


def test_a_client_means_dask_and_none_means_this_machine(client: Client) -> None:
    assert isinstance(backend_for(None, client, None), DaskMetricsBackend)
    assert isinstance(backend_for(None, None, None), LocalMetricsBackend)
    assert isinstance(backend_for("local", client, None), LocalMetricsBackend)
    with pytest.raises(ValueError, match=r"needs a distributed\.Client"):
        backend_for("dask", None, None)
    with pytest.raises(ValueError, match='unknown backend \'slurm\'; there are "dask" and "local"'):
        backend_for("slurm", None, None)
