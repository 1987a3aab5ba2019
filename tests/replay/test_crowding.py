"""More CPU time on crowded cores, from chunks that were made with a known increase."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from made_runs import chunks_of

from roastcoffea.replay.changes import Chunks
from roastcoffea.replay.fitted_storage import RUN_SCATTER, UNUSUAL, crowding_of, doublings_of


def increase_of(*runs: Chunks) -> float:
    return crowding_of([[(chunks, doublings_of(chunks.parts, np.zeros(len(chunks), np.bool_)))] for chunks in runs])


def crowded(increase: float, most: float, noise: float = 0.02, chunks: int = 200) -> Chunks:
    """Chunks with up to so many doublings of the jobs on their core, each of which takes more CPU time."""
    random = np.random.default_rng(1)
    doublings = most * random.random(chunks)
    cpu = (1 + increase * doublings) * np.exp(noise * random.standard_normal(chunks))
    return chunks_of(np.zeros(chunks), cpu).with_parts(contention=cpu * (2**doublings - 1))


def test_the_increase_is_found() -> None:
    assert increase_of(crowded(0.25, 2.0)) == pytest.approx(0.25, abs=0.02)
    assert increase_of(crowded(0.05, 2.0)) == pytest.approx(0.05, abs=0.01)


def test_none_is_assumed_where_the_run_shows_none() -> None:
    assert increase_of(crowded(0.25, 0.2)) == 0.0  # cores were hardly shared
    assert increase_of(crowded(-0.1, 2.0)) == 0.0
    assert increase_of(crowded(0.25, 2.0, chunks=10)) == 0.0
    assert increase_of(chunks_of(np.zeros(30), np.zeros(30))) == 0.0


def test_a_few_odd_chunks_do_not_show_any() -> None:
    """First chunks of processes, which import and compile while all others do as well."""
    cpu, doublings = np.ones(60), np.linspace(0.0, 1.0, 60)
    cpu[-4:] = 6.0
    assert increase_of(chunks_of(0 * cpu, cpu).with_parts(contention=cpu * (2**doublings - 1))) == 0.0


def test_runs_on_more_and_on_fewer_workers_show_it_together() -> None:
    """Neither varies enough by itself: cores of their own, and two doublings."""
    alone, shared = crowded(0.25, 0.1), crowded(0.25, 0.1)
    parts = shared.parts
    shared = shared.with_parts(cpu=parts.cpu * 1.5, contention=3 * parts.cpu * 1.5)
    assert increase_of(alone) == increase_of(shared) == 0.0
    assert increase_of(alone, shared) == pytest.approx(0.25, abs=0.03)


@pytest.mark.parametrize(
    ("slower", "slope", "residuals"),
    [
        ((1.0, 1.1, 1.05, 1.2), 0.075, (0.05, 0.05, 0.075, 0.075)),
        ((1.0, 1.1, 1.3, 1.35), 0.275, (0.05, 0.05, 0.025, 0.025)),
    ],
)
def test_what_runs_differ_by_anyway_is_left_out_of_the_increase(
    slower: tuple[float, ...], slope: float, residuals: tuple[float, ...]
) -> None:
    """Two runs with cores of their own and two with a doubling: a line through them, by hand."""
    runs = []
    for cpu, doublings in zip(slower, (0.0, 0.0, 1.0, 1.0), strict=True):
        made = crowded(0.0, 0.1)
        seconds = made.parts.cpu * cpu
        runs.append(made.with_parts(cpu=seconds, contention=seconds * (2**doublings - 1)))
    alone = 1.05
    error = (sum(each**2 for each in residuals) / 2) ** 0.5  # two degrees of freedom, and a sum of squares of 1
    uncertain = (error / alone) ** 2 + RUN_SCATTER**2
    expected = slope / alone * UNUSUAL**2 / (UNUSUAL**2 + uncertain)
    assert increase_of(*runs) == pytest.approx(expected, rel=1e-3)
    assert increase_of(*runs) < slope / alone


def test_runs_that_took_as_long_on_crowded_cores_show_no_increase() -> None:
    alone, made = crowded(0.0, 0.0, noise=0.0), crowded(0.0, 0.1, noise=0.0)
    shared = made.with_parts(contention=made.parts.cpu)
    assert increase_of(alone, alone, shared) == 0.0
    faster = shared.with_parts(cpu=shared.parts.cpu * 0.9)
    assert increase_of(alone, alone, faster) == 0.0


def test_stages_of_one_run_are_not_runs() -> None:
    """Three datasets on more and more crowded cores: medians of each are alike by definition, its chunks are not."""
    stages = []
    for number, most in enumerate((0.5, 1.0, 2.0)):
        chunks = replace(crowded(0.25, most), datasets=(f"data {number}",))
        stages.append((chunks, doublings_of(chunks.parts, np.zeros(len(chunks), np.bool_))))
    assert 0.1 < crowding_of([stages]) < 0.25


def test_early_tasks_tell_nothing_and_others_are_taken_back() -> None:
    chunks = crowded(0.25, 2.0, noise=0.0)
    doublings = doublings_of(chunks.parts, np.arange(200) < 3)
    assert np.isnan(doublings[:3]).all()
    alone = chunks.with_cpu(1 / (1 + 0.25 * np.nan_to_num(doublings)))
    assert alone.parts.cpu[3:].tolist() == pytest.approx([1.0] * 197)
