"""Waiting for the interpreter against queues that are worked out by hand."""

from __future__ import annotations

import pytest
from made_runs import chunks_that_wait as chunks

from roastcoffea.replay.cluster import Cluster, Costs, replayed
from roastcoffea.replay.fitted_storage import (
    Interpreter,
    interpreter_of,
    share_of,
    waited,
    with_simulated_lock,
    with_threads,
)


def test_threads_that_always_need_the_interpreter_take_turns() -> None:
    assert waited(1.0, 1.0, 0.0, threads=1) == 0.0
    assert waited(1.0, 1.0, 0.0, threads=2) == pytest.approx(1.0)
    assert waited(1.0, 1.0, 0.0, threads=4) == pytest.approx(3.0)
    assert waited(0.0, 1.0, 0.0, threads=4) == 0.0


def test_two_threads_that_need_it_for_half_of_their_time() -> None:
    """One is in the queue for half of its cycle, so that another waits half of the 0.5 s that it holds it."""
    assert waited(0.5, 1.0, 0.0, threads=2) == pytest.approx(0.25)
    # waiting elsewhere for 1 s: it is there for 0.5 s of 2
    assert waited(0.5, 1.0, 1.0, threads=2) == pytest.approx(0.125)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("threads", [2, 4])
def test_the_share_is_found_from_the_wait(share: float, threads: int) -> None:
    lock = waited(share, 1.0, 2.0, threads)
    assert share_of(chunks(lock, 2.0).parts, threads) == pytest.approx(share, abs=1e-3)


def test_more_waiting_than_turns_take_is_all_of_the_time() -> None:
    assert share_of(chunks(5.0).parts, 2) == 1.0
    assert share_of(chunks(0.0).parts, 2) == 0.0


def test_runs_of_one_thread_tell_nothing() -> None:
    assert interpreter_of([]) is None
    assert interpreter_of([(chunks(0.1), 1)]) is None
    found = interpreter_of([(chunks(0.25), 2), (chunks(0.0), 1)])
    assert found == Interpreter(pytest.approx(0.5, abs=1e-3), found.low, found.high)  # type: ignore[union-attr]
    apart = interpreter_of([(chunks(0.25), 2), (chunks(0.0), 2)])
    assert apart is not None
    assert apart.low < 0.1 < apart.share == pytest.approx(0.25, abs=1e-3)
    assert apart.high > 0.5


def test_chunks_wait_as_long_as_threads_make_them() -> None:
    one, two, four = (with_threads(1.0, threads).chunks(chunks(0.3)).parts.lock for threads in (1, 2, 4))
    assert (one.tolist(), two.tolist()) == ([0.0] * 8, pytest.approx([1.0] * 8))
    assert four.tolist() == pytest.approx([3.0] * 8)


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
    simulated = with_simulated_lock(share)
    found = replayed(
        simulated.chunks(chunks(3.0)).load(), Cluster(threads=2, hosts=[(workers, cores)]), simulated.costs(Costs())
    )
    assert found.seconds == pytest.approx(seconds)
