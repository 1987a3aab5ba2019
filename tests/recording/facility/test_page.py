"""The application of Bokeh on a scheduler's web server."""

from __future__ import annotations

from bokeh.document import Document
from stand_ins import Observed

from roastcoffea.metrics.phases import FAMILIES, TIME_CLASSES
from roastcoffea.recording.facility.observer import BIN, SHOWN
from roastcoffea.recording.facility.page import BARS, View, bar_of


def test_each_class_is_part_of_one_bar() -> None:
    assert {bar_of(name) for name in SHOWN} == set(BARS)
    assert bar_of("compute") == FAMILIES[0].label
    assert {one.name for one in TIME_CLASSES} - set(SHOWN) == {"residual"}


def test_a_view_shows_the_threads_of_past_bins(observed: Observed) -> None:
    observed.observer.began = observed.now
    observed.observer.tick(observed.now)
    task = observed.chunk(1)
    observed.worker.processing = {task.key: None}
    for _ in range(4):
        observed.pass_time(5)
    observed.end(task, 20.0, events=1000)
    observed.worker.processing = {}
    observed.pass_time(5)
    view, document = View(observed.observer), Document()
    for root in view.roots:
        document.add_root(root)
    view.refresh()
    source = document.select_one({"name": "threads"})
    columns = {name: list(values) for name, values in source.data.items()}
    at = columns["time"].index(max(columns["time"]))
    assert sum(columns[name][at - 1] for name in BARS) * BIN > 7.9 * BIN
    assert sum(sum(columns[name]) for name in BARS) * BIN <= 8 * 25 + 1e-6
    assert "Dijet" in document.roots[0].text
