"""What steps of reading add up to: waiting, decompression and interpretation of branches."""

from __future__ import annotations

import time
from threading import get_ident
from types import SimpleNamespace
from typing import Any

import pytest
from stored import branch_named

from roastcoffea.instrument.meter.formats import EXECUTORS, metered_executor
from roastcoffea.instrument.meter.tally import (
    ASKED,
    DECOMPRESSED,
    DELAYED,
    INTERPRETED,
    INTERRUPTED,
    WHOLE,
    BranchRead,
    Tally,
)


def basket_of(branch: Any) -> SimpleNamespace:
    return SimpleNamespace(parent=branch, uncompressed_bytes=400, is_embedded=False)


def chunk_of(size: int) -> SimpleNamespace:
    return SimpleNamespace(start=0, stop=size)


def test_steps_of_a_thread_add_up_to_waiting_decompression_and_interpretation() -> None:
    """Two baskets of "a" are asked for at 10 s of wall and 1 s of CPU time, and one more of it comes again."""
    tally = Tally()
    tally.in_line = True
    me, branch = get_ident(), branch_named("a")
    tally.steps.extend((ASKED, me, None, 2, 0, None, 1.0, 10.0))
    # 3 s until it is decompressed, of which 0.5 s were for another request, with 0.25 s of CPU, and 0.5 s decompression
    tally.steps.extend((INTERRUPTED, me, None, 0, 0, None, 0.25, 0.5))
    tally.steps.extend((DECOMPRESSED, me, branch, 0, 100, 1.25, 1.75, 13.0))
    tally.steps.extend((INTERPRETED, me, branch, None, 400, None, 2.0, 13.25))
    # 2 s more, of which 1 s is decompression
    tally.steps.extend((DECOMPRESSED, me, branch, 1, 50, 2.0, 3.0, 15.25))
    tally.steps.extend((INTERPRETED, me, branch, None, 200, None, 3.5, 16.0))
    # no more is asked for: what passes until then is no waiting
    tally.steps.extend((DECOMPRESSED, me, branch, 1, 50, 4.0, 4.5, 20.0))
    waited, decompress, interpret = tally.seconds()
    assert waited == (13.0 - 10.5 - (1.75 - 1.25)) + (15.25 - 13.25 - (3.0 - 2.0)) == 3.0
    assert decompress == 0.5 + 1.0 + 0.5
    assert interpret == 0.25 + 0.5
    columns = tally.branch_columns()
    names = ("branch", "bytes_payload", "bytes_again", "bytes_uncompressed", "baskets", "read_seconds")
    assert [list(columns[name]) for name in names] == [["a"], [150], [50], [600], [2], [3.0]]
    assert (tally.payload, tally.helper_cpu, tally.problems) == (200, 0.0, ())


def of_small_basket(began: float, *, delayed: float = 0.0, whole: bool = False) -> Tally:
    """A basket asked for at 10 s of wall and 1 s of CPU time, and turned into an array at 14 s and 2 s.

    With `whole` that is one step.
    """
    tally = Tally()
    tally.in_line = True
    me, branch = get_ident(), branch_named("a")
    if whole:
        tally.steps.extend((WHOLE, me, 1.0, 10.0, branch, 0, 100, began))
        tally.steps.extend((13.75, 2.0, 14.0, 400, None, None, None, None))
        return tally
    tally.steps.extend((ASKED, me, None, 1, 0, None, 1.0, 10.0))
    tally.steps.extend((DECOMPRESSED, me, branch, 0, 100, began, None, 13.75))
    if delayed:
        tally.steps.extend((DELAYED, me, None, 0, 0, None, 0.0, delayed))
    tally.steps.extend((INTERPRETED, me, branch, None, 400, None, 2.0, 14.0))
    return tally


@pytest.mark.parametrize("whole", [False, True])
def test_a_small_basket_is_waited_for_before_its_steps(whole: bool) -> None:
    """Of 4 s a thread had its core for 1 s, of which its steps are at most 0.75 s."""
    tally = of_small_basket(13.25, whole=whole)
    assert tally.seconds() == (3.0, 0.5, 0.25)
    columns = tally.branch_columns()
    names = ("branch", "bytes_payload", "bytes_again", "bytes_uncompressed", "baskets", "read_seconds")
    assert [list(columns[name]) for name in names] == [["a"], [100], [0], [400], [1], [3.0]]


@pytest.mark.parametrize("other", [False, True])
def test_a_small_basket_that_a_thread_reads_alone_is_one_step(other: bool) -> None:
    """As the executors record it; another basket in between makes steps of it, for the same result."""
    tally, branch = Tally(), branch_named("a")
    tally.in_line, here = True, tally.places[get_ident()]
    here.begun += (WHOLE, get_ident(), cpu := time.thread_time(), wall := time.perf_counter())
    tally.waits(wall - cpu)
    tally.shortest = float("inf")  # a busy host makes no step of its own
    decompression, interpretation = (metered_executor(tally, kind, None) for _, kind in EXECUTORS)
    basket = decompression.submit(lambda *_: basket_of(branch), chunk_of(100), branch, 0).result()
    if other:
        decompression.submit(lambda *_: None, chunk_of(10), branch, 1)
    assert interpretation.submit(lambda _: "array", basket).result() == "array"
    assert (tally.steps[0] == WHOLE, len(tally.steps)) == ((False, 4 * 8) if other else (True, 2 * 8))
    assert here.begun == []
    tally.add_up(ended=True)
    columns = tally.branch_columns()
    assert [list(columns[name]) for name in ("bytes_payload", "bytes_uncompressed")] == [[100 + 10 * other], [400]]


def test_time_in_the_queue_for_a_core_is_no_waiting_for_a_small_basket() -> None:
    tally = of_small_basket(13.0, delayed=2.0)
    assert tally.seconds() == pytest.approx((1.0, 0.75 / 3, 0.25 / 3))


def test_what_never_came_was_waited_for() -> None:
    tally = Tally()
    tally.in_line = True
    cpu, wall = time.thread_time(), time.perf_counter()
    tally.steps.extend((ASKED, get_ident(), None, 1, 0, None, cpu, wall - 2.0))
    tally.steps.extend((DECOMPRESSED, get_ident(), branch_named("a"), 0, 100, wall, None, wall))
    assert tally.seconds()[0] == pytest.approx(2.0, abs=0.01)
    assert tally.payload == 100


def test_steps_of_another_thread_are_those_of_a_helper() -> None:
    tally, branch = Tally(), branch_named("a")
    tally.steps.extend((DECOMPRESSED, get_ident() + 1, branch, 0, 100, 1.0, 1.5, 0.0))
    tally.steps.extend((INTERPRETED, get_ident() + 1, branch, None, 400, 1.5, 1.75, 0.0))
    assert tally.seconds() == (0.0, 0.0, 0.0)
    assert (tally.helper_cpu, tally.payload) == (0.75, 100)


def test_parts_of_a_cluster_are_payload_once() -> None:
    read = BranchRead()
    for cluster, part, size in ((0, "x", 10), (0, "y", 5), (0, "x", 10), (1, "x", 7)):
        read.add_part(cluster, part, size)
    assert (read.sizes, read.again) == ({0: 15, 1: 7}, 10)
