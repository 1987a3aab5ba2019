"""The ledger of bytes written and outputs by endpoint, of runs computed by hand."""

from __future__ import annotations

from typing import Any

import pytest
from limited_runs import edited
from made_runs import made_run, plan

from roastcoffea.measurement import Measurement

SCRATCH, REMOTE = "/scratch/skims", "root://storage.example.org:1094//store"


def writing(number: int, **values: Any) -> dict[str, Any]:
    """A ROOT file of 1000 B, of which 100 B were written twice, and a Parquet file of 500 B elsewhere, in 2 + 1 s."""
    return {
        "files_written": 2,
        "bytes_written": 1600,
        "bytes_written_unmetered": 40,
        "written_files": [f"{SCRATCH}/{number}.root", f"{REMOTE}/{number}.parquet"],
        "written_kinds": ["ROOT", "Parquet"],
        "written_sizes": [1000, 500],
        "written_bytes": [1100, 500],
        "written_microseconds": [2_000_000, 1_000_000],
    } | values


def measured(*changes: dict[str, Any]) -> Measurement:
    """One chunk for each change, of which each writes the same but for it."""
    run = made_run([plan(5.0)] * len(changes), 1)
    return Measurement(edited(run, chunks=lambda row: writing(row["id"]) | changes[row["id"]]))


def test_classes_add_up_to_the_total() -> None:
    ledger = measured({}, {}).write_ledger
    assert dict(ledger) == {"in files": 3000, "rewritten": 200, "other writes": 80, "failed": 0, "residual": 0}
    assert ledger.total == 3280
    assert ledger.certificate.complete
    assert ledger.by("endpoint")["total"].tolist() == [2200, 1000, 80]
    assert ledger.by("kind")["rewritten"].tolist() == [0, 200, 0]


def test_what_failed_attempts_wrote_is_a_class() -> None:
    measurement = measured({}, {"outcome": "error", "error": "boom"})
    ledger = measurement.write_ledger
    assert dict(ledger) == {"in files": 1500, "rewritten": 100, "other writes": 40, "failed": 1640, "residual": 0}
    assert measurement.metrics["files_written"] == 2


def test_a_difference_to_the_count_of_the_system_is_the_residual() -> None:
    ledger = measured({}, {"bytes_written_unmetered": -100}).write_ledger
    assert ledger.residual == -100
    assert ledger["other writes"] == 40
    assert sum(ledger.values()) == ledger.total == 3140  # type: ignore[arg-type]
    assert "the system counts 100 B less than was written to files" in str(ledger.certificate)


def test_without_a_count_of_the_system_other_writes_are_unknown() -> None:
    measurement = measured({"bytes_written_unmetered": None}, {})
    assert measurement.write_ledger["other writes"] is None
    assert measurement.write_ledger["in files"] == 3000
    assert "does not count" in measurement.metrics.missing["bytes_other_writes"]
    assert measurement.write_ledger.residual is None


def test_chunks_without_records_of_writing_are_named() -> None:
    unknown = dict.fromkeys(writing(0))
    ledger = measured({}, unknown).write_ledger
    assert ledger["in files"] == 1500
    assert "1 chunk attempts have no count of written bytes" in ledger.certificate.reasons
    older = measured(unknown, unknown)
    assert older.write_ledger.total is None
    assert "did not measure writing" in str(older.write_ledger.absent)
    assert older.outputs.empty


def test_outputs_have_a_row_for_each_server_and_kind() -> None:
    rows = measured({}, {}).outputs.set_index("kind")
    root, parquet, others = (rows.loc[kind] for kind in ("ROOT", "Parquet", "other means"))
    assert (root["endpoint"], root["folder"], root["files"]) == ("local files", SCRATCH, 2)
    assert (root["bytes_in_files"], root["bytes_written"], root["seconds"]) == (2000, 2200, 4.0)
    assert root["rate"] == 550
    assert (parquet["endpoint"], parquet["folder"], parquet["rate"]) == ("storage.example.org", REMOTE, 500)
    assert others["bytes_written"] == 80
    assert others[["files", "seconds", "rate"]].isna().all()


def test_a_run_that_writes_nothing_has_no_outputs() -> None:
    measurement = Measurement(made_run([plan(1.0)] * 4, 2))
    assert measurement.write_ledger.total == 0
    assert set(measurement.write_ledger.values()) == {0}
    assert measurement.outputs.empty
    assert measurement.outputs.attrs["absent"] == "process() wrote nothing"
    assert measurement.time_ledger["write"] == 0
    with pytest.raises(ValueError, match="no breakdown by 'branch'"):
        measurement.write_ledger.by("branch")  # type: ignore[arg-type]


def test_a_failed_attempt_is_failed_even_if_another_one_has_no_count() -> None:
    failed = {"outcome": "error", "error": "boom"}
    assert measured(dict.fromkeys(writing(0)), failed).write_ledger["failed"] == 1640
