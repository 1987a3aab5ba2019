"""What each cost adds to schedules that are worked out by hand."""

from __future__ import annotations

import pytest
from schedules import FREE, on, seconds, work

from roastcoffea.replay.cluster import Cluster, replayed
from roastcoffea.replay.inputs import STEAL_SECONDS, Costs


def test_without_costs_there_is_only_what_chunks_take() -> None:
    assert Costs() == FREE._replace(steal=STEAL_SECONDS)
    load = work((1, 2, 0.5), (0, 1, 1))
    assert seconds(load, on(1), Costs()) == pytest.approx(5.5)
    assert seconds(load, on(2), Costs()) == pytest.approx(3.5)


def test_jobs_that_share_a_core_take_more_time() -> None:
    crowded = Costs(steal=0.0, crowded=0.5)
    pair = work((1, 0, 0), (1, 0, 0))
    # two on a core: each half of it, of which a third is lost
    assert seconds(pair, on(2, cores=1), crowded) == pytest.approx(3.0)
    assert seconds(pair, on(2, cores=2), crowded) == seconds(pair, on(1), crowded) / 2 == pytest.approx(1.0)
    done = replayed(pair, on(2, cores=1), crowded)
    assert done.stretch == pytest.approx(2.0)


def test_each_process_pays_for_its_first_chunk() -> None:
    cold = Costs(steal=0.0, cold_cpu=3.0, cold_wait=0.5)
    assert seconds(work(*[(1, 0, 0)] * 4), on(1), cold) == pytest.approx(7.5)
    assert seconds(work(*[(1, 0, 0)] * 4), on(2), cold) == pytest.approx(5.5)
    assert seconds(work(*[(1, 0, 0)] * 4), on(4, cores=2), cold) == pytest.approx(8.5)


def test_gaps_and_latency() -> None:
    costs = Costs(gap=0.25, latency=0.5, steal=0.0)
    assert seconds(work(*[(1, 0, 0)] * 6), on(2), costs) == pytest.approx(0.5 + 3 + 2 * 0.25)


def test_a_busy_scheduler_limits_the_rate() -> None:
    costs = Costs(scheduler=0.5, steal=0.0)
    found = replayed(work(*[(0.1, 0, 0)] * 100), on(8), costs)
    assert found.seconds == pytest.approx(50.1)
    assert found.scheduler_use == pytest.approx(50 / 50.1)


def test_what_dask_computes_beside_takes_cores() -> None:
    load = work(*[(1, 0, 0)] * 40)
    # a task takes 4/3 s: 1 s of its own, and a quarter of that time for the event loop
    assert seconds(load, on(1, cores=1), Costs(own=0.25, steal=0.0)) == pytest.approx(53.3, abs=1)
    # an event loop that cannot keep up takes half of the core
    assert seconds(load, on(1, cores=1), Costs(own=2.0, steal=0.0)) == pytest.approx(79.0)
    assert seconds(load, on(1, cores=2), Costs(own=0.5, steal=0.0)) == pytest.approx(40.0, abs=0.6)
    here = Cluster(threads=1, hosts=[(1, 1.0)], scheduler_here=True)
    assert seconds(load, here, Costs(scheduler=0.5, steal=0.0)) == pytest.approx(60.0, abs=1)


def test_a_worker_without_work_waits_until_it_gets_another_s() -> None:
    # two chunks for each of two workers: the second chunk of the slow one is taken once the other has nothing left
    load = work((9, 0, 0), (1, 0, 0), (8, 0, 0), (1, 0, 0))
    for steal in (0.25, 3.0):
        assert seconds(load, on(2), Costs(steal=steal)) == pytest.approx(2 + steal + 8)
