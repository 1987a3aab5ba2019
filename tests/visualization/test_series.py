"""Numbers for pictures: series of workers, grids, bins and pixels, against sums made in another way."""

from __future__ import annotations

import numpy as np
import pytest
from handmade import CHUNKS, SAMPLES, T

from roastcoffea.compat.shapes import tracking_data
from roastcoffea.metrics.catalogue import NotMeasuredError
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.chunks import CHUNK_COLUMNS
from roastcoffea.records.workers import LIFETIME_COLUMNS, SAMPLE_COLUMNS
from roastcoffea.visualization.inputs import (
    Series,
    busy_in_pixels,
    known_rows,
    lasting,
    on_grid,
    series_of,
)


def test_a_series_of_each_worker_is_in_order_of_time() -> None:
    samples = table_of_rows(SAMPLE_COLUMNS, SAMPLES)
    memory = series_of(samples, "memory", {"A": "node:9", "B": "node:10"})
    assert (memory.workers, memory.names) == (["A", "B"], ["node:9", "node:10"])
    assert [(times - T).tolist() for times in memory.times] == [[0, 10, 40], [30]]
    assert [values.tolist() for values in memory.values] == [[100, 300, 300], [500]]
    assert (memory.begin, memory.end) == (T, T + 40)
    assert series_of(samples, "processing", {}).workers == ["A"]  # nobody counted those of B
    with pytest.raises(NotMeasuredError, match="no sample has nbytes"):
        series_of(samples, "nbytes", {})


def test_busy_time_in_pixels_against_one_by_one() -> None:
    random = np.random.default_rng(5)
    rows, starts = random.integers(0, 3, 50), random.uniform(-1, 9, 50)
    stops = starts + random.exponential(1.5, 50)
    edges = np.linspace(0, 10, 21)
    wanted = np.zeros((3, 20))
    for row, start, stop in zip(rows, starts, stops, strict=True):
        wanted[row] += np.clip(np.minimum(stop, edges[1:]) - np.maximum(start, edges[:-1]), 0, None)
    np.testing.assert_allclose(busy_in_pixels(rows, starts, stops, (3, 20), edges), wanted, atol=1e-4)


def test_workers_on_a_grid() -> None:
    series = Series(
        ["a", "b"], ["a", "b"], [np.array([0.0, 2.0]), np.array([0.9])], [np.array([0.0, 4.0]), np.array([7.0])]
    )
    nan = np.nan
    np.testing.assert_array_equal(on_grid(series, np.array([0.0, 1.0, 2.0, 3.0])), [[0, 2, 4, nan], [nan, 7, nan, nan]])


def test_what_the_scheduler_knew_is_drawn_when_it_knew_it() -> None:
    # a worker whose event loop was held up reports late what it measured early
    rows = [
        {"worker": "A", "time": 1.0, "noted": 1.5, "memory": 7, "processing": 0},
        {"worker": "A", "time": 2.0, "noted": 2.5, "memory": 8, "processing": 2},
    ]
    samples = table_of_rows(SAMPLE_COLUMNS, rows)
    assert series_of(samples, "memory", {}).times[0].tolist() == [1.0, 2.0]
    assert series_of(samples, "processing", {}).times[0].tolist() == [1.5, 2.5]
    of_older_runs = table_of_rows(SAMPLE_COLUMNS, [row | {"noted": None} for row in rows])
    assert series_of(of_older_runs, "processing", {}).times[0].tolist() == [1.0, 2.0]
    lifetimes = table_of_rows(LIFETIME_COLUMNS, [{"worker": "A", "threads": 1, "start": 0.0, "stop": 3.0}])
    data = tracking_data(samples, lifetimes)
    assert [moment.timestamp() for moment, _ in data["worker_memory"]["A"]] == [1.0, 2.0]
    assert [moment.timestamp() for moment, _ in data["worker_active_tasks"]["A"]] == [1.5, 2.5]


def test_a_worker_lasts_from_its_arrival_until_it_left() -> None:
    series = Series(
        ["a", "b", "c"],
        ["a", "b", "c"],
        [np.array([10.0, 20.0, 30.0]), np.array([14.0, 24.0]), np.array([20.0])],
        [np.array([1.0, 2.0, 3.0]), np.array([4.0, 5.0]), np.array([6.0])],
    )
    found = lasting(series, {"a": (0.0, 26.0), "c": (12.0, 99.0)})
    # none begins before the first sample of all or ends after the last; b, of which nothing is known, lasts 10 s longer
    assert [times.tolist() for times in found.times] == [
        [10, 10, 20, 30, 30],
        [10, 14, 24, 30],
        [12, 20, 30],
    ]
    assert [values.tolist() for values in found.values] == [[1, 1, 2, 3, 3], [4, 4, 5, 5], [6, 6, 6]]


def test_rows_are_kept_where_all_columns_are_known() -> None:
    rows = [row | {"bytes_requested": None if row["id"] == 11 else row["bytes_requested"]} for row in CHUNKS]
    chunks = table_of_rows(CHUNK_COLUMNS, rows)
    found = known_rows(chunks, "bytes_requested", "events").to_pylist()
    wanted = [row for row in rows if row["bytes_requested"] is not None and row.get("events") is not None]
    assert found == [{name: row[name] for name in ("dataset", "bytes_requested", "events")} for row in wanted]
    assert 0 < len(found) < len(rows)
    with pytest.raises(NotMeasuredError, match="file bytes and events are unknown for every chunk"):
        known_rows(table_of_rows(CHUNK_COLUMNS, [row | {"file_bytes": None} for row in rows]), "file_bytes", "events")
