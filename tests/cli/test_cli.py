"""The command line: what it prints, its exit status, and errors in one line."""

import dataclasses
import json
import re
import shlex
import subprocess
import sys
import webbrowser
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete
from made_runs import made_run, plan

import roastcoffea
from roastcoffea.cli import GROUPS, NAMES, OLDER, command_line, main, shell
from roastcoffea.storage.store import save_run


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["nix"], 2, "there is no command 'nix'"),
        (["shwo"], 2, "did you mean show?"),
        (["--nix"], 2, "--nix"),
        (["show"], 1, "there are 0 measurements in roastcoffea-runs; name a RUN, or measure one"),
        (["share"], 2, "Missing argument 'RUN'"),
        (["merge"], 2, "Missing argument 'RUN...'"),
        (["compare"], 2, "there are 0 measurements in roastcoffea-runs"),
        (["report", "nowhere", "-o", "no/such/x.html"], 1, "nowhere"),
        (["history"], 1, "roastcoffea-runs cannot be listed"),
        (["history", "-o", "no/such/x.html"], 1, "there is no folder no/such for x.html; create it, or choose another"),
        (["demo", "--events", "3"], 2, "3 is not in the range"),
        (["show", "nowhere"], 1, "nowhere"),
        (["list", "nowhere"], 1, "nowhere"),
        (["show", "."], 1, "."),
        (["list", "/dev/null"], 1, "/dev/null"),
        (["export", "nowhere"], 2, "Missing option '--format'"),
        (["export", "nowhere", "--format", "xls"], 2, "'xls' is not one of"),
        (["export", "nowhere", "--format", "csv"], 1, "nowhere"),
        (["export", ".", "--format", "perfetto"], 1, "."),
        (["report", "nowhere"], 1, "nowhere"),
    ],
)
def test_an_error_is_one_line_and_an_exit_status(
    arguments: list[str],
    status: int,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == status
    out, err = capsys.readouterr()
    assert out == ""
    assert words in err
    assert err.startswith("roastcoffea: ")
    assert err.count("\n") == 1


def test_an_interrupt_is_one_line_and_status_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("roastcoffea.studies.merging.paths_of", interrupted)
    assert main(["show", "run"]) == 130
    assert capsys.readouterr().err.strip() == "roastcoffea: interrupted"


def helped(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *command: str) -> str:
    """What a command says with --help at 80 columns, each line of which fits."""
    monkeypatch.setenv("COLUMNS", "80")
    assert main([*command, "--help"]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    return out


def test_help_shows_every_command_whole_in_four_groups(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = helped(capsys, monkeypatch)
    assert "..." not in out
    groups = {
        section.partition(":\n")[0]: [line.split()[0] for line in section.splitlines()[1:]]
        for section in out.split("\n\n")
        if section.partition(":\n")[0] in GROUPS
    }
    assert groups == {group: list(names) for group, names in GROUPS.items()}
    assert list(groups) == ["Measure", "Look", "Study", "Share"]
    assert "Exit status: 0 success, 1 failed or not found, 2 usage error, 130 interrupted." in out


@pytest.mark.parametrize("name", NAMES)
def test_help_of_a_command_fits_and_has_an_example_that_is_understood(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = helped(capsys, monkeypatch, name)
    (example,) = [line for line in out.splitlines() if line.startswith("  Example: roastcoffea ")]
    _, _, command, *words = shlex.split(example)
    assert command == name
    found = command_line.get_command(click.Context(command_line), name)
    found.make_context(name, words)
    assert not [word for word in (*OLDER, "--out", "--page") if word in re.findall(r"[\w-]+", out)]


@pytest.mark.parametrize("name", ["show", "list", "compare", "scaling", "what-if", "history"])
def test_json_is_an_option_and_its_keys_are_in_the_help(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for workers in (1, 2):
        run = made_run([plan(1.0)] * 4, workers, id=str(workers) * 32)
        save_run(run, tmp_path / "roastcoffea-runs", f"runs-{workers}")
    monkeypatch.chdir(tmp_path)
    given = ["runs-2", "runs-1"] if name == "scaling" else []
    assert main([name, *given, "--json"]) == 0
    out = capsys.readouterr().out
    found = json.loads(out, parse_constant=pytest.fail)
    assert main([name, "--help"]) == 0
    told = re.findall(r'"(\w+)"', capsys.readouterr().out)
    assert set(found) - {*told, "format", "version"} == set()


def test_a_number_that_is_none_is_null(capsys: pytest.CaptureFixture[str]) -> None:
    shell.print_json({"a": float("nan"), "b": [float("inf"), 1.5, None]})
    assert json.loads(capsys.readouterr().out) == {"a": None, "b": [None, 1.5, None]}


@pytest.mark.parametrize("words", [(), ("made-2",), ("made-[2]",)])
def test_a_run_is_the_latest_or_has_a_name_or_a_pattern(
    words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (1, 2):
        run = dataclasses.replace(made_run([plan(1.0)] * 4, 2, id=str(number) * 32), start=1000.0 * number)
        save_run(run, tmp_path / "roastcoffea-runs", f"made-{number}")
    monkeypatch.chdir(tmp_path)
    assert main(["show", *words, "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["id"] == "2" * 32
    told = {(): "latest run: roastcoffea-runs/made-2", ("made-[2]",): "made-[2] is roastcoffea-runs/made-2"}
    assert err == (f"roastcoffea: {told[words]}\n" if words in told else "")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "older"),
    [("report", True), *((name, False) for name in ("report", "compare", "history", "scaling", "what-if"))],
)
def test_pages_are_written_and_opened(
    name: str, older: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for workers in (1, 2):
        run = made_run([plan(1.0)] * 4, workers, id=str(workers) * 32)
        save_run(run, tmp_path / "roastcoffea-runs", f"runs-{workers}")
    monkeypatch.chdir(tmp_path)
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda page: opened.append(page) or True)
    given = ["runs-2", "runs-1"] if name == "scaling" else []
    option = "--page" if older else "-o"
    assert main([name, *given, option, "page.html"]) == 0
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")
    assert opened == []
    assert main([name, *given, option, "page.html"]) == (2 if name == "compare" else 1)
    assert "page.html exists; choose another name, or --overwrite to replace it" in capsys.readouterr().err
    assert main([name, *given, "--open"]) == 0
    (page,) = [path for path in tmp_path.glob("*.html") if path.name != "page.html"]
    assert opened == [page.as_uri()]
    assert capsys.readouterr().out.splitlines()[-1] == page.name


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert roastcoffea.__version__ in capsys.readouterr().out


def test_the_module_is_the_command() -> None:
    def helped(*command: str) -> str:
        return subprocess.run([*command, "--help"], capture_output=True, text=True, check=True).stdout

    script = Path(sys.executable).with_name("roastcoffea")
    assert helped(sys.executable, "-m", "roastcoffea") == helped(str(script))


def test_out_and_output_mean_the_same_in_every_command() -> None:
    context = click.Context(command_line)
    named = {
        name: set(option.opts)
        for name in command_line.list_commands(context)
        for option in command_line.get_command(context, name).params
        if {"-o", "--out", "--output"} & set(option.opts)
    }
    assert {"compare", "demo", "export", "plot", "report", "run"} <= named.keys()
    assert {name: names for name, names in named.items() if names - {"--page"} != {"-o", "--out", "--output"}} == {}


def test_what_is_completed_after_a_mistyped_command_is_a_command() -> None:
    complete = ShellComplete(command_line, {}, "roastcoffea", "_ROASTCOFFEA_COMPLETE")
    assert [found.value for found in complete.get_completions(["nix"], "sh")] == ["show", "share"]
