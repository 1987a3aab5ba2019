"""Dask's part in the time of runs that are written down by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from made_runs import made_run, plan

from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.run import Run
from roastcoffea.records.workers import TASK_COLUMNS
from roastcoffea.replay.stages import (
    costs_of,
    first_tasks,
    late_start,
    merging_of,
    task_durations,
)

RUN = made_run([plan(1.0)] * 8, 1)


def tasks_of(run: Run) -> pa.Table:
    assert run.tasks is not None
    return run.tasks


def with_gaps(gap: float) -> pa.Table:
    """Tasks of a thread with so much between them, each ready before the one before ended."""
    rows = tasks_of(RUN).to_pylist()
    for place, row in enumerate(rows):
        moved = place * gap
        row |= {"ready": RUN.start, "start": row["start"] + moved, "stop": row["stop"] + moved}
        row |= {"seen": row["stop"] + 0.25, "assigned": RUN.start, "arrived": RUN.start + 0.125}
    return table_of_rows(TASK_COLUMNS, rows)


def test_gap_and_latency() -> None:
    costs = costs_of(with_gaps(0.5))
    assert costs.gap == pytest.approx(0.5)
    assert costs.latency == pytest.approx(0.25 + 0.125 + 0.5)


def test_too_few_tasks_have_the_typical_gap() -> None:
    assert costs_of(with_gaps(0.5).slice(0, 2)).gap == 1.5e-3


def test_merges_by_the_results_that_they_take() -> None:
    (call,) = RUN.calls
    tree = replace(call, options=call.options | {"executor.treereduction": 4})
    metered = {("execute", "reduce", activity, "seconds"): 1.0 for activity in ("thread-cpu", "thread-noncpu")}
    rows = [row | {"start": RUN.start, "stop": RUN.start + 1.5} for row in tasks_of(RUN).to_pylist()[:2]]
    merges = table_of_rows(TASK_COLUMNS, rows)
    merging = merging_of(replace(RUN, span_metrics=metered), tree, 8, merges)
    assert merging.fan_in == 4
    # 8 results are merged by fours, and then the two that come of it: 3 s for 10
    assert merging.cpu + merging.wait == pytest.approx(0.3)
    assert merging_of(RUN, call, 8, merges).fan_in == 0
    assert merging_of(RUN, tree, 8, merges.slice(0, 0)).fan_in == 0


def test_durations() -> None:
    assert task_durations(tasks_of(RUN)).tolist() == pytest.approx([1.0] * 8)
    unknown = table_of_rows(TASK_COLUMNS, [row | {"stop": None} for row in tasks_of(RUN).to_pylist()])
    assert task_durations(unknown).tolist() == [0.0] * 8


def table(starts: list[float], stops: list[float], workers: list[str]) -> pa.Table:
    assigned = [start - 0.5 for start in starts]
    return pa.table({"worker": workers, "start": starts, "stop": stops, "assigned": assigned})


def ten(first: float) -> tuple[pa.Table, np.ndarray]:
    """Ten tasks of a worker, one after the other, of which the first takes so long and the others about a second."""
    seconds = np.array([first, *np.tile([0.9, 1.0, 1.1], 3)])
    stops = np.cumsum(seconds)
    return table((stops - seconds).tolist(), stops.tolist(), ["w"] * 10), seconds


def test_what_the_first_takes_beyond_the_others_is_its_excess() -> None:
    tasks, seconds = ten(6.0)
    first = first_tasks(tasks, np.zeros(10, np.int64), np.ones(10), seconds)
    assert first.leaders.tolist() == [0]
    assert first.excess(seconds) == pytest.approx(5.0)
    assert first.warm(seconds)[0] == pytest.approx(1.0)
    assert first.warm(seconds)[1:].tolist() == seconds[1:].tolist()


def test_what_is_typical_goes_with_events() -> None:
    tasks, seconds = ten(6.0)
    events = np.array([200.0, *[100.0] * 9])
    first = first_tasks(tasks, np.zeros(10, np.int64), events, seconds)
    assert first.warm(seconds)[0] == pytest.approx(2.0)


def test_a_first_task_like_the_others_is_none() -> None:
    tasks, seconds = ten(1.0)
    first = first_tasks(tasks, np.zeros(10, np.int64), np.ones(10), seconds)
    assert (first.alike, first.leaders.tolist(), first.excess(seconds)) == ((), [], 0.0)


def test_tasks_without_a_duration_are_no_first_ones() -> None:
    tasks = table([0.0] * 10, [0.0] * 10, ["w"] * 10)
    first = first_tasks(tasks, np.zeros(10, np.int64), np.ones(10), np.zeros(10))
    assert first.excess(np.zeros(10)) == 0.0


def test_few_tasks_tell_nothing() -> None:
    tasks, seconds = ten(6.0)
    first = first_tasks(tasks.slice(0, 3), np.zeros(3, np.int64), np.ones(3), seconds[:3])
    assert first.excess(seconds[:3]) == 0.0


def test_a_late_start_is_what_lies_beyond_the_way() -> None:
    tasks, _ = ten(1.0)
    assert late_start(tasks, latency=0.125) == pytest.approx(0.375)
    assert late_start(tasks, latency=2.0) == 0.0
    unknown = tasks.set_column(3, "assigned", pa.nulls(10, pa.float64()))
    assert late_start(unknown, latency=0.0) == 0.0
