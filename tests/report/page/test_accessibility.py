"""Pages are judged by axe-core, in light and dark; npm brings it, or has it in its cache."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest
from browser import Browser
from handmade import empty_run
from limited_runs import LIMITED
from made_runs import made_run, plan
from pictures import synthetic_run
from processes import PATIENCE
from profiled import profile_table

from roastcoffea.measurement import Measurement
from roastcoffea.studies.compare import compare

AXE = "axe-core@4.14.1"
DRAWN = "document.documentElement.dataset.charts === 'drawn' || !document.querySelector('.plot')"
RUN = """
axe.run(document, {resultTypes: ["violations"]}).then(({violations}) => JSON.stringify(
  violations.map(({id, help, nodes}) => [id, help, nodes.slice(0, 3).map((node) => node.html.slice(0, 200))])))
"""


@pytest.fixture(scope="session")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Program of axe-core."""
    npm, folder = shutil.which("npm"), tmp_path_factory.mktemp("axe")
    if npm is None:
        pytest.skip("npm is not installed")
    command = [npm, "pack", AXE, "--silent", "--prefer-offline"]
    packed = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE, check=False)
    if packed.returncode:
        pytest.skip(f"npm does not give {AXE}: {packed.stderr.strip()[-200:]}")
    with tarfile.open(next(folder.glob("*.tgz"))) as archive:
        program = archive.extractfile("package/axe.min.js")
        assert program is not None
        return program.read().decode()


def violations(browser: Browser, axe: str, path: Path, scheme: str) -> list[Any]:
    browser.scripts(True)
    browser.prefer(scheme)
    browser.size(1400, 900)
    browser.open(path, DRAWN)
    browser.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    browser.evaluate(f"{axe}; 1")
    found: list[Any] = json.loads(browser.evaluate(RUN))
    return found


@pytest.mark.slow
def test_no_page_has_a_violation(browser: Browser, axe: str, tmp_path: Path) -> None:
    full = dataclasses.replace(synthetic_run(workers=8, rounds=6, profile=profile_table()), problems=("a problem",))
    pages = {"full": Measurement(full).report(tmp_path / "full.html")}
    pages["empty"] = Measurement(empty_run()).report(tmp_path / "empty.html")
    pages["comparison"] = tmp_path / "comparison.html"
    found = compare(made_run([plan(1.0)] * 64, 2, name="fast"), made_run([plan(1.5)] * 64, 2, name="slow"))
    found.write(pages["comparison"], "html")
    pages["missing data"] = Measurement(LIMITED["missing data"]()).report(tmp_path / "missing.html")
    for name, path in pages.items():
        for scheme in ("light", "dark") if name in {"full", "comparison"} else ("dark",):
            assert violations(browser, axe, path, scheme) == [], (name, scheme)
            assert browser.messages == [], (name, scheme)
    browser.prefer("light")
