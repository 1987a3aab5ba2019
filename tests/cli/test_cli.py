"""The command line: what it prints, its exit status, and errors in one line."""

import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete

import roastcoffea
from roastcoffea.cli import command_line, main


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["nix"], 2, "there is no command 'nix'"),
        (["shwo"], 2, "did you mean show?"),
        (["--nix"], 2, "--nix"),
        (["show"], 2, "Missing argument 'PATH'"),
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
    def interrupted(path: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("roastcoffea.studies.merging.measurement_at", interrupted)
    assert main(["show", "run"]) == 130
    assert capsys.readouterr().err.strip() == "roastcoffea: interrupted"


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    out = capsys.readouterr().out
    named = [line.split()[0] for line in out.partition("Commands:\n")[2].splitlines()]
    assert named == [
        *(
            "compare",
            "demo",
            "export",
            "facility",
            "history",
            "list",
            "merge",
            "metrics",
            "plot",
            "recover",
            "redact",
            "report",
            "run",
            "scaling",
            "show",
            "watch",
            "what-if",
        )
    ]


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
    assert {name: names for name, names in named.items() if names != {"-o", "--out", "--output"}} == {}


def test_what_is_completed_after_a_mistyped_command_is_a_command() -> None:
    complete = ShellComplete(command_line, {}, "roastcoffea", "_ROASTCOFFEA_COMPLETE")
    assert [found.value for found in complete.get_completions(["nix"], "sh")] == ["show"]
