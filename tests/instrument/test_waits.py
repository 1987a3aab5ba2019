"""Waiting in process() told apart, against the kernel's own accounting and against what was planted."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import NamedTuple

import pytest
from processes import stolen

from roastcoffea.instrument.attempt import Waits
from roastcoffea.instrument.gauges import CoreWait
from roastcoffea.instrument.meter.tally import Tally
from roastcoffea.instrument.sampler import prompt

pytestmark = pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="needs Linux")


class Clock(NamedTuple):
    """A core-wait clock that shows what it is told."""

    shown: list[float | None]

    def seconds(self) -> float | None:
        return self.shown.pop(0)


class Spent(NamedTuple):
    """What a function took, and how its waiting was told apart."""

    wall: float
    cpu: float
    delay: float
    others: float
    """CPU time of other threads in the process."""
    parts: dict[str, float]

    @property
    def waited(self) -> float:
        return self.wall - self.cpu


def spent(seconds: float, *, spinning: bool, end: Callable[[], AbstractContextManager[None]] = nullcontext) -> Spent:
    """Spin for so many seconds of CPU time, or sleep for so long; waits are told apart in the context `end`."""
    core_wait = CoreWait()
    waits, before = Waits(Tally(), core_wait), core_wait.seconds() or 0.0
    wall, cpu, whole = time.perf_counter(), time.thread_time(), time.process_time()
    if spinning:
        while time.thread_time() < cpu + seconds:
            pass
    else:
        time.sleep(seconds)
    cpu, wall = time.thread_time() - cpu, time.perf_counter() - wall
    others = time.process_time() - whole - cpu
    with end():
        parts = waits.parts(wall, cpu, 0.0)
    delay = (core_wait.seconds() or 0.0) - before
    core_wait.close()
    return Spent(wall, cpu, delay, others, parts)


@contextmanager
def on_core(core: int) -> Iterator[None]:
    """Have this process, and those that it starts, on one core."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


@contextmanager
def other_processes(number: int) -> Iterator[None]:
    spinning = [sys.executable, "-c", "print(flush=True)\nwhile True: pass"]
    processes = [subprocess.Popen(spinning, stdout=subprocess.PIPE) for _ in range(number)]
    try:
        for process in processes:
            assert process.stdout is not None
            process.stdout.readline()
        yield
    finally:
        for process in processes:
            process.kill()
            process.communicate()


@contextmanager
def other_threads(number: int) -> Iterator[None]:
    stop = threading.Event()

    def spin() -> None:
        while not stop.is_set():
            pass

    threads = [threading.Thread(target=spin) for _ in range(number)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def spinning_fits(core: int) -> bool:
    """Whether the time of a thread that spins is CPU time and run-queue time, to a millisecond."""
    before = stolen(core)
    found = spent(0.05, spinning=True)
    # time that the machine below takes is in neither, and is counted in steps of 10 ms
    taken = stolen(core) - before
    taken += 0.01 if taken else 0.0
    assert sum(found.parts.values()) == pytest.approx(found.waited, abs=1e-9)
    left = found.wall - found.cpu - found.delay, found.waited - found.parts["contention_seconds"]
    beyond = found.parts["contention_seconds"] - found.delay
    return beyond <= 1e-3 and all(-1e-3 <= each <= 1e-3 + taken for each in left)


def sleeping_fits() -> bool:
    """Whether a sleep is blocked: a thread waits for a core when it wakes up, if at all."""
    found = spent(0.1, spinning=False)
    blocked, contention = found.parts["blocked_seconds"], found.parts["contention_seconds"]
    within = blocked >= 0.1 - 6e-3 and contention <= found.delay + 1e-3
    return within and blocked + contention >= found.waited - 6e-3


TRIES = 40
"""Most end with the first; with many others on its core a thread seldom keeps it from one clock to the next."""


@pytest.mark.parametrize("others", [0, 1])
def test_a_thread_that_spins_computes_or_waits_for_a_core(others: int) -> None:
    core = min(os.sched_getaffinity(0))
    with on_core(core), other_processes(others):
        # between two clocks the thread may lose its core: then the next spin tells
        fits = any(spinning_fits(core) for _ in range(TRIES))
        rests = any(sleeping_fits() for _ in range(TRIES))
    assert fits
    assert rests


@pytest.mark.slow
@pytest.mark.parametrize("end", [nullcontext, prompt])
def test_a_thread_waits_for_those_that_hold_the_interpreter(end: Callable[[], AbstractContextManager[None]]) -> None:
    """Also where it ends as the profile takes a sample."""
    with other_threads(2):
        found = spent(0.2, spinning=True, end=end)
    rest = found.waited - found.parts["contention_seconds"]
    assert rest > 0.1
    # one that holds the interpreter may have no core for a while
    assert found.parts["lock_seconds"] >= 0.8 * min(rest, found.others)
    assert sum(found.parts.values()) == pytest.approx(found.waited, abs=1e-9)


def test_a_thread_that_sleeps_while_others_compute_is_blocked() -> None:
    with other_threads(1):
        found = spent(0.5, spinning=False)
    assert found.parts["lock_seconds"] <= 0.1
    assert found.parts["blocked_seconds"] + found.parts["lock_seconds"] >= 0.5 - found.delay


@pytest.mark.parametrize("shown", [[None, None], [1.0, None]])
def test_where_nothing_tells_of_the_core_waiting_is_one(shown: list[float | None]) -> None:
    waits = Waits(Tally(), Clock(shown))  # type: ignore[arg-type]
    assert waits.parts(3.0, 1.0, 0.5) == {"wait_seconds": 1.5, "write_wait_seconds": 0.0}


def test_no_part_is_more_than_there_was() -> None:
    waits = Waits(Tally(), Clock([1.0, 9.0]))  # type: ignore[arg-type]
    parts = {"contention_seconds": 1.5, "lock_seconds": 0.0, "blocked_seconds": 0.0, "write_wait_seconds": 0.0}
    assert waits.parts(3.0, 1.0, 0.5) == parts
