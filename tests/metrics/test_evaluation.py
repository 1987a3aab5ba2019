"""The evaluator: what is computed, when, how often, and what is kept of it."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from handmade import handmade_run, run_without_tables

from roastcoffea import load
from roastcoffea.measurement import Measurement
from roastcoffea.metrics import CATALOGUE, evaluate
from roastcoffea.metrics.catalogue import (
    BYTES,
    RAW,
    RUN,
    Catalogue,
    Fact,
    Metric,
    NotMeasuredError,
    Sourced,
    metric,
)
from roastcoffea.metrics.evaluation import UNDER_PYTEST, Evaluator
from roastcoffea.report import tables as frames
from roastcoffea.report.summary import summary
from roastcoffea.sheets.markup import markdown
from roastcoffea.units import BYTE, STRUCTURE


@pytest.mark.parametrize("name", ["source", "unit", "missing", "tables"])
def test_what_is_known_of_metrics_can_be_pickled_and_copied(name: str) -> None:
    found = getattr(evaluate(handmade_run()), name)
    for other in (pickle.loads(pickle.dumps(found)), copy.deepcopy(found)):
        assert dict(other) == dict(found) != {}
        assert type(other) is type(found)
        assert other.get("wall_time") == found.get("wall_time") == found.get("elapsed_time_seconds")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each function of the catalogue was called since."""
    counted: Counter[str] = Counter()

    def counting(entry: Fact) -> Fact:
        def function(*arguments: Any) -> Any:
            counted[entry.name] += 1
            return entry.function(*arguments)

        return dataclasses.replace(entry, function=function)

    for name, entry in CATALOGUE.entries.items():
        monkeypatch.setitem(CATALOGUE.entries, name, counting(entry))
    return counted


def needs(name: str) -> set[str]:
    """An entry of the catalogue, and all that it is computed from."""
    found = {name}
    for need in CATALOGUE.entries[name].inputs:
        found |= set() if need == RUN else needs(need)
    return found


@pytest.mark.parametrize("name", [entry.name for entry in CATALOGUE.metrics()])
def test_a_metric_is_computed_with_what_it_needs_and_nothing_else(name: str, calls: Counter[str]) -> None:
    metrics = evaluate(handmade_run())
    assert not calls
    metrics.get(name)
    called = calls.copy()
    metrics.get(name)
    assert calls == called
    assert set(called) <= needs(name)
    if all(metrics.evaluator.reason(need) is None for need in needs(name)):
        assert set(called) == needs(name)


def test_why_one_metric_is_missing_takes_no_other(calls: Counter[str]) -> None:
    metrics = evaluate(handmade_run(chunks=None, absent={"chunks": "the hook was off"}))
    assert metrics.missing["num_chunks"] == "the hook was off"
    assert set(calls) == {"chunks"}


def test_all_of_it_computes_each_metric_once_and_builds_no_raw_structure(calls: Counter[str]) -> None:
    metrics = evaluate(handmade_run())
    names = list(metrics)
    assert len(metrics) == len(names)
    assert metrics.problems == []
    of_metrics = {entry.name for entry in CATALOGUE.metrics()}
    raw = {entry.name for entry in CATALOGUE.metrics() if entry.group == RAW}
    assert not raw & set(calls)
    assert {name for name, times in calls.items() if times > 1} == set()
    assert of_metrics - raw - set(metrics.missing) <= set(calls)
    metrics.built()
    assert {calls[name] for name in raw} == {1}


class Bulky:
    """A fact that is large."""


def small_catalogue(calls: list[str]) -> Catalogue:
    """A bulky fact, a table of it, metrics of it and a raw structure."""
    catalogue = Catalogue()

    def bulky(run: str) -> Bulky:
        calls.append("bulky")
        return Bulky()

    def overview(bulky: Bulky) -> str:
        return "a table"

    def aside(bulky: Bulky) -> Bulky:
        return bulky

    catalogue.add(Fact.of(bulky))
    catalogue.add(Fact.of(aside))
    catalogue.add(Fact.of(overview, kept=True))

    @metric(BYTE, group=BYTES, source="somewhere", catalogue=catalogue)
    def first(bulky: Bulky) -> Sourced:
        """One."""
        return Sourced(1, "elsewhere")

    @metric(BYTE, group=BYTES, source="somewhere", catalogue=catalogue)
    def nothing(run: str) -> int:
        """None of it."""
        return 0

    @metric(BYTE, group=BYTES, source="somewhere", catalogue=catalogue)
    def second(bulky: Bulky, first: int, nothing: int) -> float:
        """Two."""
        return first / nothing

    @metric(STRUCTURE, group=RAW, source="somewhere", catalogue=catalogue)
    def raw(bulky: Bulky) -> list[Bulky]:
        """All."""
        return [bulky]

    return catalogue


