"""An observer of a scheduler of stand-ins."""

from __future__ import annotations

from typing import Any

import pytest
from stand_ins import Observed


@pytest.fixture
def observed(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Observer of two workers with four threads, on a clock that stands still."""
    return Observed(monkeypatch)
