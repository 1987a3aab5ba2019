"""What commands share: paths of runs, lines for the terminal, results of studies, readers that leave."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from servers import http_server

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
    assert [path.resolve() for path in shell.paths_of([drawable.name, "by*", str(drawable)])] == [drawable.resolve()]
    with pytest.raises(RoastcoffeaError, match="nowhere"):
        shell.paths_of(["nowhere"])


@pytest.mark.cluster
def test_a_port_without_a_scheduler_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roastcoffea.backends.deployment.SCHEDULER_TIMEOUT", 1.0)
    with (
        http_server(tmp_path) as server,
        pytest.raises(RoastcoffeaError, match=r"no scheduler answers at tcp://127\.0\.0\.1:\d+ \("),
    ):
        shell.client_at(server.url.replace("http", "tcp"))
    with pytest.raises(RoastcoffeaError, match=r"at tcp://\*\*\*@127\.0\.0\.1:1 \("):
        shell.client_at("tcp://me:secret@127.0.0.1:1")
