"""Chunks, merges and clusters as a simulation takes them."""

from __future__ import annotations

import numpy as np
import pytest

from roastcoffea.replay import cluster as clusters
from roastcoffea.replay.cluster import Cluster, Load, Merging, Replayed, replayed, tree
from roastcoffea.replay.engine import Costs


@pytest.mark.parametrize(
    ("chunks", "fan_in", "parents", "inputs"),
    [
        (1, 2, [-1], []),
        (3, 0, [-1, -1, -1], []),
        (3, 4, [3, 3, 3, -1], [3]),
        (5, 2, [5, 5, 6, 6, 7, 8, 8, 9, 10, 10, -1], [2, 2, 1, 2, 1, 2]),
    ],
)
def test_tree_of_merges(chunks: int, fan_in: int, parents: list[int], inputs: list[int]) -> None:
    found = tree(chunks, fan_in)
    assert [part.tolist() for part in found] == [parents, inputs]


def test_nothing_to_do_takes_no_time() -> None:
    none = np.zeros(0)
    found = replayed(Load(before=none, wait=none, after=none), Cluster(threads=1, hosts=[(1, 1.0)]), Costs())
    assert found == Replayed(seconds=0.0, stretch=1.0, scheduler_use=0.0)


def test_workers_of_all_hosts_take_part() -> None:
    waiting = Load(before=np.zeros(8), wait=np.ones(8), after=np.zeros(8))
    assert replayed(waiting, Cluster(threads=2, hosts=[(3, 4.0), (1, 2.0)]), Costs()).seconds == pytest.approx(1.0)
    assert replayed(waiting, Cluster(threads=2, hosts=[(3, 4.0)]), Costs()).seconds == pytest.approx(2.0)


def test_few_chunks_are_handed_out_at_once() -> None:
    """With as many as two for each thread a worker that is slow keeps its own, unless another steals them."""
    ones = np.ones(4)
    load = Load(before=np.array([9.0, 1.0, 1.0, 1.0]), wait=0 * ones, after=0 * ones)
    assert replayed(load, Cluster(threads=1, hosts=[(2, 2.0)]), Costs(steal=0.5)).seconds == pytest.approx(9.0)
    assert replayed(load, Cluster(threads=1, hosts=[(2, 2.0)]), Costs(steal=20.0)).seconds == pytest.approx(23.0)


@pytest.mark.slow
def test_compiled_it_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(3)
    load = Load(before=random.random(2000), wait=3 * random.random(2000), after=random.gamma(4, 0.5, 2000))
    cluster = Cluster(threads=3, hosts=[(4, 5.0), (2, 2.0)], scheduler_here=True)
    costs = Costs(gap=0.01, latency=0.02, scheduler=0.001, own=0.05, cold_before=2, cold_wait=1.0, cold_after=1.0)
    costs = costs._replace(idle=0.05, crowded=0.1)
    merging = Merging(fan_in=20, cpu=0.01, wait=0.01, fetch=0.02)

    def run() -> list[Replayed]:
        return [replayed(load, cluster, costs, merging, serial=serial) for serial in (False, True)]

    plain = run()
    monkeypatch.setattr(clusters, "MANY", 1)
    for one, other in zip(run(), plain, strict=True):
        assert (one.seconds, one.stretch, one.scheduler_use) == pytest.approx(
            (other.seconds, other.stretch, other.scheduler_use), rel=1e-9
        )
