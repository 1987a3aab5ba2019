"""`roastcoffea compare` where its reader leaves, and where it crashes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from roastcoffea.cli import main


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "status"),
    [(["--format", "json", "--fail-if", "elapsed_time_seconds > 5%"], 2)],
)
def test_a_reader_that_leaves_does_not_make_a_comparison_fail(options: list[str], status: int, drawable: Path) -> None:
    command = [sys.executable, "-m", "roastcoffea", "compare", str(drawable), str(drawable), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == status


def test_a_comparison_that_crashes_is_no_run_that_got_worse(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def crash(*given: object, **settings: object) -> None:
        raise ZeroDivisionError("by 0")

    monkeypatch.setattr("roastcoffea.studies.compare.compare", crash)
    assert main(["compare", "A", "B"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("Traceback")
    assert err.endswith("ZeroDivisionError: by 0\n")
