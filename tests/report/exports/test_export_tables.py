"""Exported tables: what other programs read is what the measurement has, and nothing is ever half there."""

from __future__ import annotations

import csv
import json
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from handmade import EXPECTED, empty_run, handmade_run, run_of_datasets, run_without_tables
from pages import SPREADSHEET as HOSTILE

from roastcoffea.errors import MeasurementError
from roastcoffea.measurement import Measurement, load
from roastcoffea.redaction import neutral
from roastcoffea.report.exports import FORMATS, tables

FOLDERS = ("csv", "parquet", "json")
FOLDER_AND_OTHERS = ["csv", *(pytest.param(name, marks=pytest.mark.slow) for name in FOLDERS[1:])]
READERS = {"csv": pd.read_csv, "parquet": pd.read_parquet, "json": pd.read_json}
FIRST, *OTHERS = FORMATS
ONE_AND_OTHERS = [FIRST, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)]


@pytest.fixture(scope="module")
def handmade() -> Measurement:
    return Measurement(handmade_run())


@pytest.fixture(scope="module")
def hostile() -> Measurement:
    return Measurement(run_of_datasets(HOSTILE))


def test_no_dataframe_of_a_measurement_is_left_out(handmade: Measurement) -> None:
    names = [name for name, value in vars(Measurement).items() if isinstance(value, property)]
    frames = [name for name in names if isinstance(getattr(handmade, name), pd.DataFrame)]
    assert "chunks" in frames
    assert set(frames) <= set(handmade.tables)


@pytest.mark.slow
@pytest.mark.parametrize("file_format", FOLDER_AND_OTHERS)
def test_every_table_comes_back(handmade: Measurement, file_format: str, tmp_path: Path) -> None:
    folder = handmade.export(tmp_path / "new" / "export", file_format)
    described = json.loads((folder / "columns.json").read_text())["tables"]
    assert {file.name for file in folder.iterdir()} == {"columns.json", *(told["file"] for told in described.values())}
    assert set(described) == {"metrics", *handmade.tables}
    for name, frame in handmade.tables.items():
        read = READERS[file_format](folder / described[name]["file"])
        assert len(read) == described[name]["rows"] == len(frame)
        if len(frame):
            assert list(read.columns) == list(frame.columns)
        for column in frame.select_dtypes("number").columns if len(frame) else ():
            expected = frame[column].astype("float64").to_numpy()
            assert np.allclose(read[column].astype("float64"), expected, rtol=1e-9, equal_nan=True), (name, column)


@pytest.mark.parametrize("file_format", FOLDER_AND_OTHERS)
def test_the_metrics_are_a_table(handmade: Measurement, file_format: str, tmp_path: Path) -> None:
    folder = handmade.export(tmp_path / "export", file_format)
    rows = READERS[file_format](folder / f"metrics.{file_format}").set_index("name")
    for name in ("total_bytes_read", "core_efficiency", "bytes_failed", "avg_workers"):
        assert rows.loc[name, "value"] == pytest.approx(EXPECTED[name])
    assert rows.loc["bound", "text"] == "client"
    assert rows.loc["data_rate_gbps", "unit"] == "Gbit/s"
    assert set(handmade.metrics.missing) <= set(rows.index[rows["missing"].notna()])


def test_columns_are_documented_with_their_units(handmade: Measurement, tmp_path: Path) -> None:
    described = json.loads((handmade.export(tmp_path / "export", "json") / "columns.json").read_text())
    assert described["tables"]["chunks"]["columns"]["wall_seconds"]["unit"] == "s"
    assert described["tables"]["byte_ledger_by_dataset"]["columns"]["payload"]["unit"] == "B"
    assert described["run"]["id"] == "0123abcd"
    untold = [
        (table, column)
        for table, told in described["tables"].items()
        for column, told_of_column in told["columns"].items()
        if not told_of_column["meaning"]
    ]
    assert untold == []


@pytest.mark.parametrize("little", [Measurement(empty_run()), Measurement(run_without_tables())])
@pytest.mark.parametrize("file_format", ONE_AND_OTHERS)
def test_a_run_of_which_little_is_known_is_exported(little: Measurement, file_format: str, tmp_path: Path) -> None:
    path = little.export(tmp_path / "export", file_format)
    if file_format in FOLDERS and little.run.chunks is None:
        told = json.loads((path / "columns.json").read_text())["tables"]
        assert told["chunks"]["absent"] == "chunks were not recorded"
    assert path.exists()


@pytest.fixture(scope="module")
def older(real_files: Any) -> Measurement:
    return load(Path(next(iter(real_files["dy"]["files"]))).parent / "measurement-0.1.2")


