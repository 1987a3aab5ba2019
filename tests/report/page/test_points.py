"""Chunks as points: each one where its record says, with outliers apart."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pictures import synthetic_run

from roastcoffea.measurement import Measurement
from roastcoffea.report.page import worker_map as points
from roastcoffea.report.page.figures import Chart, Context
from roastcoffea.visualization.inputs import inputs_of


@pytest.fixture(scope="module")
def measurement() -> Measurement:
    return Measurement(synthetic_run(rounds=30))


def drawn(measurement: Measurement) -> tuple[Chart, dict[str, set[tuple[Any, Any]]]]:
    run = measurement.run
    chart = points.chunk_points(Context(inputs_of(measurement), run.start, run.stop, None, every_task=False))
    sources = {renderer.data_source.name: renderer.data_source.data for renderer in chart.figure.renderers}
    return chart, {name: set(zip(data["x"], data["y"], strict=True)) for name, data in sources.items()}


def test_points_are_the_chunks_and_outliers_the_stragglers(measurement: Measurement) -> None:
    chart, found = drawn(measurement)
    chunks = measurement.chunks[measurement.chunks["outcome"] == "ok"]
    assert set.union(*found.values()) == set(zip(chunks["events"], chunks["wall_seconds"], strict=True))
    slow = chunks[chunks["id"].isin(measurement.stragglers["id"])]
    assert len(slow) > 3
    assert found["points-outliers"] == set(zip(slow["events"], slow["wall_seconds"], strict=True))
    assert chart.packed is not None
    words = json.loads(chart.packed)["outliers"]
    files = [words["files"][place] for place in words["file"]]
    assert sorted(files) == sorted(measurement.stragglers["file"])
    assert all(words["expected"])


def test_of_very_many_chunks_some_are_drawn_and_all_outliers(
    measurement: Measurement, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(points, "MOST_POINTS", 50)
    chart, found = drawn(measurement)
    assert len(found["points-usual"]) == 50
    assert len(found["points-outliers"]) == len(measurement.stragglers)
    assert "chunks are drawn, evenly chosen" in chart.note
