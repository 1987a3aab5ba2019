"""First tasks of processes, told from the others."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from roastcoffea.replay.dask_costs import first_tasks, late_start


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
    assert first.typical(seconds, 0) == pytest.approx(2.0)


def test_a_first_task_like_the_others_is_none() -> None:
    tasks, seconds = ten(1.0)
    first = first_tasks(tasks, np.zeros(10, np.int64), np.ones(10), seconds)
    assert (dict(first.alike), first.leaders.tolist(), first.excess(seconds)) == ({}, [], 0.0)


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
