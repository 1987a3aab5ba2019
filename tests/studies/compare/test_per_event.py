"""What is clear of an event's costs, of runs that are written down by hand."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest
from made_runs import made_run, plan

from roastcoffea.measurement import Measurement
from roastcoffea.studies.observations import Observation, observed
from roastcoffea.studies.side_by_side import Change, clear_changes, speed


def runs(cpu: Sequence[float], wait: float = 0.0, scatter: float = 0.0) -> list[Observation]:
    """A run for each amount of CPU time that a chunk of 100 events takes; chunks scatter by so much."""
    return [_run(seconds, wait, scatter) for seconds in cpu]


@cache
def _run(seconds: float, wait: float, scatter: float) -> Observation:
    plans = [plan(seconds * factor, wait) for factor in np.linspace(1 - scatter, 1 + scatter, 32)]
    return observed(Measurement(made_run(plans, 2)))


def labels(found: Sequence[Change]) -> list[str]:
    return [change.label for change in found]


def test_one_run_each_is_clear_over_chunks() -> None:
    (change,) = clear_changes(runs([1.0], scatter=0.2), runs([1.44], scatter=0.2))
    assert (change.label, change.over) == ("CPU per event", "chunks")
    assert change.relative == pytest.approx(0.44)
    assert 0.3 < change.low < 0.44 < change.high < 0.6
    assert change.text.startswith("CPU per event +44 % (3")
    assert change.text.endswith(", over chunks)")


@pytest.mark.slow
def test_what_chunks_or_repeats_differ_as_much_is_not_clear() -> None:
    assert [*clear_changes(runs([1.0], scatter=0.2), runs([1.05], scatter=0.2))] == []
    assert [*clear_changes(runs([1.0]), runs([1.0]))] == []
    scattered = [1.0, 1.3, 0.8, 1.1, 0.9]
    assert [*clear_changes(runs(scattered), runs(scattered[::-1]))] == []


@pytest.mark.slow
def test_repeats_tell() -> None:
    (change,) = clear_changes(runs([1.0, 1.01, 0.99, 1.02, 0.98]), runs([1.5, 1.51, 1.49, 1.52, 1.48]))
    assert change.over == "runs"
    assert change.low < 0.5 < change.high
    assert "over chunks" not in change.text


@pytest.mark.slow
def test_the_headline_says_what_is_clear_where_wall_time_is_not() -> None:
    old, new = runs([1.0, 1.01, 0.99, 1.02, 0.98], 5.0), runs([1.5, 1.51, 1.49, 1.52, 1.48], 4.5)
    unknown = speed(old, new)
    assert unknown.word == "cannot tell"
    assert unknown.headline.startswith("CPU per event +50 % (4")
    assert unknown.headline.endswith("; wall time 0 % (within the scatter of repeats)")
    told = speed(runs([1.0] * 5), runs([1.5] * 5))
    assert told.headline == f"{told.text}; CPU per event +50 %"
    nothing = speed(runs([1.0]), runs([1.0]))
    assert nothing.headline == nothing.text
