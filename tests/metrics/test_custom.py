"""Values that a user recorded, summed over attempts that counted."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from handmade import CHUNKS, handmade_run

from roastcoffea import Measurement
from roastcoffea.metrics import evaluate
from roastcoffea.metrics.chunks import MOST_TEXTS
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.chunks import CHUNK_COLUMNS
from roastcoffea.records.run import Run
from roastcoffea.storage.document import SCHEMA


def run_with(*values: dict[str, Any] | None, **changes: Any) -> Run:
    """Run whose chunks, one after another, recorded these values."""
    rows = [row | {"custom": None if one is None else json.dumps(one)} for row, one in zip(CHUNKS, values, strict=True)]
    return handmade_run(chunks=table_of_rows(CHUNK_COLUMNS, rows), **changes)


COUNTED = {row["id"] for row in CHUNKS if row["outcome"] in ("ok", "checkpoint")}
VALUES = [
    {"jets": 10 * number, "kept": number > 2, "region": f"SR{number % 2}"} for number in range(1, len(CHUNKS) + 1)
]


def test_sums_are_over_attempts_that_counted() -> None:
    run = run_with(*VALUES)
    chunks = evaluate(run).evaluator.value("counted_chunks")
    counted = {row["id"]: row["dataset"] for row in chunks.to_pylist()}
    assert 0 < len(counted) < len(CHUNKS)
    truth: dict[str, list[dict[str, Any]]] = {}
    for row, values in zip(CHUNKS, VALUES, strict=True):
        if row["id"] in counted:
            truth.setdefault(counted[row["id"]], []).append(values)
    totals = Measurement(run).custom.set_index(["name", "dataset"])
    for dataset, found in truth.items():
        jets = [values["jets"] for values in found]
        numbers = totals.loc[("jets", dataset), ["chunks", "sum", "mean", "min", "max"]].tolist()
        assert numbers == [len(jets), sum(jets), sum(jets) / len(jets), min(jets), max(jets)]
        assert totals.loc[("kept", dataset), "sum"] == sum(values["kept"] for values in found)
        assert set(totals.loc[("region", dataset), "texts"]) == {values["region"] for values in found}
        assert math.isnan(totals.loc[("region", dataset), "sum"])
    assert len(totals) == 3 * len(truth)


def test_what_is_not_known_is_no_part_of_a_sum() -> None:
    values: list[dict[str, Any] | None] = [{"a": None, "b": float("nan"), "c": float("inf"), "d": 2**999}] * len(CHUNKS)
    custom = evaluate(run_with(*values))["custom"]
    assert {row["chunks"] for name in "ab" for row in custom[name].values()} == {0}
    assert {row["sum"] for name in "ab" for row in custom[name].values()} == {None}
    assert {row["sum"] for row in custom["c"].values()} == {math.inf}
    assert all(row["max"] == 2.0**999 for row in custom["d"].values())


def test_texts_are_bounded() -> None:
    rows = [
        CHUNKS[0] | {"id": number, "key": f"k{number}", "outcome": "ok", "custom": json.dumps({"text": str(number)})}
        for number in range(100)
    ]
    (row,) = evaluate(handmade_run(chunks=table_of_rows(CHUNK_COLUMNS, rows)))["custom"]["text"].values()
    assert row["chunks"] == 100
    assert row["texts"] == [str(number) for number in range(MOST_TEXTS)]


def test_a_run_without_values_has_none() -> None:
    measurement = Measurement(handmade_run())
    assert measurement.metrics["custom"] == {}
    assert len(measurement.custom) == 0
    assert measurement.chunks["custom"].isna().all()
    lost = Measurement(handmade_run(chunks=None, absent={"chunks": "no probe"}))
    assert lost.custom.attrs["absent"] == lost.metrics.missing["custom"] == "no probe"


def test_values_survive_saving(tmp_path: Path) -> None:
    from roastcoffea import load

    measurement = Measurement(run_with(*VALUES))
    again = load(measurement.save(tmp_path, "m"))
    assert again.chunks["custom"].tolist() == VALUES
    assert again.custom.equals(measurement.custom)
    older = load(Path(__file__).parents[1] / "data" / f"schema{SCHEMA - 1}")
    assert older.chunks["custom"].isna().all()


@pytest.mark.slow
@pytest.mark.parametrize("file_format", ["csv", "json", "parquet"])
def test_values_are_in_exports_of_tables(tmp_path: Path, file_format: str) -> None:
    values = [{**VALUES[0], "odd": math.nan}, *VALUES[1:]]
    folder = Measurement(run_with(*values)).export(tmp_path / "out", file_format)

    def column(name: str, table: str) -> list[Any]:
        path = folder / f"{table}.{file_format}"
        if file_format == "csv":
            with path.open(newline="") as file:
                return [row[name] for row in csv.DictReader(file)]
        if file_format == "json":
            return [row[name] for row in json.loads(path.read_text())]
        return pq.read_table(path)[name].to_pylist()

    found = [json.loads(text) for text in column("custom", "chunks")]
    assert found == [{**VALUES[0], "odd": "nan"}, *VALUES[1:]]
    assert set(column("name", "custom")) == {"jets", "kept", "region"}  # the first attempt did not count


@pytest.mark.slow
def test_values_are_in_other_exports_and_on_the_page(tmp_path: Path) -> None:
    values = [{**one, "number": f"of {one['jets']}"} for one in VALUES]
    measurement = Measurement(run_with(*values))
    custom = measurement.metrics["custom"]
    metrics = measurement.export(tmp_path / "metrics.prom", "openmetrics").read_text()
    for dataset, row in custom["jets"].items():
        (line,) = [
            line
            for line in metrics.splitlines()
            if line.startswith("roastcoffea_custom{") and f'dataset="{dataset}"' in line and 'name="jets"' in line
        ]
        assert float(line.rsplit(" ", 2)[1]) == row["sum"]
    trace = json.loads(measurement.export(tmp_path / "trace.json", "perfetto").read_text())
    events = trace["traceEvents"] if isinstance(trace, dict) else trace
    recorded = [json.loads(event["args"]["custom"]) for event in events if "custom" in event.get("args", {})]
    assert sorted(values["jets"] for values in recorded) == [values["jets"] for values in VALUES]
    page = measurement.report(tmp_path / "page.html").read_text()
    assert "recorded values" in page
    assert "SR0" in page
    assert "recorded values" not in Measurement(handmade_run()).report(tmp_path / "without.html").read_text()
