"""`roastcoffea run`: errors of the command itself."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from scripts_run import run_in


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "Missing argument 'SCRIPT'"),
        (("nowhere.py",), "can't open file 'nowhere.py': No such file or directory"),
        (("--nix", "nowhere.py"), "No such option"),
        (("--out", __file__, "nowhere.py"), "is a file"),
        (("--name", " ", "nowhere.py"), "the name of a run must contain a visible character"),
    ],
)
def test_an_error_of_the_command_is_one_line(tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    done = run_in(tmp_path, sys.executable, "-m", "roastcoffea", "run", *arguments)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert words in done.stderr
