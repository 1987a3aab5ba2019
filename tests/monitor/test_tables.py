"""What is known of a task, of several states and attempts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from roastcoffea.monitor.history import History
from roastcoffea.monitor.shown import (
    MONITOR_COLUMNS,
    VIEW_NAMES,
    best_attempts,
    complete_task,
    complete_view,
    per_worker,
    states_of,
)


def attempt(key: str, outcome: str, run_id: int) -> dict[str, Any]:
    return {"key": key, "outcome": outcome, "run_id": run_id}


@pytest.mark.parametrize(
    ("outcomes", "best"),
    [(["ok"], 0), (["error", "ok"], 1), (["ok", "worker lost"], 0), (["ok", "ok"], 1), (["error", "cancelled"], 1)],
)
def test_the_last_attempt_that_worked_stands_for_the_task(outcomes: list[str], best: int) -> None:
    attempts = [attempt("a", outcome, number) for number, outcome in enumerate(outcomes)]
    found = best_attempts([*attempts, attempt("b", "ok", 7)])
    assert (found["a"]["run_id"], found["a"]["attempts"]) == (best, len(outcomes))
    assert found["b"]["attempts"] == 1


def test_a_state_that_tells_less_takes_nothing_away() -> None:
    rows = [
        {"task": 0, "state": "waiting", "time": 1.0, "worker": None, "suspicious": 0},
        {"task": 0, "state": "memory", "time": 2.0, "worker": "w", "suspicious": 1},
        {"task": 0, "state": "released", "time": 3.0, "worker": None, "suspicious": 0},
    ]
    history = History(pa.Table.from_pylist(rows), [{"key": "a"}])
    watched: Any = SimpleNamespace(history=history)
    task = complete_task(states_of([watched])["a"], {})
    assert list(task) == [column.name for column in MONITOR_COLUMNS]
    assert (task["state"], task["worker"], task["created"], task["suspicious"]) == ("memory", "w", 1.0, 1)
    assert (task["attempts"], task["duration"]) == (0, None)


def test_sums_of_workers_are_of_tasks_that_worked() -> None:
    task = {"worker": "w", "outcome": "ok", "nbytes": 8, "duration": 0.5}
    frame = per_worker([task, task, task | {"outcome": "error"}, task | {"worker": "v", "nbytes": None}])
    assert frame.astype(object).where(frame.notna(), None).to_dict("records") == [
        {"worker": "v", "tasks": 1, "nbytes": None, "mean_nbytes": None, "seconds": 0.5},
        {"worker": "w", "tasks": 2, "nbytes": 16, "mean_nbytes": 8.0, "seconds": 1.0},
    ]


@pytest.mark.parametrize(("parts", "empty"), [({}, None), ({"described": True}, [])])
def test_what_a_worker_knew_to_be_empty_is_empty(parts: dict[str, Any], empty: Any) -> None:
    view = {"key": "a", "worker": "w", "transitions": [("memory", 1.0), ("released", 2.0)], "start": 1.0, "stop": 3.0}
    found = complete_view(view | parts, {"suspicious": 0, "expected": 2.5})
    assert list(found) == list(VIEW_NAMES)
    assert (found["state"], found["duration"], found["dependencies"], found["priority"]) == ("memory", 2.5, empty, None)
