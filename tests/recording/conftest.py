"""A folder in which scripts run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def folder(tmp_path: Path, sample: Any) -> Path:
    """Folder with the fileset, in which scripts run."""
    (tmp_path / "sample.json").write_text(json.dumps(sample))
    return tmp_path
