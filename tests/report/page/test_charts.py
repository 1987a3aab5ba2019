"""Charts of a page: areas are the ledger's sums, and every task is in them."""

from __future__ import annotations

import base64
import gzip
import json
from typing import Any

import numpy as np
import pytest
from pages import block, unpacked
from pictures import synthetic_run

from roastcoffea.measurement import Measurement
from roastcoffea.metrics.phases import TOTAL
from roastcoffea.report.page import charts, contents


@pytest.fixture(scope="module")
def measurement() -> Measurement:
    return Measurement(synthetic_run())


@pytest.fixture(scope="module")
def page(measurement: Measurement) -> str:
    return contents.page_of(measurement)


def array(told: dict[str, Any]) -> Any:
    content = gzip.decompress(base64.b64decode(told["array"]["data"]))
    return np.frombuffer(content, told["dtype"]).astype(np.float64)


def test_areas_of_the_classes_sum_to_the_ledger(page: str, measurement: Measurement) -> None:
    told = json.loads(block(page, "charts"))
    (figure,) = [root for root in told["doc"]["roots"] if root["attributes"]["name"] == "classes"]
    data = dict(figure["attributes"]["renderers"][0]["attributes"]["data_source"]["attributes"]["data"]["entries"])
    edges = array(data["x"]) / 1e3
    below = np.zeros(len(edges) - 1)
    for name in told["classes"]["names"]:
        top = array(data[name])[:-1]
        area = float(np.sum((top - below) * np.diff(edges)))
        assert area == pytest.approx(measurement.time_ledger[name], rel=1e-4, abs=1e-4 * measurement.time_ledger.total)
        below = top
    offered = float(np.sum(array(data[TOTAL])[:-1] * np.diff(edges)))
    assert offered == pytest.approx(measurement.time_ledger.total, rel=1e-5)


def test_every_task_is_in_the_page(page: str, measurement: Measurement) -> None:
    told = json.loads(block(page, "charts"))["stream"]
    content = gzip.decompress(base64.b64decode(block(page, "packed-stream")))
    lanes = [worker for worker, threads in told["workers"] for _ in range(threads)]
    tasks = unpacked(told, content, len(lanes))
    found = []
    for lane, kind, begin, end, group in tasks:
        failed = told["classes"][kind][0] == "failed"
        found.append((lanes[lane], *(word or "" for word in told["groups"][group]), failed, begin, end))
    joined = measurement.tasks.drop(columns=["dataset", "file"]).merge(
        measurement.chunks[["key", "dataset", "file"]], "left", "key"
    )
    joined[["dataset", "file"]] = joined[["dataset", "file"]].fillna("")
    start = measurement.run.start
    expected = [
        (row.worker, row.prefix, row.dataset, row.file, row.outcome == "error", row.start - start, row.stop - start)
        for row in joined[["worker", "prefix", "dataset", "file", "outcome", "start", "stop"]].itertuples()
    ]
    for one, other in zip(sorted(found), sorted(expected), strict=True):
        assert one[:5] == other[:5]
        assert one[5:] == pytest.approx(other[5:], abs=told["unit"])


@pytest.mark.slow
def test_of_very_many_tasks_there_are_pixels_unless_every_one_is_asked_for(
    measurement: Measurement, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(charts, "MOST_TASKS", 50)
    pixels = contents.page_of(measurement)
    assert "tasks" not in json.loads(block(pixels, "charts"))["stream"]
    assert "Of 72 tasks this page has the sums in pixels" in pixels
    every = json.loads(block(contents.page_of(measurement, every_task=True), "charts"))["stream"]
    assert every["tasks"] == 72
    assert ["Dijet", "ttbar"] in every["groups"]
