"""Measurements that commands show."""

from __future__ import annotations

from pathlib import Path

import pytest
from handmade import handmade_run

from roastcoffea.compat.measurements import save_measurement
from roastcoffea.storage.store import save_run

METRICS = {"elapsed_time_seconds": 12.5, "total_events": 4000}


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Folder with two measurements, one of which is damaged."""
    folder = tmp_path / "runs"
    save_measurement(METRICS, 100.0, 112.5, folder, "good [red]run")
    damaged = save_measurement(METRICS, 100.0, 112.5, folder, "damaged")
    (damaged / "run.json").write_text('{"format": "roastcoffea_run", "schema"')
    return folder


@pytest.fixture
def drawable(tmp_path: Path) -> Path:
    """Folder of a measurement with records."""
    return save_run(handmade_run(), tmp_path / "runs", "by hand")
