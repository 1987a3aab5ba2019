"""The log of a TaskVine manager: two workers of one core ran 16 chunks of four files, and merged them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from roastcoffea.backends.taskvine import TransactionLog

FOLDER = Path(__file__).parent.parent / "data" / "taskvine"
"""What a manager of cctools 8.0.0 logged: its transactions without transfers of files, its statistics at the end."""

LINES = (FOLDER / "transactions").read_text(encoding="utf-8").splitlines()


@pytest.fixture
def statistics() -> dict[str, float]:
    """The manager's own sums at its end."""
    names, values = (FOLDER / "performance").read_text(encoding="utf-8").splitlines()
    return dict(zip(names.split()[1:], map(float, values.split()), strict=True))


def test_workers_with_their_cores_from_connection_to_disconnection() -> None:
    log = TransactionLog(LINES)
    assert [(row["cores"], row["memory"], row["address"]) for row in log.workers] == [
        (1, 24105 * 2**20, "127.0.0.1:47928"),
        (1, 24105 * 2**20, "127.0.0.1:47932"),
    ]
    assert [round(row["stop"] - row["start"], 6) for row in log.workers] == [
        round((1795495287110606 - 1795495179598146) / 1e6, 6),
        round((1795495287110723 - 1795495179598230) / 1e6, 6),
    ]
    assert log.unread == 0


def test_tasks_are_those_of_the_managers_statistics(statistics: dict[str, float]) -> None:
    log = TransactionLog(LINES)
    assert len(log.attempts) == statistics["tasks_dispatched"] == statistics["tasks_successful"]
    assert len(log.workers) == statistics["workers_joined"]
    executing = sum(attempt["stop"] - attempt["start"] for attempt in log.attempts)
    assert executing == pytest.approx(1e-6 * statistics["time_execute"], abs=1e-3)
    assert Counter(attempt["kind"] for attempt in log.attempts) == {"preprocessing": 4, "processor": 16, "merge": 5}
    assert {attempt["outcome"] for attempt in log.attempts} == {"ok"}
    for attempt in log.attempts:
        moments = [attempt[name] for name in ("runnable", "assigned", "arrived", "start", "stop", "seen")]
        # the worker begins before the manager has written that it sent the task
        assert sorted(moments, key=lambda moment: round(moment, 2)) == moments


def test_a_log_that_is_cut_off_has_workers_and_tasks_without_an_end() -> None:
    began = next(number for number, line in enumerate(LINES) if "TASK 5 RUNNING" in line)
    log = TransactionLog([*LINES[: began + 1], LINES[began + 1][:30]])
    assert [row["stop"] for row in log.workers] == [None, None]
    (last,) = [attempt for attempt in log.attempts if attempt["task"] == 5]
    assert (last["outcome"], last["start"], last["seen"]) == ("unfinished", None, None)
    assert log.unread == 1


def test_a_task_whose_result_was_there_is_no_attempt() -> None:
    log = TransactionLog(
        [line for line in LINES if "TASK 5 " not in line or " READY " in line or " RETRIEVED " in line]
    )
    assert Counter(attempt["kind"] for attempt in log.attempts) == {"preprocessing": 4, "processor": 15, "merge": 5}
    assert log.unread == 0


def test_the_tasks_of_a_worker_that_is_lost() -> None:
    began = next(number for number, line in enumerate(LINES) if "TASK 5 RUNNING" in line)
    worker = LINES[began].split()[5]
    lost = LINES[began].split()[0]
    gone = f"{lost} 1 WORKER {worker} DISCONNECTION FAILURE"
    again = f"{lost} 1 TASK 5 READY processing FIRST_RESOURCES 2 {{}}"
    log = TransactionLog([*LINES[: began + 1], gone, again])
    attempt = log.attempts[-1]
    assert (attempt["outcome"], attempt["seen"]) == ("worker lost", int(lost) / 1e6)
    assert [row["stop"] is None for row in log.workers].count(False) == 1


def test_a_worker_whose_cores_change_is_two_after_the_other() -> None:
    known = next(number for number, line in enumerate(LINES) if ' RESOURCES {"' in line)
    changed = LINES[known].replace('"cores":[1,', '"cores":[4,')
    before, after = TransactionLog([*LINES[: known + 1], changed]).workers
    assert (before["cores"], after["cores"]) == (1, 4)
    assert before["stop"] == after["start"]


def test_what_did_not_succeed() -> None:
    done = next(number for number, line in enumerate(LINES) if "TASK 5 RETRIEVED" in line)
    for found, outcome in {"SUCCESS  1 ": "error", "SIGNAL  9 ": "error", "CANCELLED  0 ": "cancelled"}.items():
        line = LINES[done].replace("SUCCESS  0 ", found)
        log = TransactionLog([*LINES[:done], line])
        (attempt,) = [attempt for attempt in log.attempts if attempt["task"] == 5]
        assert attempt["outcome"] == outcome
        assert attempt["stop"] > attempt["start"]
