"""A collector's plugin has its scheduler show the run, where that has the package."""

from __future__ import annotations

import asyncio
import logging
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from roastcoffea.backends.display import SHOWN_BY, Display

PLUGIN: Any = SimpleNamespace(scheduler="scheduler", name="roastcoffea-1", token="token-1")


def shown(monkeypatch: pytest.MonkeyPatch, module: Any) -> None:
    """Start and end the addition on a scheduler with this module."""
    monkeypatch.setitem(sys.modules, SHOWN_BY, module)

    async def run() -> None:
        display = Display()
        display.start(PLUGIN)
        await asyncio.sleep(0.01)
        display.end()

    asyncio.run(run())


def test_it_joins_and_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[Any, ...]] = []
    module: Any = ModuleType("display")
    module.join = lambda *given: calls.append(given)
    module.leave = lambda *given: calls.append(given)
    shown(monkeypatch, module)
    assert calls == [("scheduler", "roastcoffea-1", "token-1"), ("scheduler", "roastcoffea-1")]


def test_a_scheduler_that_cannot_show_it_says_so_in_its_debug_log_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, "roastcoffea"):
        shown(monkeypatch, None)  # as if the module were missing
    (record,) = caplog.records
    assert record.levelno == logging.DEBUG
    assert "does not show the run" in record.message
