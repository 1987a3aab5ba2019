"""Chunks, merges and clusters as a simulation takes them."""

from __future__ import annotations

import numpy as np
import pytest

from roastcoffea.replay.cluster import Cluster, Costs, Load, Merging, Replayed, replayed, tree


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


def test_a_sample_of_hosts_has_whole_ones() -> None:
    part = Cluster(threads=1, hosts=[*[(8, 8.0)] * 9, (1, 8.0)], streams=73.0).sample(9)
    assert (part.workers, part.streams) == (8, 8.0)


def test_few_chunks_are_handed_out_at_once() -> None:
    """With as many as two for each thread a worker that is slow keeps its own, unless another steals them."""
    ones = np.ones(4)
    load = Load(before=np.array([9.0, 1.0, 1.0, 1.0]), wait=0 * ones, after=0 * ones)
    assert replayed(load, Cluster(threads=1, hosts=[(2, 2.0)]), Costs(steal=0.5)).seconds == pytest.approx(9.0)
    assert replayed(load, Cluster(threads=1, hosts=[(2, 2.0)]), Costs(steal=20.0)).seconds == pytest.approx(23.0)


def test_work_outside_tasks_takes_cores_from_later_ones() -> None:
    """Half a second of it shares the core with the second chunk for one second, and is not waited for at the end."""
    ones = np.ones(2)
    load = Load(before=ones, wait=0 * ones, after=0 * ones)
    seconds = [replayed(load, Cluster(threads=1, hosts=[(1, cores)]), Costs(outside=0.5)).seconds for cores in (1, 2)]
    assert seconds == pytest.approx([2.5, 2.0])


def test_work_outside_tasks_goes_with_their_time_but_not_with_waits_for_the_interpreter() -> None:
    """A chunk of 2 s leaves 1 s of it, which slows down the next chunk on the only core."""
    twos, none = 2 * np.ones(2), np.zeros(2)
    one, locked = Cluster(threads=1, hosts=[(1, 1.0)]), Load(before=twos, wait=twos, after=none, lock=twos)
    assert replayed(Load(before=twos, wait=none, after=none), one, Costs(outside=0.5)).seconds == pytest.approx(5.0)
    assert locked.alone.tolist() == [2.0, 2.0]
    assert replayed(locked, one, Costs(outside=0.5)).seconds == pytest.approx(9.0)


@pytest.mark.parametrize(("workers", "seconds"), [(1, 4.0), (2, 2.0 / 0.9), (4, 2.0 / 0.8)])
def test_processes_use_cores_all_the_time(workers: int, seconds: float) -> None:
    """Four chunks of 1 s on two cores, of which each process takes a tenth of one: one worker has a core to spare."""
    load = Load(before=np.ones(4), wait=np.zeros(4), after=np.zeros(4))
    cluster = Cluster(threads=1, hosts=[(workers, 2.0)])
    assert replayed(load, cluster, Costs(process=0.1)).seconds == pytest.approx(seconds)


@pytest.mark.parametrize("streams", [float("inf"), 8.0])
def test_a_sample_takes_as_long_as_all(streams: float) -> None:
    random = np.random.default_rng(3)
    wait, read = 3 * random.random(12_000), random.random(12_000)
    load = Load(before=random.random(12_000), wait=wait, after=random.gamma(4, 0.5, 12_000), read=read)
    costs = Costs(gap=0.01, latency=0.02, scheduler=0.001, cold_before=2, cold_wait=1.0, crowded=0.1)
    merging = Merging(fan_in=20, cpu=0.01, wait=0.01, fetch=0.02)
    for hosts in ([(4, 5.0)] * 16, [(64, 80.0)]):
        cluster = Cluster(threads=2, hosts=hosts, streams=streams)
        found, whole = (replayed(load, cluster, costs, merging, turns=1, most=most) for most in (3000, 20_000))
        assert list(found) == pytest.approx(list(whole), rel=0.03)
