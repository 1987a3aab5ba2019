"""1000 workers and 30,000 chunks: no plot has a shape for each."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from pictures import synthetic_run

from roastcoffea.measurement import Measurement
from roastcoffea.visualization.plots import PLOTS
from roastcoffea.visualization.registry import figure_alone

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def measurement() -> Measurement:
    run = synthetic_run(workers=1000, threads=1, rounds=30, samples=40)
    assert len(run.chunks) == 30_000
    measurement = Measurement(run)
    assert measurement.metrics
    return measurement


@pytest.mark.parametrize("name", PLOTS)
def test_it_is_small(name: str, measurement: Measurement, tmp_path: Path) -> None:
    file = io.BytesIO()
    figure = figure_alone(PLOTS[name], measurement)
    figure.savefig(file, format="pdf")
    assert file.tell() < 300_000
    ax = figure.axes[0]
    shapes = sum(len(line.get_xdata()) for line in ax.lines) + sum(len(one.get_paths()) for one in ax.collections)
    assert shapes < 20_000
