"""Runs of journals as measurements on disk."""

from __future__ import annotations

from pathlib import Path

import pytest
from stand_ins import Observed, recorded

import roastcoffea
from roastcoffea.recording.facility.index import index_of, save_ended


@pytest.mark.slow
def test_runs_that_ended_are_saved_once(observed: Observed, tmp_path: Path) -> None:
    recorder = recorded(observed, tmp_path / "journal")
    (path,) = save_ended(index_of(tmp_path / "journal"), tmp_path / "runs")
    recorder.end()
    measurement = roastcoffea.load(path)
    assert measurement.metrics["total_events"] == 4000
    assert len(list(save_ended(index_of(tmp_path / "journal"), tmp_path / "runs"))) == 1
    assert list(save_ended(index_of(tmp_path / "journal"), tmp_path / "runs")) == []
