"""Workers in jobs of a real SLURM: what is recorded of the jobs, against SLURM's own log of them."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from analyses import KernelCounted
from batch_servers import QUEUE, Ended, Slurm, slurm
from batch_servers import slurm_lacks as lacking
from coffea.nanoevents import NanoAODSchema
from coffea.processor import ParslExecutor, Runner
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


def number_of_workers(client: Client) -> int:
    return len(client.scheduler_info(n_workers=-1)["workers"])


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


def test_jobs_that_last_as_long_as_the_run(server: Slurm) -> None:
    with cluster_of(server, cores=4, processes=2, memory="2 GiB") as (cluster, client):
        cluster.scale(jobs=2)
        client.wait_for_workers(4, timeout=PATIENCE)
        with MetricsCollector(client) as collector:
            client.gather(tasks(client, 40))
    rows, _ = check_edges(collector.measurement, server)
    assert [(row["workers"], row["job_memory"], row["ended"]) for row in rows] == [(2, 2048 * MIB, 0)] * 2
    # all cores have a thread, so that what is charged is thread time, and the time before the run
    metrics = collector.measurement.metrics
    assert sum(row["threads"] for row in rows) == pytest.approx(metrics["time_ledger"].total, rel=1e-6)
    assert metrics["job_memory_used"] < 0.5


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


def test_jobs_come_and_go_with_the_work(server: Slurm) -> None:
    with cluster_of(server) as (cluster, client):
        cluster.adapt(minimum=1, maximum=3, interval="500ms", wait_count=4, target_duration="2s")
        client.wait_for_workers(1, timeout=PATIENCE)
        with MetricsCollector(client) as collector:
            deadline = time.monotonic() + PATIENCE
            while number_of_workers(client) < 3 and time.monotonic() < deadline:
                client.gather(tasks(client, 30))
            assert wait_until(lambda: number_of_workers(client) == 1)
            time.sleep(1)
    rows, _ = check_edges(collector.measurement, server)
    assert len(rows) == 3
    assert sum(row["ended"] for row in rows) == 2
    metrics = collector.measurement.metrics
    assert 0 < metrics["job_startup_seconds"] < 60 + LATE
    assert -RESOLUTION <= metrics["job_queue_seconds"] <= LATE  # the node is free


def test_workers_with_a_lifetime(server: Slurm) -> None:
    arguments = ["--lifetime", "14s", "--lifetime-stagger", "4s"]
    with cluster_of(server, worker_extra_args=arguments) as (cluster, client):
        cluster.adapt(minimum=2, maximum=2, interval="500ms")
        client.wait_for_workers(2, timeout=PATIENCE)
        with MetricsCollector(client) as collector:
            deadline = time.monotonic() + PATIENCE
            seen: set[str] = set()
            while len(seen) < 4 and time.monotonic() < deadline:
                client.gather(tasks(client, 4))
                seen |= {*client.scheduler_info(n_workers=-1)["workers"]}
    rows, _ = check_edges(collector.measurement, server)
    lives = collector.measurement.lifetimes
    left = lives[lives["stop"] < collector.measurement.run.stop]
    assert len(rows) >= 4
    assert len(left) >= 2
    # they close when they said that they would, later by what Dask's start takes
    assert ((left["closing"] - left["lifetime_end"]).between(-0.5, LATE)).all()


@contextmanager
def parsl_on(folder: Path) -> Iterator[Any]:
    """Parsl with two blocks of two workers, each in a job of its own."""
    parsl = pytest.importorskip("parsl")
    from parsl.config import Config
    from parsl.executors import HighThroughputExecutor
    from parsl.providers import SlurmProvider

    places = {"PATH": Path(sys.executable).parent, "PYTHONPATH": Path(__file__).parent}
    provider = SlurmProvider(
        partition=QUEUE,
        cores_per_node=2,
        mem_per_node=1,
        init_blocks=2,
        max_blocks=2,
        walltime="00:10:00",
        exclusive=False,
        worker_init="\n".join(f'export {name}="{place}:${name}"' for name, place in places.items()),
    )
    pool = HighThroughputExecutor(
        address="127.0.0.1", max_workers_per_node=2, cores_per_worker=0.5, provider=provider, encrypted=False
    )
    config = Config(executors=[pool], run_dir=str(folder), usage_tracking=0, initialize_logging=False, strategy="none")
    with parsl.load(config):
        yield pool
    parsl.clear()


def test_blocks_of_parsl(server: Slurm, sample: dict[str, Any], tmp_path: Path) -> None:
    """Workers that this process does not see: Parsl's log has their times, and they report their jobs."""
    with parsl_on(tmp_path) as pool:
        assert wait_until(lambda: len(pool.connected_managers()) == 2)
        runner = Runner(ParslExecutor(status=False), schema=NanoAODSchema, chunksize=2000, savemetrics=True)
        with MetricsCollector() as collector:
            _, report = runner(sample, processor_instance=KernelCounted(2.0))
            pool.scale_in_facade(1)
            time.sleep(4.0)
    rows = check(collector.measurement, server.ended())
    assert [(row["workers"], row["job_cores"], row["job_memory"]) for row in rows] == [(2, 2, 1024 * MIB)] * 2
    assert sum(row["ended"] for row in rows) == 1
    measurement = collector.measurement
    assert len(measurement.chunks) == report["chunks"]
    assert sum(row["threads"] for row in rows) == pytest.approx(measurement.time_ledger.total or 0.0, rel=1e-6)
    assert measurement.byte_ledger.certificate.complete
    assert measurement.problems == ["4 workers of Parsl, not seen on this host, so their resource use is unknown"]


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
