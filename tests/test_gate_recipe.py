"""The workflow of docs/howto/compare.md: a pull request without a change passes, and one that slows down fails."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from made_runs import made_run, plan

from roastcoffea.measurement import Measurement

PAGE = Path(__file__).parent.parent / "docs" / "howto" / "compare.md"
(RECIPE,) = re.findall(r"<!-- tests/test_gate_recipe.py runs this -->\n```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
STEPS: list[dict[str, Any]] = yaml.safe_load(RECIPE)["jobs"]["compare"]["steps"]
SCRIPTS = {step["name"]: step["run"] for step in STEPS if "name" in step}

RUN = """\
#!/bin/bash
if [ "$1" != run ]; then exec "{python}" -m roastcoffea "$@"; fi
mkdir -p "$3" && cp -r "{recorded}/$(cat "$4")/$(ls "$3" | wc -l)" "$3"
"""
"""The command as the recipe calls it; what it would measure is there already, by what is in the script."""


def record(folder: Path) -> Path:
    """Folder of the command, and four runs of each version."""
    for version, seconds in (("fast", 1.0), ("slow", 2.0)):
        for repeat in range(4):
            made = made_run([plan(seconds * (1 + 0.01 * repeat))] * 8, 2, name=f"{version}-{repeat}")
            Measurement(made).save(folder / version, str(repeat))
    command = folder / "bin" / "roastcoffea"
    command.parent.mkdir()
    command.write_text(RUN.format(python=sys.executable, recorded=folder))
    command.chmod(0o755)
    return command.parent


def run_step(name: str, folder: Path, programs: Path) -> subprocess.CompletedProcess[str]:
    """A step as GitHub runs it: in bash, which ends with the first command that fails."""
    own = {"GITHUB_WORKSPACE": folder, "GITHUB_BASE_REF": "main", "GITHUB_STEP_SUMMARY": folder / "summary.md"}
    paths = f"{programs}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {name: str(value) for name, value in own.items()} | {"PATH": paths}
    environment.pop("ROASTCOFFEA", None)
    command = ["bash", "-eo", "pipefail", "-c", SCRIPTS[name]]
    return subprocess.run(
        command, check=False, cwd=folder, env=environment, capture_output=True, text=True, timeout=600
    )


def git(folder: Path, *words: str) -> None:
    who = ["-c", "user.name=Jane", "-c", "user.email=jane@example.org"]
    subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True)


def test_the_recipe_measures_compares_and_keeps() -> None:
    assert list(SCRIPTS) == ["Measure both versions alternately", "Compare"]
    assert STEPS[0]["with"]["fetch-depth"] == 0  # the base has to be there
    assert STEPS[-1]["with"]["path"] == "runs"


@pytest.mark.skipif(shutil.which("bash") is None or shutil.which("git") is None, reason="bash and git are needed")
def test_a_slower_branch_fails_and_an_equal_one_passes(tmp_path: Path) -> None:
    programs, folder = record(tmp_path / "recorded"), tmp_path / "repository"
    folder.mkdir()
    script = folder / "analysis.py"
    git(folder, "init", "--initial-branch=main")
    script.write_text("fast")
    git(folder, "add", "analysis.py")
    git(folder, "commit", "--message=As it was")
    git(folder, "update-ref", "refs/remotes/origin/main", "HEAD")
    script.write_text("slow")
    git(folder, "commit", "--all", "--message=Slower")

    measured = run_step("Measure both versions alternately", folder, programs)
    assert measured.returncode == 0, measured.stderr
    slower = run_step("Compare", folder, programs)
    assert slower.returncode == 1, slower.stdout
    assert "| " in (folder / "summary.md").read_text()

    shutil.rmtree(folder / "runs" / "branch")
    shutil.copytree(folder / "runs" / "base", folder / "runs" / "branch")
    equal = run_step("Compare", folder, programs)
    assert equal.returncode == 0, equal.stdout + equal.stderr
