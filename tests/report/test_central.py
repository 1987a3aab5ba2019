"""Tables of scheduler, client and merges."""

from __future__ import annotations

from handmade import LOOP, SAMPLING, STEPS, central_run, handmade_run

from roastcoffea.measurement import Measurement
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.workers import CLIENT_STEP_COLUMNS, SAMPLING_COLUMNS
from roastcoffea.report.tables import CLIENT_TITLE, MERGES_TITLE, SCHEDULER_TITLE, central
from roastcoffea.sheets.markup import markdown


def test_each_adds_up_to_the_wall_time() -> None:
    scheduler, client, merges = central(Measurement(central_run()).metrics)
    assert [sheet.title for sheet in (scheduler, client, merges)] == [SCHEDULER_TITLE, CLIENT_TITLE, MERGES_TITLE]
    for sheet in (scheduler, client):
        *_, (label, total, _) = [[cell.text for cell in row] for row in sheet.cells()]
        assert (label, total) == ("total", "1 min 40 s")
    amounts = {row[0]: row[1] for row in client.rows}
    assert amounts["waiting for the cluster"] == 39.0
    assert amounts["unaccounted"] == 0.0
    assert [list(row) for row in merges.rows] == [[1, 2, 3, 600, 300, 150, 2.0], [2, 1, 2, 300, 200, 200, 1.0]]


def test_notes_have_the_limit_of_one_core_where_tasks_are_many() -> None:
    few, client, _ = central(Measurement(central_run()).metrics)
    assert client.notes == ["Graphs sent: 1.2 kB for 9 tasks.", "Event loop: 30 % of a core, lag 1.5 s at most."]
    steps = [row | ({"tasks": 500} if "tasks" in row else {}) for row in (*STEPS, *LOOP)]
    scheduler, *_ = central(Measurement(central_run(client_steps=table_of_rows(CLIENT_STEP_COLUMNS, steps))).metrics)
    assert few.notes == [scheduler.notes[0], scheduler.notes[2]]  # upkeep without tasks would count as theirs
    assert scheduler.notes == [
        "While tasks were in flight: 50 % of its core, 50 % in the busiest 10 s.",
        "0.225 tasks/s; one core can handle 0.45 tasks/s.",
        "Event loop lag: 2.3 s on average, 10.5 s at most.",
    ]


def test_a_system_without_run_queue_times_has_contention_in_idle() -> None:
    rows = [row | {"loop_queue_seconds": None} for row in SAMPLING]
    run = central_run(sampling=table_of_rows(SAMPLING_COLUMNS, rows))
    scheduler, *_ = central(Measurement(run).metrics)
    assert [row[0] for row in scheduler.rows] == ["event loop CPU", "idle", "unaccounted", "total"]
    assert "Idle includes CPU contention: the scheduler's host does not report run-queue times." in scheduler.notes


def test_what_was_not_recorded_has_its_reason() -> None:
    scheduler, client = central(Measurement(handmade_run(absent={"sampling": "no scheduler"})).metrics)
    assert scheduler.lead == ["Not measured: no scheduler."]
    assert client.lead == ["Not measured: client steps were not recorded."]


def test_the_page_has_them_folded() -> None:
    from roastcoffea.report.page.contents import SECTIONS

    (side_by_side, merges) = SECTIONS["scheduler and client"](Measurement(central_run()))
    assert [part.title for part in side_by_side.parts] == [SCHEDULER_TITLE, CLIENT_TITLE]
    assert "| 1 |" in markdown([merges]).replace("  ", " ")
