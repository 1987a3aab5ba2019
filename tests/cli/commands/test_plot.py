"""`roastcoffea plot`."""

from __future__ import annotations

from pathlib import Path

import pytest

from roastcoffea.cli import main
from roastcoffea.visualization.plots import PLOTS


@pytest.mark.slow
def test_plot_writes_files_and_names_them(
    drawable: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["plot", str(drawable), "byte_ledger", "plot_time_ledger"]) == 0
    folder = Path("roastcoffea-plots", "by hand")
    files = [folder / "byte_ledger.png", folder / "time_ledger.png"]
    assert capsys.readouterr().out.splitlines() == [str(file) for file in files]
    assert [file.read_bytes()[1:4] for file in files] == [b"PNG", b"PNG"]
    assert main(["plot", str(drawable), "sections", "-o", "here", "--format", "pdf"]) == 0
    assert Path("here", "sections.pdf").read_bytes().startswith(b"%PDF")
    assert main(["plot", str(drawable / "run.json"), "byte_ledger", "--overwrite"]) == 0
    assert [path.name for path in Path("roastcoffea-plots").iterdir()] == ["by hand"]
    capsys.readouterr()


@pytest.mark.slow
def test_plot_tells_what_cannot_be_drawn(drawable: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lacking = "roastcoffea: plot_stragglers has nothing to draw: only 3 chunks: finding a slow one takes at least 8\n"
    assert main(["plot", str(drawable), "stragglers", "byte_ledger", "-o", str(tmp_path)]) == 1
    out, err = capsys.readouterr()
    assert out == f"{tmp_path / 'byte_ledger.png'}\n"
    assert err == lacking
    assert main(["plot", str(drawable), "byte_leger", "-o", str(tmp_path)]) == 2
    assert "did you mean byte_ledger" in capsys.readouterr().err


@pytest.mark.slow
def test_plot_without_names_draws_all_that_can_be(
    drawable: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plot", str(drawable), "-o", str(tmp_path / "all"), "--format", "svg"]) == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) + len(err.splitlines()) == len(PLOTS)
    assert "plot_stragglers has nothing to draw" in err
    assert sorted(map(str, (tmp_path / "all").iterdir())) == sorted(out.splitlines())


@pytest.mark.slow
def test_plot_overwrites_nothing_unless_told_to(
    drawable: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = tmp_path / "sections.png"
    there.write_text("mine")
    command = ["plot", str(drawable), "byte_ledger", "sections", "-o", str(tmp_path)]
    assert main(command) == 1
    assert f"{there} exists; choose another name, or --overwrite" in capsys.readouterr().err
    assert [path.name for path in tmp_path.glob("*.png")] == ["sections.png"]  # nothing is half done
    assert there.read_text() == "mine"
    assert main([*command, "--overwrite"]) == 0
    assert there.read_bytes()[1:4] == b"PNG"
