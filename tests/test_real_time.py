"""The time ledger of real runs: it closes, and planted time is in the right row."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import socket
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from analyses import (
    Born,
    KillingOnce,
    NanoAODSchema,
    RaisingLate,
    RaisingOnce,
    Sleeping,
    Spinning,
    ready_later,
    runner_for,
)
from coffea.processor import FuturesExecutor, Runner
from conftest import wait_until
from distributed import Client, LocalCluster

from roastcoffea.collector import MetricsCollector
from roastcoffea.measurement import Measurement
from roastcoffea.metrics.phases import BUSY, CLIENT, PARTS_OF_WAIT, PAUSED, RESIDUAL, TAIL
from roastcoffea.metrics.time_ledger import TimeLedger

EVENTS = 16_000
"""Events of the sample."""
LATE = 30.0
"""Seconds within which even a busy host passes on what happened."""


def measured(
    client: Any, fileset: Any, processor: Any, chunks: int = 32, pause: float = 0.0, **options: Any
) -> Measurement:
    """A measurement of so many chunks, after which the client does nothing for a while; it may raise."""
    with MetricsCollector(client) as collector:
        with suppress(Exception):
            runner_for(client, EVENTS // chunks, **options)(fileset, processor_instance=processor)
        time.sleep(pause)
    check_closes(collector.measurement)
    return collector.measurement


def check_closes(measurement: Measurement, overlap: float = 0.02) -> None:
    """Classes exclude each other and sum to the total; no two tasks overlap on a thread, but for errors of clocks."""
    ledger = measurement.time_ledger
    assert ledger.absent is None
    assert ledger.residual is not None
    assert ledger.total is not None
    assert abs(ledger.residual) <= 0.01 * ledger.total
    assert sum(ledger.values()) == pytest.approx(ledger.total)
    assert all(seconds >= -0.001 for name, seconds in ledger.items() if name != RESIDUAL), dict(ledger)
    for what in ("worker", "dataset"):
        frame = ledger.by(what)
        for name in ledger:
            if name in frame:
                assert frame[name].sum() == pytest.approx(ledger[name], abs=1e-6)
    check_timelines(ledger)
    tasks = measurement.tasks.dropna(subset=["start", "stop", "thread"])
    for _, rows in tasks.groupby(["worker", "thread"]):
        ordered = rows.sort_values("start")
        assert (ordered["stop"].to_numpy()[:-1] - ordered["start"].to_numpy()[1:]).max(initial=0.0) <= overlap


def check_timelines(ledger: TimeLedger, bins: int = 40) -> None:
    """Classes over time sum to the ledger's rows, and never exceed the threads."""
    assert sum(ledger.tail_of.values()) == pytest.approx(ledger[TAIL], abs=1e-3)
    assert sum(ledger.client_of.values()) == pytest.approx(ledger[CLIENT], abs=1e-3)
    rows, beyond = ledger.by("worker"), 0.0
    total: Any = 0
    for worker in rows.index:
        lines = ledger.timeline(bins, worker)
        classes = lines.drop(columns=["seconds", "total"])
        widths = lines["seconds"]
        assert (classes.mul(widths, axis=0).sum() - rows.loc[worker, classes.columns]).abs().max() <= 1e-4
        assert lines["total"] @ widths == pytest.approx(ledger.capacity[worker], abs=1e-4)
        beyond += np.maximum(classes.sum(axis=1) - lines["total"], 0) @ widths
        total = classes + total
    assert beyond <= ledger.beyond + 1e-3
    assert (ledger.timeline(bins)[total.columns] - total).abs().max().max() <= 1e-4


@pytest.mark.slow
@pytest.mark.parametrize(("chunks", "seconds"), [(32, 0.05)])
def test_sleep_is_waiting(client: Any, sample: Any, chunks: int, seconds: float) -> None:
    measurement = measured(client, sample, Sleeping(seconds), chunks)
    ledger = measurement.time_ledger
    # a sleep may be longer than it should on a machine that does much else, and so may be all the rest of process()
    waited = sum(ledger[name] for name in PARTS_OF_WAIT)
    assert chunks * seconds <= waited <= 1.01 * measurement.chunks["coffea_process_seconds"].sum()
    assert ledger["compute"] < 0.3 * waited
    assert ledger.certificate.complete, ledger.certificate.reasons


