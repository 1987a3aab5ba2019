"""Charts that are not over time: what is in them is what chunks, tasks and samples say; colours are the page's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from bokeh import models
from pictures import synthetic_run

from roastcoffea.measurement import Measurement
from roastcoffea.metrics.phases import BYTE_NAMES, FAMILIES, IDLING, TIME_NAMES
from roastcoffea.report.page import figures
from roastcoffea.report.page.figures import (
    COLUMNS,
    INK,
    Chart,
    Context,
    chunk_points,
    family_of,
    painted,
    time_figure,
    variable,
)
from roastcoffea.sheets.sheet import palette
from roastcoffea.visualization.inputs import inputs_of


def context(measurement: Measurement) -> Context:
    run = measurement.run
    return Context(inputs_of(measurement), run.start, run.stop, None, every_task=False)


def test_every_class_has_a_colour_in_both_schemes() -> None:
    for name in (*TIME_NAMES, *BYTE_NAMES):
        family = family_of(name)
        for scheme in ("light", "dark"):
            assert f"--rc-{family.name}: {getattr(family, scheme)};" in palette(FAMILIES, scheme)
        assert variable(family.name) == f"var(--rc-{family.name})"
    assert family_of("a class of a later version") is IDLING
    assert (variable(INK), painted(INK)) == ("var(--ink)", {"name": "paint-ink"})


@pytest.mark.parametrize(("seconds", "shown"), [(40, "%s.%3N s"), (400, "%M:%S.%3N"), (90_000, "%.0f ms")])
def test_bokeh_before_3_8_shows_durations_as_times_of_a_day(
    monkeypatch: pytest.MonkeyPatch, seconds: int, shown: str
) -> None:
    monkeypatch.delattr(models, "TimedeltaTickFormatter")
    window = models.Range1d(start=0, end=seconds * 1e3)
    plot = time_figure("bytes", Context(None, 0.0, seconds, window, every_task=False), "MB", (0, 1), 100)  # type: ignore[arg-type]
    formatter = plot.xaxis[0].formatter
    assert (formatter.format if seconds > 86_400 else formatter.milliseconds) == shown


# Chunks


@pytest.fixture(scope="module")
def many_chunks() -> Measurement:
    return Measurement(synthetic_run(rounds=30))


def points(measurement: Measurement) -> tuple[Chart, dict[str, set[tuple[Any, Any]]]]:
    chart = chunk_points(context(measurement))
    sources = {renderer.data_source.name: renderer.data_source.data for renderer in chart.figure.renderers}
    return chart, {name: set(zip(data["x"], data["y"], strict=True)) for name, data in sources.items()}


def test_points_are_the_chunks_and_outliers_the_stragglers(many_chunks: Measurement) -> None:
    chart, found = points(many_chunks)
    chunks = many_chunks.chunks[many_chunks.chunks["outcome"] == "ok"]
    assert set.union(*found.values()) == set(zip(chunks["events"], chunks["wall_seconds"], strict=True))
    slow = chunks[chunks["id"].isin(many_chunks.stragglers["id"])]
    assert len(slow) > 3
    assert found["points-outliers"] == set(zip(slow["events"], slow["wall_seconds"], strict=True))
    tips = chart.facts["outliers"]
    assert sorted(tip[2].partition(",")[0] for tip in tips) == sorted(many_chunks.stragglers["file"])
    assert all(", expected " in tip[0] for tip in tips)


def test_of_very_many_chunks_some_are_drawn_and_all_outliers(
    many_chunks: Measurement, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "MOST_POINTS", 50)
    chart, found = points(many_chunks)
    assert len(found["points-usual"]) == 50
    assert len(found["points-outliers"]) == len(many_chunks.stragglers)
    assert "chunks are drawn, sampled evenly" in chart.note


# Workers


def maps(measurement: Measurement) -> dict[str, Any]:
    """Shares of rows of workers and bins of time; not a number where they are not known."""
    found = figures.worker_map(context(measurement)).facts["maps"]
    grids = {name: np.array(shares, np.float64).reshape(-1, COLUMNS) for name, shares in found}
    return {name: np.where(grid < 0, np.nan, grid / 100) for name, grid in grids.items()}


@pytest.fixture(scope="module")
def three_workers() -> Measurement:
    return Measurement(synthetic_run(workers=3))


@pytest.mark.parametrize("unknown", ["worker", "time"])
def test_samples_of_an_unknown_worker_or_time_are_left_out(three_workers: Measurement, unknown: str) -> None:
    samples = three_workers.run.samples
    assert samples is not None
    place = samples.column_names.index(unknown)
    nulls = pa.nulls(len(samples), samples.schema.field(unknown).type)
    run = replace(three_workers.run, samples=samples.set_column(place, unknown, nulls))
    assert list(maps(Measurement(run))) == ["threads with a task"]


def test_threads_with_a_task_are_those_of_the_tasks(three_workers: Measurement) -> None:
    run, busy = three_workers.run, maps(three_workers)["threads with a task"]
    for row, (_, of_worker) in zip(busy, three_workers.tasks.groupby("worker"), strict=True):
        expected = (of_worker["stop"] - of_worker["start"]).sum() / 2  # each worker has two threads
        assert row.sum() * (run.stop - run.start) / COLUMNS == pytest.approx(expected, rel=0.03)


def test_samples_are_shares_of_what_there_is(three_workers: Measurement) -> None:
    found, samples = maps(three_workers), three_workers.workers
    for row, (_, of_worker) in zip(found["memory"], samples.groupby("worker"), strict=True):
        shares = (of_worker["memory"] / of_worker["memory_limit"]).astype(float)
        assert np.nanmin(row) == pytest.approx(shares.min(), abs=0.02)
        assert np.nanmax(row) == pytest.approx(min(shares.max(), 1), abs=0.02)
    largest = float(samples["cpu_percent"].max()) / 200
    assert np.nanmax(found["CPU"]) == pytest.approx(min(largest, 1), abs=0.03)


def test_rows_are_shared_where_workers_are_very_many(monkeypatch: pytest.MonkeyPatch) -> None:
    measurement = Measurement(synthetic_run(workers=6, rounds=3))
    alone = maps(measurement)["threads with a task"]
    monkeypatch.setattr(figures, "MOST_ROWS", 3)
    shared = maps(measurement)["threads with a task"]
    assert np.abs(shared - alone.reshape(3, 2, COLUMNS).mean(axis=1)).max() <= 0.01
