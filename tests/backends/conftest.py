"""The clock of the scheduler's plugin, where a test makes it go."""

from __future__ import annotations

import pytest
from stand_ins import Clock

from roastcoffea.backends import attempts, scheduler


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock that the plugin reads."""
    clock = Clock()
    for module in (attempts, scheduler):
        monkeypatch.setattr(module, "time", clock)
    return clock
