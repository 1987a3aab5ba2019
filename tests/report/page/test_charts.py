"""Charts of a page: areas are the ledger's sums, and every task is in them."""

from __future__ import annotations

import base64
import gzip
from typing import Any

import numpy as np
import pytest
from pages import drawn, tasks_in
from pictures import synthetic_run

from roastcoffea.measurement import Measurement
from roastcoffea.metrics.phases import TOTAL
from roastcoffea.report.page import charts, contents
from roastcoffea.report.page.figures import Context
from roastcoffea.visualization.distributions import SHOWN, stream_of
from roastcoffea.visualization.inputs import inputs_of


@pytest.fixture(scope="module")
def measurement() -> Measurement:
    return Measurement(synthetic_run())


@pytest.fixture(scope="module")
def page(measurement: Measurement) -> str:
    return contents.page_of(measurement)


def array(told: dict[str, Any]) -> Any:
    content = gzip.decompress(base64.b64decode(told["array"]["data"]))
    return np.frombuffer(content, told["dtype"]).astype(np.float64)


@pytest.mark.slow
def test_areas_of_the_classes_sum_to_the_ledger(page: str, measurement: Measurement) -> None:
    told = drawn(page)
    (figure,) = [root for root in told["doc"]["roots"] if root["attributes"]["name"] == "classes"]
    data = dict(figure["attributes"]["renderers"][0]["attributes"]["data_source"]["attributes"]["data"]["entries"])
    edges = array(data["x"]) / 1e3
    below = np.zeros(len(edges) - 1)
    for place, name in enumerate(told["classes"]["names"]):
        top = array(data[str(place)])[:-1]
        area = float(np.sum((top - below) * np.diff(edges)))
        assert area == pytest.approx(measurement.time_ledger[name], rel=1e-4, abs=1e-4 * measurement.time_ledger.total)
        below = top
    offered = float(np.sum(array(data[TOTAL])[:-1] * np.diff(edges)))
    assert offered == pytest.approx(measurement.time_ledger.total, rel=1e-5)


def test_every_task_is_in_the_page(page: str, measurement: Measurement) -> None:
    told = drawn(page)["stream"]
    lanes = [worker for worker, threads in told["workers"] for _ in range(threads)]
    found = []
    for lane, kind, begin, end, known in tasks_in(told):
        failed = told["classes"][kind % len(SHOWN)][0] == "failed"
        found.append((lanes[lane], *known, *[""] * (3 - len(known)), failed, begin, end))
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


def test_pixels_have_the_seconds_of_all_tasks(measurement: Measurement) -> None:
    run = measurement.run
    stream = stream_of(run.tasks, run.chunks)
    told = charts.pixels(stream, Context(inputs_of(measurement), run.start, run.stop, None, every_task=False))
    kind, most, busy = (np.array(told[name]) for name in ("kind", "most", "busy"))
    room = told["seconds"] * len(stream.lanes) / told["rows"]
    assert float(busy.sum() / 1e3 * room) == pytest.approx(float((stream.stop - stream.start).sum()), rel=1e-3)
    assert (most <= busy).all()
    failed = SHOWN.index("failed")
    seconds = float((stream.stop - stream.start)[stream.kind == failed].sum())
    assert float(most[kind == failed].sum() / 1e3 * room) == pytest.approx(seconds, rel=2e-3)


@pytest.mark.slow
def test_of_very_many_tasks_there_are_pixels_unless_every_one_is_asked_for(
    measurement: Measurement, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(charts, "MOST_TASKS", 50)
    pixels = contents.page_of(measurement)
    assert "tasks" not in drawn(pixels)["stream"]
    assert "Each pixel summarises its share of the 72 tasks" in pixels
    every = drawn(contents.page_of(measurement, every_task=True))["stream"]
    assert sum(every["tasks"]) == 72
    assert ["Dijet", "ttbar"] in every["groups"]
