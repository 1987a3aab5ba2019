"""The evaluator: what is computed, when, how often, and what is kept of it."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from handmade import handmade_run, run_without_tables

from roastcoffea import load
from roastcoffea.measurement import Measurement
from roastcoffea.metrics import CATALOGUE, evaluate, evaluation
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


def test_nothing_is_computed_for_names_and_units(calls: Counter[str]) -> None:
    metrics = evaluate(handmade_run())
    assert str(metrics.unit["data_rate_gbps"]) == "Gbit/s"
    assert "nothing" not in metrics
    with pytest.raises(KeyError, match="did you mean"):
        metrics["wall_tim"]
    assert not calls


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


def test_an_intermediate_is_kept_until_all_that_needs_it_is_known() -> None:
    calls: list[str] = []
    evaluator = Evaluator(small_catalogue(calls), {RUN: "a run"})
    assert evaluator.value("first") == 1
    kept = evaluator.value("bulky")
    assert evaluator.value("bulky") is kept
    assert evaluator.reason("second") == "nothing is 0"
    assert evaluator.value("overview") == "a table"
    assert calls == ["bulky"]
    assert evaluator.value("bulky") is not evaluator.value("bulky")


def test_of_a_run_whose_metrics_are_known_no_large_intermediate_is_kept(
    calls: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation, "SMALL", 100)
    metrics = evaluate(handmade_run())
    assert len(metrics)
    for times in (2, 3):
        metrics.evaluator.value("counted_chunks")
        assert calls["counted_chunks"] == times


def test_of_a_run_whose_metrics_are_known_small_intermediates_are_kept(calls: Counter[str]) -> None:
    metrics = evaluate(handmade_run())
    assert len(metrics)
    metrics.evaluator.value("counted_chunks")
    assert calls["counted_chunks"] == 1


def test_what_is_built_on_request_is_not_built_to_see_whether_it_can_be() -> None:
    calls: list[str] = []
    evaluator = Evaluator(small_catalogue(calls), {RUN: "a run"})
    assert evaluator.reason("raw") is None
    assert calls == ["bulky"]
    assert evaluator.value("raw") is evaluator.value("raw")


def test_a_metric_can_say_its_source() -> None:
    evaluator = Evaluator(small_catalogue([]), {RUN: "a run"})
    assert evaluator.source("first") is None
    assert evaluator.value("first") == 1
    assert evaluator.source("first") == "elsewhere"


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


def test_threads_share_what_is_computed_once() -> None:
    catalogue, made = Catalogue(), []

    def slow(run: str) -> Bulky:
        time.sleep(0.01)
        made.append(Bulky())
        return made[-1]

    catalogue.add(Fact.of(slow, kept=True))
    evaluator = Evaluator(catalogue, {RUN: "a run"})
    found: list[Bulky] = []
    threads = [threading.Thread(target=lambda: found.append(evaluator.value("slow"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == made * 8


@pytest.mark.parametrize("again", [copy.deepcopy, lambda metrics: pickle.loads(pickle.dumps(metrics))])
def test_metrics_travel_as_the_run_that_they_are_of(again: Any) -> None:
    metrics = evaluate(run_without_tables(reported={"wall_time": 3.5}, reported_by="it"))
    assert metrics["wall_time"] == again(metrics)["wall_time"] == 3.5


@pytest.mark.parametrize("again", [copy.deepcopy, lambda mapping: pickle.loads(pickle.dumps(mapping))])
def test_what_is_said_of_metrics_travels_too(again: Any) -> None:
    metrics = evaluate(run_without_tables(reported={"wall_time": 3.5}, reported_by="it"))
    for mapping in (metrics.source, metrics.unit, metrics.missing):
        assert dict(again(mapping)) == dict(mapping) != {}
    assert again(metrics.source)["wall_time"] == metrics.source["elapsed_time_seconds"]  # by its older name as well
    with pytest.raises(KeyError):
        again(metrics.missing)["wall_time"]


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
@pytest.mark.parametrize("name", CATALOGUE.entries)
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


def test_under_pytest_it_comes_out(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "elapsed_time_seconds"
    entry = CATALOGUE.entries[name]
    monkeypatch.setitem(CATALOGUE.entries, name, dataclasses.replace(entry, function=raising))
    with pytest.raises(RuntimeError, match="planted"):
        Measurement(handmade_run()).metrics[name]


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
