"""Waiting for the interpreter against queues that are worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from made_runs import chunks_that_wait as chunks

from roastcoffea.replay.cluster import Cluster, Costs, Interpreter, Load, lock_waits, replayed
from roastcoffea.replay.fitted_storage import interpreter_of, shares_of, with_interpreter


def waited(share: float, apart: float, threads: int, delay: float = 0.0) -> float:
    """How long each of the threads waits for the interpreter, for a second of computing."""
    return lock_waits(Interpreter(share, delay), 1.0, apart, threads)[-1]


def test_threads_that_always_need_the_interpreter_take_turns() -> None:
    assert lock_waits(Interpreter(1.0), 1.0, 0.0, 4) == pytest.approx([0.0, 1.0, 2.0, 3.0])
    assert waited(0.0, 0.0, threads=4) == 0.0


def test_two_threads_that_need_it_for_half_of_their_time() -> None:
    """One is in the queue for half of its cycle, so that another waits half of the 0.5 s that it holds it."""
    assert waited(0.5, 0.0, threads=2) == pytest.approx(0.25)
    # waiting elsewhere for 1 s: it is there for 0.5 s of 2
    assert waited(0.5, 1.0, threads=2) == pytest.approx(0.125)


def test_threads_that_are_delayed_by_those_that_compute() -> None:
    """Alone, a thread computes for a third of its cycle; of two, each does so for 1 s of 4."""
    assert waited(0.0, 2.0, threads=2, delay=3.0) == pytest.approx(1.0)
    assert waited(0.0, 2.0, threads=3, delay=3.0) == pytest.approx(3.0 * 2 / 4)
    assert waited(0.5, 2.0, threads=2, delay=3.0) == pytest.approx(1.0 + 0.5 * 0.5 / 3)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("threads", [2, 4])
def test_the_largest_share_is_found_from_the_wait(share: float, threads: int) -> None:
    lock = waited(share, 2.0, threads)
    assert shares_of(chunks(lock, 2.0).parts, threads)[2] == pytest.approx(share, abs=1e-3)


@pytest.mark.parametrize("delay", [0.0, 0.3, 3.0])
@pytest.mark.parametrize("threads", [2, 4])
def test_the_smallest_share_has_the_delay_that_explains_the_wait(delay: float, threads: int) -> None:
    """Others hold the interpreter at least as long as a thread waits."""
    lock = waited(0.0, 2.0, threads, delay)
    least, found, most = shares_of(chunks(lock, 2.0).parts, threads)
    assert least == pytest.approx(min(lock / (threads - 1), 1.0))
    assert waited(least, 2.0, threads, found) == pytest.approx(lock, rel=2e-3)
    assert most >= least


def test_more_waiting_than_turns_take_is_all_of_the_time() -> None:
    assert shares_of(chunks(5.0).parts, 2)[::2] == (1.0, 1.0)
    assert shares_of(chunks(0.0).parts, 2) == (0.0, 0.0, 0.0)


def test_threads_that_wait_for_all_of_the_others_leave_nothing_open() -> None:
    least, delay, most = shares_of(chunks(3.0).parts, 4)
    assert (least, delay, most) == pytest.approx((1.0, 0.0, 1.0), abs=1e-3)


def test_runs_of_one_thread_tell_nothing() -> None:
    assert interpreter_of([]) == []
    assert interpreter_of([(chunks(0.1), 1)]) == []
    low, high = interpreter_of([(chunks(0.25), 2), (chunks(0.0), 1)])
    assert (low.share, high) == (pytest.approx(0.25), Interpreter(pytest.approx(0.5, abs=1e-3)))
    assert waited(low.share, 0.0, 2, low.delay) == pytest.approx(0.25, rel=2e-3)
    # blocks of a run, or runs, that differ
    low, high = interpreter_of([(chunks(0.25), 2), (chunks(0.0), 2)])
    assert (low.share, high.share) == pytest.approx((0.0, 0.5), abs=1e-3)


def test_a_thread_waits_for_each_that_computes() -> None:
    """A chunk computes for 10 s. Another one waits 2 s and computes 1 s, in four turns, and is delayed by 1 s."""
    load = Load(before=np.zeros(2), wait=np.array([0.0, 2.0]), after=np.array([10.0, 1.0]))
    costs = Costs(interpreter=Interpreter(0.0, 1.0))
    found = replayed(load, Cluster(threads=2, hosts=[(1, 4.0)]), costs)
    assert (found.seconds, found.busy) == pytest.approx((10.0, 10.0 + 2.0 + 1.0 + 1.0))
    # on other processes, they do not
    assert replayed(load, Cluster(threads=1, hosts=[(2, 4.0)]), costs).busy == pytest.approx(13.0)


@pytest.mark.parametrize(
    ("share", "workers", "cores", "seconds"),
    [
        (1.0, 1, 4.0, 8.0),  # one chunk after another
        (1.0, 1, float("inf"), 8.0),
        (1.0, 2, 4.0, 4.0),
        (0.5, 1, 4.0, 5.0),  # one waits for half of the other's half
        (0.5, 1, 1.0, 8.0),  # the core is always busy, with or without the interpreter
        (0.0, 1, 4.0, 4.0),
    ],
)
def test_simulated_waits_for_the_interpreter(share: float, workers: int, cores: float, seconds: float) -> None:
    """Eight chunks of 1 s on processes with two threads each."""
    simulated = with_interpreter(Interpreter(share))
    found = replayed(
        simulated.chunks(chunks(3.0)).load(), Cluster(threads=2, hosts=[(workers, cores)]), simulated.costs(Costs())
    )
    assert found.seconds == pytest.approx(seconds)
