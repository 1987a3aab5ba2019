"""`roastcoffea history`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from made_runs import made_run, plan

from roastcoffea.cli import main
from roastcoffea.measurement import Measurement


@pytest.mark.slow
def test_the_history_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, page = tmp_path / "runs", tmp_path / "pages" / "history.html"
    page.parent.mkdir()
    for name, cpu in (("first", 1.0), ("second", 2.0)):
        Measurement(made_run([plan(cpu)] * 4, 2, id=name.ljust(32, "0"))).save(folder, name)
    assert main(["history", str(folder), "--page", str(page)]) == 0
    said = capsys.readouterr().out
    assert "Made on data" in said
    assert said.splitlines()[-1] == str(page)
    assert "second" in page.read_text()
    assert main(["history", str(folder), "--page", str(page)]) == 1
    assert "exists" in capsys.readouterr().err
    assert main(["history", str(folder), "--page", str(page), "--overwrite", "--json"]) == 0
    found = capsys.readouterr()
    assert [run["name"] for run in json.loads(found.out)["analyses"][0]["runs"]] == ["first", "second"]
    assert found.err.strip() == str(page)
    assert main(["history", str(tmp_path / "pages")]) == 1
    assert "there are no measurements in" in capsys.readouterr().err