def test_cpu_is_computing(client: Any, sample: Any) -> None:
    measurement = measured(client, sample, Spinning(0.05), 16)
    ledger = measurement.time_ledger
    assert ledger["compute"] == pytest.approx(16 * 0.05, rel=0.1)
    busy = sum(ledger[name] for name in BUSY if name in ledger)
    told = measurement.fine_metrics
    digests = sum(value for key, value in told.items() if key[2] in ("thread-cpu", "thread-noncpu"))
    # between the clocks of two observers a task may lose its core
    waited = measurement.chunks["core_wait_seconds"].sum()
    assert busy == pytest.approx(digests, rel=0.01, abs=0.1 * waited)
    assert measurement.metrics["busy_percent"] == pytest.approx(100 * busy / ledger.total)


@pytest.mark.slow
def test_a_client_that_does_nothing_is_the_client_s(client: Any, sample: Any) -> None:
    measurement = measured(client, sample, Sleeping(0.02), 16, pause=1.0)
    ledger = measurement.time_ledger
    # the scheduler learns of the last end later than it is
    after, longest = (measurement.run.stop - measurement.tasks[name].max() for name in ("seen", "stop"))
    assert after >= 1.0
    assert 2 * after - 0.01 <= ledger.client_of["after"] <= 2 * longest + 0.01
    assert set(ledger.by("worker").index) == set(client.scheduler_info()["workers"])


async def paused_for(seconds: float, dask_worker: Any) -> tuple[float, float]:
    """Have Dask pause this worker for want of memory; give from when to when it was."""
    import asyncio

    manager = dask_worker.memory_manager
    usual, manager.memory_pause_fraction = manager.memory_pause_fraction, 1e-9
    while dask_worker.status.name != "paused":
        await asyncio.sleep(0.001)
    start = time.time()
    await asyncio.sleep(seconds)
    manager.memory_pause_fraction = usual
    while dask_worker.status.name == "paused":
        await asyncio.sleep(0.001)
    return start, time.time()


@pytest.mark.slow
def test_a_worker_that_dask_pauses_is_paused(client: Any, sample: Any) -> None:
    address = min(client.scheduler_info()["workers"])
    with MetricsCollector(client) as collector, ThreadPoolExecutor(1) as pool:
        runner = pool.submit(runner_for(client, 1000), sample, processor_instance=Sleeping(0.1))
        assert wait_until(lambda: any(client.processing().values()))
        (told,) = client.run(paused_for, 1.0, workers=[address]).values()
        runner.result()
    measurement = collector.measurement
    check_closes(measurement)
    (pause,) = measurement.pauses.to_dict("records")
    assert pause["worker"] == address
    # the scheduler learns of both later than they are
    assert told[0] - 0.05 <= pause["start"] <= told[0] + LATE
    assert told[1] - 0.05 <= pause["stop"] <= told[1] + LATE
    ran = measurement.tasks[measurement.tasks["worker"] == address]
    seen = pause["start"], pause["stop"]
    within = (ran["stop"].clip(*seen) - ran["start"].clip(*seen)).sum()
    ledger = measurement.time_ledger
    assert ledger[PAUSED] == pytest.approx(seen[1] - seen[0] - within, abs=0.05)
    assert ledger[PAUSED] > 0.3
    assert ledger.by("worker")[PAUSED].idxmax() == address
    assert measurement.metrics["time_paused_seconds"] == ledger[PAUSED]


@pytest.mark.slow
def test_failed_attempts_are_failed(client: Any, sample: Any, tmp_path: Path) -> None:
    processor = RaisingOnce(str(tmp_path))
    measurement = measured(client, sample, processor, 16, retries=3)
    ledger = measurement.time_ledger
    attempts = measurement.chunks
    assert (attempts["outcome"] == "error").sum() >= 4
    wall = attempts.loc[attempts["outcome"] == "error", "wall_seconds"].sum()
    failed = measurement.tasks[measurement.tasks["outcome"] == "error"]
    # Dask's times of these tasks hold, besides the chunk's own, unpacking the processor and the traceback
    assert wall <= ledger["failed"] == pytest.approx((failed["stop"] - failed["start"]).sum(), rel=1e-3)
    assert set(ledger.failed) == {"error"}
    assert len(failed) == (attempts["outcome"] == "error").sum()


