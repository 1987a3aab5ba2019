"""Storage that readers share, against schedules that are worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from made_runs import FREE, on, reading, seconds

from roastcoffea.replay.cluster import Cluster, Load, replayed

READERS = reading(*[(0, 2, 0, 0)] * 4)


SCHEDULES = [
    (READERS, on(4), 2.0),
    (READERS, on(4, streams=4), 2.0),
    (READERS, on(4, streams=2), 4.0),  # half the rate each
    (READERS, on(2, streams=2), 4.0),  # two after two
    (READERS, on(4, streams=1.5), 8 / 1.5),
    (READERS, on(1, streams=1), 8.0),
    (READERS, on(2, threads=2, streams=1), 8.0),
    # both read at half the rate until 2, then the second alone until 4
    (reading((0, 1, 0, 0), (0, 3, 0, 0)), on(2, streams=1), 4.0),
    # the first reads alone until 1, both until 3, then the second alone until 4, and waits until 5
    (reading((0, 2, 0, 0), (1, 2, 1, 0)), on(2, streams=1), 5.0),
    # computing is on the cores, reading in storage: both compute until 2, and read until 4
    (reading((1, 1, 0, 0), (1, 1, 0, 0)), on(2, cores=1, streams=1), 4.0),
    # three streams share two: until 1.5, then two have their full rate for 1 s more
    (reading((0, 1, 0, 0), (0, 2, 0, 0), (0, 2, 0, 0)), on(3, streams=2), 2.5),
]
"""Loads on clusters, and the seconds that they take."""


@pytest.mark.parametrize(("load", "cluster", "expected"), SCHEDULES)
def test_storage_is_shared_by_its_readers(load: Load, cluster: Cluster, expected: float) -> None:
    assert seconds(load, cluster) == pytest.approx(expected)


def test_many_readers_end_in_the_order_of_their_amounts() -> None:
    """One stream: the last ends when all has been served, and the time of reading is the sum of all ends."""
    amounts = np.random.default_rng(1).random(50)
    load = reading(*[(0, amount, 0, 0) for amount in amounts])
    found = replayed(load, on(50, streams=1), FREE)
    assert found.seconds == pytest.approx(amounts.sum())
    least = np.sort(amounts)
    ends = np.cumsum(np.diff(least, prepend=0.0) * np.arange(50, 0, -1))
    assert found.busy == pytest.approx(ends.sum())
