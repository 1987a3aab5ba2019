"""`roastcoffea demo`."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from processes import PATIENCE

import roastcoffea
from roastcoffea.cli import main


def test_without_a_runner_the_demo_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("roastcoffea.generations.runner_and_executor", lambda: None)
    assert main(["demo"]) == 1
    assert f"coffea {version('coffea')} has none: install coffea 2025.7 or newer" in capsys.readouterr().err


@pytest.mark.slow
def test_the_demonstration_as_a_command_without_options(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", "-m", "roastcoffea", "demo"]
    done = subprocess.run(command, check=False, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stderr) == (0, "")
    assert "400,000" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["roastcoffea-runs"]
    (saved,) = filter(Path.is_dir, (tmp_path / "roastcoffea-runs").iterdir())
    assert roastcoffea.load(saved).metrics["num_chunks"] == 40
