"""The command that exports, and its formats."""

from __future__ import annotations

from pathlib import Path

import pytest
from handmade import empty_run, handmade_run

from roastcoffea.cli import main
from roastcoffea.errors import MeasurementError
from roastcoffea.measurement import Measurement
from roastcoffea.report.exports import FORMATS


@pytest.fixture
def handmade() -> Measurement:
    return Measurement(handmade_run())


@pytest.mark.slow
@pytest.mark.parametrize("file_format", FORMATS)
def test_the_command_names_what_it_wrote(
    handmade: Measurement,
    file_format: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    handmade.save(tmp_path / "runs", "good run")
    monkeypatch.chdir(tmp_path)
    command = ["export", "runs/good run", "--format", file_format]
    assert main(command) == 0
    (path,) = capsys.readouterr().out.splitlines()
    assert path == f"good run{FORMATS[file_format].ending}"
    assert Path(path).exists()
    assert main(command) == 1
    assert capsys.readouterr().err.startswith(f"roastcoffea: {path} exists")
    assert main([*command, "--overwrite"]) == 0
    assert main([*command, "-o", "here/other"]) == 0
    assert (tmp_path / "here" / "other").exists()


def test_the_command_lists_the_formats(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "--help"]) == 0
    assert f"One of {', '.join(FORMATS)}." in " ".join(capsys.readouterr().out.split())


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(MeasurementError, match="choose "):
        Measurement(empty_run()).export("nowhere", "xls")
