"""The simulation compiled, against the same uncompiled."""

from __future__ import annotations

import numpy as np
import pytest

from roastcoffea.replay import cluster as clusters
from roastcoffea.replay.cluster import Cluster, Load, Merging, Replayed, replayed
from roastcoffea.replay.inputs import Costs


@pytest.mark.slow
def test_compiled_it_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(3)
    load = Load(before=random.random(2000), wait=3 * random.random(2000), after=random.gamma(4, 0.5, 2000))
    cluster = Cluster(threads=3, hosts=[(4, 5.0), (2, 2.0)], scheduler_here=True)
    costs = Costs(gap=0.01, latency=0.02, scheduler=0.001, own=0.05, cold_cpu=2, cold_wait=1.0)
    merging = Merging(fan_in=20, cpu=0.01, wait=0.01, fetch=0.02)

    def run() -> list[Replayed]:
        return [replayed(load, cluster, costs, merging, serial=serial) for serial in (False, True)]

    plain = run()
    monkeypatch.setattr(clusters, "MANY", 1)
    for one, other in zip(run(), plain, strict=True):
        assert (one.seconds, one.stretch, one.scheduler_use) == pytest.approx(
            (other.seconds, other.stretch, other.scheduler_use), rel=1e-9
        )
