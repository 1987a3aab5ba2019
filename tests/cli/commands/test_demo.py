"""`roastcoffea demo`."""

from __future__ import annotations

from importlib.metadata import version

import pytest

from roastcoffea.cli import main


def test_without_a_runner_the_demo_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("roastcoffea.generations.runner_and_executor", lambda: None)
    assert main(["demo"]) == 1
    assert f"coffea {version('coffea')} has none: install coffea 2025.7 or newer" in capsys.readouterr().err
