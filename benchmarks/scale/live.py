"""A run on a real scheduler: a real client with coffea's Runner, and workers that wait as long as is planned."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any
from uuid import UUID

import dask
from coffea.processor import DaskExecutor, ProcessorABC, Runner
from coffea.processor.executor import WorkItem
from distributed import Client, LocalCluster

from roastcoffea import Measurement, MetricsCollector

from .cluster import place_of
from .plan import Plan, work_of

STARTS = 120


class Idle(ProcessorABC):  # type: ignore[misc]
    """A processor that no worker ever calls."""

    def process(self, events: Any) -> dict[str, int]:  # noqa: ARG002  (coffea calls it so)
        """Nothing."""
        return {}

    def postprocess(self, accumulator: Any) -> Any:
        """Nothing."""
        return accumulator


def live(plan: Plan, workers: int, *, seed: int, first: bool = False, name: str | None = None) -> Measurement:
    """Measurement of a plan with this many workers; `first` if files are cold."""
    with _cluster() as cluster:
        arguments = {"address": cluster.scheduler_address, "plan": asdict(plan), "workers": workers, "seed": seed}
        with Client(cluster) as client, _workers(arguments | {"first": first}) as process:
            there = min(workers, plan.late_after or workers)
            client.wait_for_workers(there, timeout=STARTS)
            return _measured(client, plan, seed, process, name or f"workers-{workers}")


@contextmanager
def _cluster() -> Iterator[LocalCluster]:
    """A scheduler in this process, which waits for workers."""
    options = {"n_workers": 0, "processes": False, "protocol": "tcp://", "dashboard_address": None, "silence_logs": 50}
    with dask.config.set({"distributed.scheduler.worker-ttl": None}), LocalCluster(**options) as cluster:
        yield cluster


@contextmanager
def _workers(arguments: dict[str, Any]) -> Iterator[Any]:
    """Process with the workers, until the end."""
    command = [sys.executable, "-m", "benchmarks.scale.planned_workers", json.dumps(arguments)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout
        if process.stdout.readline().strip() != "ready":
            raise RuntimeError("the planned workers did not start")
        yield process
    finally:
        process.kill()
        process.wait()


def _measured(client: Client, plan: Plan, seed: int, process: Any, name: str) -> Measurement:
    """Run it all."""
    runner = _runner(client, plan)
    work = work_of(plan, seed)
    with MetricsCollector(client, processor_instance=Idle(), name=name, profile=False) as collector:
        process.stdin.write("\n")
        process.stdin.flush()
        out = runner.run(_items(plan, seed), Idle())
        time.sleep(plan.result / plan.gather_rate)
    assert out["out"]["events"] == sum(one.events for one in work)
    return collector.measurement


def _runner(client: Client, plan: Plan) -> Runner:
    executor = DaskExecutor(client=client, compression=None, status=False, treereduction=plan.tree)
    return Runner(executor, savemetrics=False, chunksize=plan.events)


def _items(plan: Plan, seed: int) -> Iterator[WorkItem]:
    """Chunks, as fast as the client is planned to make them."""
    begun = time.perf_counter()
    for work in work_of(plan, seed):
        place = place_of(plan, work)
        ahead = begun + plan.prepare * (work.number + 1) - time.perf_counter()
        if ahead > 0.01:
            time.sleep(ahead)
        yield WorkItem(
            place["dataset"], place["file"], place["tree"], place["entry_start"], place["entry_stop"],
            UUID(place["uuid"]).bytes,
        )  # fmt: skip


def tasks_per_second(workers: int = 16, chunks: int = 1000) -> float:
    """Tasks that scheduler, client and workers here can handle, when chunks take no time and nothing measures them."""
    plan = Plan(
        chunks=chunks, cpu=1e-6, build=0.0, size=0.0, metadata=0.0, requests=0, metadata_requests=0, prepare=0.0
    )
    arguments = {"plan": asdict(plan), "workers": workers, "seed": 1, "first": False}
    with _cluster() as cluster, Client(cluster) as client, _workers(arguments | {"address": cluster.scheduler_address}):
        client.wait_for_workers(workers, timeout=STARTS)
        begun = time.perf_counter()
        _runner(client, plan).run(_items(plan, 1), Idle())
        return chunks / (time.perf_counter() - begun)
