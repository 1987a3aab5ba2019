"""What was received so far, record by record and many at a time, by hand."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

from roastcoffea.log.completeness import Tally
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.chunks import CHUNK_COLUMNS

RECORDS: list[dict[str, Any]] = [
    {"outcome": "ok", "events": 100, "bytes_requested": 5000, "wall_seconds": 3.0, "cpu_seconds": 1.0}
    | {"helper_cpu_seconds": 0.5, "read_seconds": 1.5},
    {"outcome": "checkpoint", "events": 50, "wall_seconds": 1.0, "cpu_seconds": 0.25},
    {"outcome": "error", "events": 9, "bytes_requested": 70, "wall_seconds": 2.0, "read_seconds": 8.0},
    {"wall_seconds": None},
]
"""Two chunks with a result, a failed attempt, and one of which nothing is known."""


def test_records_are_counted_alike_one_by_one_and_together() -> None:
    one_by_one, together = Tally(), Tally()
    for record in RECORDS:
        one_by_one.add(record, preprocessing=False)
    together.add_table(table_of_rows(CHUNK_COLUMNS, RECORDS))
    assert asdict(one_by_one) == asdict(together)
    assert (together.chunks, together.events, together.failed, together.bytes) == (2, 150, 2, 5070)
    assert (together.wall_seconds, together.wall_squares, together.failed_seconds) == (6.0, 14.0, 2.0)
    assert together.cpu_seconds == 1.75
    assert sum(together.seconds.values()) == pytest.approx(1.5)  # what failed is in none of its classes


def test_files_of_preprocessing_are_no_chunks() -> None:
    tally = Tally()
    tally.add({"outcome": "ok", "events": 100, "wall_seconds": 3.0}, preprocessing=True)
    tally.add({"outcome": "error"}, preprocessing=True)
    assert (tally.files, tally.failed, tally.chunks, tally.events, tally.wall_seconds) == (1, 1, 0, 0, 0.0)


def test_bytes_are_missing_until_an_attempt_reports_some() -> None:
    tally = Tally()
    tally.add_table(table_of_rows(CHUNK_COLUMNS, [{"outcome": "ok"}]))
    assert tally.bytes is None
    tally.add_table(table_of_rows(CHUNK_COLUMNS, [{"outcome": "ok", "bytes_requested": 3}]))
    assert tally.bytes == 3
