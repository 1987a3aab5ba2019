"""The README's quickstart runs as it is printed."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import roastcoffea

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
QUICKSTART = re.compile(r"<!-- tests/test_readme.py runs this -->\n```python\n(.*?)```", re.DOTALL)
OUTPUT = re.compile(r"of which this is a part:\n\n```text\n(.*?)```", re.DOTALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("quickstart")


@pytest.fixture(scope="module")
def printed(folder: Path) -> str:
    """What the quickstart prints, run as a script with warnings as errors."""
    script = folder / "quickstart.py"
    script.write_text("".join(QUICKSTART.findall(README)))
    # a heartbeat that a closing cluster cuts off is logged by Dask now and then
    quiet = os.environ | {"DASK_LOGGING__DISTRIBUTED": "critical"}
    command = [sys.executable, "-W", "error", script]
    done = subprocess.run(command, check=False, cwd=folder, env=quiet, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.slow
def test_the_quickstart_prints_the_labels_that_the_readme_shows(printed: str) -> None:
    (shown,) = OUTPUT.findall(README)
    labels = [line[:28].strip() for line in shown.splitlines()]
    assert len(labels) > 5
    assert [label for label in labels if label not in printed] == []


@pytest.mark.slow
def test_the_quickstart_saves_what_can_be_loaded(printed: str, folder: Path) -> None:
    measurement = roastcoffea.load(folder / "roastcoffea-runs" / "dijets")
    assert measurement.outcome == "finished"
    assert measurement.metrics["total_events"] == 2 * 2 * 20_000
    assert measurement.metrics["num_chunks"] == len(measurement.chunks) == 2 * 2 * 4


@pytest.mark.slow
@pytest.mark.parametrize("expression", re.findall(r"^(measurement\.[\w.\[\]\"]+)", README, re.MULTILINE))
def test_what_the_readme_says_of_a_measurement_is_there(printed: str, folder: Path, expression: str) -> None:
    measurement = roastcoffea.load(folder / "roastcoffea-runs" / "dijets")
    assert eval(expression, {"measurement": measurement}) is not None


def test_links_of_the_readme_lead_somewhere() -> None:
    links = re.findall(r"\]\((?!http)([^)#]+)\)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
