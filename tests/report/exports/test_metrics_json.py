"""`metrics.json`: standard JSON, whatever the values."""

import json
import math

import pytest
from handmade import EXPECTED, OF_CENTRAL, OF_JOBS, handmade_run, run_without_tables

from roastcoffea.measurement import Measurement
from roastcoffea.metrics import CATALOGUE
from roastcoffea.metrics.catalogue import RAW

RAW_NAMES = {metric.name for metric in CATALOGUE.metrics() if metric.group == RAW}


def refuse(constant):
    raise AssertionError(f"{constant} is no standard JSON")


def saved_document(run, folder):
    path = Measurement(run).save(folder) / "metrics.json"
    return json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)


def test_metrics_json_is_for_other_programs(tmp_path):
    document = saved_document(handmade_run(), tmp_path)
    assert (document["id"], document["outcome"]) == ("0123abcd", "finished")
    assert set(document["missing"]) == {"num_stragglers", "straggler_seconds", "cores_of_others", *OF_JOBS, *OF_CENTRAL}
    values = {name: entry["value"] for name, entry in document["metrics"].items()}
    assert [finding["cause"] for finding in values.pop("verdict")] == ["missing data", "client", "memory"]
    expected = dict(EXPECTED)
    assert values.pop("bound") == expected.pop("bound")
    assert values.pop("per_dataset")["mc"]["num_chunks"] == 1
    assert values.pop("byte_ledger")["re-read"] == 700
    assert values.pop("write_ledger")["in files"] == 0
    assert values.pop("file_read_metrics")["/data/b.root"]["bytes_read"] == 400
    assert values.pop("time_ledger")["merge"] == 2.0
    assert values.pop("fine_metrics_per_worker")["A"]["transfer_seconds"] == 0.5
    assert values.pop("custom") == {}
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
