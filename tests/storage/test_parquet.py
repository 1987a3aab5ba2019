"""Parquet files come back as tables of our types, or as errors before anything is allocated."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from saved_runs import a_run, bombs, with_claimed_rows, written

from roastcoffea.errors import MeasurementError
from roastcoffea.storage import parquet
from roastcoffea.storage.parquet import ROOM, Room, read_parquet
from roastcoffea.storage.reading import ALWAYS_FITS
from roastcoffea.storage.store import load_run, save_run

SCHEMA = pa.schema({"text": pa.string(), "whole": pa.int64(), "number": pa.float64(), "texts": pa.list_(pa.string())})


def read(path: Path, table: pa.Table, **settings: Any) -> pa.Table:
    path.write_bytes(written(table, **settings))
    return read_parquet(path, SCHEMA, Room(), len(table))


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("text", pa.array(["a", None], pa.large_string()), ["a", None]),
        ("text", pa.array(["a", "a"]).dictionary_encode(), ["a", "a"]),
        ("text", pa.nulls(2), [None, None]),
        ("whole", pa.array([1, None], pa.int8()), [1, None]),
        ("whole", pa.array([1.0, None]), [1, None]),
        ("number", pa.array([1, None]), [1.0, None]),
        ("texts", pa.array([["a"], None], pa.large_list(pa.string())), [["a"], None]),
        ("further", pa.array([[1], None]), [[1], None]),
        ("further", pa.array([True, None]), [True, None]),
    ],
    ids=str,
)
def test_similar_types_become_ours(name: str, values: Any, expected: list[Any], tmp_path: Path) -> None:
    found = read(tmp_path / "t.parquet", pa.table({name: values}))
    assert found[name].to_pylist() == expected
    if name in SCHEMA:
        assert found.schema.field(name).type == SCHEMA[name].type


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("text", pa.array([[1]])),
        ("text", pa.array([b"a"])),
        ("text", pa.array([1])),
        ("whole", pa.array(["1"])),
        ("whole", pa.array([True])),
        ("texts", pa.array(["a"])),
        ("texts", pa.array([[["a"]]])),
        ("texts", pa.array([[1]])),
        ("further", pa.array([{"a": 1}])),
        ("further", pa.array([[[1]]])),
        ("further", pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64()))),
    ],
    ids=str,
)
def test_other_types_are_told(name: str, values: Any, tmp_path: Path) -> None:
    with pytest.raises(MeasurementError, match=rf"t.parquet cannot be read \(TypeError: {name} holds .* instead of "):
        read(tmp_path / "t.parquet", pa.table({name: values}))


def test_text_that_is_none_is_told(tmp_path: Path) -> None:
    values = pa.array([b"\xff\xfe"], pa.binary()).view(pa.string())
    with pytest.raises(MeasurementError, match="UTF8"):
        read(tmp_path / "t.parquet", pa.table({"text": values}))


def test_the_rows_are_those_that_were_told(tmp_path: Path) -> None:
    (tmp_path / "t.parquet").write_bytes(written(pa.table({"whole": [1]})))
    with pytest.raises(MeasurementError, match="1 rows instead of 2"):
        read_parquet(tmp_path / "t.parquet", SCHEMA, Room(), 2)


def test_files_without_rows_that_are_equal_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = written(SCHEMA.empty_table(), compression="none")
    paths = [tmp_path / f"{number}.parquet" for number in range(3)]
    for path in paths:
        path.write_bytes(empty)
    first = read_parquet(paths[0], SCHEMA, Room(), 0)
    assert first.equals(SCHEMA.empty_table(), check_metadata=True)
    monkeypatch.setattr(pq, "ParquetFile", None)  # it would be called
    assert read_parquet(paths[1], SCHEMA, Room(), 0) is first
    paths[2].write_bytes(empty[:-1])
    with pytest.raises(MeasurementError, match="its end is missing"):
        read_parquet(paths[2], SCHEMA, Room(), 0)
    with pytest.raises(MeasurementError, match="not callable"):
        read_parquet(paths[1], pa.schema([("text", pa.string())]), Room(), 0)


def test_tables_of_a_folder_share_a_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "EXPANSION", 0)
    path = tmp_path / "t.parquet"
    path.write_bytes(written(pa.table({"number": np.zeros(ROOM // 100)})))
    room = Room()
    read_parquet(path, SCHEMA, room)
    with pytest.raises(MeasurementError, match=r"it claims to hold \d+ bytes.* it holds \d+ bytes, which no"):
        for _ in range(10):
            read_parquet(path, SCHEMA, room)


@pytest.mark.slow
def test_what_does_not_fit_into_memory_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    available = psutil.virtual_memory()._replace(available=1000)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: available)
    with pytest.raises(MeasurementError, match=r"it needs \d+ bytes of memory; 1000 are available"):
        read(tmp_path / "t.parquet", pa.table({"whole": np.arange(ALWAYS_FITS // 8)}))


EVERYTHING = pa.table(
    {
        "number": np.arange(1000) / 7,
        "whole": np.arange(1000),
        "text": ["a", "bb", "c" * 100, None] * 250,
        "other": [f"text {number}" for number in range(1000)],
        "nothing": pa.nulls(1000, pa.string()),
        "texts": [["a", "bb"], [], None, ["c" * 50]] * 250,
    }
)
WAYS: list[dict[str, Any]] = [
    {},
    {"use_dictionary": False},
    {"row_group_size": 300},
    {"data_page_size": 100},
    {"write_page_checksum": True},
    {"write_statistics": False},
    {"compression": "none"},
    *({"compression": codec, "data_page_version": "2.0"} for codec in ("snappy", "gzip", "brotli", "lz4", "zstd")),
    {"use_dictionary": False, "column_encoding": {"other": "DELTA_BYTE_ARRAY", "whole": "DELTA_BINARY_PACKED"}},
]


@pytest.mark.parametrize("settings", WAYS, ids=str)
def test_what_others_write_is_read_as_well(settings: dict[str, Any], tmp_path: Path) -> None:
    assert read(tmp_path / "t.parquet", EVERYTHING, **settings).equals(EVERYTHING)


@pytest.mark.parametrize("settings", WAYS[:7], ids=str)
def test_what_we_write_needs_no_other_process(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "run", None)
    assert read(tmp_path / "t.parquet", EVERYTHING, **settings).equals(EVERYTHING)


def test_other_ids_and_texts_are_not_taken_for_long_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dictionary has numbers or texts, and does not say which."""
    monkeypatch.setattr(subprocess, "run", None)
    whole = np.arange(100_000)
    numbers = {f"ids {step}": whole * step for step in (1, 3, 1000, 2**24, 2**33)} | {"floats": whole / 7}
    table = pa.table(numbers | {"text": [f"root://host//file-{number % 1000}.root" for number in whole]})
    assert read(tmp_path / "t.parquet", table).equals(table)


