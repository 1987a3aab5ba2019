"""The demonstration measures what it analyses."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from processes import PATIENCE

import roastcoffea


@pytest.mark.slow
def test_the_demonstration_measures_what_it_analyses(tmp_path: Path) -> None:
    (scratch := tmp_path / "scratch").mkdir()
    (here := tmp_path / "my runs").mkdir()
    sizes = ["--files", "2", "--events", "2000", "--chunksize", "500", "--folder", str(tmp_path / "sample")]
    command = [sys.executable, "-W", "error", "-m", "roastcoffea", "demo", *sizes]
    environment = os.environ | {"TMPDIR": str(scratch)}
    done = subprocess.run(
        command, check=False, cwd=here, env=environment, capture_output=True, text=True, timeout=PATIENCE
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "complete: 16 of 16 chunks" in done.stdout
    assert [*scratch.iterdir()] == []
    assert [path.name for path in here.iterdir()] == ["roastcoffea-runs"]
    (saved,) = filter(Path.is_dir, (here / "roastcoffea-runs").iterdir())
    shown = saved.relative_to(here)
    page = saved / "report.html"
    lines = (f"All tables: roastcoffea show {shown} --all", f"Page: {shown}/report.html", "All runs: roastcoffea list")
    assert "\n".join(lines) in done.stdout
    assert "dijet" in page.read_text().lower()
    measurement = roastcoffea.load(saved)
    assert measurement.outcome == "finished"
    assert measurement.problems == []
    assert measurement.metrics["total_events"] == 2 * 2 * 2000
    assert measurement.metrics["num_chunks"] == 2 * 2 * 4
    assert measurement.metrics["peak_workers"] == 2
    assert set(measurement.chunks["dataset"]) == {"qcd", "zprime"}
