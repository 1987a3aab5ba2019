"""Metrics and facts of sides that are written down by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from made_runs import observation, with_metric

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
    assert facts_of([side("A", one, two, one), side("B", other)]) == {"a": ("1 / 2", "1"), "b": ("-", "x")}


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
    assert (found.section, any(found.differs_at)) == (THREAD_TIME, differs)


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
    assert "over chunks within the runs), 1 run against 1 run: cannot tell whether repeats would agree; " in found.text
    assert found.text.endswith("pass at least 3 runs per side")


def test_a_run_without_the_metric_tells_nothing() -> None:
    lacking = replace(observation(), metrics={}, missing={WALL: "it has no stop"})
    found = speed([observation()], [lacking])
    assert found.word == CANNOT_TELL
    assert found.text == "cannot tell, because the wall time of by hand is unknown: it has no stop"
    assert found.judgement.reason == "it has no stop"
