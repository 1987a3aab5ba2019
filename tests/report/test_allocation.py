"""The table of what batch jobs were charged."""

from __future__ import annotations

import math
from typing import Any

import pytest
from handmade import MIB, T, handmade_run, life, measured

from roastcoffea.measurement import Measurement
from roastcoffea.report.tables import allocation, memory_note


def test_classes_add_up_to_what_is_charged() -> None:
    (sheet,) = allocation(measured(life("a", 20, 60, job_start=T + 10, closing=T + 58), life("b", 0, 100, "2")).metrics)
    *parts, (total, charged, _) = sheet.rows
    assert total == "total"
    assert charged == 200.0 + 520.0
    assert math.fsum(amount for _, amount, _ in parts) == pytest.approx(charged)  # type: ignore[misc]
    assert parts[-1][0] == "unaccounted"
    assert sheet.notes[0] == "2 jobs on slurm; 1 still running when the run ended, counted up to that point."


def test_without_jobs_there_is_no_table() -> None:
    assert list(allocation(Measurement(handmade_run()).metrics)) == []


def test_jobs_of_unknown_size_are_left_out_and_named() -> None:
    (sheet,) = allocation(measured(life("a", 0, 100), life("b", 0, 100, "2", job_start=None)).metrics)
    assert "Left out, because the start time or core count is unknown: 1 job." in sheet.notes
    (sheet,) = allocation(measured(life("a", 0, 100, job_cores=None)).metrics)
    assert not sheet.rows


def test_memory_that_is_never_used_is_mentioned() -> None:
    def rows(*peaks: int | None) -> list[dict[str, Any]]:
        return [{"job_memory": 4000 * MIB, "memory_peak": peak} for peak in peaks]

    (note,) = memory_note(rows(1000 * MIB, 800 * MIB))
    assert note.startswith("75 % of the requested memory is unused")
    assert "Request 1.31 GB" in note
    assert memory_note(rows(1000 * MIB, 2100 * MIB)) == []
    assert memory_note(rows(1000 * MIB, None)) == []
