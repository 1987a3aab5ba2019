"""Metrics and facts of sides that are written down by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from observing import observation, with_metric

from roastcoffea.studies.compare.observations import Observation
from roastcoffea.studies.compare.side_by_side import BYTE_LEDGER, METRICS, THREAD_TIME, Row, facts_of, rows_of
from roastcoffea.studies.compare.sides import Side


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