def test_a_run_that_raises_tells_what_went_on(client: Any, sample: Any) -> None:
    measurement = measured(client, sample, RaisingLate(0.5), 16, retries=0)
    ledger = measurement.time_ledger
    assert ledger["failed"] > 0
    assert set(ledger.failed) <= {"error", "unfinished", "cancelled"}
    tasks = measurement.tasks
    held = tasks[(tasks["outcome"] == "cancelled") & tasks["worker"].notna() & tasks["start"].isna()]
    told = " ".join(ledger.certificate.reasons)
    assert (f"{len(held)} task attempts were cancelled on a worker" in told) == (len(held) > 0)
    # what still slept must be over before the next test
    assert wait_until(lambda: not any(client.processing().values()))


@pytest.mark.slow
def test_a_worker_that_dies_takes_its_time_along(sample: Any, tmp_path: Path) -> None:
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0", silence_logs=50) as cluster,
        Client(cluster) as own,
    ):
        measurement = measured(own, sample, KillingOnce(str(tmp_path)), 16)
    ledger, tasks = measurement.time_ledger, measurement.tasks
    lost = tasks[tasks["outcome"] == "worker lost"]
    # it slept for 0.3 s before it was killed, after it was assigned, and imported coffea if it was the first one
    assert 0.29 <= ledger.failed["worker lost"] <= lost["seen"].max() - lost["assigned"].min() + 0.01
    marked = (tmp_path / "killed").stat().st_mtime
    assert lost["assigned"].min() - 0.01 <= marked <= lost["seen"].max()
    assert len(ledger.by("worker")) >= 2


@pytest.mark.slow
def test_workers_that_come_and_go(sample: Any) -> None:
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=":0", silence_logs=50) as cluster,
        Client(cluster) as own,
    ):
        cluster.adapt(minimum=1, maximum=3, interval="100ms", wait_count=3)
        measurement = measured(own, sample, Sleeping(0.2), 24, pause=1.0)
    assert len(measurement.lifetimes) > 1
    assert sum(measurement.time_ledger[name] for name in PARTS_OF_WAIT) >= 4.8


@pytest.mark.slow
@pytest.mark.parametrize(
    "executor",
    [
        FuturesExecutor(pool=ThreadPoolExecutor, workers=2, status=False),
        FuturesExecutor(workers=2, status=False),
    ],
    ids=["threads", "processes"],
)
def test_without_a_scheduler(sample: Any, executor: Any) -> None:
    runner = Runner(executor=executor, schema=NanoAODSchema, chunksize=1000, metadata_cache={})
    with MetricsCollector() as collector:
        runner(sample, processor_instance=Spinning(0.05))
    check_closes(collector.measurement)
    ledger = collector.measurement.time_ledger
    assert ledger["compute"] == pytest.approx(16 * 0.05, rel=0.1)
    assert ledger["preprocessing"] > 0
    assert ledger.certificate.complete, ledger.certificate.reasons


class NotedPool(ThreadPoolExecutor):
    """Threads, with when they were there."""

    spans: ClassVar[list[list[float]]] = []

    def __init__(self, max_workers: int) -> None:
        self.spans.append([time.time()])
        super().__init__(max_workers)

    def shutdown(self, *args: Any, **kwargs: Any) -> None:
        super().shutdown(*args, **kwargs)
        self.spans[-1].append(time.time())


