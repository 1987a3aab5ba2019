"""Memory of intervals against arrays of known size, and clocks against each other."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import psutil
import pytest
from conftest import wait_until
from processes import PATIENCE

from roastcoffea.instrument.attempt import Clocks
from roastcoffea.instrument.channels import DaskTask
from roastcoffea.instrument.gauges import CoreWait, Interval, resident_memory
from roastcoffea.instrument.track import OpenChunk, open_chunk, open_chunk_of, track_memory

MB = 1_000_000
linux = pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux")


def hold(megabytes: int) -> None:
    np.ones(megabytes * MB // 8)


def growth(interval: Interval) -> float:
    assert interval.peak is not None
    assert interval.before is not None
    return (interval.peak - interval.before) / MB


def test_resident_memory_is_that_of_psutil() -> None:
    assert resident_memory() == pytest.approx(psutil.Process().memory_info().rss, rel=0.02)


@pytest.mark.slow
@linux
def test_peak_of_what_was_freed_inside() -> None:
    interval = Interval()
    hold(300)
    interval.close()
    assert growth(interval) == pytest.approx(300, rel=0.1)
    assert interval.overlaps == 0


@linux
def test_nested_intervals_see_their_own_peaks() -> None:
    outer = Interval()
    hold(300)
    inner = Interval()
    hold(60)
    inner.close()
    last = Interval()
    last.close()
    outer.close()
    assert growth(outer) == pytest.approx(300, rel=0.1)
    assert growth(inner) == pytest.approx(60, rel=0.15)
    assert growth(last) < 10
    assert (outer.overlaps, inner.overlaps, last.overlaps) == (1, 1, 1)


@linux
def test_overlapping_threads_are_flagged_and_see_what_happened_meanwhile() -> None:
    intervals, both = {}, threading.Barrier(2, timeout=PATIENCE)

    def measured(name: str, megabytes: int) -> None:
        both.wait()
        intervals[name] = Interval()
        both.wait()
        array = np.ones(megabytes * MB // 8)
        both.wait()
        del array
        both.wait()
        intervals[name].close()

    threads = [threading.Thread(target=measured, args=args) for args in (("first", 200), ("second", 100))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert intervals["first"].overlaps == intervals["second"].overlaps == 1
    assert growth(intervals["first"]) == pytest.approx(300, rel=0.15)


def what_is_open() -> Counter[str]:
    """States of ours in this process, and files of the kernel that it has open; others may be those of a cluster."""
    files = (file.path for file in psutil.Process().open_files())
    states = [name for name in sys.modules if name.startswith("_roastcoffea")]
    return Counter([*states, *(file for file in files if file.startswith("/proc"))])


def nothing_stays_open(before: Counter[str]) -> bool:
    """Whether no more is open than before; a cluster in this process has files of the kernel open for a moment."""
    return wait_until(lambda: not what_is_open() - before)


def interrupted(*_: object, **__: object) -> NoReturn:
    raise KeyboardInterrupt


def interrupt_opening(name: str, broken: pytest.MonkeyPatch) -> None:
    """Let an interrupt come when a file of the kernel's is opened."""
    plain = os.open

    def opened(path: object, *arguments: Any, **others: Any) -> int:
        return plain(path, *arguments, **others) if path != f"/proc/self/{name}" else interrupted()

    broken.setattr(os, "open", opened)


@linux
@pytest.mark.parametrize("name", ["clear_refs", "statm", "status"])
def test_an_interval_that_could_not_begin_is_not_open(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    before = what_is_open()
    outer = Interval()
    with monkeypatch.context() as broken:
        interrupt_opening(name, broken)
        with pytest.raises(KeyboardInterrupt):
            Interval()
    outer.close()
    assert outer.overlaps == 0
    assert nothing_stays_open(before), what_is_open()


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_wait_for_a_core_as_clocks_are_read_is_within_the_wall_time(
    monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    waited = 0.0

    def wait() -> None:
        nonlocal waited
        began = time.perf_counter()
        time.sleep(0.05)
        waited += time.perf_counter() - began

    def seconds(_: CoreWait) -> float:
        if when == "before":
            wait()
        read = waited
        if when == "after":
            wait()
        return read

    monkeypatch.setattr(CoreWait, "seconds", seconds)
    record = Clocks(DaskTask()).measured()
    assert 0 < record["core_wait_seconds"] <= record["wall_seconds"]


@linux
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_child_forked_while_another_thread_holds_the_locks_does_not_hang() -> None:
    def measuring() -> set[tuple[str, object]]:
        states = [(name, module) for name, module in sys.modules.items() if name.startswith("_roastcoffea")]
        return {(name, member) for name, state in states for member in state.open}

    held, forked = threading.Event(), threading.Event()
    before = measuring()  # by a thread of an earlier test, for example
    outer = Interval()

    def measured_in_child() -> None:
        inner = Interval()
        inner.close()
        assert inner.overlaps == 0
        with open_chunk(OpenChunk()) as chunk, track_memory("jets"):
            assert open_chunk_of(print) is chunk
        with track_memory("jets"):
            assert open_chunk_of(print) is None
        outer.close()
        chunk_of_parent.close()
        assert measuring() <= before

    def holding() -> None:
        states = [module for name, module in sys.modules.items() if name.startswith("_roastcoffea")]
        for state in states:
            state.lock.acquire()
        held.set()
        forked.wait(60)
        for state in states:
            state.lock.release()

    chunk_of_parent = ExitStack()
    chunk_of_parent.enter_context(open_chunk(OpenChunk()))
    thread = threading.Thread(target=holding)
    thread.start()
    assert held.wait(60)
    child = multiprocessing.get_context("fork").Process(target=measured_in_child)
    child.start()
    forked.set()
    thread.join()
    child.join(PATIENCE)
    hangs = child.exitcode is None
    child.kill()
    child.join()
    chunk_of_parent.close()
    outer.close()
    assert (hangs, child.exitcode) == (False, 0)


COMPUTING = """
    import json
    import os
    import time

    from processes import stolen
    from roastcoffea.instrument.gauges import CoreWait

    (core,) = os.sched_getaffinity(0)
    core_wait, before = CoreWait(), stolen(core)
    # the thread may lose its core between two clocks: what it waited lies between two pairs of them
    around, wall, cpu, inside = core_wait.seconds(), time.perf_counter(), time.thread_time(), core_wait.seconds()
    while time.perf_counter() < wall + 0.5:
        pass
    least, cpu, wall, most = (
        core_wait.seconds(), time.thread_time() - cpu, time.perf_counter() - wall, core_wait.seconds()
    )
    print(json.dumps([least - inside, most - around, wall - cpu, stolen(core) - before]))
"""


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="needs Linux")
def test_who_computes_has_a_core_or_waits_for_one() -> None:
    """Three processes on one core: what is not CPU time is waiting for a core. None has a second thread to wait for."""
    core = min(os.sched_getaffinity(0))
    scripts = ["while True: pass", "while True: pass", textwrap.dedent(COMPUTING)]
    there = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    started: list[subprocess.Popen[str]] = []
    try:
        for script in scripts:
            pinned = f"import os\nos.sched_setaffinity(0, {{{core}}})\n{script}"
            call = [sys.executable, "-c", pinned]
            started.append(subprocess.Popen(call, env=there, stdout=subprocess.PIPE, text=True))
        answer, _ = started[-1].communicate(timeout=PATIENCE)
    finally:
        for process in started:
            process.kill()
            process.communicate()
    least, most, not_cpu, taken = json.loads(answer)
    assert least <= not_cpu + 0.01
    assert most >= not_cpu - taken - 0.1
