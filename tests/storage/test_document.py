"""run.json holds standard values, and is an error that names it where it is damaged."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import hist
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from handmade import EXPECTED, handmade_run
from killed_saves import minimal_run
from saved_runs import a_run, edited

from roastcoffea.errors import MeasurementError
from roastcoffea.measurement import Measurement
from roastcoffea.metrics.phases import CLIENT, PAUSED
from roastcoffea.records.arrow import arrow_schema
from roastcoffea.records.run import Host
from roastcoffea.storage import document
from roastcoffea.storage.document import NOT_RECORDED, SCHEMA, TABLES, Tables, tables_of
from roastcoffea.storage.store import list_runs, load_run, save_run


def test_what_others_made_is_kept_in_standard_types(tmp_path: Path) -> None:
    report = {"bytesread": np.int64(12), "columns": {"b", "a"}, ("a", 1): (np.float32(0.5), np.arange(2)), None: {3}}
    loaded = load_run(save_run(a_run(coffea_report=report), tmp_path))
    assert loaded.coffea_report == {"bytesread": 12, "columns": ["a", "b"], "('a', 1)": [0.5, [0, 1]], "None": [3]}
    assert loaded.problems == a_run().problems
    assert load_run(save_run(loaded, tmp_path)) == loaded


def test_reported_metrics_keep_their_keys_and_times(tmp_path: Path) -> None:
    moment = datetime(2026, 3, 1, 12, 30, 1, 5)
    reported = {
        "raw_span_metrics": {("execute", "p", "thread-cpu", "seconds"): 1.5},
        "tracking_data": {"worker_counts": {moment: 3}, "worker_memory": {"tcp://1": [(moment, 5)]}},
        "compression_ratio": math.inf,
    }
    assert load_run(save_run(minimal_run(reported=reported), tmp_path)).reported == reported


def test_texts_that_look_like_numbers_stay_texts(tmp_path: Path) -> None:
    texts = {"w": "NaN", "label": ["Infinity", "\\NaN"]}
    call = replace(a_run().calls[0], options=texts, report=texts)
    run = a_run(name="NaN", calls=(call,), coffea_report=texts, custom_metrics=texts, reported={"t": texts})
    loaded = load_run(save_run(run, tmp_path))
    assert loaded == run
    assert load_run(save_run(loaded, tmp_path)) == run


def test_fields_of_older_schemas_keep_their_types(tmp_path: Path) -> None:
    path = tmp_path / "schema7"
    shutil.copytree(Path(__file__).parents[1] / "data" / "schema7", path)
    moment = {"$": "datetime", "of": "2026-03-01T12:30:00"}
    reported = {
        "raw_span_metrics": {"$": "dict", "of": [[{"$": "tuple", "of": ["execute", 1]}, 2.5]]},
        "tracking_data": {"worker_counts": {"$": "dict", "of": [[moment, 2], [1.5, 3]]}},
        "label": "NaN",
    }
    edited(path, lambda document: document["run"].update(reported=reported, reported_by="another program"))
    expected = {
        "raw_span_metrics": {("execute", 1): 2.5},
        "tracking_data": {"worker_counts": {datetime(2026, 3, 1, 12, 30): 2, 1.5: 3}},
        "label": "NaN",
    }
    loaded = load_run(path)
    assert loaded.reported == expected
    expected["tracking_data"] = {"worker_counts": {datetime(2026, 3, 1, 12, 30): 2, "1.5": 3}}
    assert load_run(save_run(loaded, tmp_path)).reported == expected


def test_what_cannot_be_kept_is_text_and_a_problem(tmp_path: Path) -> None:
    run = a_run(custom_metrics={"h": [hist.Hist.new.Reg(2, 0, 1).Double()], "n": 1}, coffea_report=[])
    run.coffea_report.append(run.coffea_report)
    call = replace(run.calls[0], options={"schema": dict})
    loaded = load_run(save_run(replace(run, calls=(call,)), tmp_path))
    assert loaded.problems == (
        *run.problems,
        "calls[0]['options']['schema'] held type; it was kept as text",
        "coffea_report[0] held list that contains itself; it was kept as text",
        "custom_metrics['h'][0] held hist.hist.Hist; it was kept as text",
    )
    assert loaded.custom_metrics["n"] == 1
    assert load_run(save_run(loaded, tmp_path)) == loaded


@pytest.mark.parametrize(
    ("edit", "text"),
    [
        (
            lambda d: d.update(schema=SCHEMA + 1),
            rf"run.json has schema {SCHEMA + 1}; this version reads up to {SCHEMA}: update roastcoffea",
        ),
        (lambda d: d.update(schema=0), r"run.json cannot be read .*unknown schema 0"),
        (lambda d: d.update(schema="2"), r"run.json cannot be read"),
        (lambda d: d.pop("schema"), r"run.json cannot be read .*schema"),
        (lambda d: d.update(format="other"), r"run.json was not written by roastcoffea"),
        (lambda d: d.pop("run"), r"run.json cannot be read"),
        (lambda d: d.update(run=[]), r"run.json cannot be read"),
        (lambda d: d["run"].pop("id"), r"run.json cannot be read .*id"),
        (lambda d: d["run"].pop("outcome"), r"run.json cannot be read .*outcome"),
        (lambda d: d["run"].update(start="now"), r"run.json cannot be read .*start"),
        (lambda d: d["run"].update(sections=1), r"run.json cannot be read .*tables"),
        (lambda d: d["run"].update(environment=None), r"run.json cannot be read"),
        (lambda d: d["run"]["calls"].append({"id": 1}), r"run.json cannot be read"),
        (
            lambda d: d.update(schema=7, run={**d["run"], "custom_metrics": {"$": "pickle", "of": ""}}),
            r"run.json cannot be read .*pickle",
        ),
        (
            lambda d: d["tables"]["chunks"].update(rows=4),
            r"chunks.parquet cannot be read .*3 rows instead of 4",
        ),
        (lambda d: d["tables"].update({"../x": 4}), r"run.json cannot be read"),
        (lambda d: d.update(tables=None), r"run.json cannot be read"),
    ],
)
def test_a_damaged_run_json_is_named(edit: Callable[[dict[str, Any]], Any], text: str, saved: Path) -> None:
    edited(saved, edit)
    with pytest.raises(MeasurementError, match=text):
        load_run(saved)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff\xfe\0", b"[" * 10**6, b'{"schema": NaN}'])
def test_a_run_json_that_is_no_json_is_named(content: bytes, saved: Path) -> None:
    (saved / "run.json").write_bytes(content)
    with pytest.raises(MeasurementError, match=r"saved/run.json"):
        load_run(saved)


@pytest.mark.parametrize(
    ("field", "value"),
    [("dropped", 5), ("reported", [1]), ("start", 1e300), ("outcome", None), ("calls", {}), ("id", 3)],
)
def test_fields_of_the_wrong_kind_are_told(tmp_path: Path, field: str, value: object) -> None:
    path = save_run(handmade_run(), tmp_path, "one")
    save_run(handmade_run(), tmp_path, "two")
    file = path / "run.json"
    document = json.loads(file.read_text())
    document["run"][field] = value
    file.write_text(json.dumps(document))
    with pytest.raises(MeasurementError, match=r"run\.json"):
        load_run(path)
    assert [entry.error is None for entry in list_runs(tmp_path)] == [True, False]


def test_older_schemas_are_upgraded(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def upgrade(body: document.Body, tables: Tables) -> tuple[document.Body, Tables]:
        return body | {"name": "upgraded"}, tables | {"samples": tables["samples"].slice(0, 0)}

    monkeypatch.setattr(document, "SCHEMA", SCHEMA + 1)
    monkeypatch.setattr(document, "UPGRADES", {SCHEMA: upgrade})
    assert load_run(saved) == a_run(name="upgraded")


@pytest.mark.parametrize("schema", range(1, SCHEMA))
def test_a_stored_measurement_of_every_older_schema_loads(schema: int) -> None:
    run = load_run(Path(__file__).parents[1] / "data" / f"schema{schema}")
    for name in TABLES:
        assert (getattr(run, name) is None) == (name in run.absent), name
    for name, table in tables_of(run).items():
        assert table.schema == arrow_schema(TABLES[name])


def test_what_schema_1_did_not_record_is_absent() -> None:
    run = load_run(Path(__file__).parents[1] / "data" / "schema1")
    unknown = {"asked", "branch_reads", "sections", "preprocessing", "span_metrics_per_worker", "pauses"}
    unknown |= {"sampling", "worker_states", "profile", "client_steps", "worker_requests"}
    assert set(run.absent) == unknown
    assert run.chunks is not None
    assert run.chunks["cpu_seconds"].to_pylist() == [1.5, 2.5, 0.5, 5.0, 0.25, 6.0]
    assert run.chunks["id"].null_count == run.chunks["bytes_requested"].null_count == 6
    measurement = Measurement(run)
    assert (measurement.metrics["total_cpu_time"], measurement.metrics["total_bytes_read"]) == (15.75, 4500)
    assert "did not record" in str(measurement.byte_ledger.absent)
    assert (dict(measurement.byte_ledger), measurement.byte_ledger.total) == ({}, None)
    assert len(measurement.branches) == len(measurement.sections) == 0


def test_what_schema_3_did_not_record_is_no_part_of_the_ledger() -> None:
    measurement = Measurement(load_run(Path(__file__).parents[1] / "data" / "schema3"))
    ledger = measurement.time_ledger
    assert PAUSED not in ledger
    assert ledger.unknown[PAUSED] == measurement.metrics.missing["time_paused_seconds"] == NOT_RECORDED
    assert PAUSED not in ledger.by("worker")
    assert PAUSED not in ledger.timeline(5)
    assert ledger[CLIENT] == EXPECTED["time_idle_client_seconds"] + EXPECTED["time_paused_seconds"]


def schema_6_with_trees(folder: Path, asked: str | None, recorded: str) -> Path:
    """The stored measurement of schema 6 with one tree in what was asked for, and one in what came."""
    path = folder / "schema6"
    shutil.copytree(Path(__file__).parents[1] / "data" / "schema6", path)
    for name, tree in (("asked", asked), ("chunks", recorded), ("preprocessing", recorded)):
        table = pq.ParquetFile(path / f"{name}.parquet").read()
        place = table.schema.get_field_index("tree")
        trees = pa.array([tree] * len(table), pa.string())
        pq.write_table(table.set_column(place, "tree", trees), path / f"{name}.parquet")
    return path


@pytest.mark.parametrize(("asked", "recorded"), [(None, "None"), ("None", "None"), ("Events", "Events")])
def test_files_without_trees_have_none_in_older_records(tmp_path: Path, asked: str | None, recorded: str) -> None:
    measurement = Measurement(load_run(schema_6_with_trees(tmp_path, asked, recorded)))
    for name in ("chunks", "preprocessing"):
        assert set(getattr(measurement.run, name)["tree"].to_pylist()) == {asked}
    assert measurement.metrics["num_missing_chunks"] == 1


def test_what_schema_6_did_not_record_is_not_known() -> None:
    run = load_run(Path(__file__).parents[1] / "data" / "schema6")
    assert run.environment.hosts == (Host(name="node1", cores=8, memory=2**35, node_cores=None, node_memory=None),)
    assert run.lifetimes is not None
    for name in ("throttled_seconds", "throttled_periods"):
        assert run.lifetimes[name].null_count == len(run.lifetimes) > 0
