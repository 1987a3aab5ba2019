"""Changes of chunks and costs, by hand."""

from __future__ import annotations

import numpy as np
import pytest
from made_runs import chunks_of_sizes as chunks
from made_runs import parts

from roastcoffea.replay.changes import AS_RECORDED, Chunks, Parts, bracket, by_law, cut, law_of, scenarios
from roastcoffea.replay.cluster import Costs, Load, Merging

ONE, ROWS = np.ones(3), np.arange(3)
CHUNKS = Chunks(
    datasets=("data",),
    dataset=0 * ROWS,
    file=np.array([0, 0, 1]),
    start=100 * ROWS,
    stop=100 * (ROWS + 1),
    parts=parts(open_cpu=ONE, open_wait=2 * ONE, read=4 * ONE, wait=8 * ONE, cpu=16 * ONE, overhead=32 * ONE),
    factor=np.array([1.0, 0.5, 1.0]),
    row=ROWS,
)
WHOLE = 63.0


@pytest.mark.parametrize(
    ("name", "seconds"),
    [
        (AS_RECORDED, [WHOLE, WHOLE, WHOLE]),
        ("no metadata re-reads", [WHOLE, WHOLE - 3, WHOLE]),  # the second chunk is of the first one's file
        ("no stragglers", [WHOLE, (WHOLE - 32) / 2 + 32, WHOLE]),
        ("storage 4 x faster", [WHOLE - 4.5] * 3),
        ("no Dask overhead", [WHOLE - 32] * 3),
    ],
)
def test_what_a_change_makes_of_chunks(name: str, seconds: list[float]) -> None:
    assert scenarios(4.0)[name].chunks(CHUNKS).parts.total.tolist() == pytest.approx(seconds)


def test_what_changes_make_of_all_else() -> None:
    free, faster = scenarios(4.0)["no Dask overhead"], scenarios(4.0)["storage 4 x faster"]
    costs = Costs(gap=1.0, latency=1.0, scheduler=1.0, cold_before=1.0, cold_wait=1.0)
    assert free.costs(costs) == Costs(cold_before=1.0, cold_wait=1.0, steal=0.0)
    assert free.merging(Merging(fan_in=2, cpu=1.0, wait=1.0, fetch=1.0)).fetch == 0.0
    opening = Load(before=0 * ONE, wait=4 * ONE, after=ONE)
    assert faster.preprocessing(opening).wait.tolist() == [1.0] * 3
    assert free.preprocessing(opening) is opening


def test_files_are_cut_as_coffea_does() -> None:
    pieces = cut(chunks(100, 100, 100, 100), 150)
    assert (pieces.start.tolist(), pieces.stop.tolist(), pieces.row.tolist()) == (
        [0, 134, 268],
        [134, 268, 400],
        [0, 1, 2],
    )
    assert cut(chunks(100, 100), 1000).stop.tolist() == [200]
    assert cut(chunks(3), 1).stop.tolist() == [1, 2, 3]


def test_the_law_of_chunks_that_vary() -> None:
    varied = chunks(100, 300, 100, 300)
    law = law_of([varied])
    assert not isinstance(law, str)
    assert law["data"][0] == pytest.approx([0.5, 0.0], abs=1e-9)
    assert law["data"][4] == pytest.approx([0.0, 0.01], abs=1e-9)
    found = by_law(varied, law, 50)
    assert len(found) == 16
    assert found.parts.total.sum() == pytest.approx(16 * 0.5 + 8.0)
    assert found.factor.tolist() == [1.0] * 16


def test_larger_chunks_scatter_as_all_recorded_ones_do_and_not_as_the_first() -> None:
    varied = chunks(*[100, 300] * 20)
    law = law_of([varied])
    assert not isinstance(law, str)
    late = np.where(np.arange(40) < 20, 1.0, np.tile([0.5, 1.5], 20))
    found = by_law(varied.with_parts(cpu=late * varied.parts.cpu), law, 800)
    assert len(found) == 10
    assert found.parts.total.std() > 0


def test_runs_of_two_sizes_make_a_law() -> None:
    assert not isinstance(law_of([chunks(100, 100), chunks(300, 300)]), str)


def test_equal_chunks_have_a_bracket() -> None:
    equal = chunks(100, 100, 100, 100)
    law = law_of([equal])
    assert isinstance(law, str)
    assert "have about 100 events each" in law
    found = bracket(equal, 200)
    # two chunks that take as long as each of four did, or that take twice the time but for opening
    assert found.fixed.parts.total.tolist() == pytest.approx([1.5, 1.5])
    assert found.opening.parts.total.tolist() == pytest.approx([2.5, 2.5])


def test_few_chunks_make_no_law() -> None:
    law = law_of([chunks(100, 300, 100)])
    assert isinstance(law, str)
    assert "data has 3 chunks" in law


def of_datasets(*sizes: list[int], each: float = 0.01) -> Chunks:
    """Chunks of datasets a, b, ...: a file each, 0.5 s whatever their size, and so long for an event."""
    parts_of = [chunks(*one, each=each) for one in sizes]
    names = tuple("abc"[: len(sizes)])
    joined = [np.concatenate([getattr(one, name) for one in parts_of]) for name in ("start", "stop", "factor")]
    number = np.repeat(np.arange(len(sizes)), [len(one) for one in sizes])
    parts = Parts(*(np.concatenate(part) for part in zip(*(one.parts for one in parts_of), strict=True)))
    return Chunks(
        datasets=names,
        dataset=number,
        file=number,
        start=joined[0],
        stop=joined[1],
        parts=parts,
        factor=joined[2],
        row=np.arange(len(number)),
    )


def test_a_dataset_of_few_or_equal_chunks_shares_the_law_of_the_others() -> None:
    law = law_of([of_datasets([100, 300] * 40, [30, 30], [50] * 5)])
    assert not isinstance(law, str)
    for name in "abc":
        assert law[name][0] == pytest.approx([0.5, 0.0], abs=1e-9)
        assert law[name][4] == pytest.approx([0.0, 0.01], abs=1e-9)


def test_a_third_of_the_chunks_without_a_law_is_too_much() -> None:
    assert "b has 2 chunks" in str(law_of([of_datasets([100, 300] * 2, [30, 30])]))


def test_few_chunks_make_no_law_for_many_that_are_equal() -> None:
    law = law_of([of_datasets([100, 300] * 4, [100] * 20)])
    assert "chunks of b have about 100 events each" in str(law)
