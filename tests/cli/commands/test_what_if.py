"""`roastcoffea what-if`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from handmade import handmade_run
from made_runs import FOUR, made_run

from roastcoffea.cli import main
from roastcoffea.storage.store import save_run


def test_the_command_and_its_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(save_run(made_run(FOUR, 2), tmp_path, "made"))
    assert main(["what-if", path, "--workers", "1", "4", "--chunksize", "200", "--json", path]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert [(one["workers"], round(one["seconds"])) for one in found["predictions"][:2]] == [(1, 48), (4, 12)]
    assert found["predictions"][-1]["chunksize"] == 200
    assert len(found["checks"]) == 1
    assert found["same_host"] is False
    assert main(["what-if", path, "--workers", "4", "--chunksize", "100", "--same-host"]) == 0
    assert "Wall time with workers sharing 64 cores" in capsys.readouterr().out
    assert main(["what-if", "--workers=1", "4", "--", path]) == 0
    out = capsys.readouterr().out
    assert "48 s" in out
    assert "within 10 %" in out
    assert main(["what-if", path, "--workers", "0"]) == 2
    assert main(["what-if", str(tmp_path / "nowhere")]) == 1
    assert capsys.readouterr().err.count("\n") == 2


@pytest.mark.slow
def test_the_command_takes_a_name_with_repeats(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for repeat in (1, 2):
        save_run(made_run(FOUR, 2), tmp_path, f"made-{repeat}")
    assert main(["what-if", str(tmp_path / "made"), "--workers", "4", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["checks"]) == 2
    assert main(["what-if", str(tmp_path / "made-1"), str(tmp_path / "made-[12]"), "--workers", "4", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["checks"]) == 2
    assert main(["what-if", str(tmp_path / "made-1"), str(tmp_path / "*-1"), "--workers", "4", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["spread"] is None


def test_several_numbers_follow_an_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from roastcoffea.cli import reading as what_if

    seen: list[tuple[list[str], dict[str, Any]]] = []
    monkeypatch.chdir(tmp_path)
    for name in ("2024", "first"):
        save_run(handmade_run(), "roastcoffea-runs", name)
    monkeypatch.setattr("roastcoffea.studies.what_if.what_if", lambda *runs, **given: seen.append((list(runs), given)))
    monkeypatch.setattr(what_if.shell, "present", lambda find, *_, **__: find())
    for words, runs, workers in (
        (["2024", "--workers", "1", "2"], ["2024"], (1, 2)),
        (["first", "--workers=1", "2", "4"], ["first"], (1, 2, 4)),
        (["--workers", "1", "2", "--threads", "3", "4", "first"], ["first"], (1, 2)),
        (["first", "--workers", "2024"], ["first"], (2024,)),
        (["first", "--workers", "1,2,4"], ["first"], (1, 2, 4)),
        (["first", "--workers=1,2"], ["first"], (1, 2)),
        (["--workers", "1,", "2", "--threads", "3,4", "first"], ["first"], (1, 2)),
    ):
        assert main(["what-if", *words]) == 0, capsys.readouterr().err
        found, given = seen.pop()
        assert ([Path(run).name for run in found], given["workers"]) == (runs, workers)
