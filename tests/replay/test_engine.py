"""The simulated cluster against schedules that are worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from made_runs import FREE, on, seconds, work

from roastcoffea.replay.cluster import Cluster, Load, Merging, replayed

COMPUTING = work((1, 0, 0), (2, 0, 0), (3, 0, 0), (4, 0, 0))
MIXED = work(*[(1, 1, 0)] * 4)


@pytest.mark.parametrize(
    ("load", "cluster", "expected"),
    [
        (COMPUTING, on(1), 10.0),
        (COMPUTING, on(2), 6.0),  # 1 + 3 and 2 + 4
        (COMPUTING, on(4), 4.0),
        (COMPUTING, on(9), 4.0),
        (COMPUTING, on(2, cores=1), 10.0),
        (COMPUTING, on(4, cores=2), 5.5),  # the first ends at 2, the second at 3.5, then two have a core each
        (MIXED, on(2), 4.0),
        (MIXED, on(2, cores=1), 6.0),  # both compute until 2 and wait until 3, twice
        (MIXED, on(4, cores=1), 5.0),
        (MIXED, on(1, threads=4), 2.0),
        (MIXED, Cluster(threads=1, hosts=[(1, 1.0), (1, 1.0)]), 4.0),
        (work((0, 1, 2), (0, 1, 2)), on(2, cores=1), 5.0),
        (work((1, 1, 1), (2, 0, 0)), on(2, cores=1), 4.0),  # shared until 2, the second alone until 3
    ],
)
def test_schedules_by_hand(load: Load, cluster: Cluster, expected: float) -> None:
    assert seconds(load, cluster) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("others", "expected"),
    [(0.0, 2.0), (1.0, 4.0), (2.0, 6.0)],
)
def test_jobs_of_others_take_their_share_of_the_cores(others: float, expected: float) -> None:
    """Two chunks of 2 s on two cores, or of 1 s on one of which others take as much as they would."""
    assert seconds(work((2, 0, 0)), on(1, cores=1, others=others)) == pytest.approx(2 * (1 + others))
    assert seconds(work((1, 0, 0), (1, 0, 0)), on(2, cores=1, others=2 * others)) == pytest.approx(expected)
    assert seconds(work((0, 1, 0)), on(1, cores=1, others=others)) == pytest.approx(1.0)


def test_how_long_computing_is_stretched() -> None:
    assert replayed(COMPUTING, on(2), FREE).stretch == pytest.approx(1.0)
    assert replayed(MIXED, on(2, cores=1), FREE).stretch == pytest.approx(2.0)


def test_a_worker_without_work_takes_what_another_has_not_begun() -> None:
    load = work((10, 0, 0), *[(1, 0, 0)] * 9)
    assert seconds(load, on(2)) == pytest.approx(10.0)


def test_merging_begins_when_all_inputs_are_there() -> None:
    merging = Merging(fan_in=2, cpu=0.5, wait=0.25, fetch=0.125)
    # both chunks end at 1; two results take 1 s of CPU and 0.5 s of waiting, after 0.125 s
    assert seconds(work(*[(1, 0, 0)] * 2), on(2), merging=merging) == pytest.approx(2.625)
    # four: two merges side by side, then one more
    assert seconds(work(*[(1, 0, 0)] * 4), on(4), merging=merging) == pytest.approx(1 + 2 * 1.625)


def random_load(chunks: int) -> Load:
    random = np.random.default_rng(3)
    return Load(before=random.random(chunks), wait=3 * random.random(chunks), after=random.gamma(4, 0.5, chunks))


def test_no_second_is_lost_or_won() -> None:
    """Wall time lies between what cores and threads allow, and that with one chunk more."""
    load, cluster = random_load(400), Cluster(threads=3, hosts=[(4, 5.0), (2, 2.0)])
    found = replayed(load, cluster, FREE)
    cpu = load.before + load.after
    longest = float((cpu + load.wait).max())
    at_least = max(cpu.sum() / 7, (cpu + load.wait).sum() / 18)
    assert at_least <= found.seconds <= 1.3 * at_least + longest
    # CPU time alone, on one core a thread: nothing is shared
    assert replayed(load, on(6, threads=3, cores=18), FREE).stretch == pytest.approx(1.0)
