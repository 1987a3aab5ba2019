"""Workers asked for over time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from handmade import T
from limited_runs import edited, with_rows
from made_runs import made_run, plan

from roastcoffea.measurement import Measurement
from roastcoffea.metrics.arrivals import STATES


def test_the_curve_adds_up_and_agrees_with_the_times_of_tasks() -> None:
    arrivals = (0.0, 4.0, 9.0)
    run = made_run([plan(1.5 + place % 3) for place in range(30)], 3, arrivals=arrivals)
    run = edited(run, lifetimes=lambda row: {"name": row["worker"]})
    rows = [{"name": f"w{number}", "state": "requested"} for number in range(5)]
    rows += [{"name": "w4", "state": "released", "time": T + 6}]  # type: ignore[dict-item]
    metrics = Measurement(with_rows(run, worker_requests=rows)).metrics
    edges, workers = metrics.evaluator.value("workforce")
    present = np.clip(T + 6 - edges[:-1], 0, np.diff(edges)) / np.diff(edges)  # part of the last worker
    assert workers[:-1].sum(axis=0) == pytest.approx(4 + present, abs=1e-4)
    seconds = dict(zip(STATES, workers @ np.diff(edges), strict=True))
    assert seconds["working"] == pytest.approx(10 * (1.5 + 2.5 + 3.5))
    assert seconds["requested"] == pytest.approx(sum(arrivals) + (run.stop - T) + 6)
    assert seconds["arrived"] == pytest.approx(3 * (run.stop - T) - sum(arrivals) - seconds["working"])
    states = dict(zip(*(metrics.tables["arrivals"][name].to_pylist() for name in ("name", "state")), strict=True))
    assert states == {"w0": "arrived", "w1": "arrived", "w2": "arrived", "w3": "requested", "w4": "released"}


def test_without_lifetimes_arrivals_are_not_known() -> None:
    run = made_run([plan(1.0)] * 4, 2)
    run = with_rows(run, worker_requests=[{"name": f"w{number}", "state": "requested"} for number in range(5)])
    lost = replace(run, absent={**run.absent, "lifetimes": "the connection was lost"})
    assert Measurement(lost).arrivals.attrs["absent"] == "the connection was lost"
    assert not [one for one in Measurement(lost).verdict if one.cause == "missing workers"]


def test_when_a_worker_left_and_was_released() -> None:
    """It leaves, is requested on, and is then released."""
    run = made_run([plan(1.0)] * 40, 2)
    run = edited(
        run, lifetimes=lambda row: {"name": row["worker"]} | ({"stop": T + 5} if row["worker"] == "w1" else {})
    )
    rows = [{"name": name, "state": "requested"} for name in ("w0", "w1")]
    rows += [{"name": "w1", "state": "released", "time": T + 8}]  # type: ignore[dict-item]
    measurement = Measurement(with_rows(run, worker_requests=rows))
    (row,) = measurement.arrivals.query("name == 'w1'").to_dict("records")
    assert (row["state"], row["left"], row["released"]) == ("left", T + 5, T + 8)
    edges, workers = measurement.metrics.evaluator.value("workforce")
    assert workers[STATES.index("left")] @ np.diff(edges) == pytest.approx(3)
