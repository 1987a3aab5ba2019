"""What both ledgers share: certificates, and what is shown of them."""

from __future__ import annotations

import pytest
from handmade import handmade_run, run_without_tables
from made_ledgers import BY_DESIGN, ledger_of, with_ids

from roastcoffea.measurement import Measurement
from roastcoffea.metrics.ledger import Attempts, Certificate
from roastcoffea.report.sheets import Sheet


def texts(sheet: Sheet) -> list[list[str]]:
    return [[cell.text for cell in row] for row in sheet.cells()]


def test_the_time_ledger_shows_what_occurred_with_shares() -> None:
    (sheet,) = Measurement(handmade_run()).time_ledger.sheets()
    rows = texts(sheet)
    assert ["idle: client", "5 min 30 s", "74.9 %"] in rows
    assert ["residual", "0 s", "0 %"] in rows
    assert rows[-1] == ["total", "7 min 20 s", "100 %"]
    assert "other tasks" not in [row[0] for row in rows]
    assert sheet.notes == ["Complete; 10 of 10 attempts left a record.", "Failed: 2 s error, 2.5 s repeated."]


def test_classes_that_were_not_measured_are_named_by_their_reason() -> None:
    (sheet,) = Measurement(handmade_run(tasks=None, pauses=None)).time_ledger.sheets()
    assert sheet.notes[-1].startswith('Not measured: "merge", "transfer"')
    assert sheet.notes[-1].endswith("without a scheduler nothing tells of it.")


def test_the_byte_ledger_shows_all_classes_and_advice() -> None:
    sheet, advice = ledger_of().sheets()
    assert texts(sheet)[-3:] == [
        ["residual", "50 B", "0.826 %"],
        ["total", "6.05 kB", "100 %"],
        ["transferred", "6.43 kB", "384 B not requested"],
    ]
    assert sheet.notes == [f"Incomplete: {BY_DESIGN}; 5 of 5 attempts left a record."]
    assert len(advice.items) == 3


def test_what_was_transferred_is_said_not_to_be_known() -> None:
    sheet, _ = ledger_of(with_ids(14, bytes_transferred=None)).sheets()
    assert texts(sheet)[-1][0] == "total"
    assert sheet.notes[-1].startswith("Transferred: 1 of 8 attempts read through")


@pytest.mark.parametrize("name", ["time_ledger", "byte_ledger"])
def test_one_that_is_absent_gives_its_reason(name: str) -> None:
    ledger = getattr(Measurement(run_without_tables()), name)
    (sheet,) = ledger.sheets()
    assert (sheet.rows, sheet.lead) == ((), [f"Not measured: {ledger.absent}."])
    assert ledger.absent in str(ledger)
    assert ledger.absent in ledger.to_markdown()


def test_a_ledger_is_shown_everywhere() -> None:
    ledger = Measurement(handmade_run()).time_ledger
    for text in (str(ledger), ledger.to_markdown(), ledger._repr_html_()):
        assert "idle: client" in text
        assert "74.9 %" in text
    assert repr(ledger).startswith("<TimeLedger: {'compute': 4.5")


def test_certificates() -> None:
    complete = Certificate(attempts=Attempts(1200, None), reasons=[], estimated=2)
    assert str(complete) == (
        "Complete; 1,200 attempts left a record. In 2 reads of branches re-read bytes are estimated."
    )
    lacking = Certificate(attempts=Attempts(1, 2), reasons=["one", "two"])
    assert (lacking.complete, str(lacking)) == (False, "Incomplete: one; two; 1 of 2 attempts left a record.")
