"""The index of a facility as people see it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from stand_ins import Observed, recorded

from roastcoffea.errors import MeasurementError
from roastcoffea.recording.facility.index import index_of, sheets, write_page
from roastcoffea.sheets.terminal import for_terminal


def test_it_fits_a_terminal_and_says_what_is_estimated(observed: Observed, tmp_path: Path) -> None:
    recorded(observed, tmp_path).end()
    text = for_terminal(sheets(index_of(tmp_path, watts=8)))
    assert max(map(len, text.splitlines())) <= 80
    assert "Energy is an estimate, not measured: core-hours x 8 W per core / 1000." in text
    assert "Dijet" in text
    assert "to meter chunks, use" in text
    assert "--watts-per-core" in for_terminal(sheets(index_of(tmp_path)))


def test_runs_that_were_cut_off_are_told(observed: Observed, tmp_path: Path) -> None:
    recorder = recorded(observed, tmp_path)
    assert "cut off" not in for_terminal(sheets(index_of(tmp_path)))
    shutil.copytree(tmp_path, tmp_path / "copy")  # of which nobody has a lock, as if the scheduler were killed
    assert "1 run cut off" in for_terminal(sheets(index_of(tmp_path / "copy")))
    recorder.end()


def test_the_page_is_whole_and_replaces_nothing_unasked(observed: Observed, tmp_path: Path) -> None:
    recorded(observed, tmp_path).end()
    page = write_page(index_of(tmp_path), tmp_path / "index.html", overwrite=False)
    assert "Dijet" in page.read_text()
    with pytest.raises(MeasurementError):
        write_page(index_of(tmp_path), page, overwrite=False)
