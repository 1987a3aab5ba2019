"""Waiting for the interpreter against queues that are worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from made_runs import chunks_that_wait as chunks

from roastcoffea.replay.cluster import Cluster, Costs, Interpreter, Load, computing_at_once, lock_waits, replayed
from roastcoffea.studies.interpreter import with_interpreter


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
    """Each computes for 1 s of a cycle of 3 s and its wait, and delays each other one by 3 s times this fraction."""
    for others in (1, 2, 5):
        wait = waited(0.0, 2.0, threads=1 + others, delay=3.0)
        assert wait == pytest.approx(3.0 * others / (3.0 + wait))
    # exact for two threads that compute, wait or do neither for random times: 0.7857
    assert waited(0.0, 2.0, threads=2, delay=3.0) == pytest.approx(11 / 14, rel=0.01)


def test_threads_that_wait_for_both_reasons() -> None:
    """One waits 0.125 s in the queue, and for 2 s times the fraction in which the other one computes."""
    wait = waited(0.5, 1.0, threads=2, delay=2.0)
    assert wait == pytest.approx(0.125 + 2.0 * 1.125 / (2.0 + wait))


@pytest.mark.parametrize("interpreter", [Interpreter(0.0, 10.0), Interpreter(0.3, 2.0), Interpreter(0.9, 0.1)])
def test_more_threads_wait_longer(interpreter: Interpreter) -> None:
    waits = lock_waits(interpreter, 1.0, 0.5, 16)
    assert waits == sorted(waits)


def test_jobs_of_a_host_are_on_any_of_its_threads() -> None:
    """Of two jobs on two processes of two threads, the second one is on the other process in two of three cases."""
    assert computing_at_once(1.0, 2, 2, 9) == pytest.approx([0.0, 1.0, 5 / 3, 2.0, 2.0])
    assert computing_at_once(1.0, 1, 3, 2) == pytest.approx([0.0, 1.0, 1.0])
    # no more than there are tasks, however many threads there are
    few = computing_at_once(1.0, 10_000, 256, 20)
    assert few == pytest.approx(range(21), rel=0.01)


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
