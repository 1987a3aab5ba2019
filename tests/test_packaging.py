"""What is built of the repository: a wheel and a source archive that work in an environment of their own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_string
from importlib.metadata import requires
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import roastcoffea

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


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
    lines = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    stages = [line for line in lines if line.partition(" && ")[2] == "pytest" or line.startswith("pytest")]
    assert stages == ['pip install -e ".[test]" && pytest', 'pytest -m "cluster or slow"']


def test_a_release_is_checked_and_published_from_its_tag() -> None:
    release = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8"))
    check, build, publish = (release["jobs"][name] for name in ("check", "build", "publish"))
    assert release[True] == {"push": {"tags": ["v*"]}}  # YAML reads the key "on" as true
    assert check == {"uses": "./.github/workflows/ci.yml"}
    assert {"python -m build", "python -m twine check --strict dist/*"} <= {step.get("run") for step in build["steps"]}
    assert publish["needs"] == ["check", "build"]
    assert publish["permissions"] == {"id-token": "write"}
    assert release["permissions"] == {"contents": "read"}


def test_the_lowest_versions_are_those_of_the_matrix() -> None:
    lines = (ROOT / "benchmarks" / "environments" / "floors.txt").read_text(encoding="utf-8").splitlines()
    pinned = dict(line.split("==") for line in lines[1:] if "==" in line)
    floors = dict(re.fullmatch(r"([\w-]+)(?:\[\w+\])?>=([\d.]+)", line).groups() for line in PROJECT["dependencies"])
    assert lines[0] == f"# Python {PROJECT['requires-python'].removeprefix('>=')}"
    assert pinned.keys() == floors.keys()
    for package, floor in floors.items():
        version = pinned[package]
        assert version.removeprefix(floor).replace(".0", "") == "", (
            f"{package} {version} is not the lowest of >={floor}"
        )


def test_it_brings_no_package_that_coffea_does_not_bring() -> None:
    """Who has `coffea[dask]` installs nothing but roastcoffea."""
    found, left = set[tuple[str, frozenset[str]]](), [Requirement("coffea[dask]")]
    while left:
        wanted = left.pop()
        one = (canonicalize_name(wanted.name), frozenset(wanted.extras))
        if one in found:
            continue
        found.add(one)
        for line in requires(wanted.name) or ():
            requirement = Requirement(line)
            if requirement.marker is None or any(
                requirement.marker.evaluate({"extra": extra}) for extra in (*wanted.extras, "")
            ):
                left.append(requirement)
    needed = {canonicalize_name(Requirement(line).name) for line in PROJECT["dependencies"]}
    assert needed <= {name for name, _ in found}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the source archive and with the wheel that is built of it."""
    pytest.importorskip("build")
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "build", "--outdir", folder, ROOT], check=True, timeout=600)
    return folder


@pytest.mark.slow
def test_the_wheel_of_the_source_archive_has_the_package_and_what_it_needs(built: Path) -> None:
    """That an installed copy runs is shown below, and `.ci/run` installs what it needs into a new environment."""
    (wheel,) = built.glob("*.whl")
    assert wheel.name == f"roastcoffea-{roastcoffea.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as opened:
        names = {name for name in opened.namelist() if name.startswith("roastcoffea/")}
        (metadata,) = (opened.read(name).decode() for name in opened.namelist() if name.endswith("/METADATA"))
    package = Path(str(roastcoffea.__file__)).parent
    files = {path.relative_to(package.parent).as_posix() for path in package.rglob("*") if path.is_file()}
    assert names == {name for name in files if "__pycache__" not in name}
    needed = [Requirement(one) for one in message_from_string(metadata).get_all("Requires-Dist", [])]
    assert {str(one) for one in needed if one.marker is None} == {
        str(Requirement(one)) for one in PROJECT["dependencies"]
    }


@pytest.mark.slow
def test_an_index_takes_what_is_built_and_shows_the_readme_with_its_links(built: Path) -> None:
    pytest.importorskip("twine")
    command = [sys.executable, "-m", "twine", "check", "--strict", *built.iterdir()]
    checked = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert (checked.returncode, checked.stdout.count("PASSED")) == (0, 2), checked.stdout
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as opened:
        (metadata,) = (opened.read(name).decode() for name in opened.namelist() if name.endswith("/METADATA"))
    message = message_from_string(metadata)
    assert {url.partition(",")[0] for url in message.get_all("Project-URL", [])} == PROJECT["urls"].keys()
    assert re.findall(r"\]\((?!https://)[^)]*\)", message.get_payload()) == []
    site = PROJECT["urls"]["Documentation"]
    linked = re.findall(rf"\]\({re.escape(site)}([^)#]*)", message.get_payload())
    assert {"page.png", "changelog.html", "contributing.html"} < {*linked}
    pages = [page.removesuffix(".html") for page in linked if page.endswith(".html")]
    assert all((ROOT / "docs" / f"{page}.md").is_file() for page in pages), pages


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_it_is_installed_beside_the_packages_of_an_image(
    built: Path, packages_without_ours: Path, tmp_path: Path
) -> None:
    """As the documentation says: nothing of the image moves, and the collector runs with it."""
    text = (ROOT / "docs" / "facility" / "index.md").read_text(encoding="utf-8")
    commands = re.search(r"runs this -->\n```console\n(.*?)```", text, re.DOTALL)
    assert commands is not None
    (wheel,) = built.glob("*.whl")
    image = {**os.environ, "PYTHONPATH": str(packages_without_ours), "PYTHONPYCACHEPREFIX": ""}

    def run(command: str, *, check: bool = True) -> str:
        told = command.replace(" .", f" {wheel}").replace("python3 ", f"{sys.executable} ").split()
        return subprocess.run(told, cwd=tmp_path, env=image, capture_output=True, text=True, check=check).stdout

    create, install, check = commands[1].splitlines()
    run(create)
    before = run("beside/bin/pip list --format=freeze").splitlines()
    run(install)
    after = run("beside/bin/pip list --format=freeze").splitlines()
    assert set(before) <= set(after)
    assert [line for line in after if line not in before] == [f"roastcoffea=={roastcoffea.__version__}"]
    assert "roastcoffea" not in run(check, check=False)  # this Python may have other packages, broken or not
    (tmp_path / "script.py").write_text(
        "from roastcoffea import MetricsCollector\nwith MetricsCollector():\n    pass\n"
    )
    run("beside/bin/python script.py")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_source_archive_has_what_takes_to_check_and_to_cite_it(built: Path) -> None:
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    needed = {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", ".ci/run"}
    assert needed <= names
    assert {"tests/test_packaging.py", "docs/conf.py", "src/roastcoffea/py.typed"} <= names
