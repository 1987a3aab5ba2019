"""Runs of every older schema are read as runs of the present one."""

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from handmade import EXPECTED
from saved_runs import a_run

from roastcoffea.measurement import Measurement
from roastcoffea.metrics.phases import CLIENT, PAUSED
from roastcoffea.records.arrow import arrow_schema
from roastcoffea.records.run import Host
from roastcoffea.storage import document, upgrades
from roastcoffea.storage.store import load_run
from roastcoffea.storage.tables import TABLES, Tables, tables_of
from roastcoffea.storage.upgrades import NOT_RECORDED, SCHEMA


def test_older_schemas_are_upgraded(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def upgrade(body: upgrades.Body, tables: Tables) -> tuple[upgrades.Body, Tables]:
        return body | {"name": "upgraded"}, tables | {"samples": tables["samples"].slice(0, 0)}

    for module in (document, upgrades):
        monkeypatch.setattr(module, "SCHEMA", SCHEMA + 1)
    monkeypatch.setattr(upgrades, "UPGRADES", {SCHEMA: upgrade})
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
    unknown |= {"sampling", "worker_states", "profile", "client_steps"}
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
