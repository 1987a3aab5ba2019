"""`roastcoffea merge`, and commands that are given a folder of jobs."""

from __future__ import annotations

from pathlib import Path

import pytest
from handmade import handmade_run

from roastcoffea import load
from roastcoffea.cli import main
from roastcoffea.storage.store import save_run


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    for number in range(3):
        save_run(handmade_run(id=f"job-{number}"), tmp_path / "jobs", f"job-{number}")
    return tmp_path / "jobs"


@pytest.mark.slow
def test_the_command_names_what_it_wrote(jobs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "runs"
    assert main(["merge", str(jobs), "-o", str(out), "--name", "campaign"]) == 0
    assert capsys.readouterr().out == f"3 runs merged: {out / 'campaign'}\n"
    merged = load(out / "campaign")
    assert [run.id for run in merged.run.merged] == ["job-0", "job-1", "job-2"]
    assert main(["merge", str(jobs), "-o", str(out), "--name", "campaign"]) == 1
    assert "exists" in capsys.readouterr().err
    assert main(["merge", str(jobs), "-o", str(out), "--name", "campaign", "--overwrite"]) == 0


@pytest.mark.parametrize(
    "command",
    [["show"], pytest.param(["report"], marks=pytest.mark.slow), ["export", "--format", "json"]],
)
def test_a_folder_of_jobs_is_shown_as_one(
    command: list[str], jobs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name, *options = command
    assert main([name, str(jobs), *options]) == 0


def test_a_folder_without_measurements_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(tmp_path)]) == 1
    assert str(tmp_path) in capsys.readouterr().err
