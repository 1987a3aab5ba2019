"""`roastcoffea scaling`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from made_runs import made_run, plan

from roastcoffea.cli import main
from roastcoffea.storage.store import save_run


@pytest.mark.slow
def test_the_scaling_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = {workers: made_run([plan(0.9)] * 64, workers, before=6.4) for workers in (1, 2, 4, 8)}
    paths = [str(save_run(run, tmp_path, f"run{workers}")) for workers, run in made.items()]
    picture = tmp_path / "scaling.png"
    assert main(["scaling", *paths, "--plot", str(picture)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "Strong scaling" in out
    assert "Amdahl: serial fraction 0.1" in out
    assert "idle: client" in out
    assert picture.stat().st_size > 10_000
    assert main(["scaling", *paths, "--plot", str(picture)]) == 1
    said = capsys.readouterr()
    assert (said.out, said.err) == (
        "",
        f"roastcoffea: {picture} exists; choose another name, or --overwrite to replace it\n",
    )
    assert main(["scaling", *paths, "--plot", str(picture), "--overwrite"]) == 0
    capsys.readouterr()
    assert main(["scaling", str(tmp_path / "run*"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["points"][3]["workers"] == 8
    page = tmp_path / "scaling.html"
    assert main(["scaling", *paths, "--rate", "10 kHz", "--page", str(page)]) == 0
    assert "10 kHz needs" in " ".join(capsys.readouterr().out.split())
    assert "Client limits these runs" in page.read_text()
    assert main(["scaling", *paths, "--rate", "fast"]) == 2
    assert "'fast' is not a rate; pass a rate such as" in " ".join(capsys.readouterr().err.split())
    for name in ("scaling.xyz", "scaling"):
        assert main(["scaling", *paths, "--plot", str(tmp_path / name)]) == 2
        said = capsys.readouterr()
        assert said.out == ""
        assert "must end with .png, .pdf, .svg" in said.err
    assert main(["scaling", paths[0]]) == 1
    assert "pass runs with different numbers" in capsys.readouterr().err
