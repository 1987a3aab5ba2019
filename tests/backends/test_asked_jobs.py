"""When jobs were asked for, with a stand-in for a cluster of dask-jobqueue."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from distributed import Client

from roastcoffea.backends import recorder
from roastcoffea.backends.dask import DaskRecorder
from roastcoffea.backends.recorder import LoggedCluster


def test_jobs_have_the_time_of_the_look_that_found_them(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = SimpleNamespace(workers={0: SimpleNamespace(job_id="1"), 1: SimpleNamespace(job_id=None)})
    cluster.worker_spec = {0: {}, 1: {}}
    monkeypatch.setattr(client, "cluster", cluster)
    backend = DaskRecorder(client)
    backend.look()
    cluster.workers[1].job_id = "2"  # the batch system has answered
    backend.look()
    cluster.worker_spec.clear()
    backend.look()
    table = backend.worker_requests()
    assert table is not None
    asked = {row["job"]: row["time"] for row in table.to_pylist() if row["state"] == "submitted"}
    assert asked["1"] is None  # it was asked for before
    assert asked["2"] > 0
    assert table["state"].to_pylist().count("released") == 2


ROWS = [{"name": "a", "state": "submitted", "time": None, "job": "1"}, {"name": "a", "state": "held", "job": "1"}]


def test_requests_are_read_from_a_journal() -> None:
    kept: list[tuple[str, bytes]] = []
    cluster, other = LoggedCluster(), LoggedCluster()
    cluster.keep = lambda kind, data: kept.append((kind, data))
    cluster.take_requests(ROWS)
    for kind, data in kept:
        other.take(kind, data)
    table = other.worker_requests()
    assert table is not None
    assert table.equals(cluster.worker_requests())
    assert table["state"].to_pylist() == ["submitted", "held"]


def test_the_number_of_changes_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "MOST_REQUESTS", 3)
    cluster = LoggedCluster()
    for _ in range(3):
        cluster.take_requests(ROWS)
    table = cluster.worker_requests()
    assert table is not None
    assert len(table) == 2
    assert cluster.problems == ["more than 3 changes of worker requests: later ones were not recorded"]
