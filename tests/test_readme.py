"""The README is short, and its lines do in a script what it says of them."""

import os
import re
import subprocess
import sys
from pathlib import Path
from textwrap import indent

import pytest
from processes import PATIENCE

import roastcoffea

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
USE = re.compile(r"<!-- tests/test_readme.py runs this -->\n```python\n(.*?)```", re.DOTALL)
AROUND = """\
from coffea.nanoevents import NanoAODSchema
from coffea.processor import DaskExecutor, Runner
from dask.distributed import Client

from roastcoffea.demo import DijetProcessor, write_sample

if __name__ == "__main__":
    fileset = write_sample("sample", files=2, events=20_000)
    processor = DijetProcessor()
    with Client(n_workers=2, threads_per_worker=1, dashboard_address=":0") as client:
        runner = Runner(DaskExecutor(client=client), schema=NanoAODSchema, chunksize=5_000)
"""
"""The analysis that the reader has."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("readme")


@pytest.fixture(scope="module")
def printed(folder: Path) -> str:
    """What the lines print, run in a script with warnings as errors."""
    (lines,) = USE.findall(README)
    script = folder / "script.py"
    script.write_text(AROUND + indent(lines, 8 * " "))
    # a heartbeat that a closing cluster cuts off is logged by Dask now and then
    quiet = os.environ | {"DASK_LOGGING__DISTRIBUTED": "critical"}
    command = [sys.executable, "-W", "error", script]
    done = subprocess.run(command, check=False, cwd=folder, env=quiet, capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.slow
def test_the_lines_print_a_summary_and_save_what_can_be_loaded(printed: str, folder: Path) -> None:
    assert "DijetProcessor" in printed
    measurement = roastcoffea.load(folder / "roastcoffea-runs" / "dijets")
    assert measurement.outcome == "finished"
    assert measurement.metrics["total_events"] == 2 * 2 * 20_000
    assert measurement.metrics["num_chunks"] == len(measurement.chunks) == 2 * 2 * 4


@pytest.mark.slow
def test_the_lines_of_the_terminal_are_named_as_they_are_printed(printed: str) -> None:
    (shown,) = re.findall(r"<!-- tests/test_readme.py prints this -->\n```text\n(.*?)```", README, re.DOTALL)
    labels = re.findall(r"^  ([a-z][a-z ]*?) {2,}", shown, re.MULTILINE)
    assert labels == ["thread time", "bytes", "your code"]
    assert [label for label in labels if f"\n  {label}  " not in printed] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(re.findall(r"`measurement\.(\w+)", README))))
def test_what_the_readme_says_of_a_measurement_is_there(printed: str, folder: Path, name: str) -> None:
    assert getattr(roastcoffea.load(folder / "roastcoffea-runs" / "dijets"), name) is not None


def test_the_readme_is_short_and_has_a_small_picture() -> None:
    assert len(README.splitlines()) <= 90
    (picture,) = re.findall(r"!\[[^]]+\]\(([^)]+)\)", README)
    assert (ROOT / picture).stat().st_size < 200_000


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_links_lead_somewhere(page: str) -> None:
    links = re.findall(r"\]\((?!http)([^)#]+)\)", (ROOT / page).read_text(encoding="utf-8"))
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
