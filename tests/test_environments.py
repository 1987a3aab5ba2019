"""The matrix of environments: which Python it takes, and what it calls wrong."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def matrix() -> Any:
    sys.path.insert(0, str(ROOT))
    try:
        return importlib.import_module("benchmarks.environments.__main__")
    finally:
        sys.path.remove(str(ROOT))


def write_program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.fixture
def constraints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    file = tmp_path / "some.txt"
    file.write_text("# Python 3.12\ncoffea==2025.12.0\n")
    return file


def test_a_python_is_looked_for_on_path_and_in_the_folders_of_pyenv(matrix: Any, constraints: Path) -> None:
    assert matrix.python_of(constraints) == (None, False)
    folder = constraints.parent
    write_program(folder / "bin" / "python3.12", "echo 'pyenv: python3.12: command not found' >&2; exit 127")
    assert matrix.python_of(constraints) == (None, True)
    write_program(folder / "pyenv" / "versions" / "3.12.9" / "bin" / "python", "echo Python 3.12.9")
    assert matrix.python_of(constraints) == (folder / "pyenv" / "versions" / "3.12.9" / "bin" / "python", True)


def test_the_first_line_names_a_python(matrix: Any, constraints: Path) -> None:
    constraints.write_text("coffea==2025.12.0\n")
    with pytest.raises(ValueError, match="first line"):
        matrix.python_of(constraints)
    for file in sorted(matrix.HERE.glob("*.txt")):
        assert file.read_text().startswith("# Python 3."), file.name


GOOD = {"output": True, "payload": True, "bytes_residual": 0, "time_residual": 1e-7, "problems": []}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({}, []),
        ({"compared": True, "opened": True}, []),
        ({"payload": False}, ["dask: payload"]),
        ({"bytes_residual": 7}, ["dask: bytes in no class"]),
        ({"time_residual": -0.01}, ["dask: time in no class"]),
        ({"problems": ["planted"]}, ["dask: planted"]),
        ({"opened": False}, ["dask: opened"]),
    ],
)
def test_what_is_wrong_is_told(matrix: Any, change: dict[str, Any], told: list[str]) -> None:
    assert matrix.failures({"changed": {}, "executors": {"dask": [GOOD, GOOD | change]}}) == told
    moved = {"changed": {"uproot": "5.7.1 to 5.7.7"}, "executors": {"dask": [GOOD]}}
    assert matrix.failures(moved) == ["uproot went from 5.7.1 to 5.7.7"]