@pytest.mark.parametrize("file_format", ONE_AND_OTHERS)
def test_a_measurement_of_0_1_2_is_exported(older: Measurement, file_format: str, tmp_path: Path) -> None:
    assert older.export(tmp_path / "export", file_format).exists()


@pytest.mark.slow
def test_text_in_csv_is_never_a_formula_and_comes_back(hostile: Measurement, tmp_path: Path) -> None:
    folder = hostile.export(tmp_path / "export", "csv")
    with (folder / "chunks.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for column in ("dataset", "error"):
        cells = [row[column] for row in rows]
        assert [cell for cell in cells if cell.startswith(("=", "+", "-", "@", "\t", "\r", "\n"))] == []
        assert sorted(cell.removeprefix("'") for cell in cells) == sorted(map(neutral, HOSTILE))
    assert "spreadsheets do not run it" in json.loads((folder / "columns.json").read_text())["note"]


@pytest.mark.parametrize("file_format", FORMATS)
def test_names_from_data_are_names_of_no_file(hostile: Measurement, file_format: str, tmp_path: Path) -> None:
    hostile.export(tmp_path / "inner" / "export", file_format)
    assert [path.name for path in tmp_path.iterdir()] == ["inner"]
    assert [path.name for path in (tmp_path / "inner").iterdir()] == ["export"]
    if file_format in FOLDERS:
        files = {path.name for path in (tmp_path / "inner" / "export").iterdir()}
        assert files == {"columns.json", *(f"{name}.{file_format}" for name in ("metrics", *hostile.tables))}


@pytest.mark.parametrize("file_format", ONE_AND_OTHERS)
def test_what_is_there_is_replaced_only_when_asked(handmade: Measurement, file_format: str, tmp_path: Path) -> None:
    path = handmade.export(tmp_path / "export", file_format)
    before = path.stat().st_ino
    with pytest.raises(MeasurementError, match="export exists"):
        handmade.export(path, file_format)
    assert path.stat().st_ino == before
    handmade.export(path, file_format, overwrite=True)
    assert path.stat().st_ino != before
    assert [other.name for other in tmp_path.iterdir()] == ["export"]


@pytest.mark.parametrize("file_format", ONE_AND_OTHERS)
def test_no_folder_of_others_is_replaced(handmade: Measurement, file_format: str, tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("mine")
    with pytest.raises(MeasurementError, match="precious"):
        handmade.export(tmp_path / "precious", file_format, overwrite=True)
    assert (tmp_path / "precious" / "file").read_text() == "mine"


@pytest.mark.parametrize("file_format", ONE_AND_OTHERS)
def test_an_export_that_fails_leaves_all_as_it_was(
    handmade: Measurement, file_format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = handmade.export(tmp_path / "export", file_format)
    before = path.stat().st_ino

    def full(*arguments: Any, **named: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("os.fsync", full)
    for target in (path, tmp_path / "other"):
        with pytest.raises(MeasurementError, match="no space left"):
            handmade.export(target, file_format, overwrite=True)
    assert path.stat().st_ino == before
    assert [other.name for other in tmp_path.iterdir()] == ["export"]


def test_an_export_is_known_by_its_own_file(tmp_path: Path) -> None:
    assert not tables.is_export(tmp_path, ["metrics"])
    (tmp_path / "columns.json").write_bytes(b"\xff")
    assert not tables.is_export(tmp_path, ["metrics"])
    (tmp_path / "columns.json").write_text(f'{{"mine": "{tables.EXPORT_FORMAT}"}}')
    assert not tables.is_export(tmp_path, ["metrics"])


def test_an_export_with_anything_else_in_it_is_not_replaced(handmade: Measurement, tmp_path: Path) -> None:
    path = handmade.export(tmp_path / "export", "csv")
    assert handmade.export(path, "json", overwrite=True) == path
    (path / "thesis.csv").write_text("mine")
    with pytest.raises(MeasurementError, match="contains other files"):
        handmade.export(path, "csv", overwrite=True)
    assert (path / "thesis.csv").read_text() == "mine"


@pytest.mark.parametrize("file_format", ONE_AND_OTHERS)
def test_exports_are_the_users_own(handmade: Measurement, file_format: str, tmp_path: Path) -> None:
    path = handmade.export(tmp_path / "export", file_format)
    expected = {0o700, 0o600} if path.is_dir() else {0o600}
    assert {stat.S_IMODE(each.stat().st_mode) for each in (path, *path.glob("*"))} == expected
