"""Workers as a heat map: what is in it is what their tasks and samples say."""

from __future__ import annotations

import numpy as np
import pytest
from pictures import synthetic_run

from roastcoffea.measurement import Measurement
from roastcoffea.report.page import worker_map as module
from roastcoffea.report.page.figures import Context
from roastcoffea.report.page.worker_map import COLUMNS, FULL, UNKNOWN, worker_map
from roastcoffea.visualization.inputs import inputs_of


@pytest.fixture(scope="module")
def measurement() -> Measurement:
    return Measurement(synthetic_run(workers=3))


def maps(measurement: Measurement) -> dict[str, np.ndarray]:
    run = measurement.run
    chart = worker_map(Context(inputs_of(measurement), run.start, run.stop, None, every_task=False))
    assert chart.packed is not None
    shape = (len(chart.facts["measures"]), chart.facts["rows"], COLUMNS)
    return dict(zip(chart.facts["measures"], np.frombuffer(chart.packed, "u1").reshape(shape), strict=True))


def test_threads_with_a_task_are_those_of_the_tasks(measurement: Measurement) -> None:
    run, busy = measurement.run, maps(measurement)[module.BUSY]
    bin_seconds = (run.stop - run.start) / COLUMNS
    tasks = measurement.tasks
    for row, (_, of_worker) in zip(busy, tasks.groupby("worker"), strict=True):
        expected = (of_worker["stop"] - of_worker["start"]).sum() / 2  # each worker has two threads
        assert row.sum() / FULL * bin_seconds == pytest.approx(expected, rel=0.03)


def test_samples_are_shares_of_what_there_is(measurement: Measurement) -> None:
    found, samples = maps(measurement), measurement.workers
    for row, (_, of_worker) in zip(found[module.MEMORY], samples.groupby("worker"), strict=True):
        known = row[row != UNKNOWN] / FULL
        shares = (of_worker["memory"] / of_worker["memory_limit"]).astype(float)
        assert known.min() == pytest.approx(shares.min(), abs=0.02)
        assert known.max() == pytest.approx(min(shares.max(), 1), abs=0.02)
    cpu = found[module.CPU]
    largest = float(samples["cpu_percent"].max()) / 200
    assert cpu[cpu != UNKNOWN].max() / FULL == pytest.approx(min(largest, 1), abs=0.03)


def test_rows_are_shared_where_workers_are_very_many(monkeypatch: pytest.MonkeyPatch) -> None:
    measurement = Measurement(synthetic_run(workers=6, rounds=3))
    alone = maps(measurement)[module.BUSY].astype(float)
    monkeypatch.setattr(module, "MOST_ROWS", 3)
    shared = maps(measurement)[module.BUSY]
    assert np.abs(shared - alone.reshape(3, 2, COLUMNS).mean(axis=1)).max() <= 1
