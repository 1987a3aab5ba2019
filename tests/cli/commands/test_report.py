"""`roastcoffea report`."""

from __future__ import annotations

from pathlib import Path

import pytest
from handmade import handmade_run

from roastcoffea.cli import main
from roastcoffea.storage.store import save_run


@pytest.mark.slow
def test_the_command_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = save_run(handmade_run(), tmp_path / "runs", "one")
    monkeypatch.chdir(tmp_path)
    assert main(["report", str(saved)]) == 0
    assert capsys.readouterr().out == "one.html\n"
    assert main(["report", str(saved), "-o", "one.html"]) == 1
    assert (
        capsys.readouterr().err == "roastcoffea: one.html exists; choose another name, or --overwrite to replace it\n"
    )
    assert main(["report", str(saved), "-o", "one.html", "--overwrite", "--every-task"]) == 0
    assert (tmp_path / "one.html").read_text().startswith("<!doctype html>")
