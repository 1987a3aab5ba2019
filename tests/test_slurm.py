"""Workers in jobs of a real SLURM: what is recorded of the jobs, against SLURM's own log of them."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from batch_servers import QUEUE, Ended, Slurm, slurm
from batch_servers import slurm_lacks as lacking
from distributed import Client
from processes import PATIENCE, wait_until

from roastcoffea import MetricsCollector
from roastcoffea.measurement import Measurement

pytestmark = [pytest.mark.slow, pytest.mark.skipif(lacking() is not None, reason=str(lacking()))]

MIB = 1 << 20
EDGE = 1.0
"""Seconds by which a start or an end may differ from what the job and the scheduler report."""
RESOLUTION = 1.0
"""SLURM's log has whole seconds."""
LATE = 30.0
"""Seconds within which even a busy host starts the first process of a job and ends its last one."""


@pytest.fixture
def server() -> Iterator[Slurm]:
    with slurm() as running:
        yield running


@contextmanager
def cluster_of(server: Slurm, **changes: Any) -> Iterator[tuple[Any, Client]]:
    from dask_jobqueue import SLURMCluster

    options: dict[str, Any] = {
        "cores": 1,
        "processes": 1,
        "memory": "900 MiB",
        "queue": QUEUE,
        "walltime": "00:10:00",
        "interface": "lo",
        "log_directory": str(server.folder),
        "local_directory": f"{server.folder}/spool",
        "job_script_prologue": [f"date +%s.%N > {server.folder}/began-$SLURM_JOB_ID"],
        "python": sys.executable,
        "scheduler_options": {"dashboard_address": ":0", "interface": None, "host": "127.0.0.1"},
    }
    with SLURMCluster(**options | changes) as cluster, Client(cluster) as client:
        try:
            yield cluster, client
        finally:
            events = cluster.scheduler.get_events("all")
            left = {event["worker"]: moment for moment, event in events if event.get("action") == "remove-worker"}
            (server.folder / "left").write_text(json.dumps(left))


def tasks(client: Client, number: int) -> Any:
    """Tasks of half a second each; of the standard library, as workers do not have this module."""
    return client.map(time.sleep, [0.5] * number, pure=False)


def check(measurement: Measurement, log: dict[str, Ended]) -> list[dict[str, Any]]:
    """Hold the jobs of a measurement against SLURM's log; give them."""
    rows: list[dict[str, Any]] = measurement.jobs.to_dict("records")
    for row in rows:
        truth = log[row["job"]]
        assert (row["batch_system"], row["queue"], row["job_cores"]) == ("slurm", QUEUE, truth.cores)
        assert -EDGE <= row["job_start"] - truth.start <= RESOLUTION + LATE
        if row["ended"]:
            assert abs(row["job_stop"] - truth.end) <= LATE
        else:
            assert row["job_stop"] == pytest.approx(measurement.run.stop, abs=EDGE)
        print(row["job"], row["job_start"] - truth.start, row["job_stop"] - truth.end, row["ended"])
        stop = truth.end if row["ended"] else measurement.run.stop
        assert row["charged"] / truth.cores == pytest.approx(stop - truth.start, abs=RESOLUTION + LATE)
        assert row["residual"] == pytest.approx(0.0, abs=1e-6)
    return rows


def check_edges(measurement: Measurement, server: Slurm) -> tuple[list[dict[str, Any]], dict[str, Ended]]:
    """Compare jobs of Dask's workers with the times that job and scheduler report; return them and SLURM's log.

    However busy the host: a job starts between SLURM's start and its own first line, and ends when the scheduler says
    that its last worker is gone. What is charged lies between these.
    """
    log = server.ended()
    left = json.loads((server.folder / "left").read_text())
    workers: dict[str, list[str]] = measurement.lifetimes.groupby("job")["worker"].agg(list).to_dict()
    rows = check(measurement, log)
    for row in rows:
        began = float((server.folder / f"began-{row['job']}").read_text())
        assert row["job_start"] <= began + EDGE
        if row["ended"]:
            assert abs(row["job_stop"] - max(left[worker] for worker in workers[row["job"]])) <= EDGE
        longest, shortest = (row["job_stop"] - start for start in (log[row["job"]].start, began))
        assert shortest - EDGE <= row["charged"] / row["job_cores"] <= longest + EDGE
    return rows, log


def test_a_job_that_is_cancelled(server: Slurm) -> None:
    with cluster_of(server) as (cluster, client):
        cluster.scale(jobs=2)
        client.wait_for_workers(2, timeout=PATIENCE)
        with MetricsCollector(client) as collector:
            futures = tasks(client, 40)
            time.sleep(4)
            cancelled = server.queued()[0]
            server.run("scancel", cancelled)
            client.gather(futures)
    rows, log = check_edges(collector.measurement, server)
    assert log[cancelled].state == "CANCELLED"
    assert {row["job"]: row["ended"] for row in rows}[cancelled] == 1
    # all cores have a thread, so that what is charged is thread time, and the time before the run
    measurement = collector.measurement
    assert sum(row["threads"] for row in rows) == pytest.approx(measurement.time_ledger.total, rel=1e-2)
    assert measurement.metrics["job_memory_used"] < 0.9


def test_jobs_that_never_start(server: Slurm) -> None:
    """The node has memory for two of five jobs; one of the others is held, one is cancelled, and one stays pending."""

    def pending() -> list[str]:
        return server.run("squeue", "-h", "-t", "PENDING", "-o", "%i").split()

    with cluster_of(server, memory="3000 MiB") as (cluster, client):
        cluster.scale(jobs=5)
        client.wait_for_workers(2, timeout=PATIENCE)
        assert wait_until(lambda: len(pending()) == 3)
        held, cancelled, waiting = pending()
        server.run("scontrol", "hold", held)
        server.run("scancel", cancelled)
        with MetricsCollector(client) as collector:
            deadline = time.monotonic() + PATIENCE
            requests: list[Any] = []
            while not any(row["state"] == "held" for row in requests) and time.monotonic() < deadline:
                client.gather(tasks(client, 8))
                requests = list(collector._backend._requested)  # noqa: SLF001
    log = server.ended()
    measurement = collector.measurement
    arrivals = measurement.arrivals.set_index("job")
    assert len(arrivals) == 5
    assert arrivals.loc[held, "state"] == "held"
    assert arrivals.loc[held, "reason"].startswith("JobHeld")
    assert arrivals.loc[cancelled, "state"] == "ended"
    assert arrivals.loc[waiting, "state"] == "pending"
    assert arrivals.loc[waiting, "reason"] in {"Resources", "Priority"}
    assert arrivals.loc[cancelled, "reason"].startswith("CANCELLED")
    came = arrivals[arrivals["state"] == "arrived"]
    assert set(came["worker"]) == set(measurement.lifetimes["worker"])
    # SLURM's own log has the start of the jobs that ran, and nothing else started
    assert {job for job, ended in log.items() if ended.end > ended.start and ended.state != "PENDING"} >= set(
        came.index
    )
    assert (came["started"] - [log[job].start for job in came.index]).between(-EDGE, RESOLUTION + LATE).all()
    (finding,) = [each for each in measurement.verdict if each.cause == "missing workers"]
    assert finding.what.startswith("5 workers were requested, 2 arrived; others: 1 job held (JobHeld")
    assert [str(culprit) for culprit in finding.culprits] == [f"job {held}"]
    assert measurement.problems == []
