"""Where the time and the memory of a chunk are found, against what was planted."""

from __future__ import annotations

import concurrent.futures
import threading
import time
from pathlib import Path
from typing import Any

import awkward as ak
import numpy as np
import pytest
import uproot
from coffea.nanoevents import BaseSchema
from coffea.processor import FuturesExecutor, IterativeExecutor, ProcessorABC, Runner
from stored import served, write_tree

from roastcoffea import MetricsCollector
from roastcoffea.measurement import Measurement

LATENCY = 0.05
PHASES = ["read_seconds", "decompress_seconds", "interpret_seconds", "compute_seconds", "wait_seconds"]


class Planted(ProcessorABC):
    """Reads branches, computes for some CPU time, sleeps, and holds memory for a moment."""

    def __init__(
        self, branches: tuple[str, ...] = (), cpu: float = 0.0, sleep: float = 0.0, megabytes: int = 0
    ) -> None:
        self.branches = branches
        self.cpu = cpu
        self.sleep = sleep
        self.megabytes = megabytes

    def process(self, events: Any) -> dict[str, float]:
        total = sum(float(ak.sum(events[branch], axis=None)) for branch in self.branches)
        end = time.thread_time() + self.cpu
        while time.thread_time() < end:
            pass
        time.sleep(self.sleep)
        if self.megabytes:
            np.ones(self.megabytes * 2**17)
        return {"sum": total}

    def postprocess(self, accumulator: Any) -> Any:
        return accumulator


def cpu_of(chunk: Any) -> float:
    """CPU time of process()."""
    return float(chunk[["decompress_seconds", "interpret_seconds", "compute_seconds"]].sum())


def measured(path: str | Path, processor: Planted, threads: int = 0, chunksize: int = 10**6) -> Measurement:
    executor: Any = IterativeExecutor(status=False)
    if threads:
        executor = FuturesExecutor(pool=concurrent.futures.ThreadPoolExecutor, workers=threads, status=False)
    runner = Runner(executor=executor, schema=BaseSchema, chunksize=chunksize, metadata_cache={})
    with MetricsCollector() as collector:
        runner({"a": {"files": {str(path): "Events"}}}, processor_instance=processor)
    assert collector.problems == []
    chunks = collector.measurement.chunks
    assert (chunks[PHASES].sum(axis=1) / chunks["process_seconds"]).between(0.98, 1.02).all()
    return collector.measurement


def test_latency_of_storage_is_read(tmp_path: Path) -> None:
    path = write_tree(tmp_path / "slow.root")
    branches = ("f0", "f1", "f2", "Jet_pt")
    with served(tmp_path, LATENCY) as server:
        chunk = measured(server.url(path.name), Planted(branches)).chunks.iloc[0]
    assert len(branches) * LATENCY <= chunk["read_seconds"] <= chunk["process_seconds"]
    # a thread without a core waits for no storage
    assert chunk["wait_seconds"] < 0.25 * chunk["process_seconds"] + chunk["core_wait_seconds"]
    assert cpu_of(chunk) <= chunk["cpu_seconds"]
    assert chunk["open_seconds"] >= LATENCY


def test_cpu_is_computing_and_sleep_is_waiting(tmp_path: Path) -> None:
    path = write_tree(tmp_path / "fast.root", baskets=1)
    chunk = measured(path, Planted(cpu=0.3, sleep=0.2)).chunks.iloc[0]
    assert chunk["compute_seconds"] == pytest.approx(0.3, abs=0.05)
    assert chunk["wait_seconds"] >= 0.2
    assert chunk["read_seconds"] == chunk["decompress_seconds"] == chunk["interpret_seconds"] == 0


class Alternating(Planted):
    """Computes after each branch."""

    def process(self, events: Any) -> dict[str, float]:
        return {branch: Planted((branch,), self.cpu).process(events)["sum"] for branch in self.branches}


