"""Comparisons of runs that are written down by hand, as sheets and as a document."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest
from limited_runs import missing_data
from made_runs import made_run, plan

from roastcoffea.records.run import Environment, Run
from roastcoffea.sheets.sheet import Sheet
from roastcoffea.studies.compare import Comparison, compare
from roastcoffea.units import moment

FAST, SLOW = [plan(1.0)] * 64, [plan(1.5)] * 64


def comparison(**settings: list[str]) -> Comparison:
    return compare(made_run(FAST, 2, name="fast"), made_run(SLOW, 2, name="slow"), **settings)  # type: ignore[arg-type]


def sheet(found: Comparison, title: str, *, everything: bool = False) -> Sheet:
    return next(sheet for sheet in found.sheets(everything=everything) if sheet.title == title)


def test_the_verdict_comes_first() -> None:
    first, *_ = comparison().sheets()
    assert first.title == "verdict"
    assert first.notes[0] == "B: CPU per event +50 %; wall time +50 % (to be confirmed by repeats)"
    assert first.notes[1].startswith("A: fast (1 run), wall time 32 s")
    assert first.notes[-1].startswith("B: no verdict on wall time, because the spread of repeats is unknown; pass")
    assert comparison().sheets(everything=True)[0].notes[-1].startswith("B: wall time +50 %")


@pytest.mark.parametrize(("other", "said"), [("2026.9.0", True), ("0.7.31", False), (None, False)])
def test_different_releases_of_coffea_are_the_first_difference(other: str | None, said: bool) -> None:
    """A migration changes more than the code of the analysis."""
    versions = [{"coffea": "0.7.31"}, {} if other is None else {"coffea": other}]
    runs = [
        made_run(FAST, 2, name=name, environment=Environment(versions=one, client_host=None))
        for name, one in zip(("old", "new"), versions, strict=True)
    ]
    found = (
        compare(*runs).sheets()[0].notes[1] == "The runs used different releases of coffea: 0.7.31 (A), 2026.9.0 (B)"
    )
    assert found == said


@pytest.mark.slow
def test_a_run_that_lacks_events_is_said_to_be_incomplete_before_anything_is_made_of_it() -> None:
    whole, part = made_run(FAST, 2, name="whole"), missing_data()
    notes = compare(part, whole).sheets()[0].notes
    place = next(place for place, note in enumerate(notes) if note.startswith("A is incomplete: "))
    assert place == 1
    assert "events" in notes[place]
    assert not any("B is incomplete" in note for note in notes)
    repeats = compare(whole, [replace(whole, id="2" * 32), part])
    assert any(note.startswith("B is incomplete (") for note in repeats.sheets()[0].notes)
    assert [list(side["incomplete"]) for side in repeats.as_dict()["sides"]] == [[], [repeats.sides[1].runs[1].name]]
    assert not any("incomplete" in note for note in comparison().sheets()[0].notes)


def test_a_comparison_can_be_pickled() -> None:
    found = comparison(fail_if=["total_events < 0%"])
    again = pickle.loads(pickle.dumps(found))
    assert str(again) == str(found)
    assert again.rows[0].metric is found.rows[0].metric


@pytest.mark.slow
def test_runs_of_one_name_are_told_apart() -> None:
    runs = [made_run(FAST, 2, name="dijets", id=letter * 32) for letter in "ab"]
    found = compare(*runs)
    assert [side.label for side in found.sides] == ["dijets (A)", "dijets (B)"]
    assert [side.runs[0].name for side in found.sides] == ["dijets (aaaaaaaa)", "dijets (bbbbbbbb)"]
    later = replace(runs[1], start=runs[1].start - 86_400)
    labels = [side.label for side in compare(runs[0], later).sides]
    assert labels == [f"dijets ({moment(run.start)})" for run in (runs[0], later)]
    labelled = compare(*runs, labels=["old", "new"])
    assert [side.label for side in labelled.sides] == ["old", "new"]


def test_an_explanation_sums_to_the_difference() -> None:
    why = sheet(comparison(), "why B differs from A", everything=True)
    *parts, (total, wall, threads, _) = why.rows
    assert [part[0] for part in parts] == ["compute"]
    assert (total, wall, threads) == ("difference", 16.0, 32.0)
    assert [column.text(cell) for column, cell in zip(why.columns, why.rows[-1], strict=True)][1:3] == [
        "+16 s",
        "+32 s",
    ]


def test_amounts_have_the_unit_of_their_metric() -> None:
    found = comparison()
    rows = {row[0]: row for row in sheet(found, "metrics").rows}
    assert [str(cell) for cell in rows["elapsed"]] == ["elapsed", "32 s", "48 s", "+16 s", "+50 %"]
    assert "elapsed" in found.to_markdown()


def test_the_main_metrics_are_shown_and_the_rest_is_counted() -> None:
    found = comparison()
    main, every = ({row[0] for row in sheet(found, "metrics", everything=each).rows} for each in (False, True))
    assert {"elapsed", "CPU time per chunk"} <= main < every
    differ = {row.label for row in found.rows if any(row.differs_at) and row.section == "metrics"}
    assert "compute" in differ - main  # a phase: the explanation has it as a class
    hidden = sum(any(row.differs_at) and not row.shown for row in found.rows)
    assert sheet(found, "notes").notes[0].startswith(f"{hidden} other rows with a difference and ")


def test_waits_are_not_shown_beside_their_parts() -> None:
    found = compare(loaded(2.0, 8.0, "before"), loaded(1.0, 2.0, "after"))
    rows = {row[0] for row in sheet(found, "thread time").rows}
    assert "contention" in rows
    assert "wait" not in rows
    assert "wait" in {row[0] for row in sheet(found, "thread time", everything=True).rows}


def loaded(cpu: float, wait: float, name: str) -> Run:
    return made_run([plan(cpu, core_wait=wait)] * 16, 2, name=name)


def test_a_class_changes_by_the_same_in_every_table_and_form() -> None:
    """Half the CPU time under half the load: classes change as the ledger has it, and what load added is beside."""
    found = compare(loaded(2.0, 8.0, "before"), loaded(1.0, 2.0, "after"))
    ledger = {row.label: row.change(1) for row in found.rows if row.section == "thread time"}
    table = {row[0]: row for row in sheet(found, "why B differs from A", everything=True).rows}
    assert table["compute"][2] == pytest.approx(ledger["compute"]) == pytest.approx(-16.0)
    assert table["contention"][2] == pytest.approx(ledger["contention"]) == pytest.approx(-96.0)
    assert table["difference"][2] == pytest.approx(ledger["total"])
    assert table["compute"][3] < -16
    document = found.as_dict()["comparisons"][0]["explanation"]
    for part in document["parts"]:
        amounts = part["wall_seconds"], part["thread_seconds"], part["load_seconds"] or None
        assert tuple(table[part["cause"]][1:4]) == amounts
    text, page = str(found), found.text("html")
    for seconds in ("-16 s", "-1 min 36 s"):
        assert seconds in text
        assert seconds in page
