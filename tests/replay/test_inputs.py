"""What each cost adds to schedules that are worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from made_runs import FREE, on, seconds, work

from roastcoffea.replay.cluster import Cluster, Costs, Load, replayed


def test_without_costs_there_is_only_what_chunks_take() -> None:
    assert Costs() == FREE._replace(steal=0.05)
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
    cold = Costs(steal=0.0, cold_before=3.0, cold_wait=0.5)
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
    here = Cluster(threads=1, hosts=[(1, 1.0)], scheduler_here=True)
    assert seconds(load, here, Costs(scheduler=0.5, steal=0.0)) == pytest.approx(60.0, abs=1)


def test_chunks_that_begin_together_read_while_others_compute() -> None:
    """Four chunks at a time on two cores, with storage for two: in turns, they are less in each other's way."""
    cluster = Cluster(threads=1, hosts=[(4, 2.0)], streams=2.0)

    def seconds_of(seed: int, turns: int) -> float:
        scattered = np.random.default_rng(seed).uniform(0.8, 1.2, (2, 64))
        load = Load(before=np.zeros(64), read=scattered[0], wait=np.zeros(64), after=scattered[1])
        return replayed(load, cluster, Costs(steal=0.0), turns=turns).seconds

    whole, parts = (sum(seconds_of(seed, turns) for seed in range(8)) for turns in (1, 4))
    # 32 s each if storage and cores never waited for each other
    assert 8 * 32 < parts < whole


def test_turns_take_nothing_by_themselves() -> None:
    load = replace(Load(before=np.ones(3), wait=np.ones(3), after=np.ones(3)), read=np.ones(3))
    cold = Costs(steal=0.0, cold_before=4.0, cold_wait=2.0)
    times = [replayed(load, Cluster(threads=1, hosts=[(1, 1.0)]), cold, turns=turns).seconds for turns in (1, 4)]
    assert times == pytest.approx([3 * 4 + 6.0] * 2)


def test_a_worker_without_work_waits_until_it_gets_another_s() -> None:
    # two chunks for each of two workers: the second chunk of the slow one is taken once the other has nothing left
    load = work((9, 0, 0), (1, 0, 0), (8, 0, 0), (1, 0, 0))
    for steal in (0.25, 3.0):
        assert seconds(load, on(2), Costs(steal=steal)) == pytest.approx(2 + steal + 8)
