"""`roastcoffea show`."""

from __future__ import annotations

from pathlib import Path

import pytest

from roastcoffea.cli import main
from roastcoffea.report.summary import GROUPS


def test_show_prints_one_screen_or_all_tables(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(runs / "good [red]run")
    assert main(["show", path]) == 0
    out = capsys.readouterr().out
    assert len(out.splitlines()) <= 24
    for words in ("good [red]run", "4,000 events", "12.5 s", f"roastcoffea show '{path}' --all"):
        assert words in out
    assert main(["show", path, "--all"]) == 0
    tables = capsys.readouterr().out
    assert len(tables.splitlines()) > 24
    assert "\nThroughput\n" in tables


def test_show_prints_the_tables_of_a_group(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(runs / "good [red]run")
    assert main(["show", path, "--group", "problems"]) == 0
    assert capsys.readouterr().out.strip().startswith("Measurement problems")
    assert main(["show", path, "--group", "bites"]) == 2
    assert "did you mean bytes?" in capsys.readouterr().err
    assert main(["show", "--help"]) == 0
    told = capsys.readouterr().out
    assert all(group in told for group in GROUPS)
