"""The time ledger of the run by hand: classes, breakdowns, over time, and what is missing of it."""

from __future__ import annotations

from typing import Any

import pytest
from handmade import CHUNKS, EXPECTED, LIFETIMES, TASKS, A, handmade_run, run_without_tables

from roastcoffea.measurement import Measurement
from roastcoffea.metrics import TimeLedger
from roastcoffea.metrics.catalogue import NotMeasuredError
from roastcoffea.metrics.ledger import Attempts
from roastcoffea.metrics.phases import BUSY, COLUMNS_OF, TIME_CLASSES, TIME_NAMES, UNRECORDED, WAIT, with_sum_of_waits
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.chunks import CHUNK_COLUMNS
from roastcoffea.records.workers import LIFETIME_COLUMNS, TASK_COLUMNS

METRIC_OF = {one.name: one.metric_name for one in TIME_CLASSES}


def ledger_of(**changes: Any) -> TimeLedger:
    return Measurement(handmade_run(**changes)).time_ledger


def test_classes_by_hand() -> None:
    ledger = ledger_of()
    assert tuple(ledger) == tuple(name for name in TIME_NAMES if name not in {WAIT, UNRECORDED})
    assert dict(ledger) == pytest.approx({name: EXPECTED[METRIC_OF[name]] for name in ledger})
    assert ledger.total == 440
    assert ledger.certificate.attempts == Attempts(10, 10)
    assert ledger.failed == {"error": 2.0, "repeated": 2.5}


@pytest.mark.parametrize(
    ("older", "names"),
    [
        ("wait", ["contention", "interpreter lock", "blocked"]),
        ("worker", ["worker overhead"]),
        ("on the way", ["in flight"]),
        ("idle: placement", ["idle: misplaced"]),
    ],
)
def test_older_names_of_classes_answer(older: str, names: list[str]) -> None:
    ledger = ledger_of()
    with pytest.deprecated_call(match=names[-1]):
        assert ledger[older] == sum(ledger[name] for name in names)
    assert older not in ledger
    with pytest.raises(KeyError):
        TimeLedger.not_measured("why")[older]


def without_parts_of_waiting(places: range) -> TimeLedger:
    """Ledger of the run of which these chunks were recorded by a version that knew one kind of waiting."""
    rows = with_sum_of_waits(handmade_run().chunks).to_pylist()
    nothing = dict.fromkeys(("contention_seconds", "lock_seconds", "blocked_seconds"))
    rows = [row | (nothing if place in places else {"wait_seconds": None}) for place, row in enumerate(rows)]
    return ledger_of(chunks=table_of_rows(CHUNK_COLUMNS, rows))


@pytest.mark.parametrize("given", [{}, {"tasks": None, "pauses": None}])
def test_measuring_is_no_more_than_what_other_phases_leave(given: dict[str, None]) -> None:
    rows = [row | {"measuring_seconds": 1e3} for row in handmade_run().chunks.to_pylist()]
    chunks = table_of_rows(CHUNK_COLUMNS, rows)
    before, ledger = ledger_of(**given), ledger_of(chunks=chunks, **given)
    assert ledger["task overhead"] >= 0
    sums = (one["task overhead"] + one["measuring"] for one in (ledger, before))
    assert next(sums) == pytest.approx(next(sums))
    assert ledger.residual == pytest.approx(before.residual)


def test_waiting_that_was_not_told_apart_stays_one_class() -> None:
    ledger = without_parts_of_waiting(range(6))
    assert ledger["wait"] == 1.0
    assert not {"contention", "interpreter lock", "blocked"} & set(ledger)
    (note,) = (note for note in ledger.sheets()[0].notes if "interpreter lock" in note)
    assert note.startswith('Not measured: "contention", "interpreter lock", "blocked": recorded by an older version')
    assert '"wait" contains their sum' in note
    assert ledger.residual == 0
    assert ledger.certificate.complete == ledger_of().certificate.complete


def test_waiting_may_be_told_apart_on_some_workers() -> None:
    ledger = without_parts_of_waiting(range(3))
    assert [ledger[name] for name in ("wait", "contention", "interpreter lock", "blocked")] == [0.5, 0.25, 0.125, 0.125]
    assert ledger.residual == 0


@pytest.mark.parametrize("what", ["worker", "dataset", "file", "host", "endpoint"])
def test_breakdowns_sum_to_the_ledger(what: Any) -> None:
    ledger = ledger_of()
    frame = ledger.by(what)
    busy = {name: ledger[name] for name in BUSY if name in ledger}
    assert frame[list(busy)].sum().to_dict() == pytest.approx(busy)
    assert frame["total"].sum() == pytest.approx(440)
    if what == "worker":
        assert frame["total"].to_dict() == {"A": 200, "B": 160, "C": 80}