def test_computing_between_branches_is_computing(tmp_path: Path) -> None:
    path = write_tree(tmp_path / "fast.root")
    chunk = measured(path, Alternating(("f0", "f1", "f2"), cpu=0.2)).chunks.iloc[0]
    assert 0.6 <= chunk["compute_seconds"] <= 0.8
    assert 0 < chunk["interpret_seconds"] < 0.1


@pytest.mark.slow
def test_compression_moves_decompression_only(tmp_path: Path) -> None:
    seconds = {}
    for name, compression in (("none", None), ("zstd", uproot.ZSTD(5))):
        path = write_tree(tmp_path / f"{name}.root", baskets=4, events=50_000, flat=8, compression=compression)
        branches = (*(f"f{number}" for number in range(8)), "Jet_pt")
        runs = [measured(path, Planted(branches)).chunks.iloc[0] for _ in range(3)]
        # what else goes on here only adds to a phase
        seconds[name] = {phase: float(min(run[phase] for run in runs)) for phase in PHASES}
        seconds[name]["wait_seconds"] = min(max(run["wait_seconds"] - run["core_wait_seconds"], 0.0) for run in runs)
    none, zstd = seconds["none"], seconds["zstd"]
    gained = zstd["decompress_seconds"] - none["decompress_seconds"]
    assert zstd["decompress_seconds"] > 3 * none["decompress_seconds"]
    for phase in ("interpret_seconds", "compute_seconds", "wait_seconds"):
        # to interpret what was not compressed may take longer: it lies unaligned where the file was read to
        assert zstd[phase] - none[phase] < 0.35 * gained + 0.02, (phase, seconds)


class Told(Planted):
    """Gives what the operating system says of its thread: CPU time in all, by thread."""

    def process(self, events: Any) -> dict[int, list[float]]:
        super().process(events)
        thread = threading.get_native_id()
        nanoseconds = Path(f"/proc/self/task/{thread}/schedstat").read_text().split()[0]
        return {thread: [int(nanoseconds) / 1e9]}


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="needs Linux")
def test_cpu_of_chunks_is_that_of_their_threads(tmp_path: Path) -> None:
    path = write_tree(tmp_path / "threads.root", baskets=16, events=500)
    executor = FuturesExecutor(pool=concurrent.futures.ThreadPoolExecutor, workers=4, status=False)
    runner = Runner(executor=executor, schema=BaseSchema, chunksize=500, metadata_cache={})
    with MetricsCollector() as collector:
        told = runner({"a": {"files": {str(path): "Events"}}}, processor_instance=Told(("f0", "Jet_pt"), cpu=0.05))
    chunks = collector.measurement.chunks
    assert len(chunks) == 16
    assert (chunks["overlaps"] > 0).any()
    assert chunks["thread"].nunique() == len(told)
    assert chunks["cpu_seconds"].sum() == pytest.approx(sum(map(max, told.values())), rel=0.05, abs=0.05)


def test_memory_that_is_freed_inside_the_chunk_is_seen(tmp_path: Path) -> None:
    path = write_tree(tmp_path / "memory.root", baskets=1)
    chunk = measured(path, Planted(megabytes=300)).chunks.iloc[0]
    assert chunk["memory_peak"] - chunk["memory_before"] == pytest.approx(300 * 2**20, rel=0.1)
    assert chunk["overlaps"] == 0
    assert chunk["memory_after"] - chunk["memory_before"] < 100 * 2**20


class Loading(Planted):
    """Takes CPU time when it is unpickled."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        end = time.thread_time() + 0.1
        while time.thread_time() < end:
            pass


def test_unpickling_the_processor_is_the_users_time(tmp_path: Path) -> None:
    path = write_tree(tmp_path / "a.root")
    chunk = measured(path, Loading(("f0",))).chunks.iloc[0]
    assert chunk["open_seconds"] >= 0.1
    assert 0 < chunk["measuring_seconds"] < 0.05
