"""The demonstration measures what it analyses."""

from multiprocessing.util import get_temp_dir
from pathlib import Path

import pytest

import roastcoffea
from roastcoffea.cli import main


@pytest.mark.slow
def test_the_demonstration_measures_what_it_analyses(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # multiprocessing keeps a folder of its own until this process ends, in whose path its sockets' addresses are
    get_temp_dir()
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    sizes = ["--files", "2", "--events", "2000", "--chunksize", "500"]
    folders = ["--folder", str(tmp_path / "sample"), "--out", str(tmp_path / "my runs")]
    assert main(["demo", *sizes, *folders]) == 0

    out, err = capfd.readouterr()
    assert err == ""
    assert "complete: 16 of 16 chunks" in out
    assert [*scratch.iterdir()] == []
    (saved,) = filter(Path.is_dir, (tmp_path / "my runs").iterdir())
    page = saved / "report.html"
    assert f"All tables: roastcoffea show '{saved}' --all\nPage: {page}\nAll runs: roastcoffea list " in out
    assert "dijet" in page.read_text().lower()
    measurement = roastcoffea.load(saved)
    assert measurement.outcome == "finished"
    assert measurement.problems == []
    assert measurement.metrics["total_events"] == 2 * 2 * 2000
    assert measurement.metrics["num_chunks"] == 2 * 2 * 4
    assert measurement.metrics["peak_workers"] == 2
    assert set(measurement.chunks["dataset"]) == {"qcd", "zprime"}
