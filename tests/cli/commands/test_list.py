"""`roastcoffea list`."""

from __future__ import annotations

from pathlib import Path

import pytest

from roastcoffea.cli import main


def test_list_has_a_line_for_each_measurement(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", str(runs)]) == 0
    lines = capsys.readouterr().out.splitlines()
    (good,) = [line for line in lines if "good [red]run" in line]
    assert "finished" in good
    assert "12.5 s" in good
    assert len([line for line in lines if "damaged" in line and "unreadable" in line]) == 1
    assert str(runs / "damaged" / "run.json") in "".join(lines)
    assert max(map(len, lines)) <= 80


def test_an_empty_folder_is_said_to_be_empty(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"There are no measurements in {tmp_path}.\n"
