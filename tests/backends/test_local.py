"""Runs without Dask: processes and threads of real executors, against the operating system and their own word."""

from __future__ import annotations

import json
import multiprocessing
import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from typing import Any

import loky
import numpy as np
import psutil
import pytest
from coffea.processor import FuturesExecutor, IterativeExecutor, ParslExecutor
from conftest import wait_until
from local_work import cpu_of_children, record, slept, spun
from processes import PATIENCE
from releases import needs_merge_pools

from roastcoffea.backends import local
from roastcoffea.backends.local import ProcessRecorder, pool_size
from roastcoffea.backends.parsl import ParslManagers
from roastcoffea.backends.processes import ProcessTree
from roastcoffea.instrument.gauges import process_name
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.chunks import CHUNK_COLUMNS

MB = 1_000_000
fork_pool = partial(ProcessPoolExecutor, mp_context=multiprocessing.get_context("fork"))
spawn_pool = partial(ProcessPoolExecutor, mp_context=multiprocessing.get_context("spawn"))

Row = dict[str, Any]

SAMPLED = multiprocessing.Value("q", 0)
"""Samples of processes that were taken, for this process and those that are forked from it."""


def wait_for_a_sample() -> None:
    """Go on when a sample has been taken, from its beginning to its end, after this was called."""
    before = SAMPLED.value
    assert wait_until(lambda: SAMPLED.value >= before + 2)


