"""How threads wait for the interpreter, fitted to chunks whose waits are known."""

from __future__ import annotations

import numpy as np
import pytest
from made_runs import chunks_that_wait as chunks

from roastcoffea.replay.changes import Chunks
from roastcoffea.replay.cluster import Cluster, Costs, Interpreter, lock_waits, replayed
from roastcoffea.studies.interpreter import interpreter_of, with_interpreter


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("threads", [2, 4])
def test_the_largest_share_is_found_from_the_wait(share: float, threads: int) -> None:
    lock = lock_waits(Interpreter(share), 1.0, 2.0, threads)[-1]
    _, most = interpreter_of([chunks(lock, 2.0)], threads)
    assert most == pytest.approx((share, 0.0), abs=1e-3)


def test_others_hold_the_interpreter_at_least_as_long_as_a_thread_waits() -> None:
    for threads in (2, 4):
        least, most = interpreter_of([chunks(0.3, 2.0)], threads)
        assert least.share == pytest.approx(0.3 / (threads - 1))
        assert least.delay > 0.1
        assert most.delay == pytest.approx(0.0, abs=1e-3)
        assert most.share > least.share


def test_threads_that_wait_for_all_of_the_others_leave_nothing_open() -> None:
    for each in interpreter_of([chunks(3.0)], 4):
        assert each == pytest.approx((1.0, 0.0), abs=2e-3)


def test_waits_that_even_a_share_of_one_does_not_explain_have_a_delay() -> None:
    """Two threads that mostly read: as long as one computes for 1 s, the other reads."""
    _, most = interpreter_of([chunks(0.5, 10.0)], 2)
    assert most.share == 1.0
    assert most.delay > 1.0


def test_runs_of_which_no_chunk_computes_tell_nothing() -> None:
    assert interpreter_of([], 2) == []
    assert interpreter_of([chunks(0.1).with_cpu(0.0)], 2) == []


def test_runs_that_differ_widen_the_range() -> None:
    least, most = interpreter_of([chunks(0.25), chunks(0.0)], 2)
    assert (least.share, most.share) == pytest.approx((0.0, 0.5), abs=1e-3)


def scattered(lock: float, wait: float, cpu: float = 1.0, number: int = 400) -> Chunks:
    random = np.random.default_rng(1)
    each = chunks(lock, number=number)
    scatter = random.gamma(4, 1 / 4, (2, number))
    return each.with_parts(cpu=cpu * scatter[0], wait=wait * scatter[1])


@pytest.mark.parametrize(
    ("threads", "hosts"), [(2, [(4, float("inf"))]), (2, [(1, float("inf"))] * 4), (4, [(2, float("inf"))])]
)
@pytest.mark.parametrize(("lock", "wait"), [(0.2, 3.0), (0.5, 3.0), (0.3, 0.5)])
def test_a_replay_gives_back_the_waits_that_were_recorded(
    threads: int, hosts: list[tuple[int, float]], lock: float, wait: float
) -> None:
    """Roughly, whatever makes the threads wait, and however their processes are spread over hosts."""
    made = scattered(lock * (threads - 1), wait)
    for each in interpreter_of([made], threads):
        held = with_interpreter(each)
        load = held.chunks(made).load()
        found = replayed(load, Cluster(threads=threads, hosts=hosts), held.costs(Costs(steal=0.0)))
        assert found.busy - load.alone.sum() == pytest.approx(made.parts.lock.sum(), rel=0.4)


def test_chunks_that_compute_more_count_more() -> None:
    """Half of the chunks read a lot, and the others compute a lot, so that the delays of these matter."""
    reading, computing = scattered(0.05, 2.0, cpu=0.1, number=40), scattered(5.0, 0.0, cpu=10.0, number=40)
    least, _ = interpreter_of([reading, computing], 2)
    (alone, _), (other, _) = (interpreter_of([each], 2) for each in (computing, reading))
    assert alone.delay <= least.delay < other.delay / 4