def measured(path: Path, rows: int | None = None) -> tuple[str, int]:
    """What came of reading, and how far the most bytes of Arrow rose."""
    before = pa.default_memory_pool().max_memory()
    try:
        outcome = f"{len(read_parquet(path, SCHEMA, Room(), rows))} rows"
    except MeasurementError as error:
        outcome = str(error)
    return outcome, pa.default_memory_pool().max_memory() - before


@pytest.mark.parametrize("codec", ["zstd", "snappy", "gzip", "none"])
def test_a_text_for_all_rows_is_claimed_for_each(codec: str, tmp_path: Path) -> None:
    texts = pa.array(["x" * 100_000]).dictionary_encode().take(pa.array([0] * 10_000))
    path = tmp_path / "t.parquet"
    path.write_bytes(written(pa.table({"text": texts}), compression=codec))
    outcome, more = measured(path)
    assert "it claims to hold 1000" in outcome
    assert "a limit of" in outcome
    assert more < 2**26


def test_pages_are_not_believed_to_be_what_the_footer_says(tmp_path: Path) -> None:
    """A page of 160 MB in a file that says it has 100 rows."""
    rows = 20_000_000
    zeros = written(
        pa.table({"number": np.zeros(rows)}), use_dictionary=False, data_page_size=2**30, row_group_size=rows
    )
    path = tmp_path / "t.parquet"
    path.write_bytes(with_claimed_rows(zeros, rows, 100))
    outcome, more = measured(path, 100)
    assert outcome == "100 rows" or "a limit of" in outcome
    assert more < 2**26


def test_a_page_that_is_no_page(tmp_path: Path) -> None:
    content = written(pa.table({"whole": np.arange(1000)}), use_dictionary=False)
    path = tmp_path / "t.parquet"
    for place, byte in ((4, 0x45), (6, 0x1B)):
        path.write_bytes(content[:place] + bytes([byte]) + content[place + 1 :])
        with pytest.raises(MeasurementError, match=r"the size of a page is unknown .*; reading it with a limit of"):
            read_parquet(path, SCHEMA, Room())


def test_where_no_process_has_a_limit_nothing_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(
        MeasurementError, match=r"the size of a page is unknown .*; such a table can only be read on Linux"
    ):
        read(tmp_path / "t.parquet", EVERYTHING, data_page_version="2.0")


def test_groups_have_the_rows_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    path.write_bytes(with_claimed_rows(written(EVERYTHING), 1000, 1001, times=1))
    with pytest.raises(MeasurementError, match=r"it has 100[01] rows, in groups of \[100[01]\]"):
        read_parquet(path, SCHEMA, Room())


@pytest.mark.slow
def test_small_files_that_are_large_are_refused(tmp_path: Path) -> None:
    saved = save_run(a_run(), tmp_path, "run")
    for bomb in bombs({path.name: path.read_bytes() for path in saved.iterdir()}):
        for name, content in bomb.files.items():
            (saved / name).write_bytes(content)
        with pytest.raises(MeasurementError, match=r"tasks\.parquet"):
            load_run(saved)
