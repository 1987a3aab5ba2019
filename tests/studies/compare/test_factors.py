"""Factors of thread time, and their shares in a difference."""

from __future__ import annotations

import random
from math import prod

import pytest

from roastcoffea.metrics import phases
from roastcoffea.studies.compare.explanation import (
    CHUNK_SIZE,
    CHUNKS,
    DRIVERS,
    EVENTS,
    NODES,
    THREADS,
    Factor,
    Leaf,
    Volumes,
    shapley,
    shares_of,
)

SAME = (Volumes(1000.0, 500.0, 10.0, 4.0),) * 2


def test_two_factors_share_the_difference_of_their_product() -> None:
    shares = shapley([Factor("volume", 2.0, 3.0), Factor("cost", 5.0, 7.0)])
    assert shares == pytest.approx([6.0, 5.0])  # (3 - 2) x (5 + 7) / 2, and (7 - 5) x (2 + 3) / 2


def test_shares_sum_to_the_difference_of_any_product() -> None:
    drawn = random.Random(1)
    for number in (1, 2, 3, 4, 5):
        factors = [Factor(str(place), drawn.uniform(0, 3), drawn.uniform(0, 3)) for place in range(number)]
        difference = prod(factor.after for factor in factors) - prod(factor.before for factor in factors)
        assert sum(shapley(factors)) == pytest.approx(difference)


def shares(leaf: Leaf, volumes: tuple[Volumes, Volumes] = SAME, **shared: float) -> dict[str, tuple[float, float]]:
    """Thread seconds and wall seconds by cause."""
    found = shares_of(leaf, volumes, shared)
    return {share.factor.cause: (share.thread_seconds, share.wall_seconds) for share in found if share.wall_seconds}


def test_a_cost_that_changed_is_its_class() -> None:
    assert shares(Leaf("compute", EVENTS, 4.0, 8.0)) == {"compute": pytest.approx((4.0, 1.0))}


def test_chunks_are_events_by_their_size() -> None:
    smaller = (Volumes(1000.0, None, 10.0, 4.0), Volumes(1000.0, None, 20.0, 4.0))
    assert smaller[1].chunk_size == 50.0
    assert shares(Leaf("open", CHUNKS, 4.0, 8.0), smaller) == {CHUNK_SIZE: pytest.approx((4.0, 1.0))}


def test_idling_on_more_threads_takes_no_more_wall_time() -> None:
    more = (Volumes(1000.0, None, 10.0, 4.0), Volumes(1000.0, None, 10.0, 8.0))
    found = shares_of(Leaf("idle: tail", THREADS, 4.0, 8.0), more, {})
    assert [(share.factor.cause, share.thread_seconds) for share in found if share.thread_seconds] == [(THREADS, 4.0)]
    assert sum(share.wall_seconds for share in found) == 0.0


def test_other_nodes_have_what_those_of_both_do_not() -> None:
    found = shares(Leaf("compute", EVENTS, 4.0, 6.0), compute=1.2)
    assert found.keys() == {"compute", NODES}
    assert sum(threads for threads, _ in found.values()) == pytest.approx(2.0)


def test_seconds_that_came_of_nothing_are_themselves() -> None:
    nothing = (Volumes(0.0, 0.0, 0.0, 4.0),) * 2
    assert shares(Leaf("compute", EVENTS, 0.0, 2.0), nothing) == {"compute": pytest.approx((2.0, 0.5))}
    assert shares(Leaf("failed", None, 1.0, 3.0)) == {"failed": pytest.approx((2.0, 0.5))}


def test_what_classes_grow_with_is_known_to_factors() -> None:
    assert set(DRIVERS) <= {one.name for one in phases.TIME_CLASSES}
    assert set(DRIVERS.values()) == {EVENTS, "bytes", CHUNKS, THREADS}
