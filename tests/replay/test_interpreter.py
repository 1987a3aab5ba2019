"""Waiting for the interpreter against queues that are worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from made_runs import chunks_of

from roastcoffea.replay.changes import Chunks
from roastcoffea.replay.fitted_storage import (
    Interpreter,
    blocked_per_event,
    interpreter_of,
    share_of,
    waited,
    with_least_lock,
    with_threads,
)


def chunks(lock: float, wait: float = 0.0, number: int = 8) -> Chunks:
    """Chunks of 1 s of CPU time."""
    none = np.zeros(number)
    return chunks_of(none, none + 1).with_parts(lock=none + lock, wait=none + wait)


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


def test_sleeping_while_others_compute_is_no_waiting_for_the_interpreter() -> None:
    """Chunks of 100 events that sleep for 2 s, of which up to 1.5 s could have been waiting for the interpreter."""
    alone = blocked_per_event([chunks(0.5, wait=1.5)])
    assert alone == pytest.approx(2.0 / 100)
    found = with_least_lock(chunks(1.5, wait=0.75), alone)
    assert found.parts.lock.tolist() == pytest.approx([0.25] * 8)
    assert found.parts.wait.tolist() == pytest.approx([2.0] * 8)


def test_waiting_for_the_interpreter_stays_where_it_made_chunks_longer_or_nothing_tells() -> None:
    longer = chunks(1.5, wait=2.0)
    assert with_least_lock(longer, 2.0 / 100).parts.lock.tolist() == pytest.approx([1.5] * 8)
    assert with_least_lock(longer, 9.0 / 100).parts.lock.tolist() == [0.0] * 8
    assert blocked_per_event([]) is None
    assert with_least_lock(longer, None) is longer
