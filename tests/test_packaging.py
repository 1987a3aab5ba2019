"""What is built of the repository: a wheel and a source archive that work in an environment of their own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import roastcoffea

ROOT = Path(__file__).parent.parent
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

DEMO = ["demo", "--files", "1", "--events", "2000", "--chunksize", "1000", "--out", "runs"]


def test_the_citation_has_the_version_and_the_licence() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["cff-version"] == "1.2.0"
    assert {"message", "authors", "title"} <= citation.keys()
    assert (citation["title"], citation["version"]) == (PROJECT["name"], roastcoffea.__version__)
    assert citation["license"] == PROJECT["license"]
    assert citation["authors"] == PROJECT["authors"]


def test_the_changelog_has_the_version() -> None:
    assert f"\n## [{roastcoffea.__version__}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_workflow_runs_what_developers_run() -> None:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))["jobs"]
    commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    assert commands == [".ci/run"]
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def test_the_lowest_versions_are_those_of_the_matrix() -> None:
    lines = (ROOT / "benchmarks" / "environments" / "floors.txt").read_text(encoding="utf-8").splitlines()
    pinned = dict(line.split("==") for line in lines[1:])
    floors = dict(re.fullmatch(r"([\w-]+)(?:\[\w+\])?>=([\d.]+)", line).groups() for line in PROJECT["dependencies"])
    assert lines[0] == f"# Python {PROJECT['requires-python'].removeprefix('>=')}"
    assert pinned.keys() == floors.keys()
    for package, floor in floors.items():
        version = pinned[package]
        assert version.removeprefix(floor).replace(".0", "") == "", (
            f"{package} {version} is not the lowest of >={floor}"
        )


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the source archive and with the wheel that is built of it."""
    pytest.importorskip("build")
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "build", "--outdir", folder, ROOT], check=True, timeout=600)
    return folder


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_wheel_and_source_archive_run_the_demo_in_a_fresh_environment(built: Path, tmp_path: Path) -> None:
    (archive,), (wheel,) = built.glob("*.tar.gz"), built.glob("*.whl")
    assert wheel.name == f"roastcoffea-{roastcoffea.__version__}-py3-none-any.whl"
    scripts = tmp_path / "fresh" / ("Scripts" if sys.platform == "win32" else "bin")
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "fresh"], check=True)
    alone = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "PYTHONHOME"}}

    def run(*command: str | Path) -> str:
        done = subprocess.run(
            command, cwd=tmp_path, env=alone, stdout=subprocess.PIPE, text=True, check=True, timeout=900
        )
        return done.stdout

    pip = [scripts / "python", "-m", "pip", "--quiet", "install"]
    for command in ([*pip, wheel], [*pip, "--no-deps", "--force-reinstall", archive]):
        run(*command)
        place = run(scripts / "python", "-c", "import roastcoffea; print(roastcoffea.__file__)")
        assert Path(place.strip()).is_relative_to(tmp_path / "fresh")
        run(scripts / "roastcoffea", *DEMO)
    measurements = [roastcoffea.load(path) for path in (tmp_path / "runs").iterdir() if path.is_dir()]
    assert [measurement.metrics["total_events"] for measurement in measurements] == [2 * 2000] * 2


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_source_archive_has_what_takes_to_check_and_to_cite_it(built: Path) -> None:
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    needed = {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", ".ci/run"}
    assert needed <= names
    assert {"tests/test_packaging.py", "docs/conf.py", "src/roastcoffea/py.typed"} <= names
