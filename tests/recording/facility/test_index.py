"""Runs and days of a scheduler's journals."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import wait_until
from stand_ins import Observed, recorded

from roastcoffea.errors import RoastcoffeaError
from roastcoffea.recording.facility.index import ENDED, RUNNING, costs, index_of

DAY = 86_400.0
NOON = 1_700_000_000.0 // DAY * DAY + DAY / 2


def entry(time: float, hours: float, idle: float = 0.0, failed: float = 0.0, cpu: float = 0.0) -> dict[str, object]:
    seconds = {"idle: tail": 3600 * idle, "failed": 3600 * failed}
    return {"time": time, "capacity_seconds": 3600 * hours, "cpu_seconds": 3600 * cpu, "seconds": seconds, "events": 7}


def test_a_day_costs_what_accrued_on_it() -> None:
    first = [entry(NOON, 4, 1, 0.5, 2), entry(NOON + 3600, 10, 2, 0.5, 5), entry(NOON + DAY, 11, 3, 0.5, 5.5)]
    second = [entry(NOON, 1)]
    before, after = costs([first, second], watts=10)
    assert (before["core_hours"], before["idle_hours"], before["failed_hours"], before["cpu_hours"]) == (11, 2, 0.5, 5)
    assert (after["core_hours"], after["idle_tail_hours"], after["cpu_hours"]) == (1, 1, 0.5)
    assert (before["energy"], before["idle_energy"], before["failed_energy"]) == pytest.approx((0.11, 0.02, 0.005))
    assert (before["day"], after["day"]) == ("2023-11-14", "2023-11-15")


def test_without_watts_there_is_no_energy() -> None:
    (day,) = costs([[entry(NOON, 4)]], watts=None)
    assert "energy" not in day


def test_energy_that_hosts_measured_is_told_apart_from_the_estimate() -> None:
    known = {"joules": 3.6e6, "hosts_with_energy": 1, "hosts": 4}
    (day,) = costs([[entry(NOON, 4) | known, entry(NOON + 1, 4) | known | {"joules": 7.2e6}]], watts=None)
    assert (day["measured_energy"], day["measured_hosts"]) == (2, 0.25)
    assert "energy" not in day


def test_runs_have_core_hours_waste_and_heaviest_dataset(observed: Observed, tmp_path: Path) -> None:
    recorder = recorded(observed, tmp_path)
    try:
        # threads write them
        assert wait_until(lambda: all(run["core_hours"] for run in index_of(tmp_path).runs.to_pylist()))
        found = index_of(tmp_path)
    finally:
        recorder.end()
    first, second = found.runs.to_pylist()
    assert (first["state"], second["state"]) == (ENDED, RUNNING)
    assert first["core_hours"] == pytest.approx(4 * 36 / 3600)
    assert first["cpu_hours"] == pytest.approx(4 * 18 / 3600)
    assert (first["chunks"], first["events"], first["heaviest_dataset"], first["heaviest_share"]) == (
        4,
        4000,
        "ttbar",
        1,
    )
    assert first["processor"] == second["processor"] == "Dijet"
    assert second["core_hours"] == pytest.approx(9 / 3600)
    unknown = ("cpu_hours", "wasted_share", "wasted_by", "gigabits_per_second", "heaviest_dataset", "heaviest_share")
    assert [second[name] for name in unknown] == [None] * len(unknown)
    assert len(index_of(tmp_path, day="2023-11-14").runs) == 2
    assert len(index_of(tmp_path, day="2023-11-15").runs) == 0


def test_a_folder_without_journals_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RoastcoffeaError, match="no scheduler journal"):
        index_of(tmp_path)
    with pytest.raises(RoastcoffeaError, match="is not a folder"):
        index_of(tmp_path / "missing")


def test_a_damaged_journal_is_named_and_the_others_are_listed(observed: Observed, tmp_path: Path) -> None:
    recorded(observed, tmp_path).end()
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "000001.arrows").write_bytes(b"no stream")
    found = index_of(tmp_path)
    assert len(found.runs) == 2
    assert "damaged" in found.problems[0]
