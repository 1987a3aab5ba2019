"""2000 workers and 1,000,000 chunks: readable, and drawn in seconds."""

from __future__ import annotations

import io
import time
from pathlib import Path

import pytest
from pictures import synthetic_run

from roastcoffea.measurement import Measurement
from roastcoffea.visualization.plots import PLOTS
from roastcoffea.visualization.registry import figure_alone

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def measurement() -> Measurement:
    run = synthetic_run(workers=2000, threads=1, rounds=500, samples=300)
    assert len(run.chunks) == 1_000_000
    measurement = Measurement(run)
    assert measurement.metrics
    return measurement


@pytest.mark.parametrize("name", PLOTS)
def test_it_is_drawn_in_seconds(name: str, measurement: Measurement, tmp_path: Path) -> None:
    file, began = io.BytesIO(), time.process_time()
    figure = figure_alone(PLOTS[name], measurement)
    figure.savefig(file, format="pdf")
    assert time.process_time() - began < 60  # 2 to 4 on a quiet machine, and minutes where it goes with each task
    assert file.tell() < 300_000
    ax = figure.axes[0]
    shapes = sum(len(line.get_xdata()) for line in ax.lines) + sum(len(one.get_paths()) for one in ax.collections)
    assert shapes < 20_000
