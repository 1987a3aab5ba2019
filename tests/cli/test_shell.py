"""What commands share: paths of runs, lines for the terminal, results of studies, readers that leave."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest

from roastcoffea.cli import shell
from roastcoffea.errors import RoastcoffeaError


@pytest.mark.slow
@pytest.mark.parametrize("lines", [0, 5])
def test_a_reader_that_leaves_gets_no_traceback(lines: int) -> None:
    command = [sys.executable, "-m", "roastcoffea", "metrics", "--markdown"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        for _ in range(lines):
            process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == ""


def test_a_reason_is_one_line_and_gives_its_status_back(capsys: pytest.CaptureFixture[str]) -> None:
    assert shell.fail("it went\n  wrong\n", shell.UNUSABLE) == 2
    assert capsys.readouterr() == ("", "roastcoffea: it went wrong\n")


def test_what_is_said_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    shell.say(Path("runs/\x1b[31mred"))
    out, err = capsys.readouterr()
    assert "\x1b" not in out
    assert out.startswith("runs/")
    assert out.endswith("red\n")
    assert err == ""


def test_words_stand_for_paths_of_runs_each_once(drawable: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(drawable.parent)
    assert shell.paths_of([drawable.name, "by*", str(drawable)]) == [drawable.resolve()]
    with pytest.raises(RoastcoffeaError, match="nowhere"):
        shell.paths_of(["nowhere"])


def test_names_are_looked_for_in_the_usual_folder(
    drawable: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(shell.RUNS_FOLDER).symlink_to(drawable.parent)
    assert shell.paths_of(["by hand"]) == [drawable.resolve()]


def test_a_study_is_printed_as_it_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    found: Any = SimpleNamespace(as_dict=lambda: {"a": 1}, print=lambda file: file.write("a table\n"))
    shell.print_study(found, as_json=False)
    assert capsys.readouterr().out == "a table\n"
    shell.print_study(found, as_json=True)
    assert json.loads(capsys.readouterr().out) == {"a": 1}


def test_options_that_several_commands_have() -> None:
    @click.command
    @shell.choice("--form", among=("text", "json"), default="text", help="How.")
    @shell.bounded("--number", click.IntRange(1, 3), 2, "How many.")
    @shell.measurements_folder("Where.")
    @shell.overwrite()
    def command(**given: Any) -> dict[str, Any]:
        return given

    def given(*words: str) -> Any:
        return command.main(list(words), standalone_mode=False)

    default = {"form": "text", "number": 2, "output": shell.RUNS_FOLDER, "overwrite": False}
    assert given() == default
    changed = {"form": "json", "number": 3, "output": Path("there"), "overwrite": True}
    for name in ("-o", "--out", "--output"):
        assert given("--form", "json", "--number", "3", name, "there", "--overwrite") == changed
    for wrong in (("--form", "xml"), ("--number", "4")):
        with pytest.raises(click.BadParameter):
            given(*wrong)
