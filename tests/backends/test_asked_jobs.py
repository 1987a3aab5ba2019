"""When jobs were asked for, with a stand-in for a cluster of dask-jobqueue."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from distributed import Client

from roastcoffea.backends.dask import DaskMetricsBackend
from roastcoffea.backends.recorder import jobs_of


def test_jobs_have_the_time_of_the_look_that_found_them(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = SimpleNamespace(workers={0: SimpleNamespace(job_id="1"), 1: SimpleNamespace(job_id=None)})
    monkeypatch.setattr(client, "cluster", cluster)
    backend = DaskMetricsBackend(client)
    cluster.workers[1].job_id = "2"  # the batch system has answered
    backend.look()
    cluster.workers.clear()
    backend.look()
    asked = backend.facts()["asked"]
    assert asked["1"] is None  # it was asked for before
    assert asked["2"] > 0


@pytest.mark.parametrize(
    "cluster", [None, object(), SimpleNamespace(workers=["tcp://a:1"]), SimpleNamespace(workers={0: object()})]
)
def test_clusters_of_other_kinds_have_no_jobs(cluster: Any) -> None:
    assert jobs_of(cluster) == []
