"""What a history takes from measurements whose numbers are known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from handmade import handmade_run
from made_runs import entry, made_run, plan

from roastcoffea.measurement import Measurement
from roastcoffea.records.run import FAILED, Environment, Run
from roastcoffea.studies.history_analysis import CPU, RATE, Change, Entry, changes, entry_of

CHUNKS = [plan(0.5, 0.5)] * 8


def of(run: Run) -> Entry:
    return entry_of(Measurement(run), Path("runs") / "made")


def test_the_numbers_of_a_run() -> None:
    found = of(made_run(CHUNKS, 2, environment=Environment(versions={"coffea": "2025.11"}, client_host="here")))
    assert found.used
    assert found.state == "complete"
    # 8 chunks of 100 events and 0.5 s of CPU, on two cores for 4 s
    assert found.values[CPU] == pytest.approx(8 * 0.5 / 800)
    assert found.values[RATE] == pytest.approx(1e-3 * 800 / (4 * 2))
    assert (found.processors, found.datasets) == (("Made",), ("data",))
    assert found.facts["coffea"] == "2025.11"
    assert found.facts["chunksize"] == "100"
    assert found.failures == 0


def test_runs_that_cannot_be_compared_say_why() -> None:
    failed = of(replace(made_run(CHUNKS, 2), outcome=FAILED, error="ValueError: no jets"))
    assert (failed.used, failed.state, failed.reason) == (False, FAILED, "it failed: ValueError: no jets")
    assert failed.values[CPU] > 0
    incomplete = of(handmade_run())
    assert not incomplete.used
    empty = of(made_run(CHUNKS, 2, calls=(), chunks=None, tasks=None))
    assert not empty.used
    assert empty.reason


def test_facts_that_change() -> None:
    assert changes(entry(0), entry(1)) == []
    newer = entry(1, facts={"coffea": "2026.1", "chunksize": "5"})
    assert changes(entry(0), newer) == [Change("coffea", "2025.11", "2026.1"), Change("chunksize", "-", "5")]
    assert str(changes(entry(0), newer)[0]) == "coffea 2025.11 -> 2026.1"
