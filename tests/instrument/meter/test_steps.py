"""What steps of reading add up to: waiting, decompression and interpretation of branches."""

from __future__ import annotations

import time
from threading import get_ident
from types import SimpleNamespace
from typing import Any

import pytest
from stored import branch_named

from roastcoffea.instrument.meter.formats import EXECUTORS, metered_executor
from roastcoffea.instrument.meter.tally import VALUES_OF_STEP, BranchRead, Tally


def basket_of(branch: Any) -> SimpleNamespace:
    return SimpleNamespace(parent=branch, uncompressed_bytes=400, is_embedded=False)


def chunk_of(size: int) -> SimpleNamespace:
    return SimpleNamespace(start=0, stop=size)


def decompressed(branch: Any, basket: int, size: int, began: float, ended: float) -> tuple[Any, ...]:
    return None, None, None, None, branch, basket, size, began, ended


def test_steps_of_a_thread_add_up_to_waiting_decompression_and_interpretation() -> None:
    """Two baskets of "a" are asked for at 10 s of wall and 1 s of CPU time, and one of them comes again."""
    tally = Tally()
    me, branch = get_ident(), branch_named("a")
    # 2.5 s until it is decompressed, which takes 0.5 s
    tally.steps.extend(decompressed(branch, 0, 100, 12.5, 13.0))
    tally.steps.extend((me, 1.25, 10.5, 0.0, branch, None, 400, 2.0, 13.25))
    # 2 s more, of which 1 s is decompression
    tally.steps.extend(decompressed(branch, 1, 50, 14.25, 15.25))
    tally.steps.extend((me, 2.0, 13.25, 0.0, branch, None, 200, 3.75, 16.0))
    tally.steps.extend(decompressed(branch, 1, 50, 19.5, 20.0))
    tally.steps.extend((me, 4.0, 19.0, 0.0, branch, None, 200, 4.5, 20.0))
    waited, decompress, interpret = tally.seconds()
    assert waited == (12.5 - 10.5) + (14.25 - 13.25) + (19.5 - 19.0) == 3.5
    assert decompress == 0.5 + 1.0 + 0.5
    assert interpret == 0.25 + 0.75
    columns = tally.branch_columns()
    names = ("branch", "bytes_payload", "bytes_again", "bytes_uncompressed", "baskets", "read_seconds")
    assert [list(columns[name]) for name in names] == [["a"], [150], [50], [800], [2], [3.5]]
    assert (tally.payload, tally.helper_cpu, tally.problems) == (200, 0.0, ())


def test_several_baskets_of_a_request_share_what_a_thread_had_of_its_core() -> None:
    """Of 8 s it had its core for 2 s, and was in the queue for it for another 2 s; 4 s passed before its steps."""
    tally, first, second = Tally(), branch_named("a"), branch_named("b")
    tally.steps.extend(decompressed(first, 0, 100, 3.0, 4.0))
    tally.steps.extend(decompressed(second, 0, 100, 5.0, 6.0))
    tally.steps.extend((get_ident(), 1.0, 0.0, 2.0, first, None, 400, 3.0, 8.0))
    assert tally.seconds() == (4.0, 1.0, 1.0)
    assert list(tally.branch_columns()["read_seconds"]) == [3.0, 1.0]


@pytest.mark.parametrize("another", [False, True])
def test_an_array_is_made_of_the_baskets_that_came_before(another: bool) -> None:
    """As the executors record it."""
    tally, branch = Tally(), branch_named("a")
    tally.in_line, here = True, tally.places[get_ident()]
    here.cpu, here.wall = time.thread_time(), time.perf_counter()
    decompression, interpretation = (metered_executor(tally, kind, None) for _, kind in EXECUTORS)
    basket = decompression.submit(lambda *_: basket_of(branch), chunk_of(100), branch, 0).result()
    if another:
        decompression.submit(lambda *_: None, chunk_of(10), branch, 1)
    assert interpretation.submit(lambda _: "array", basket).result() == "array"
    assert len(tally.steps) == (2 + another) * VALUES_OF_STEP
    assert here.begun == []
    tally.add_up(ended=True)
    columns = tally.branch_columns()
    assert [list(columns[name]) for name in ("bytes_payload", "bytes_uncompressed")] == [[100 + 10 * another], [400]]


def test_time_in_the_queue_for_a_core_is_no_waiting() -> None:
    tally, branch = Tally(), branch_named("a")
    tally.steps.extend(decompressed(branch, 0, 100, 13.0, 13.75))
    tally.steps.extend((get_ident(), 1.0, 10.0, 2.0, branch, None, 400, 2.0, 14.0))
    assert tally.seconds() == pytest.approx((1.0, 0.75 / 3, 0.25 / 3))


def test_what_never_came_was_waited_for() -> None:
    tally = Tally()
    here = tally.places[get_ident()]
    began = time.perf_counter()
    here.cpu, here.wall = time.thread_time(), began - 2.0
    here.begun += decompressed(branch_named("a"), 0, 100, here.wall + 2.0, here.wall + 2.0)
    waited, passed = tally.seconds()[0], time.perf_counter() - began
    assert 2.0 - passed <= waited <= 2.0 + passed
    assert tally.payload == 100


def test_steps_of_another_thread_are_those_of_a_helper() -> None:
    tally, branch = Tally(), branch_named("a")
    tally.steps.extend(decompressed(branch, 0, 100, 1.0, 1.5))
    tally.steps.extend((get_ident() + 1, 1.0, 1.0, 0.0, branch, None, 400, 1.75, 1.75))
    # its clock is not known where it ends
    tally.steps.extend(decompressed(branch, 1, 100, 3.0, 3.5))
    tally.steps.extend((get_ident() + 1, 1.75, 1.75, 0.0, None, None, 0, None, 3.5))
    assert tally.seconds() == (0.0, 0.0, 0.0)
    assert (tally.helper_cpu, tally.payload) == (0.75 + 0.5, 200)


def test_parts_of_a_cluster_are_payload_once() -> None:
    read = BranchRead()
    for cluster, part, size in ((0, "x", 10), (0, "y", 5), (0, "x", 10), (1, "x", 7)):
        read.add_part(cluster, part, size)
    assert (read.sizes, read.again) == ({0: 15, 1: 7}, 10)
