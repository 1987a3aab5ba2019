"""Tables of a run as DataFrames: columns are documented, and what is absent has its reason."""

import pandas as pd
import pytest
from handmade import A, empty_run, handmade_run, run_without_tables

from roastcoffea.measurement import Measurement
from roastcoffea.metrics.branches import BRANCH_COLUMNS
from roastcoffea.metrics.profile import SECTION_TOTALS
from roastcoffea.records.chunks import CHUNK_COLUMNS
from roastcoffea.records.run import PREPROCESSING_COLUMNS
from roastcoffea.records.workers import LIFETIME_COLUMNS, SAMPLE_COLUMNS, TASK_COLUMNS
from roastcoffea.report.tables import BREAKDOWNS, NAMES, TABLES

FRAMES = {
    "chunks": CHUNK_COLUMNS,
    "preprocessing": PREPROCESSING_COLUMNS,
    "tasks": TASK_COLUMNS,
    "workers": SAMPLE_COLUMNS,
    "lifetimes": LIFETIME_COLUMNS,
}
FIELDS = {
    "chunks": "chunks",
    "preprocessing": "preprocessing",
    "tasks": "tasks",
    "workers": "samples",
    "lifetimes": "lifetimes",
}


@pytest.mark.parametrize(("name", "columns"), FRAMES.items())
@pytest.mark.parametrize("run", [handmade_run(), empty_run(), run_without_tables()], ids=["full", "empty", "absent"])
def test_frames_have_documented_columns(name, columns, run):
    frame = getattr(Measurement(run), name)
    assert list(frame.columns) == [column.name for column in columns]
    assert list(frame.attrs["columns"]) == list(frame.columns)
    integers = {column.name for column in columns if column.kind == "integer"}
    assert {column for column in frame if isinstance(frame[column].dtype, pd.Int64Dtype)} == integers
    table = getattr(run, FIELDS[name])
    assert len(frame) == (0 if table is None else len(table))
    assert ("absent" in frame.attrs) == (table is None)


def test_frames_keep_what_was_not_measured():
    chunks = Measurement(handmade_run()).chunks
    assert chunks.events.tolist()[:2] == [100, 100]
    assert chunks.events[2] is pd.NA
    assert chunks.events.sum() == 550
    assert chunks.key.isna().sum() == 1
    assert chunks.attrs["columns"]["wall_seconds"].endswith("[s]")
    assert list(chunks.coffea_columns[1]) == ["Jet_pt-data", "Jet_pt-offsets", "run-data"]


@pytest.mark.parametrize("name", TABLES)
def test_frames_are_made_of_records_also_where_metrics_were_reported(name):
    reported = Measurement(handmade_run(reported={"num_chunks": 7}, reported_by="another program"))
    assert reported.metrics["num_chunks"] == 7
    expected = Measurement(handmade_run()).table(name)
    pd.testing.assert_frame_equal(reported.table(name), expected)
    if name == "worker_balance":
        assert expected["spill_seconds"].notna().any()
        assert expected["transfer_seconds"].notna().any()


@pytest.mark.parametrize(("name", "columns"), [("branches", BRANCH_COLUMNS), ("sections", SECTION_TOTALS)])
@pytest.mark.parametrize("run", [handmade_run(), empty_run(), run_without_tables()], ids=["full", "empty", "absent"])
def test_summed_frames_have_documented_columns(name, columns, run):
    frame = getattr(Measurement(run), name)
    assert list(frame.columns) == [column.name for column in columns]
    assert list(frame.attrs["columns"]) == list(frame.columns)
    assert {str(frame[column.name].dtype) for column in columns if column.kind == "integer"} == {"Int64"}
    assert ("absent" in frame.attrs) == (run.chunks is None)


def test_branches_over_the_attempts_that_counted():
    branches = Measurement(handmade_run()).branches.set_index(["dataset", "branch"])
    assert branches.loc["data", "Jet_pt"].to_dict() == {
        "file": A,
        "bytes_payload": 2000,
        "bytes_reread": 700,
        "bytes_uncompressed": 7500,
        "baskets": 4,
        "chunks": 2,
        "read_seconds": 0.5,
        "decompress_seconds": 0.25,
        "interpret_seconds": 0.125,
    }
    assert branches.bytes_payload.to_dict() == {
        ("data", "Jet_pt"): 2000,
        ("data", "run"): 800,
        ("mc", "Jet_pt"): 400,
        ("mc", "run"): 0,
    }


def test_sections_over_all_attempts():
    sections = Measurement(handmade_run()).sections.set_index(["name", "dataset"])
    assert sections.loc["jets", "data"].tolist() == [3, 1.25, 0.75, 1.0, 0.75, pd.NA, pd.NA, 1]
    assert sections.loc["jets", "mc"].memory_peak == 120 * 2**20
    assert sections.loc["jets/read", "data"].bytes == 600
    assert len(sections) == 3


def test_why_there_are_no_branches():
    measurement = Measurement(handmade_run(branch_reads=None, absent={"branch_reads": "no meter"}))
    assert measurement.branches.attrs["absent"] == "no meter"
    assert measurement.byte_ledger.absent == "no meter"
    without_chunks = Measurement(handmade_run(chunks=None, absent={"chunks": "no probe"}))
    assert without_chunks.sections.attrs["absent"] == without_chunks.byte_ledger.absent == "no probe"


def test_reason_of_an_absent_table():
    measurement = Measurement(handmade_run(tasks=None, absent={"tasks": "no scheduler plugin"}))
    assert measurement.tasks.attrs["absent"] == "no scheduler plugin"


def test_a_table_is_found_by_its_name_alone():
    measurement = Measurement(handmade_run())
    assert set(measurement.tables) == set(NAMES)
    assert measurement.table("byte_ledger_by_file") is measurement.table("byte_ledger_by_file")
    for name in ("files", "byte_ledger_by_worker", "byte_ledger"):
        with pytest.raises(ValueError, match="unknown table"):
            measurement.table(name)


def test_each_table_is_an_attribute():
    measurement = Measurement(handmade_run())
    assert all(getattr(measurement, name) is measurement.table(name) for name in TABLES)


@pytest.mark.parametrize(("name", "what"), [(name, what) for name, each in BREAKDOWNS.items() for what in each.by])
def test_columns_of_breakdowns_are_explained(name: str, what: str) -> None:
    found = Measurement(handmade_run()).table(f"{name}_by_{what}").attrs["columns"]
    assert [column for column, meaning in found.items() if meaning.startswith(f"{column} [")] == []
