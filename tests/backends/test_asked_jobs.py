"""When jobs were asked for, with a stand-in for a cluster of dask-jobqueue."""

from __future__ import annotations

import time
from types import SimpleNamespace

from roastcoffea.backends.recorder import AskedJobs
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.workers import LIFETIME_COLUMNS


def test_jobs_have_the_time_of_the_look_that_found_them() -> None:
    cluster = SimpleNamespace(workers={0: SimpleNamespace(job_id="1"), 1: SimpleNamespace(job_id=None)})
    asked = AskedJobs(cluster)
    cluster.workers[1].job_id = "2"  # the batch system has answered
    before = time.time()
    asked.look()
    after = time.time()
    cluster.workers.clear()
    asked.look()
    rows = [{"worker": "a", "job": "1"}, {"worker": "b", "job": "2"}, {"worker": "c", "job": "2", "job_queued": 5.0}]
    found = asked.in_lifetimes(table_of_rows(LIFETIME_COLUMNS, [*rows, {"worker": "d"}]))["job_queued"].to_pylist()
    assert found[0] is None  # it was asked for before
    assert before <= found[1] <= after
    assert found[2:] == [5.0, None]


def test_clusters_of_other_kinds_have_no_jobs() -> None:
    for cluster in (None, object(), SimpleNamespace(workers=["tcp://a:1"]), SimpleNamespace(workers={0: object()})):
        asked = AskedJobs(cluster)
        asked.look()
        table = table_of_rows(LIFETIME_COLUMNS, [{"worker": "a", "job": "1"}])
        assert asked.in_lifetimes(table)["job_queued"].to_pylist() == [None]
