"""`roastcoffea facility`."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from stand_ins import Observed, recorded

from roastcoffea.cli import main
from roastcoffea.recording.facility.index import RUN_COLUMNS


@pytest.mark.slow
def test_the_facility_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "journal"
    recorded(Observed(monkeypatch), folder).end()
    made = [tmp_path / name for name in ("index.html", "runs.csv", "runs.parquet")]
    files = [word for pair in zip(("--page", "--csv", "--parquet"), map(str, made), strict=True) for word in pair]
    assert main(["facility", str(folder), "--watts-per-core", "8", *files, "--save", "-o", str(tmp_path / "runs")]) == 0
    said = capsys.readouterr().out.splitlines()
    assert [line for line in said if "Dijet" in line]
    assert said[-5:-2] == list(map(str, made))
    assert {Path(line).parent for line in said[-2:]} == {tmp_path / "runs"}
    assert pq.read_table(made[2]).column_names == [column.name for column in RUN_COLUMNS]
    assert made[1].read_text().splitlines()[0] == ",".join(column.name for column in RUN_COLUMNS)
    assert main(["list", str(tmp_path / "runs")]) == 0
    assert "Dijet" in capsys.readouterr().out


def test_an_existing_file_and_a_folder_of_others_are_errors(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded(Observed(monkeypatch), tmp_path / "journal").end()
    (tmp_path / "runs.csv").write_text("mine")
    assert main(["facility", str(tmp_path / "journal"), "--csv", str(tmp_path / "runs.csv")]) == 1
    assert (tmp_path / "runs.csv").read_text() == "mine"
    assert main(["facility", str(tmp_path)]) == 1
    assert "pass the folder given to --roastcoffea-journal" in capsys.readouterr().err
