"""Changes of chunks and costs, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from roastcoffea.replay.cluster import Load, Merging
from roastcoffea.replay.inputs import Costs
from roastcoffea.replay.stages import Chunks, Parts
from roastcoffea.studies.what_if.changes import AS_RECORDED, scenarios

ONE, ROWS = np.ones(3), np.arange(3)
CHUNKS = Chunks(
    datasets=("data",),
    dataset=0 * ROWS,
    file=np.array([0, 0, 1]),
    start=100 * ROWS,
    stop=100 * (ROWS + 1),
    parts=Parts(open_cpu=ONE, open_wait=2 * ONE, read=4 * ONE, wait=8 * ONE, cpu=16 * ONE, overhead=32 * ONE),
    factor=np.array([1.0, 0.5, 1.0]),
)
WHOLE = 63.0


@pytest.mark.parametrize(
    ("name", "seconds"),
    [
        (AS_RECORDED, [WHOLE, WHOLE, WHOLE]),
        ("no metadata re-reads", [WHOLE, WHOLE - 3, WHOLE]),  # the second chunk is of the first one's file
        ("no stragglers", [WHOLE, (WHOLE - 32) / 2 + 32, WHOLE]),
        ("storage 4 x faster", [WHOLE - 4.5] * 3),
        ("Dask's overhead gone", [WHOLE - 32] * 3),
    ],
)
def test_what_a_change_makes_of_chunks(name: str, seconds: list[float]) -> None:
    assert scenarios(4.0)[name].chunks(CHUNKS).parts.total.tolist() == pytest.approx(seconds)


def test_what_changes_make_of_all_else() -> None:
    free, faster = scenarios(4.0)["Dask's overhead gone"], scenarios(4.0)["storage 4 x faster"]
    costs = Costs(gap=1.0, latency=1.0, scheduler=1.0, own=1.0, cold_cpu=1.0, cold_wait=1.0, crowded=1.0)
    assert free.costs(costs) == Costs(cold_cpu=1.0, cold_wait=1.0, crowded=1.0, steal=0.0)
    assert free.merging(Merging(fan_in=2, cpu=1.0, wait=1.0, fetch=1.0)).fetch == 0.0
    opening = Load(before=0 * ONE, wait=4 * ONE, after=ONE)
    assert faster.preprocessing(opening).wait.tolist() == [1.0] * 3
    assert free.preprocessing(opening) is opening
