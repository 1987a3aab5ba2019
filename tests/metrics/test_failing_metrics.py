"""A metric that raises what nobody expects: it is missing with its error as the reason, and nothing else is lost."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from handmade import handmade_run

from roastcoffea import load
from roastcoffea.measurement import Measurement
from roastcoffea.metrics.catalogue import CATALOGUE, Metric
from roastcoffea.metrics.evaluation import RUNS_TESTS
from roastcoffea.report import frames
from roastcoffea.report.markdown import markdown
from roastcoffea.report.summary import summary

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

    monkeypatch.delenv(RUNS_TESTS)
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
    monkeypatch.delenv(RUNS_TESTS)
    monkeypatch.setitem(frames.TABLES, table, frames.TABLES[table]._replace(make=raising))
    measurement = Measurement(handmade_run())
    frame = getattr(measurement, table)
    assert (len(frame), frame.attrs["absent"]) == (0, REASON)
    assert f"{table} could not be computed: {REASON}" in measurement.problems


def test_a_measurement_is_shown_in_a_line_without_computing_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roastcoffea.measurement.evaluate", raising)
    assert repr(Measurement(handmade_run())).startswith("<Measurement ")
