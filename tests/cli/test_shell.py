"""What commands share: paths of runs, lines for the terminal, results of studies, readers that leave."""

from __future__ import annotations

import subprocess
import sys

import pytest


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