def allocated(megabytes: int) -> set[str]:
    wait_for_a_sample()
    start = time.time()
    array = np.ones(megabytes * MB // 8)
    wait_for_a_sample()
    del array
    return record(start)


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Iterator[ProcessRecorder]:
    """A backend that looks as often as it should, however long a look takes here; each one is counted."""
    monkeypatch.setattr(local, "SHARE", 1.0)
    threads, files = set(threading.enumerate()), open_files()
    backend = ProcessRecorder()
    scan = ProcessTree.scan

    def counted(tree: ProcessTree, *, sample: bool) -> None:
        scan(tree, sample=sample)
        SAMPLED.value += sample

    monkeypatch.setattr(ProcessTree, "scan", counted)
    yield backend
    backend.close()
    assert not [thread for thread in set(threading.enumerate()) - threads if "roastcoffea" in thread.name]
    assert wait_until(lambda: open_files() <= files), open_files()  # Dask reads files of its workers now and then


def open_files() -> set[str]:
    """What this process has open below /proc."""
    names = (process_file.path for process_file in psutil.Process().open_files())
    return {name for name in names if name.startswith("/proc")}


def measured(
    backend: ProcessRecorder,
    executor: Any,
    function: Callable[[Any], set[str]],
    items: list[Any],
    interval: float | None = 0.1,
) -> list[Row]:
    """Run an executor under the backend, and tell it of the chunks; give what they tell of themselves."""
    chunks = executed(backend, executor, function, items, interval)
    tell(backend, chunks)
    return chunks


def executed(
    backend: ProcessRecorder,
    executor: Any,
    function: Callable[[Any], set[str]],
    items: list[Any],
    interval: float | None = 0.1,
) -> list[Row]:
    """Run an executor under the backend."""
    backend.open(interval)
    with backend.step(executor, "call", preprocessing=False):
        output = executor(items, function, set())
    backend.drain()
    backend.close()
    chunks = [json.loads(row) for row in (output[0] if isinstance(output, tuple) else output)]
    assert len(chunks) == len(items)
    return chunks


def tell(backend: ProcessRecorder, chunks: list[Row], call: str = "call", *, preprocessing: bool = False) -> None:
    known = {column.name for column in CHUNK_COLUMNS}
    rows = [{name: value for name, value in chunk.items() if name in known} | {"call": call} for chunk in chunks]
    backend.learn_chunks(table_of_rows(CHUNK_COLUMNS, rows), preprocessing=preprocessing)


def lifetimes(backend: ProcessRecorder, start: float = 0.0, stop: float | None = None) -> dict[str, Row]:
    rows = backend.lifetimes(start, time.time() if stop is None else stop).to_pylist()
    assert len({row["worker"] for row in rows}) == len(rows)
    return {row["worker"]: row for row in rows}


def cpu_of(chunks: list[Row]) -> dict[str, float]:
    return {worker: max(c["cpu"] for c in chunks if c["worker"] == worker) for worker in {c["worker"] for c in chunks}}


# processes


@pytest.mark.parametrize(
    "pool",
    [fork_pool, pytest.param(loky.ProcessPoolExecutor, marks=pytest.mark.slow)],
    ids=["fork", "loky"],
)
def test_cpu_of_processes_is_what_they_and_the_operating_system_tell(backend: ProcessRecorder, pool: Any) -> None:
    before = cpu_of_children()
    chunks = measured(backend, FuturesExecutor(pool=pool, workers=2, status=False, compression=None), spun, [0.2] * 4)
    used = cpu_of_children() - before
    workers = lifetimes(backend)
    told = cpu_of(chunks)
    assert set(workers) >= set(told)
    for worker, cpu in told.items():
        assert workers[worker]["cpu_seconds"] > cpu - 0.05
    if pool is fork_pool:  # the others take long to end, with all that they imported
        assert {worker: row["cpu_seconds"] for worker, row in workers.items()} == pytest.approx(told, rel=0.05, abs=0.2)
    of_workers = sum(row["cpu_seconds"] for row in workers.values())
    of_trackers = sum(
        process.cpu_seconds for process in backend.processes.family() if process.is_tracker and process.ended
    )
    assert of_workers + of_trackers == pytest.approx(used, rel=0.02, abs=0.1)
    assert backend.notes() == []


@pytest.mark.slow
@pytest.mark.parametrize("pool", [fork_pool, spawn_pool], ids=["fork", "spawn"])
def test_a_pool_s_processes_are_workers_of_one_thread_with_or_without_chunks(
    backend: ProcessRecorder, pool: Any
) -> None:
    start = time.time()
    chunks = measured(backend, FuturesExecutor(pool=pool, workers=3, status=False, compression=None), slept, [0.6] * 2)
    workers = lifetimes(backend, start)
    begun = 2 if pool is spawn_pool else 3  # that pool begins processes as it needs them
    assert len(workers) == begun
    assert process_name() not in workers
    assert {row["threads"] for row in workers.values()} == {1}
    assert {row["host"] for row in workers.values()} == {socket.gethostname()}
    for worker, row in workers.items():
        mine = [chunk for chunk in chunks if chunk["worker"] == worker]
        assert start <= row["start"] <= min((c["start"] for c in mine), default=time.time())
        assert max((c["stop"] for c in mine), default=start) <= row["stop"] <= time.time()
        assert row["stop"] - row["start"] > 0.5
        assert row["process"] == int(worker.split("/")[1])


@needs_merge_pools
def test_processes_that_only_merge_are_no_workers(backend: ProcessRecorder) -> None:
    executor = FuturesExecutor(pool=fork_pool, workers=2, status=False, merging=(2, 2, 2), mergepool=fork_pool)
    before = {child.pid for child in psutil.Process().children()}
    chunks = measured(backend, executor, slept, [0.2] * 6)
    workers = lifetimes(backend)
    assert len(workers) == 2
    assert set(workers) >= {chunk["worker"] for chunk in chunks}
    children = [process for process in backend.processes.family() if process.parent == os.getpid()]
    pools = [process for process in children if process.pid not in before and not process.is_tracker]
    assert len(pools) == 4


def test_two_steps_with_pools_of_their_own(backend: ProcessRecorder) -> None:
    backend.open(None)
    steps = []
    for _ in range(2):
        executor = FuturesExecutor(pool=fork_pool, workers=2, status=False)
        with backend.step(executor, "call", preprocessing=False):
            steps.append([json.loads(row) for row in executor([0.3] * 2, slept, set())[0]])
        backend.drain()
    backend.close()
    for step in steps:
        tell(backend, step)
    workers = lifetimes(backend)
    assert len(workers) == 4
    first, second = ({c["worker"] for c in step} for step in steps)
    assert not first & second
    ends, begins = [workers[name]["stop"] for name in first], [workers[name]["start"] for name in second]
    assert max(ends) <= min(begins) + 0.1
    assert backend.samples().num_rows == 0


def test_memory_of_a_process_is_seen(backend: ProcessRecorder) -> None:
    chunks = measured(backend, FuturesExecutor(pool=fork_pool, workers=1, status=False), allocated, [300])
    (chunk,) = chunks
    samples = backend.samples().to_pylist()
    inside = [row["memory"] for row in samples if chunk["start"] < row["time"] < chunk["stop"]]
    # afterwards, a process that is about to end may have given all its memory back
    before = [row["memory"] for row in samples if row["time"] < chunk["start"]]
    assert max(inside) - max(before) == pytest.approx(300 * MB, rel=0.1)
    assert {row["worker"] for row in samples} == {chunk["worker"]}


# threads of this process


@pytest.mark.slow
def test_threads_of_this_process_are_those_of_the_pool(backend: ProcessRecorder) -> None:
    both_begun, looked = threading.Barrier(3, timeout=PATIENCE), threading.Event()

    def look() -> None:
        both_begun.wait()
        backend.drain()
        looked.set()

    def spun_while_looked_at(seconds: float) -> set[str]:
        """Go on to the end of a look, which takes long where threads that spin hold the interpreter."""
        both_begun.wait()
        (row,) = map(json.loads, spun(seconds))
        while not looked.is_set():
            pass
        return {json.dumps(row | {"stop": time.time()})}

    used = time.process_time()
    start = time.time()
    looks = threading.Thread(target=look)
    looks.start()
    executor = FuturesExecutor(pool=ThreadPoolExecutor, workers=3, status=False)
    chunks = executed(backend, executor, spun_while_looked_at, [1.0, 1.0])
    looks.join()
    used, stop = time.process_time() - used, time.time()
    tell(backend, chunks)
    workers = lifetimes(backend, start, stop)
    assert set(workers) == {process_name()} == {chunk["worker"] for chunk in chunks}
    (row,) = workers.values()
    assert (row["threads"], row["start"], row["stop"]) == (3, start, stop)
    assert row["cpu_seconds"] == pytest.approx(used, rel=0.05, abs=0.1)
    samples = backend.samples().to_pylist()
    assert {sample["worker"] for sample in samples} == {process_name()}
    assert max(sample["executing"] for sample in samples) == 2
    assert samples[0]["executing"] == samples[-1]["executing"] == 0
    steps = np.diff([sample["time"] for sample in samples])
    percents = [sample["cpu_percent"] or 0.0 for sample in samples[1:]]
    assert float(np.sum(steps * percents)) / 100 == pytest.approx(used, rel=0.1, abs=0.2)
    assert {sample["memory_limit"] for sample in samples} == {psutil.virtual_memory().total}
    assert all(sample["file_descriptors"] > 2 for sample in samples)


# a pool of its own for preprocessing


def threads_that_tell(began: list[int]) -> Any:
    """A pool of threads of this process; each adds its identity as it begins."""
    return partial(ThreadPoolExecutor, initializer=lambda: began.append(threading.get_native_id()))


def one_after_another(
    backend: ProcessRecorder, opening: Any, processing: Any, meanwhile: Callable[[set[str]], set[str]]
) -> tuple[float, float, list[Row]]:
    """Preprocessing of three files, and processing of four chunks; between them this process computes for 0.3 s.

    From when until when the preprocessing was, and the chunks.
    """
    backend.open(None)
    before = time.time()
    with backend.step(opening, "call", preprocessing=True):
        files = meanwhile(opening([0.1] * 3, spun_together, set())[0])
    after = time.time()
    spun(0.3)
    with backend.step(processing, "call", preprocessing=False):
        chunks = processing([0.2] * 4, slept, set())[0]
    backend.drain()
    backend.close()
    rows = [json.loads(row) for row in chunks]
    tell(backend, [json.loads(row) for row in files], preprocessing=True)
    tell(backend, rows)
    return before, after, rows


TOGETHER = threading.Barrier(3, timeout=PATIENCE)


def spun_together(seconds: float) -> set[str]:
    """Begin when as many threads are there as there are items, and compute."""
    TOGETHER.wait()
    return spun(seconds)


def test_this_process_is_a_worker_for_its_preprocessing_alone(backend: ProcessRecorder) -> None:
    began: list[int] = []
    cpu: list[float] = []
    threads = FuturesExecutor(pool=threads_that_tell(began), workers=3, status=False)

    def meanwhile(files: set[str]) -> set[str]:
        cpu.append(time.process_time() - used)
        return files

    used = time.process_time()
    before, after, chunks = one_after_another(
        backend, threads, FuturesExecutor(pool=fork_pool, workers=2, status=False), meanwhile
    )
    workers = lifetimes(backend)
    own = workers.pop(process_name())
    assert own["threads"] == len(set(began)) == 3
    assert before <= own["start"] < own["stop"] <= after
    assert own["stop"] - own["start"] > 0.3 * (after - before)
    assert own["cpu_seconds"] == pytest.approx(cpu[0], abs=0.1)
    assert set(workers) == {chunk["worker"] for chunk in chunks}
    assert {row["threads"] for row in workers.values()} == {1}
    assert min(row["start"] for row in workers.values()) > after


@pytest.mark.slow
def test_threads_of_this_process_are_those_of_each_step(backend: ProcessRecorder) -> None:
    began: list[int] = []
    opening = FuturesExecutor(pool=threads_that_tell(began), workers=3, status=False)
    processing = FuturesExecutor(pool=ThreadPoolExecutor, workers=2, status=False)
    start = time.time()
    used = time.process_time()
    before, after, _ = one_after_another(backend, opening, processing, lambda files: files)
    used, stop = time.process_time() - used, time.time()
    rows = backend.lifetimes(start, stop).to_pylist()
    assert {row["worker"] for row in rows} == {process_name()}
    assert [row["threads"] for row in rows] == [2, len(set(began)), 2]
    edges = [rows[0]["start"], *(row["stop"] for row in rows)]
    assert [row["start"] for row in rows] == edges[:-1]
    assert (edges[0], edges[-1]) == (start, stop)
    assert before <= edges[1] < edges[2] <= after
    # what it computed between the steps is no part of preprocessing
    assert rows[1]["cpu_seconds"] >= 0.29
    assert rows[2]["cpu_seconds"] >= 0.29
    assert sum(row["cpu_seconds"] for row in rows) == pytest.approx(used, abs=0.1)


def parsl_config(*threads: int) -> Any:
    return SimpleNamespace(
        executors=[SimpleNamespace(label=f"pool{number}", max_threads=n) for number, n in enumerate(threads)]
    )


def test_size_of_a_pool() -> None:
    with ThreadPoolExecutor(5) as instance, loky.ProcessPoolExecutor(4) as processes:
        assert pool_size(FuturesExecutor(pool=instance, workers=2)) == 5
        assert pool_size(FuturesExecutor(pool=processes)) == 4
    assert pool_size(FuturesExecutor(workers=7)) == 7
    assert pool_size(IterativeExecutor(workers=7)) is None
    assert ParslManagers(print).size(ParslExecutor(config=parsl_config(2, 4))) == 6
    assert ParslManagers(print).size(ParslExecutor(config=parsl_config(2, 4), jobs_executors=["pool1"])) == 4
    pilots = parsl_config(2)
    pilots.executors.append(SimpleNamespace(label="htex", max_workers_per_node=4))
    assert ParslManagers(print).size(ParslExecutor(config=pilots)) is None


# what cannot be seen


def test_processes_that_were_not_seen(backend: ProcessRecorder) -> None:
    backend.open(0.1)
    with backend.step(ParslExecutor(), "call", preprocessing=False):
        pass
    backend.close()
    now = time.time()
    here, elsewhere = f"{socket.gethostname()}/999999999", "far.away/17"
    chunks = [
        {"worker": worker, "thread": 1, "start": now - begin, "stop": now - end}
        for worker, begin, end in ((here, 5, 4), (here, 3, 2), (elsewhere, 5, 4))
    ]
    tell(backend, chunks)
    workers = lifetimes(backend)
    assert (workers[here]["start"], workers[here]["stop"]) == (now - 5, now - 2)
    assert (workers[elsewhere]["start"], workers[elsewhere]["stop"]) == (None, None)
    assert (workers[elsewhere]["host"], workers[elsewhere]["process"]) == ("far.away", 17)
    assert {row["cpu_seconds"] for row in workers.values()} == {None}
    assert "no process that ran chunks was seen" in backend.absent["samples"]
    notes = "\n".join(backend.notes())
    assert "1 worker not seen" in notes
    assert "1 worker on hosts other than" in notes
    assert "does not report its number of processes" in notes


@pytest.mark.parametrize(("seconds", "told"), [(0.05, False), (0.5, True)])
def test_a_pool_that_opens_files_sooner_than_a_scan_is_no_problem(
    backend: ProcessRecorder, seconds: float, told: bool
) -> None:
    backend.open(0.1)
    with backend.step(FuturesExecutor(workers=1), "call", preprocessing=True):
        now = time.time()
    backend.close()
    opening = {"worker": f"{socket.gethostname()}/999999999", "thread": 1, "start": now, "stop": now + seconds}
    tell(backend, [opening], preprocessing=True)
    assert any("1 worker not seen" in note for note in backend.notes()) == told


def test_a_worker_whose_name_tells_neither_host_nor_process(backend: ProcessRecorder) -> None:
    backend.open(None)
    backend.close()
    names = ["tcp://127.0.0.1:32777", "alone", "/5"]
    tell(backend, [{"worker": name, "thread": 1, "start": time.time() - 1, "stop": time.time()} for name in names])
    workers = lifetimes(backend)
    assert set(workers) == set(names)
    for row in workers.values():
        assert (row["host"], row["process"], row["start"], row["stop"]) == (None, None, None, None)
    (note,) = [note for note in backend.notes() if "on unknown ones" in note]
    assert "3 workers on hosts other than" in note


# the sampling itself


@pytest.mark.slow
def test_samples_are_bounded_and_keep_the_highest_memory(
    backend: ProcessRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "MOST_SAMPLES", 50)
    backend.open(0.01)
    chunk = json.loads(allocated(300).pop())
    assert wait_until(lambda: any(int(note.split()[0]) > 50 for note in backend.notes()))
    backend.close()
    tell(backend, [chunk])
    samples = backend.samples().to_pylist()
    assert sum(len(process.samples) for process in backend.processes.seen) <= 50 + len(backend.processes.seen)
    assert max(sample["memory"] for sample in samples) - psutil.Process().memory_info().rss > 250 * MB
    assert "process samples were merged" in backend.notes()[0]
    assert [s["time"] for s in samples] == sorted({s["time"] for s in samples})


def test_looking_harms_no_fork(backend: ProcessRecorder) -> None:
    backend.open(0.0005)
    context = multiprocessing.get_context("fork")
    for _ in range(4):
        children = [context.Process(target=record, args=(0.0,)) for _ in range(4)]
        for child in children:
            child.start()
        for child in children:
            child.join(PATIENCE)
            assert child.exitcode == 0
    backend.close()
    assert backend.notes() == []


def test_a_failure_to_look_is_noted_and_ends_nothing(backend: ProcessRecorder, monkeypatch: pytest.MonkeyPatch) -> None:
    backend.open(0.05)

    def refused() -> list[int]:
        raise PermissionError("/proc")

    with monkeypatch.context() as patch:
        patch.setattr(psutil, "pids", refused)
        assert wait_until(lambda: backend.notes() != [])
    seen = backend.samples().num_rows
    assert wait_until(lambda: backend.samples().num_rows > seen + 3)
    backend.close()
    assert len(backend.notes()) == 1
    assert "could not be scanned for a while" in backend.notes()[0]


def test_tracking_by_hand_follows_this_process_and_its_children(backend: ProcessRecorder) -> None:
    backend.open(0.1)
    child = subprocess.Popen(["sleep", "60"])
    name = f"{socket.gethostname()}/{child.pid}"
    assert wait_until(lambda: backend.samples()["worker"].to_pylist().count(name) >= 3)
    child.kill()
    child.wait()
    looked = backend.samples().num_rows
    assert wait_until(lambda: backend.samples().num_rows > looked + 1)
    backend.close()
    data = backend.tracking_data()
    assert {process_name(), name} <= set(data["worker_memory"])
    assert len(data["worker_memory"][process_name()]) >= len(data["worker_memory"][name]) >= 3
    counts = list(data["worker_counts"].values())
    assert max(counts) - counts[-1] == 1
