import dataclasses

import pyarrow as pa
import pytest
from analyses import Failing
from coffea.nanoevents import BaseSchema
from coffea.processor import IterativeExecutor, ProcessorABC, Runner
from coffea.processor.executor import WorkItem
from handmade import A, handmade_run, run_without_tables
from releases import NO_RETRIES, needs_kinds_of_skips, needs_parquet
from stored import write_parquet, write_tree

from roastcoffea import MetricsCollector
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


@pytest.mark.parametrize("fileset", ["x", ["mc"]])
def test_what_is_no_fileset_is_refused(measurement, fileset):
    for missing in (measurement.missing_fileset, measurement.missing_items):
        with pytest.raises(TypeError, match="pass the run's fileset, a mapping from dataset names to files"):
            missing(fileset)


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


class Counting(ProcessorABC):
    """Counts events, and fails in files with this in their name."""

    def __init__(self, fails_in=None):
        self.fails_in = fails_in

    def process(self, events):
        if self.fails_in is not None and self.fails_in in events.metadata["filename"]:
            raise ValueError("planted")
        return {"events": len(events)}

    def postprocess(self, accumulator):
        return accumulator


def parquet_runner():
    executor = IterativeExecutor(status=False, **NO_RETRIES)
    return Runner(executor=executor, schema=BaseSchema, chunksize=500, format="parquet", metadata_cache={})


@needs_parquet
def test_a_good_run_over_parquet_files_without_trees_misses_nothing(tmp_path):
    files = {str(write_parquet(tmp_path / f"{name}.parquet", groups=1)): None for name in ("one", "other")}
    with MetricsCollector() as collector:
        output = parquet_runner()({"a": {"files": files}}, processor_instance=Counting())
    measurement = collector.measurement
    assert output == {"events": 2000}
    assert measurement.run.chunks["tree"].to_pylist() == [None] * 4
    assert measurement.run.preprocessing["tree"].to_pylist() == [None] * 2
    assert (len(measurement.missing), measurement.missing_fileset()) == (0, {})
    assert measurement.metrics["num_missing_chunks"] == 0


@needs_parquet
def test_what_is_missing_of_parquet_files_can_be_run_again(tmp_path):
    files = {str(write_parquet(tmp_path / f"{name}.parquet", groups=1)): None for name in ("one", "other")}
    with pytest.raises(Exception, match="planted"), MetricsCollector() as collector:
        parquet_runner()({"a": {"files": files}}, processor_instance=Counting("other"))
    left = collector.measurement.missing_fileset()
    assert left == {"a": {"files": files}}
    assert parquet_runner()(left, processor_instance=Counting()) == {"events": 2000}


@pytest.mark.parametrize("key", ["dataset", "file", "tree", "entry_stop"])
def test_what_is_not_known_of_a_chunk_is_equal_where_it_was_asked_for_and_where_it_came(measurement, key):
    run = measurement.run

    def without(table):
        place = table.schema.get_field_index(key)
        return table.set_column(place, key, pa.nulls(len(table), table.schema.field(key).type))

    unknown = dataclasses.replace(run, asked=without(run.asked), chunks=without(run.chunks))
    assert Measurement(unknown).metrics["num_missing_chunks"] == 1 == measurement.metrics["num_missing_chunks"]


@needs_kinds_of_skips
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("key", [2017, (2017, "B")])
def test_datasets_may_have_other_keys_than_text(key, tmp_path):
    good, bad, gone = str(write_tree(tmp_path / "good.root")), str(write_tree(tmp_path / "bad.root")), "/gone.root"
    fileset = {key: {"files": dict.fromkeys((good, bad, gone), "Events")}}
    runner = Runner(
        IterativeExecutor(status=False, **NO_RETRIES),
        schema=BaseSchema,
        chunksize=1000,
        skipbadfiles=(Exception,),
        metadata_cache={},
    )
    with MetricsCollector() as collector:
        runner(fileset, processor_instance=Failing(ValueError("planted"), "bad", 1000))
    measurement = collector.measurement
    assert measurement.missing_fileset(fileset, unopened=True) == {key: {"files": {gone: "Events"}}}
    items = measurement.missing_items(fileset)
    assert {(item.dataset, item.filename, item.entrystart) for item in items} == {
        (key, bad, 1000 * number) for number in (1, 2, 3)
    }
    again = Runner(IterativeExecutor(status=False), schema=BaseSchema, metadata_cache={})
    assert again(items, processor_instance=Failing(ValueError("planted"), "none")) == {"events": 3000}
