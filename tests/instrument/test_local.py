"""Functions that run without a task of Dask's: whose records they are."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import dask
import pytest
from planted_work import materialize
from stored import write_tree

from roastcoffea import MetricsCollector, measured
from roastcoffea.instrument.tasks import find_home


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tree(Path(tmp_path_factory.mktemp("files")) / "tree.root"))


def test_without_a_collector_nobody_waits() -> None:
    assert find_home(materialize) is None


def test_each_open_collector_has_them(path: str) -> None:
    with MetricsCollector() as outer, MetricsCollector() as inner:
        measured(materialize)(path, ["f0"])
    for collector in (outer, inner):
        measurement = collector.measurement
        assert measurement.chunks["dataset"].tolist() == ["materialize"]
        assert [call.processor for call in measurement.run.calls] == ["materialize"]
        assert measurement.time_ledger.residual == pytest.approx(0.0, abs=1e-3)


@pytest.mark.filterwarnings("ignore:Running on a single-machine scheduler")  # clients of other tests are there
@pytest.mark.parametrize("scheduler", ["threads", "sync"])
def test_schedulers_of_dask_without_a_cluster(path: str, scheduler: str) -> None:
    tasks = [dask.delayed(measured(materialize))(path, [name]) for name in ("f0", "f1", "f2")]
    with MetricsCollector() as collector:
        results = dask.compute(*tasks, scheduler=scheduler)
    assert list(results) == [materialize(path, [name]) for name in ("f0", "f1", "f2")]
    measurement = collector.measurement
    assert len(measurement.chunks) == 3
    assert measurement.byte_ledger.total == sum(result["read"] for result in results)
    assert measurement.byte_ledger.residual == 0


def test_threads_of_a_pool(path: str) -> None:
    with MetricsCollector() as collector, ThreadPoolExecutor(2) as pool:
        results = list(pool.map(measured(materialize), [path] * 4, [["f0"]] * 4))
    assert collector.measurement.byte_ledger.total == sum(result["read"] for result in results)


def test_a_collector_of_a_cluster_takes_no_calls_of_the_client(path: str, client: object) -> None:
    """They are no tasks of its cluster."""
    with MetricsCollector(client) as collector:
        measured(materialize)(path, ["f0"])
    assert "no Runner call was recorded" in collector.measurement.run.absent["chunks"]
