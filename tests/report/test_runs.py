"""Saved measurements side by side."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made_runs import made_run, plan

import roastcoffea
from roastcoffea.measurement import Measurement
from roastcoffea.report.runs import Entry, entry_of, in_order, sheet_of_runs
from roastcoffea.sheets.terminal import for_terminal
from roastcoffea.storage.store import StoredRun, list_runs, save_run
from roastcoffea.studies.merging import merged_run

NOTHING = Entry("a", None, "", None, None, None, None, None, "complete")


def entry(name: str, **known: object) -> Entry:
    return NOTHING._replace(name=name, **known)


def test_an_entry_has_the_numbers_of_the_measurement(tmp_path: Path) -> None:
    measurement = Measurement(made_run([plan(1.0)] * 40, 2))
    measurement.save(tmp_path, "one")
    (found,) = map(entry_of, list_runs(tmp_path))
    metrics = measurement.metrics
    assert (found.processor, found.outcome, found.bottleneck) == ("Made", "complete", measurement.bound)
    assert (found.events, found.workers, found.elapsed) == (4000, 2, pytest.approx(20.0))
    assert found.rate == pytest.approx(metrics["event_rate_elapsed_khz"])


@pytest.mark.parametrize("content", ["", "[]", '{"metrics": 3}', '{"metrics": {"total_events": 1}}', "[" * 100_000])
def test_metrics_that_are_damaged_or_missing_are_not_known(tmp_path: Path, content: str) -> None:
    path = Measurement(made_run([plan(1.0)] * 4, 2)).save(tmp_path, "one")
    (path / "metrics.json").write_text(content)
    (found,) = map(entry_of, list_runs(tmp_path))
    assert (found.events, found.rate, found.bottleneck, found.processor) == (None, None, None, "Made")


@pytest.mark.parametrize(
    ("stored", "outcome"),
    [
        ({"error": "damaged"}, "unreadable"),
        ({"outcome": "failed", "run_error": "ValueError: no"}, "failed"),
        ({"outcome": "failed", "run_error": "KeyboardInterrupt"}, "interrupted"),
        ({"outcome": "finished"}, "nothing run"),
        ({"outcome": "finished", "processors": ("A", "B")}, "complete"),
        ({"outcome": "finished", "reported": {}}, "complete"),
        ({"outcome": "finished", "reported": {"num_missing_files": 1}}, "incomplete"),
    ],
)
def test_outcomes(tmp_path: Path, stored: dict[str, object], outcome: str) -> None:
    assert entry_of(StoredRun(path=tmp_path, name="a", **stored)).outcome == outcome  # type: ignore[arg-type]


def test_the_largest_is_first_and_what_is_not_known_last() -> None:
    entries = [entry("c", rate=2.0), entry("b"), entry("a", rate=30.0)]
    assert [one.name for one in in_order(entries, "rate")] == ["a", "c", "b"]
    assert [one.name for one in in_order(entries, "name")] == ["a", "b", "c"]
    assert [one.name for one in in_order([entry("b", started="2"), entry("a", started="1")], "started")] == ["a", "b"]


def test_what_is_the_same_for_all_is_said_once() -> None:
    entries = [entry("a", processor="P", workers=2, rate=1.0), entry("b", processor="P", workers=3, rate=2.0)]
    sheet = sheet_of_runs(entries)
    assert sheet.lead == ["2 runs, each with processor P, outcome complete"]
    heads = [column.name for column in sheet.columns]
    assert heads == ["name", "workers", "rate"]  # nothing else is known
    assert "processor" in [column.name for column in sheet_of_runs(entries[:1]).columns]


def test_numbers_stay_in_one_line_whatever_the_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    known = {"events": 480_000, "workers": 1200, "elapsed": 3725.0, "rate": 48.6, "bottleneck": "interpreter lock"}
    entries = [
        entry("2026-11-24T021938Z-001", processor="AVeryLongProcessorName", outcome="interrupted", **known),
        entry("b", processor="Other", **(known | {"workers": 1})),
    ]
    lines = for_terminal([sheet_of_runs(entries)]).splitlines()
    assert max(map(len, lines)) <= 80
    assert any("480 k" in line and "48.6 kHz" in line and "interrupted" in line for line in lines)


@pytest.mark.slow
def test_a_bottleneck_that_another_version_found_is_marked(tmp_path: Path) -> None:
    path = Measurement(made_run([plan(1.0)] * 40, 2)).save(tmp_path, "one")
    written = json.loads((path / "metrics.json").read_text())
    assert written["version"] == roastcoffea.__version__
    assert not sheet_of_runs([*map(entry_of, list_runs(tmp_path))]).notes
    for version in ({"version": "0.9"}, {}):
        older = {name: value for name, value in written.items() if name != "version"} | version
        (path / "metrics.json").write_text(json.dumps(older))
        (found,) = map(entry_of, list_runs(tmp_path))
        assert found.bottleneck == "compute *"
        assert "another version" in sheet_of_runs([found]).notes[0]


def test_gaps_of_merged_runs_are_not_in_their_elapsed_time(tmp_path: Path) -> None:
    runs = [made_run([plan(1.0)] * 4, 1, id=letter * 32) for letter in "ab"]
    part = replace(
        merged_run(runs),
        merged=tuple(
            replace(one, start=one.start + late, stop=one.stop + late)
            for one, late in zip(merged_run(runs).merged, (0.0, 1000.0), strict=True)
        ),
    )
    Measurement(replace(part, stop=part.stop + 1000.0)).save(tmp_path, "campaign")
    (found,) = map(entry_of, list_runs(tmp_path))
    assert found.elapsed == pytest.approx(8.0)


def test_narrow_terminals_leave_out_what_matters_least(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"events": 48_000, "elapsed": 3.0, "rate": 7.47}
    entries = [
        entry("threads-of-one-interpreter-1", processor="Analysis", workers=1, bottleneck="interpreter lock", **known),
        entry("slow-decompression-1", processor="Dijets", workers=2, bottleneck="decompression", **known),
    ]
    entries[0] = entries[0]._replace(outcome="incomplete")

    def printed(width: int) -> str:
        monkeypatch.setenv("COLUMNS", str(width))
        return for_terminal([sheet_of_runs(entries)])

    narrow = printed(80)
    assert all(name in narrow for name in ("name", "events", "rate", "bottleneck", "outcome"))
    assert all(one.name in narrow for one in entries)
    assert "elapsed" not in narrow
    assert "processor" in printed(100)


@pytest.mark.parametrize("value", [10**400, 1e308, float("inf"), float("nan"), "text", [1], None, {"a": 1}], ids=str)
def test_numbers_that_no_run_has_are_left_out(value: Any, tmp_path: Path) -> None:
    saved = save_run(made_run([plan(1.0)] * 4, 2), tmp_path, "run", metrics_json=lambda: b"{}")
    names = ("total_events", "peak_workers", "elapsed_time_seconds", "event_rate_elapsed_khz", "bound")
    metrics = {name: {"value": value} for name in names}
    (saved / "metrics.json").write_text(json.dumps({"metrics": metrics}))
    (stored,) = list_runs(tmp_path)
    found = entry_of(stored)
    assert (found.events, found.workers, found.rate) == (None, None, None)
    assert sheet_of_runs([found]).cells()


def test_metrics_that_are_no_file_are_not_waited_for(tmp_path: Path) -> None:
    saved = save_run(made_run([plan(1.0)] * 4, 2), tmp_path, "run")
    os.mkfifo(saved / "metrics.json")
    (stored,) = list_runs(tmp_path)
    assert entry_of(stored).events is None