@pytest.mark.slow
def test_threads_for_preprocessing_and_processes_for_chunks(sample: Any) -> None:
    wait = 0.4
    fork = multiprocessing.get_context("fork")
    pool = partial(ProcessPoolExecutor, mp_context=fork, initializer=ready_later, initargs=(wait,))
    runner = Runner(
        executor=FuturesExecutor(pool=pool, workers=2, status=False),
        pre_executor=FuturesExecutor(pool=NotedPool, workers=3, status=False),
        schema=NanoAODSchema,
        chunksize=2000,
        metadata_cache={},
    )
    with MetricsCollector() as collector:
        output = runner(sample, processor_instance=Born(0.05))
    measurement = collector.measurement
    check_closes(measurement)
    ledger, rows = measurement.time_ledger, measurement.time_ledger.by("worker")
    # what the kernel, the processes and the pool of threads tell
    here = socket.gethostname()
    told: dict[str, tuple[float, ...]] = {}
    for pid, *times in sorted(output["processes"], key=lambda row: -row[-1]):
        told[f"{here}/{pid}"] = tuple(times)
    idle = {one.worker: one.idle_seconds for one in ledger.startup}
    for worker, (born, _, begun) in told.items():
        assert wait - 0.05 <= idle.get(worker, 0.0) <= begun - born + 0.05
        assert rows["start-up"][worker] >= idle.get(worker, 0.0) >= wait - 0.05
    ((first, last),) = NotedPool.spans[-1:]
    parent = f"{here}/{os.getpid()}"
    assert set(rows.index) == {*told, parent}
    # coffea makes the pool of threads within the step, before it makes that of processes
    (call,), next_pool = measurement.run.calls, min(born for born, *_ in told.values()) + 0.02
    assert 3 * (last - first) <= rows["total"][parent] <= 3 * (next_pool - call.start)
    # a busy host makes a pool late, and starts its threads late
    assert idle.get(parent, 0.0) <= measurement.preprocessing["start"].min() - call.start
    lives = measurement.lifetimes.set_index("worker")
    assert lives["threads"].to_dict() == {parent: 3} | dict.fromkeys(told, 1)
    assert lives["stop"][parent] <= next_pool
    assert ledger.total == pytest.approx((lives["threads"] * (lives["stop"] - lives["start"])).sum())


@pytest.mark.slow
def test_a_row_that_is_taken_away_changes_the_certificate(client: Any, sample: Any) -> None:
    run = measured(client, sample, Sleeping(0.02), 16).run
    for kind in ("processor", "merge"):
        row = run.tasks["kind"].to_pylist().index(kind)
        rows = [number for number in range(len(run.tasks)) if number != row]
        lacking = Measurement(dataclasses.replace(run, tasks=run.tasks.take(rows)))
        assert not lacking.time_ledger.certificate.complete
        assert any(kind in reason for reason in lacking.time_ledger.certificate.reasons)
    row = run.chunks["outcome"].to_pylist().index("ok")
    rows = [number for number in range(len(run.chunks)) if number != row]
    lacking = Measurement(dataclasses.replace(run, chunks=run.chunks.take(rows)))
    assert not lacking.time_ledger.certificate.complete
    assert lacking.time_ledger.residual > 0.015


SHIFTED = """
import sys, time
now = time.time
shift = float(sys.argv.pop())
time.time = lambda: now() + shift
from dask.__main__ import main
sys.argv[0] = "dask"
main()
"""


@pytest.mark.slow
def test_a_worker_whose_clock_is_wrong_is_set_right(
    command_line_cluster: Callable[..., Any], sample: Any, tmp_path: Path
) -> None:
    cluster = command_line_cluster(workers=1, path=str(Path(__file__).parent))
    script = tmp_path / "shifted.py"
    script.write_text(SHIFTED)
    with Client(scheduler_file=str(cluster.file)) as own:
        own.wait_for_workers(1)
        (upright,) = own.scheduler_info()["workers"]
        cluster.add_worker("7.5", started_by=[cluster.python, str(script)])
        own.wait_for_workers(2)
        measurement = measured(own, sample, Sleeping(0.05), 16)
    tasks = measurement.tasks.dropna(subset=["start"])
    assert (tasks["start"] - tasks["assigned"]).between(-0.002, LATE).all()
    assert (tasks["seen"] - tasks["stop"]).between(-0.002, LATE).all()
    # as exact as the message that took least
    slack = (tasks["start"] - tasks["assigned"] + tasks["seen"] - tasks["stop"]).groupby(tasks["worker"]).min()
    offsets = measurement.lifetimes.set_index("worker")["clock_offset"]
    for worker, offset in offsets.items():
        assert offset == pytest.approx(0.0 if worker == upright else 7.5, abs=0.02 + slack[worker])
    assert np.isclose(measurement.time_ledger.total, 2 * measurement.metrics["elapsed_time_seconds"], rtol=0.01)


@pytest.fixture(autouse=True)
def _nothing_runs_from_before(request: pytest.FixtureRequest) -> None:
    """Tasks of the test before must not run into this one."""
    if "client" in request.fixturenames:
        own = request.getfixturevalue("client")
        assert wait_until(lambda: not any(own.processing().values()))
