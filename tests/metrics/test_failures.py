import dataclasses

import pyarrow as pa
import pytest
from coffea.processor.executor import WorkItem
from handmade import A, handmade_run, run_without_tables

from roastcoffea.measurement import Measurement
from roastcoffea.metrics.catalogue import NotMeasuredError


@pytest.fixture(scope="module")
def measurement():
    return Measurement(handmade_run())


def test_each_attempt_that_gave_nothing_is_told_once(measurement):
    failed = measurement.failed
    told = {(row["kind"], row["key"], row["attempt"]): row for _, row in failed.iterrows()}
    assert len(failed) == len(told) == 4
    assert told["processor", "k1", 1]["reason"] == "repeated"
    erred = told["processor", "k2", 1]
    assert (erred["reason"], erred["error"], erred["seconds"], erred["bytes"]) == ("error", "boom", 1.0, 300)
    assert told["processor", "k3", 1]["reason"] == "skipped"
    assert failed["reason"].tolist().count("error") == 2
    assert set(failed["kind"]) == {"processor", "preprocessing"}


def test_files_with_failed_attempts(measurement):
    (row,) = measurement.failed_files.to_dict("records")
    assert (row["dataset"], row["file"], row["attempts"], row["error"]) == ("data", A, 1, "boom")
    assert row["missing"] == 0


def test_what_is_missing_can_be_run_again(measurement):
    missing = measurement.missing.to_dict("records")
    assert [(row["dataset"], row["file"]) for row in missing] == [("mc", A), ("mc", "/data/never.root")]
    assert measurement.missing_fileset() == {"mc": {"files": {A: "Events", "/data/never.root": "Events"}}}
    fileset = {
        "data": {"files": {A: "Events"}},
        "mc": {"files": {A: "Events", "/data/b.root": "Events", "/data/never.root": "Events"}, "metadata": {"x": 1}},
    }
    assert measurement.missing_fileset(fileset) == {
        "mc": {"files": {A: "Events", "/data/never.root": "Events"}, "metadata": {"x": 1}}
    }
    assert measurement.missing_items(fileset) == [WorkItem("mc", A, "Events", 0, 10, b"\xab", {"x": 1})]


def test_what_was_not_recorded_is_not_made_up():
    measurement = Measurement(run_without_tables())
    assert measurement.failed.attrs["absent"]
    assert measurement.missing.attrs["absent"]
    with pytest.raises(NotMeasuredError):
        measurement.missing_fileset()
    older = Measurement(dataclasses.replace(handmade_run(), asked=None))
    assert "num_missing_chunks" in older.metrics.missing
    assert len(older.failed) == 4


def test_what_a_call_that_raised_had_computed_is_missing(measurement):
    first, second = measurement.run.calls
    failed = dataclasses.replace(measurement.run, calls=(dataclasses.replace(first, outcome="failed"), second))
    assert Measurement(failed).metrics["num_missing_chunks"] == 4
    assert len(Measurement(failed).missing_items()) == 4


def test_what_one_processor_did_is_missing_for_another(measurement):
    run = measurement.run
    other = run.asked.filter(run.asked["entry_start"].is_valid())
    other = other.set_column(0, "call", [["c2"] * len(other)])
    both = pa.concat_tables([run.asked, other])
    calls = (run.calls[0], dataclasses.replace(run.calls[1], processor="Another"))
    assert Measurement(dataclasses.replace(run, asked=both, calls=calls)).metrics["num_missing_chunks"] == 1 + 4
    assert Measurement(dataclasses.replace(run, asked=both)).metrics["num_missing_chunks"] == 1
