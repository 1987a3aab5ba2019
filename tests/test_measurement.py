import io
import json
import math
import os
from pathlib import Path

import pandas as pd
import pytest
from handmade import EXPECTED, A, T, empty_run, handmade_run, run_without_tables

from roastcoffea.errors import MeasurementError
from roastcoffea.measurement import Measurement, load, load_measurement
from roastcoffea.metrics import CATALOGUE
from roastcoffea.metrics.branches import BRANCH_COLUMNS
from roastcoffea.metrics.catalogue import RAW
from roastcoffea.metrics.sections import SECTION_TOTALS
from roastcoffea.records.chunks import CHUNK_COLUMNS
from roastcoffea.records.preprocessing import PREPROCESSING_COLUMNS
from roastcoffea.records.tasks import TASK_COLUMNS
from roastcoffea.records.workers import LIFETIME_COLUMNS, SAMPLE_COLUMNS

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
RAW_NAMES = {metric.name for metric in CATALOGUE.metrics() if metric.group == RAW}
DATA = os.environ.get("ROASTCOFFEA_TEST_DATA")


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


def test_frames_and_metrics_are_computed_once():
    measurement = Measurement(handmade_run())
    assert measurement.chunks is measurement.chunks
    assert measurement.metrics is measurement.metrics


def test_what_the_run_says():
    run = handmade_run(outcome="failed", error="boom", problems=("one", "two"))
    measurement = Measurement(run)
    assert measurement.run is run
    assert (measurement.outcome, measurement.error, measurement.problems) == (
        "failed",
        "boom",
        ["one", "two"],
    )
    assert measurement.fine_metrics == dict(run.span_metrics)
    assert Measurement(run_without_tables()).fine_metrics == {}
    assert "'by hand': failed" in repr(measurement)


def test_print_summary_into_a_file():
    file = io.StringIO()
    Measurement(handmade_run()).print_summary(file)
    assert "1 min 40 s" in file.getvalue()


def test_saved_and_loaded_it_is_the_same(tmp_path):
    saved = Measurement(handmade_run())
    path = saved.save(tmp_path, "mine")
    assert path == tmp_path / "mine"
    loaded = load(path)
    assert loaded.run == saved.run
    assert dict(loaded.metrics) == dict(saved.metrics)
    assert loaded.problems == []


def test_a_measurement_is_replaced_only_on_demand(tmp_path):
    measurement = Measurement(handmade_run())
    measurement.save(tmp_path, "mine")
    with pytest.raises(MeasurementError):
        measurement.save(tmp_path, "mine")
    assert measurement.save(tmp_path, "mine", overwrite=True) == tmp_path / "mine"


def refuse(constant):
    raise AssertionError(f"{constant} is no standard JSON")


def saved_document(run, folder):
    path = Measurement(run).save(folder) / "metrics.json"
    return json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)


def test_metrics_json_is_for_other_programs(tmp_path):
    document = saved_document(handmade_run(), tmp_path)
    assert (document["id"], document["outcome"]) == ("0123abcd", "finished")
    assert set(document["missing"]) == {"num_stragglers", "straggler_seconds"}
    values = {name: entry["value"] for name, entry in document["metrics"].items()}
    assert [finding["cause"] for finding in values.pop("verdict")] == ["client", "tail", "memory"]
    expected = dict(EXPECTED)
    assert values.pop("bound") == expected.pop("bound")
    assert values.pop("per_dataset")["mc"]["num_chunks"] == 1
    assert values.pop("byte_ledger")["re-read"] == 700
    assert values.pop("file_read_metrics")["/data/b.root"]["bytes_read"] == 400
    assert values.pop("time_ledger")["merge"] == 2.0
    assert values.pop("fine_metrics_per_worker")["A"]["transfer_bytes"] == 2000
    assert values.pop("sections")["jets"]["mc"]["memory_peak"] == 120 * 2**20
    assert values == pytest.approx(expected)
    rate = {"value": pytest.approx(3.6e-7), "unit": "Gbit/s", "source": "total_bytes_read, wall clock"}
    assert document["metrics"]["data_rate_gbps"] == rate


def test_metrics_json_is_standard_whatever_the_values(tmp_path):
    reported = {"total_cpu_time": math.inf, "mine": {("a", 1): math.nan, "set": {1}}, "odd": [1, True, None]}
    document = saved_document(handmade_run(reported=reported, reported_by="x"), tmp_path)
    assert document["metrics"] == {
        "total_cpu_time": {"value": "Infinity", "unit": "s", "source": "reported by x"},
        "mine": {"value": {"('a', 1)": "NaN", "set": "{1}"}, "unit": "structure", "source": "reported by x"},
        "odd": {"value": [1, True, None], "unit": "structure", "source": "reported by x"},
    }
    assert document["missing"]["num_chunks"] == "not reported by x"


def test_metrics_json_leaves_bulky_structures_out(tmp_path):
    for run in (handmade_run(), run_without_tables()):
        document = saved_document(run, tmp_path)
        assert not RAW_NAMES & (set(document["metrics"]) | set(document["missing"]))


def test_a_run_of_which_nothing_was_measured_can_be_saved(tmp_path):
    loaded = load(Measurement(run_without_tables()).save(tmp_path))
    assert list(loaded.metrics) == ["elapsed_time_seconds"]
    assert loaded.error == "ValueError: boom"


def test_load_measurement_gives_a_plain_dictionary(tmp_path):
    metrics, start, stop = load_measurement(Measurement(handmade_run()).save(tmp_path))
    assert (start, stop) == (T, T + 100)
    assert type(metrics) is dict
    assert metrics["wall_time"] == metrics["elapsed_time_seconds"] == 100
    assert metrics["processor_io_wait_percent"] == 25
    assert len(metrics["raw_chunk_metrics"]) == 3
    assert "core_efficiency" not in load_measurement(Measurement(run_without_tables()).save(tmp_path))[0]


@pytest.mark.skipif(DATA is None, reason="ROASTCOFFEA_TEST_DATA is not set")
def test_a_folder_of_the_older_prototype():
    folder = Path(str(DATA)) / "measurement-0.1.2"
    stored = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    metrics, start, stop = load_measurement(folder)
    assert (start, stop) == (4044.576345519, 4056.612675873)
    bulky = {"tracking_data", "raw_chunk_metrics", "raw_span_metrics", "chunk_info"}
    for name in set(stored) - bulky:
        assert metrics[name] == stored[name]
    measurement = load(folder)
    assert measurement.metrics.source["core_efficiency"] == "reported by roastcoffea 0.1.2"
    assert len(measurement.chunks) == len(metrics["raw_chunk_metrics"]) == 40
    assert metrics["raw_chunk_metrics"][0]["num_events"] == 50_000
    assert "worker_cpu_time_seconds" in measurement.metrics.missing
    file = io.StringIO()
    measurement.print_summary(file)
    assert "98.7 Mbit/s" in file.getvalue()
