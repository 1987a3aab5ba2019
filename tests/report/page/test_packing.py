"""Tasks as few bytes: what scripts unpack is what was packed."""

from __future__ import annotations

import numpy as np
import pytest
from pages import unpacked
from pictures import synthetic_run

from roastcoffea.report.page.charts import packed_pixels, packed_tasks
from roastcoffea.visualization.stream import SHOWN, Stream, stream_of


def test_gaps_and_durations_that_are_long_or_negative_are_kept() -> None:
    starts, stops = np.array([0.0, 900.0, 899.0, -3.0]), np.array([1e-4, 900.0, 1000.0, 2.0])
    stream = Stream(
        lane=np.array([0, 0, 0, 1]),
        kind=np.array([0, 1, 2, 3]),
        start=starts,
        stop=stops,
        task=np.arange(4),
        chunk=np.full(4, -1),
        lanes=["a", "b"],
        workers=2,
    )
    packed = packed_tasks(stream, 0.0, 1000.0, np.array([7, 300, 2, 1]))
    found = unpacked(packed.facts, packed.content, 2)
    assert [task[:2] for task in found] == [(0, 0), (0, 2), (0, 1), (1, 3)]
    assert [task[4] for task in found] == [7, 2, 300, 1]
    order = [0, 2, 1, 3]
    assert [task[2] for task in found] == pytest.approx(starts[order].tolist(), abs=packed.facts["unit"])
    assert [task[3] for task in found] == pytest.approx(stops[order].tolist(), abs=packed.facts["unit"])


def test_pixels_have_the_seconds_of_all_tasks() -> None:
    run = synthetic_run()
    stream = stream_of(run.tasks, run.chunks)
    told, content = packed_pixels(stream, run.start, run.stop)
    size = told["rows"] * told["columns"]
    kind, *planes = np.frombuffer(content, "u1").reshape(5, size).astype(np.int64)
    most, busy = planes[0] + 256 * planes[1], planes[2] + 256 * planes[3]
    room = told["seconds"] * len(stream.lanes) / told["rows"]
    assert float(busy.sum() / 0xFFFF * room) == pytest.approx(float((stream.stop - stream.start).sum()), rel=1e-4)
    assert (most <= busy).all()
    failed = SHOWN.index("failed")
    seconds = float((stream.stop - stream.start)[stream.kind == failed].sum())
    assert float(most[kind == failed].sum() / 0xFFFF * room) == pytest.approx(seconds, rel=1e-3)
