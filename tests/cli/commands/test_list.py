"""`roastcoffea list`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from handmade import empty_run, handmade_run
from made_runs import made_run, plan

from roastcoffea.cli import main
from roastcoffea.cli import reading as command
from roastcoffea.measurement import Measurement
from roastcoffea.report import runs as listed
from roastcoffea.storage.store import save_run


def names(out: str) -> list[str]:
    """First words of the rows."""
    return [line.split()[0] for line in out.splitlines() if line.startswith("  ")][1:]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A slow run, a fast one, one of a processor of its own, and one that failed."""
    for name, run in {
        "slow": made_run([plan(1.0)] * 4, 1),
        "fast": made_run([plan(0.1)] * 40, 2),
        "other": handmade_run(),
        "failed": made_run([plan(1.0)] * 4, 1, outcome="failed", error="ValueError: planted"),
        "empty": empty_run(),
    }.items():
        Measurement(run).save(tmp_path, name)
    return tmp_path


def test_list_has_a_line_for_each_measurement(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", str(runs)]) == 0
    lines = capsys.readouterr().out.splitlines()
    (good,) = [line for line in lines if "good [red]run" in line]
    assert "complete" in good
    assert "4 k" in good
    assert len([line for line in lines if "damaged" in line and "unreadable" in line]) == 1
    assert str(runs / "damaged" / "run.json") in "".join(lines)


def test_a_place_where_nothing_was_saved_yet_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["list"]) == 0
    assert capsys.readouterr().out == "There are no measurements here: no folder named roastcoffea-runs.\n"


def test_names_are_whole_in_a_pipe_and_fit_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "a-name-that-has-many-words-" * 3 + "end"
    save_run(made_run([plan(1.0)] * 4, 1), tmp_path, name)
    monkeypatch.delenv("COLUMNS", raising=False)
    assert main(["list", str(tmp_path)]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["name", name]
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["list", str(tmp_path)]) == 0
    assert name in capsys.readouterr().out
    monkeypatch.setenv("COLUMNS", "60")
    for terminal in (False, True):
        monkeypatch.setattr(sys.stdout, "isatty", lambda terminal=terminal: terminal)
        assert main(["list", str(tmp_path)]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert max(map(len, lines)) <= 80
        assert "".join(line[2:].split("  ")[0].strip() for line in lines[1:]) == name


@pytest.mark.slow
def test_runs_are_sorted_and_filtered(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", str(folder), "--sort", "rate"]) == 0
    found = names(capsys.readouterr().out)
    assert found.index("fast") < found.index("slow")
    assert found[-1] == "empty"  # its rate is not known
    assert main(["list", str(folder), "--outcome", "failed"]) == 0
    assert names(capsys.readouterr().out) == ["failed"]
    assert main(["list", str(folder), "--processor", "Made", "--sort", "name"]) == 0
    assert names(capsys.readouterr().out) == ["failed", "fast", "slow"]
    assert main(["list", str(folder), "--processor", "Nobody"]) == 0
    assert "No measurements match" in capsys.readouterr().out


def test_orders_and_outcomes_are_those_of_the_list() -> None:
    """They stand in the help, which loads nothing."""
    assert set(command.ORDERS) == set(listed.Entry._fields)
    assert command.OUTCOMES == listed.OUTCOMES


def test_an_empty_folder_is_said_to_be_empty(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", str(tmp_path)]) == 1
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert f"{tmp_path} contains no measurement; pass" in err


def test_a_folder_that_is_missing_is_a_plain_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", str(tmp_path / "nowhere")]) == 1
    assert f"roastcoffea: no measurement found at {tmp_path / 'nowhere'}, and none" in capsys.readouterr().err
    (tmp_path / "file").touch()
    assert main(["list", str(tmp_path / "file")]) == 1
    assert "is a file" in capsys.readouterr().err


def test_a_measurement_itself_and_a_pattern_are_listed(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["list", str(runs / "good [red]run")]) == 0
    assert len([line for line in capsys.readouterr().out.splitlines() if "good [red]run" in line]) == 1
    monkeypatch.chdir(runs)
    assert main(["list", "good*", "--json"]) == 0
    out, err = capsys.readouterr()
    (found,) = json.loads(out)["runs"]
    assert (found["name"], found["events"], found["elapsed"], found["rate"]) == ("good [red]run", 4000, 12.5, None)
    assert err == "roastcoffea: good* is good [red]run\n"