def test_files_and_endpoints_by_hand() -> None:
    files, endpoints = ledger_of().by("file"), ledger_of().by("endpoint")
    # of k1 and k2, both of one file
    assert files.loc[A, "compute"] == endpoints.loc["storage", "compute"] == 4.5
    assert set(endpoints.index.dropna()) == {"storage", "local files"}
    assert files["merge"].sum() == 2.0


def test_hosts_by_hand() -> None:
    hosts = {"A": "one", "B": "two", "C": "one"}
    lives = [row | {"host": hosts[row["worker"]]} for row in LIFETIMES]
    frame = ledger_of(lifetimes=table_of_rows(LIFETIME_COLUMNS, lives)).by("host")
    assert frame["total"].to_dict() == {"one": 280, "two": 160}


def test_there_is_no_other_breakdown() -> None:
    with pytest.raises(ValueError, match="no breakdown by 'branch'"):
        ledger_of().by("branch")  # type: ignore[arg-type]


def test_over_time_it_is_the_same() -> None:
    ledger = ledger_of()
    frame = ledger.timeline(20)
    sums = frame.drop(columns=["seconds", "total"]).mul(frame["seconds"], axis=0).sum()
    assert sums.to_dict() == pytest.approx({name: ledger[name] for name in sums.index})
    of_a = ledger.timeline(20, "A")
    assert (of_a["total"] == 2).all()
    with pytest.raises(KeyError, match="unknown worker 'D'"):
        ledger.timeline(20, "D")


def test_without_a_scheduler_what_only_it_tells_of_is_not_measured() -> None:
    ledger = ledger_of(tasks=None, pauses=None)
    lacking = {one.name for one in TIME_CLASSES if one.from_scheduler}
    assert ledger.unknown.keys() == lacking
    assert not lacking & ledger.keys()
    with pytest.raises(NotMeasuredError, match="without a scheduler"):
        ledger.measured("idle: queued")


def test_a_paused_worker_is_not_known_where_pauses_were_not_recorded() -> None:
    metrics = Measurement(handmade_run(pauses=None, absent={"pauses": "too old"})).metrics
    assert metrics.missing["time_paused_seconds"] == "too old"
    assert "paused" not in metrics["time_ledger"]


def test_tasks_beyond_the_threads_are_in_the_residual() -> None:
    doubled = [row | {"key": f"{row['key']} {place}"} for place in range(4) for row in TASKS[-1:]]
    ledger = ledger_of(tasks=table_of_rows(TASK_COLUMNS, [*TASKS[:-1], *doubled]))
    assert ledger.beyond == pytest.approx(4.0)
    assert ledger.residual == pytest.approx(-4.0)


def test_a_clock_that_is_set_back_during_a_task_makes_no_class_negative() -> None:
    """All tasks end at once by their clock; their chunks lasted as long as before, which is more than there was."""
    usual = ledger_of()
    rows = [row | {"stop": row["start"]} if row["start"] and row["kind"] == "processor" else row for row in TASKS]
    ledger = ledger_of(tasks=table_of_rows(TASK_COLUMNS, rows))
    busy = {name: seconds for name, seconds in ledger.items() if name in COLUMNS_OF}
    # measuring has only what the other phases of k1 leave of its 4 s
    assert busy == pytest.approx({name: usual[name] for name in busy} | {"measuring": 0.125})
    assert min(seconds for name, seconds in ledger.items() if name != "residual") >= 0.0
    assert sum(ledger.values()) == pytest.approx(ledger.total)
    assert any(reason.endswith("of thread time are unaccounted for") for reason in ledger.certificate.reasons)


def test_a_large_residual_is_a_reason() -> None:
    doubled = [row | {"key": f"{row['key']} {place}"} for place in range(12) for row in TASKS[-1:]]
    reasons = ledger_of(tasks=table_of_rows(TASK_COLUMNS, [*TASKS[:-1], *doubled])).certificate.reasons
    assert any("exceeds the workers' threads" in reason for reason in reasons)
    assert any(reason == "-20 s of thread time are unaccounted for" for reason in reasons)


def test_where_there_is_none_it_says_why() -> None:
    ledger = Measurement(run_without_tables()).time_ledger
    assert (dict(ledger), ledger.total, ledger.residual) == ({}, None, None)
    assert ledger.absent
    with pytest.raises(NotMeasuredError, match="no timeline is available"):
        ledger.timeline()


def test_phases_that_were_not_measured_are_told() -> None:
    chunks = [row | ({"read_seconds": None} if row["id"] == 14 else {}) for row in CHUNKS]
    certificate = ledger_of(chunks=table_of_rows(CHUNK_COLUMNS, chunks)).certificate
    assert certificate.reasons == ["1 chunks have incomplete phases: the missing time counts as task overhead"]
    assert ledger_of().certificate.complete
