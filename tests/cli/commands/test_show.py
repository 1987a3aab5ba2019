"""`roastcoffea show`."""

from __future__ import annotations

from pathlib import Path

import pytest

from roastcoffea.cli import main


def test_show_prints_the_tables(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(runs / "good [red]run")]) == 0
    out = capsys.readouterr().out
    assert "good [red]run" in out
    assert "4,000" in out
    assert "12.5 s" in out
