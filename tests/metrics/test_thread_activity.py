"""What kept the threads: attempts of tasks, or of chunks where there was no scheduler."""

from __future__ import annotations

from typing import Any

import pytest
from handmade import CHUNKS, PREPROCESSINGS, TASKS, T, call, handmade_run, runner_call, task

from roastcoffea.measurement import Measurement
from roastcoffea.metrics import TimeLedger
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.chunks import CHUNK_COLUMNS
from roastcoffea.records.run import PREPROCESSING_COLUMNS
from roastcoffea.records.workers import LOST, TASK_COLUMNS

OPENING = {"worker": "A", "start": T + 1, "stop": T + 3, "wall_seconds": 2.0}


def ledger_without_tasks(*openings: dict[str, Any], **changes: Any) -> TimeLedger:
    """Ledger of the run by hand without tasks; each chunk ran on worker A for as long as it took."""
    rows = [row | {"worker": "A", "start": T + 10 * place} for place, row in enumerate(CHUNKS)]
    chunks = table_of_rows(CHUNK_COLUMNS, [row | {"stop": row["start"] + row["wall_seconds"]} for row in rows])
    preprocessing = table_of_rows(PREPROCESSING_COLUMNS, openings)
    fields = {"chunks": chunks, "preprocessing": preprocessing, "tasks": None, "pauses": None}
    return Measurement(handmade_run(**fields | changes)).time_ledger


def test_phases_of_chunks_that_counted() -> None:
    ledger = ledger_without_tasks()
    assert ledger["compute"] == pytest.approx(1.5 + 3.0 + 5.0)
    assert ledger["open"] == pytest.approx(0.125 + 0.5 + 0.125 + 0.125 + 0.25 + 0.25)
    # the first of k1 that was computed again, the first of k2, and what was skipped
    assert ledger["failed"] == pytest.approx(2.0 + 1.0 + 0.5)
    assert ledger.failed == {"error": ledger["failed"]}
    assert ledger.residual == pytest.approx(0.0)


def test_openings_of_files() -> None:
    erred = PREPROCESSINGS[1] | OPENING
    ledger = ledger_without_tasks(PREPROCESSINGS[0] | OPENING, erred)
    assert ledger["preprocessing"] == pytest.approx(2.0)
    assert ledger["failed"] == pytest.approx(3.5 + 2.0)


def test_what_is_missing() -> None:
    assert "preprocessing was not recorded" in ledger_without_tasks(preprocessing=None).certificate.reasons
    elsewhere = ledger_without_tasks(PREPROCESSINGS[0] | OPENING | {"worker": "D"})
    assert "1 attempts ran on unknown workers" in elsewhere.certificate.reasons
    counted = ledger_without_tasks(calls=(runner_call("c1", 5),)).certificate
    assert counted.reasons == ["1 of 5 chunks left no record"]
    assert counted.attempts == (4, 5)
    assert ledger_without_tasks(calls=(call("c1", T, T + 1, None),)).certificate.attempts == (6, None)


UNTIMED = {"start": None, "stop": None}


def ledger_with_tasks(*more: dict[str, Any], tasks: list[dict[str, Any]] = TASKS, **changes: Any) -> TimeLedger:
    """Ledger of the run by hand with more tasks, or others."""
    rows = table_of_rows(TASK_COLUMNS, [*tasks, *more])
    return Measurement(handmade_run(tasks=rows, attempts=None, **changes)).time_ledger


def reasons(ledger: TimeLedger) -> list[str]:
    return [reason for reason in ledger.certificate.reasons if not reason.startswith("the scheduler did not report")]


def test_an_attempt_without_times_is_told() -> None:
    ledger = ledger_with_tasks(task("k9", 9, "processor", "ok", "A", 50, 51) | UNTIMED)
    assert reasons(ledger) == ["1 task attempts have no recorded times"]
    assert ledger["failed"] == 4.5


def test_an_attempt_that_was_cancelled_on_a_worker_is_told() -> None:
    ledger = ledger_with_tasks(task("k9", 9, "processor", "cancelled", "A", 50, 51) | UNTIMED)
    (reason,) = reasons(ledger)
    assert reason.startswith("1 task attempts were cancelled on a worker")
    assert (
        reasons(ledger_with_tasks(task("k9", 9, "processor", "cancelled", "A", 0, 0) | UNTIMED | {"worker": None}))
        == []
    )


def test_what_was_lost_with_its_worker_lasts_until_that_left() -> None:
    # both threads of A are free then
    lost = [task(f"k{number}", number, "processor", LOST, "A", 90, 0) | UNTIMED for number in (8, 9)]
    ledger = ledger_with_tasks(*lost)
    assert ledger.failed[LOST] == pytest.approx(20.0)
    assert reasons(ledger) == []
    third = task("k10", 10, "processor", LOST, "A", 95, 0) | UNTIMED
    assert ledger_with_tasks(*lost, third).failed[LOST] == pytest.approx(20.0)
    # a thread that was busy until later is free from then on
    busy = task("r9", 9, "merge", "ok", "A", 60, 96)
    assert ledger_with_tasks(busy, *lost).failed[LOST] == pytest.approx(10.0 + 4.0)


def test_what_was_going_on_at_the_end_lasts_until_then() -> None:
    ledger = ledger_with_tasks(task("k9", 9, "processor", "unfinished", "A", 90, 0) | {"stop": None})
    assert ledger.failed["unfinished"] == pytest.approx(10.0)


def test_what_others_began_before_the_run_belongs_to_it_from_then_on() -> None:
    theirs = task("x", 99, "merge", "error", "A", -50, 10) | {"kind": "other"}
    ledger = ledger_with_tasks(theirs)
    assert ledger["other tasks"] == pytest.approx(10.0)
    assert ledger["failed"] == 4.5


def test_what_others_began_after_the_run_is_none_of_it() -> None:
    before = ledger_with_tasks()
    ledger = ledger_with_tasks(task("x", 99, "merge", "ok", "A", 103, 107) | {"kind": "other"})
    assert ledger["other tasks"] == 0
    assert ledger.residual == pytest.approx(before.residual)


def test_a_task_that_seceded_is_cut_there() -> None:
    ledger = ledger_with_tasks(task("r9", 9, "merge", "ok", "A", 60, 70) | {"seceded": T + 64})
    assert ledger["merge"] == pytest.approx(2.0 + 4.0)


def test_attempts_that_the_scheduler_counted_and_that_left_no_row() -> None:
    ledger = Measurement(handmade_run(attempts={"merge": 3, "processor": 5})).time_ledger
    assert ledger.certificate.reasons == ["2 merge task attempts left no row"]
    (reason,) = ledger_with_tasks().certificate.reasons
    assert reason == "the scheduler did not report the number of task attempts"


def test_an_attempt_of_a_chunk_without_a_record_is_in_no_class() -> None:
    chunks = table_of_rows(CHUNK_COLUMNS, [row for row in CHUNKS if row["id"] != 14])
    ledger = ledger_with_tasks(chunks=chunks)
    assert "1 chunk attempts left no record: their time is not counted" in reasons(ledger)
    assert ledger.residual == pytest.approx(6.5)
    assert ledger.certificate.attempts == (9, 10)


def test_an_attempt_of_a_chunk_whose_task_was_not_seen_is_told() -> None:
    ledger = ledger_with_tasks(tasks=[row for row in TASKS if row["run_id"] != 6])
    assert any(reason.startswith("1 chunk attempts have no recorded task") for reason in reasons(ledger))
