"""More CPU time on crowded cores, from chunks that were made with a known increase."""

from __future__ import annotations

import numpy as np
import pytest
from schedules import chunks_of

from roastcoffea.replay.crowding import crowding_of
from roastcoffea.replay.parts import Chunks


def crowded(increase: float, most: float, noise: float = 0.02, chunks: int = 200) -> Chunks:
    """Chunks with up to so many doublings of the jobs on their core, each of which takes more CPU time."""
    random = np.random.default_rng(1)
    doublings = most * random.random(chunks)
    cpu = (1 + increase * doublings) * np.exp(noise * random.standard_normal(chunks))
    return chunks_of(np.zeros(chunks), cpu).with_parts(contention=cpu * (2**doublings - 1))


def test_the_increase_is_found() -> None:
    assert crowding_of(crowded(0.25, 2.0)) == pytest.approx(0.25, abs=0.02)
    assert crowding_of(crowded(0.05, 2.0)) == pytest.approx(0.05, abs=0.01)


def test_none_is_assumed_where_the_run_shows_none() -> None:
    assert crowding_of(crowded(0.25, 0.2)) == 0.0  # cores were hardly shared
    assert crowding_of(crowded(-0.1, 2.0)) == 0.0
    assert crowding_of(crowded(0.25, 2.0, chunks=10)) == 0.0
    assert crowding_of(chunks_of(np.zeros(30), np.zeros(30))) == 0.0
