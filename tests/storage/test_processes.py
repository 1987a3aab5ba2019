from __future__ import annotations

import os
import subprocess
import sys

import pytest

from roastcoffea.storage.processes import UNKNOWN, began, is_alive, machine


def test_this_process_is_alive_and_one_that_ended_is_not() -> None:
    start = began(os.getpid())
    assert start is not None
    assert is_alive(machine(), os.getpid(), start) is True
    assert is_alive(machine(), os.getpid(), start + 1) is False
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        start = began(process.pid)
        assert start is not None
        assert is_alive(machine(), process.pid, start) is True
        process.kill()
    assert is_alive(machine(), process.pid, start) is False


@pytest.mark.parametrize(("where", "start"), [("elsewhere", 1), (machine(), UNKNOWN)])
def test_what_cannot_be_looked_up_is_unknown(where: str, start: int) -> None:
    assert is_alive(where, os.getpid(), start) is None