def test_an_input_that_is_given_is_not_computed_and_one_from_below_is_asked_there() -> None:
    calls: list[str] = []
    below = Evaluator(small_catalogue(calls), {RUN: "a run"})
    catalogue = Catalogue(below=below.catalogue)

    def other(run: str) -> str:
        raise NotMeasuredError("there is no other")

    def pair(first: int, other: str | None = None) -> tuple[int, str | None]:
        return first, other

    catalogue.add(Fact.of(other, kept=True))
    catalogue.add(Fact.of(pair, kept=True))
    assert Evaluator(catalogue, {}, below).value("pair") == (1, None)
    assert Evaluator(catalogue, {"other": "given"}, below).value("pair") == (1, "given")
    with pytest.raises(ValueError, match="first is already in the catalogue"):
        catalogue.add(Fact.of(lambda run: run, name="first"))


def test_an_error_of_ours_is_a_reason_and_a_problem_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(UNDER_PYTEST)
    catalogue = Catalogue()
    catalogue.add(Fact.of(lambda run: {}[run], name="broken"))
    catalogue.add(Fact.of(lambda broken: broken, name="user", kept=True))
    evaluator = Evaluator(catalogue, {RUN: "a run"})
    for _ in range(2):
        with pytest.raises(NotMeasuredError, match="KeyError: 'a run'"):
            evaluator.value("user")
    assert evaluator.problems == ["broken could not be computed: KeyError: 'a run'"]


def test_under_pytest_it_comes_out_and_is_not_taken_for_computed() -> None:
    catalogue = Catalogue()
    catalogue.add(Fact.of(lambda run: {}[run], name="broken"))
    evaluator = Evaluator(catalogue, {RUN: "a run"})
    for _ in range(2):
        with pytest.raises(KeyError):
            evaluator.reason("broken")


@pytest.mark.parametrize("again", [copy.deepcopy, lambda metrics: pickle.loads(pickle.dumps(metrics))])
def test_metrics_travel_as_the_run_that_they_are_of(again: Any) -> None:
    metrics = evaluate(run_without_tables(reported={"wall_time": 3.5}, reported_by="it"))
    assert metrics["wall_time"] == again(metrics)["wall_time"] == 3.5


REASON = "RuntimeError: planted"


def raising(*_: Any) -> Any:
    raise RuntimeError("planted")


def using(name: str) -> set[str]:
    """This entry, and all that use it, or can."""
    found = {name}
    for entry in CATALOGUE.entries.values():
        if found.intersection(entry.inputs):
            found.add(entry.name)
    return found


@pytest.fixture(scope="module")
def complete() -> tuple[set[str], set[str]]:
    """Names of the metrics and tables of a run of which nothing fails."""
    measurement = Measurement(handmade_run())
    return set(measurement.metrics.built()), set(measurement.tables)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*CATALOGUE.entries][::50])
def test_one_that_raises_takes_nothing_else_away(
    name: str, complete: tuple[set[str], set[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = CATALOGUE.entries[name]
    metrics, tables = complete
    called: list[str] = []

    def recorded_and_raising(*_: Any) -> Any:
        called.append(name)
        raise RuntimeError("planted")

    monkeypatch.delenv(UNDER_PYTEST)
    monkeypatch.setitem(CATALOGUE.entries, name, dataclasses.replace(entry, function=recorded_and_raising))
    measurement = Measurement(handmade_run())
    values = measurement.metrics.built()
    assert [metric for metric in metrics if metric not in values and metric not in using(name)] == []
    reported = [problem for problem in measurement.problems if REASON in problem]
    assert len(reported) == len(called) == (name in called)
    assert all(problem.startswith(f"{name} could not be computed: ") for problem in reported)
    if isinstance(entry, Metric) and called:
        assert REASON in measurement.metrics.missing[name]
        assert name not in values
    assert ("planted" in markdown(summary(measurement.run, measurement.metrics))) == bool(called)
    if not isinstance(entry, Metric):  # what others are made of
        assert load(measurement.save(tmp_path, "run")).run.id == measurement.run.id
        assert set(measurement.tables) == tables


@pytest.mark.parametrize("table", ["failed", "failed_files", "missing", "branches", "sections"])
def test_a_table_that_cannot_be_made_is_empty_with_the_reason(table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(UNDER_PYTEST)
    monkeypatch.setitem(frames.TABLES, table, frames.TABLES[table]._replace(make=raising))
    measurement = Measurement(handmade_run())
    frame = getattr(measurement, table)
    assert (len(frame), frame.attrs["absent"]) == (0, REASON)
    assert f"{table} could not be computed: {REASON}" in measurement.problems


def test_a_measurement_is_shown_in_a_line_without_computing_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roastcoffea.measurement.evaluate", raising)
    assert repr(Measurement(handmade_run())).startswith("<Measurement ")


def test_once_all_is_computed_tables_of_no_user_are_let_go() -> None:
    metrics = evaluate(handmade_run())
    table = metrics.evaluator.value("counted_chunks")
    assert metrics.problems == []
    again = metrics.evaluator.value("counted_chunks")
    assert again is not table
    assert again.equals(table)
