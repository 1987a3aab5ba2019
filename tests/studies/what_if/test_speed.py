"""Runs with cores of different speed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from made_runs import chunks_of_sizes as chunks

from roastcoffea.replay.changes import law_of
from roastcoffea.studies.prediction import at_one_speed


def test_runs_are_compared_at_one_speed() -> None:
    """The second run took 1.5 times the CPU time; the law is that of both at their mean speed, and all else stays."""
    one, other = chunks(*[100] * 20), chunks(*[300] * 20, fixed=0.75, each=0.015)
    other = other.with_parts(wait=np.ones(20))
    first, second = at_one_speed([[one], [other]])
    assert second.parts.wait.tolist() == [1.0] * 20
    law = law_of([first, second])
    assert not isinstance(law, str)
    mean = 1.5**0.5
    assert law["data"][0] == pytest.approx([0.5 * mean, 0.0], abs=1e-9)
    assert law["data"][4] == pytest.approx([0.0, 0.01 * mean], abs=1e-9)


@pytest.mark.parametrize(("slower", "scaled"), [(1.1, False), (1.5, True)])
def test_a_difference_that_chance_explains_is_no_speed(slower: float, scaled: bool) -> None:
    """With a scatter of 20 %, the error of the median of 20 chunks is 8 %, and each run is half of it from the mean."""
    scatter = np.tile([0.8, 1.2], 10)
    one, other = (
        chunks(*[100] * 20).with_parts(open_cpu=0.5 * times * scatter, cpu=times * np.ones(20))
        for times in (1.0, slower)
    )
    found = [run.parts.cpu[0] for run in at_one_speed([[one], [other]])]
    if scaled:
        assert 1.0 < found[0] < found[1] < slower
    else:
        assert found == [1.0, slower]


def test_runs_of_few_chunks_or_that_opened_other_files_are_not_compared() -> None:
    few, many, fast = chunks(100, 100), chunks(*[100] * 20), chunks(*[100] * 20, fixed=0.3)
    elsewhere, otherwise = replace(fast, datasets=("other",)), chunks(*[100] * 20, fixed=0.01)
    for runs in ([few, fast], [many, elsewhere], [many, otherwise]):
        for before, after in zip(runs, at_one_speed([[run] for run in runs]), strict=True):
            assert after.parts.cpu.tolist() == before.parts.cpu.tolist()
