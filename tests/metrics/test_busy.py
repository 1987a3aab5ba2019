"""Attempts of chunks as what kept the threads, where there was no scheduler."""

from __future__ import annotations

from typing import Any

import pytest
from handmade import CHUNKS, PREPROCESSINGS, T, call, handmade_run
from made_ledgers import runner_call

from roastcoffea.measurement import Measurement
from roastcoffea.metrics import TimeLedger
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.calls import PREPROCESSING_COLUMNS
from roastcoffea.records.chunks import CHUNK_COLUMNS

OPENING = {"worker": "A", "start": T + 1, "stop": T + 3, "wall_seconds": 2.0}


def ledger_of(*openings: dict[str, Any], **changes: Any) -> TimeLedger:
    """Ledger of the run by hand without tasks; each chunk ran on worker A for as long as it took."""
    rows = [row | {"worker": "A", "start": T + 10 * place} for place, row in enumerate(CHUNKS)]
    chunks = table_of_rows(CHUNK_COLUMNS, [row | {"stop": row["start"] + row["wall_seconds"]} for row in rows])
    preprocessing = table_of_rows(PREPROCESSING_COLUMNS, openings)
    fields = {"chunks": chunks, "preprocessing": preprocessing, "tasks": None, "pauses": None}
    return Measurement(handmade_run(**fields | changes)).time_ledger


def test_phases_of_chunks_that_counted() -> None:
    ledger = ledger_of()
    assert ledger["compute"] == pytest.approx(1.5 + 3.0 + 5.0)
    assert ledger["open"] == pytest.approx(0.125 + 0.5 + 0.125 + 0.125 + 0.25 + 0.25)
    # the first of k1 that was computed again, the first of k2, and what was skipped
    assert ledger["failed"] == pytest.approx(2.0 + 1.0 + 0.5)
    assert ledger.failed == {"error": ledger["failed"]}
    assert ledger.residual == pytest.approx(0.0)


def test_openings_of_files() -> None:
    erred = PREPROCESSINGS[1] | OPENING
    ledger = ledger_of(PREPROCESSINGS[0] | OPENING, erred)
    assert ledger["preprocessing"] == pytest.approx(2.0)
    assert ledger["failed"] == pytest.approx(3.5 + 2.0)


def test_what_is_missing() -> None:
    assert "preprocessing was not recorded" in ledger_of(preprocessing=None).certificate.reasons
    elsewhere = ledger_of(PREPROCESSINGS[0] | OPENING | {"worker": "D"})
    assert "1 attempts ran on workers that were not seen" in elsewhere.certificate.reasons
    counted = ledger_of(calls=(runner_call("c1", 5),)).certificate
    assert counted.reasons == ["2 of 5 chunks left no record, or gave no result"]
    assert counted.attempts == (3, 5)
    assert ledger_of(calls=(call("c1", T, T + 1, None),)).certificate.attempts == (3, None)
