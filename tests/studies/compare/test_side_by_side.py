"""Metrics and facts of sides that are written down by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from made_runs import observation, with_metric
from scipy.stats import beta

from roastcoffea.studies.observations import Observation, Side
from roastcoffea.studies.side_by_side import (
    BYTE_LEDGER,
    CANNOT_TELL,
    FASTER,
    METRICS,
    RATE,
    SLOWER,
    THREAD_TIME,
    WALL,
    Row,
    facts_of,
    rows_of,
    speed,
)


def side(letter: str, *runs: Observation) -> Side:
    return Side(letter=letter, label=letter, runs=runs)


def row(name: str, *sides: Side) -> Row:
    (found,) = [row for row in rows_of(sides, 0.95) if row.metric.name == name]
    return found


def test_facts_of_repeats_and_of_what_is_not_known() -> None:
    one, two, other = (replace(observation(), facts=facts) for facts in ({"a": "1"}, {"a": "2"}, {"a": "1", "b": "x"}))
    facts = {fact.name: (fact.values, fact.differs) for fact in facts_of([side("A", one, two, one), side("B", other)])}
    assert facts == {"a": (("1 / 2", "1"), True), "b": (("-", "x"), True)}


def test_changes_are_those_of_medians() -> None:
    old, new = (with_metric("event_rate_core_khz", *rates) for rates in ((8.0, 10.0, 12.0), (5.0, 5.0, 9.0)))
    found = row("event_rate_core_khz", side("A", *old), side("B", *new))
    assert (found.change(1), found.relative_change(1)) == (-5.0, -0.5)
    assert found.section == METRICS


def test_a_metric_that_one_side_lacks_differs() -> None:
    lacking, having = side("A", observation()), side("B", *with_metric("bytes_reread", 1.0))
    found = row("bytes_reread", lacking, having, lacking)
    assert (found.differs_at, found.section) == ((False, True, False), BYTE_LEDGER)
    assert (found.change(1), found.spreads[0], found.spreads[2]) == (None, None, None)


def test_beside_0_there_is_no_relative_change() -> None:
    found = row(
        "bytes_reread", side("A", *with_metric("bytes_reread", 0.0)), side("B", *with_metric("bytes_reread", 1.0))
    )
    assert (found.change(1), found.relative_change(1)) == (1.0, None)


@pytest.mark.parametrize(("after", "differs"), [(1.05, False), (3.0, True)])
def test_small_differences_of_a_ledger_are_not_shown(after: float, differs: bool) -> None:
    """A class of 1 s, of 31 s in all."""
    name, total = "time_idle_tail_seconds", "time_total_seconds"
    metrics = [{name: seconds, total: 31.0} for seconds in (1.0, after)]
    found = row(name, *(side("x", observation(metrics=each)) for each in metrics))
    assert (found.section, found.differs) == (THREAD_TIME, differs)


WALLS = (10.0, 10.1, 10.2, 9.9)


def taking(*seconds: float, events: float = 1000.0) -> list[Observation]:
    """Repeats with these wall times, on so many events."""
    runs = with_metric(WALL, *seconds)
    rates = (events / 1e3 / each for each in seconds)
    changes = ({"total_events": events, RATE: rate} for rate in rates)
    return [replace(run, metrics=run.metrics | change) for run, change in zip(runs, changes, strict=True)]


def test_repeats_that_take_longer_are_slower() -> None:
    found = speed(taking(*WALLS), taking(12.0, 12.1, 12.2, 11.9))
    assert (found.word, found.metric) == (SLOWER, WALL)
    assert found.text.startswith("slower: wall time +19.9 % (")
    assert found.text.endswith("), 4 runs against 4 runs")
    assert speed(taking(12.0, 12.1, 12.2, 11.9), taking(*WALLS)).word == FASTER


def test_with_other_events_the_rate_is_judged() -> None:
    found = speed(taking(*WALLS), taking(12.0, 12.1, 12.2, 11.9, events=2000.0))
    assert (found.word, found.metric) == (FASTER, RATE)
    assert "event rate +66.8 %" in found.text


def test_one_run_each_has_an_interval_over_chunks_and_no_verdict() -> None:
    drawn = np.random.default_rng(1)
    before, after = (replace(observation(), chunk_seconds=drawn.normal(1.0, 0.1, 50)) for _ in range(2))
    found = speed([before], [after])
    assert found.word == CANNOT_TELL
    assert found.judgement.low is not None
    assert "over chunks within the runs), 1 run against 1 run: cannot tell whether it changed; " in found.text
    assert found.text.endswith("at least 3 runs of each are needed")


def test_a_run_without_the_metric_tells_nothing() -> None:
    lacking = replace(observation(), metrics={}, missing={WALL: "it has no stop"})
    found = speed([observation()], [lacking])
    assert found.word == CANNOT_TELL
    assert found.text == "cannot tell, because the wall time of by hand is unknown: it has no stop"
    assert found.judgement.reason == "it has no stop"


@pytest.mark.parametrize("confidence", [0.8, 0.99])
def test_a_higher_confidence_takes_a_wider_interval(confidence: float) -> None:
    usual, other = (speed(taking(*WALLS), taking(*WALLS[::-1]), level).judgement for level in (0.95, confidence))
    width, of_other = ((found.high or 0.0) - (found.low or 0.0) for found in (usual, other))
    assert (of_other > width) == (confidence > 0.95)


SAME = (1.055, 1.046, 1.134, 1.064, 1.050, 1.085, 1.051, 1.050, 1.068, 1.041)
SAME += (1.052, 1.042, 1.078, 1.205, 1.028, 1.041, 1.075, 1.091, 1.065, 1.046)
"""Seconds that repeats of one run really took, on a machine that did other things as well."""

A_FIFTH_SLOWER = (1.269, 1.313, 1.270, 1.255, 1.257, 1.388, 1.281, 1.264, 1.258, 1.266)
"""The same with a sleep that makes them a fifth slower."""


@pytest.mark.slow
def test_a_fifth_slower_is_found_in_what_was_really_measured() -> None:
    same, slower = (with_metric(WALL, *seconds) for seconds in (SAME, A_FIFTH_SLOWER))
    drawn, draws = np.random.default_rng(1), 300
    words = [
        speed(*([side[place] for place in drawn.permutation(len(side))[:5]] for side in (same, slower))).word
        for _ in range(draws)
    ]
    assert words.count(SLOWER) >= 0.95 * draws


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_repeats_that_were_really_measured_are_seldom_told_apart(size: int) -> None:
    same, draws, drawn = with_metric(WALL, *SAME), 500, np.random.default_rng(size)
    told = 0
    for _ in range(draws):
        order = drawn.permutation(len(same))
        groups = [[same[place] for place in some] for some in (order[:size], order[size : 2 * size])]
        told += speed(*groups).word != CANNOT_TELL
    assert beta.ppf(0.95, told + 1, draws - told) <= 0.08
