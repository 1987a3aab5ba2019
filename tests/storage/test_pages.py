"""What a file claims to hold is at least what its table takes, and is known without reading it."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from mutations import written

from roastcoffea.storage.pages import Footer

TABLE = pa.table(
    {
        "number": np.arange(1000) / 7,
        "whole": np.arange(1000),
        "word": ["a", "bb", "c" * 100, None] * 250,
        "text": [f"text {number}" for number in range(1000)],
        "nothing": pa.nulls(1000, pa.string()),
        "words": [["a", "bb"], [], None, ["c" * 50]] * 250,
    }
)


def footer_of(content: bytes) -> Footer:
    size = int.from_bytes(content[-8:-4], "little")
    return Footer(content[-8 - size : -8], len(content))


@pytest.mark.parametrize(
    "settings",
    [
        {"compression": codec, "data_page_version": version}
        for codec in ("none", "snappy", "gzip", "brotli", "lz4", "zstd")
        for version in ("1.0", "2.0")
    ]
    + [{"use_dictionary": False}, {"row_group_size": 300}, {"data_page_size": 100}, {"write_page_checksum": True}],
    ids=str,
)
def test_claims_are_no_less_than_what_is_read(settings: dict[str, Any]) -> None:
    content = written(TABLE, **settings)
    footer = footer_of(content)
    assert footer.rows == 1000
    assert TABLE.nbytes <= footer.claimed(io.BytesIO(content)) < 20 * TABLE.nbytes


def test_a_text_for_all_rows_is_claimed_for_each() -> None:
    content = written(pa.table({"text": ["x" * 1000] * 10_000}))
    assert len(content) < 5000
    assert footer_of(content).claimed(io.BytesIO(content)) > 10_000_000


def test_texts_with_a_common_beginning_are_refused() -> None:
    encoding = {"use_dictionary": False, "column_encoding": {"text": "DELTA_BYTE_ARRAY"}}
    content = written(pa.table({"text": ["a", "ab"]}), **encoding)
    with pytest.raises(ValueError, match=r"a page of .*text.* has the unknown encoding 7"):
        footer_of(content).claimed(io.BytesIO(content))


def test_groups_have_the_rows_of_the_file() -> None:
    content = bytearray(written(TABLE))
    size = int.from_bytes(content[-8:-4], "little")
    footer = bytes(content[-8 - size : -8])
    rows = pq.ParquetFile(io.BytesIO(bytes(content))).metadata.num_rows
    assert rows == 1000
    old, new = b"\x16\xd0\x0f", b"\x16\xd2\x0f"  # 1000 and 1001
    assert footer.count(old) > 1
    with pytest.raises(ValueError, match="it has 1001 rows, in groups of"):
        Footer(footer.replace(old, new, 1), len(content))


@pytest.mark.parametrize("length", [10, 100])
def test_a_column_outside_of_the_file(length: int) -> None:
    content = written(TABLE)
    size = int.from_bytes(content[-8:-4], "little")
    with pytest.raises(ValueError, match="is outside of the file"):
        Footer(content[-8 - size : -8], length).claimed(io.BytesIO(content))


def test_a_footer_that_is_cut_off() -> None:
    content = written(TABLE)
    size = int.from_bytes(content[-8:-4], "little")
    with pytest.raises(ValueError, match="its footer is cut off"):
        Footer(content[-8 - size : -100], len(content))


def test_files_that_begin_and_end_alike_are_told_apart_by_what_lies_between() -> None:
    """Of the second one and others with the schema of the first, only the row groups are looked at."""
    for rows in (10, 10, 1000):
        content = written(TABLE.slice(0, rows), compression="none", use_dictionary=False, write_statistics=False)
        footer = footer_of(content)
        assert footer.rows == rows
        assert (
            TABLE.slice(0, rows).nbytes
            <= footer.claimed(io.BytesIO(content))
            < 20 * TABLE.slice(0, rows).nbytes + 10_000
        )


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("field", [1, 2, 3, 4])
def test_no_field_of_a_footer_comes_twice(known: bool, field: int) -> None:
    table = TABLE.rename_columns([f"{name} {known} {field}" for name in TABLE.column_names])
    content = written(table)
    size = int.from_bytes(content[-8:-4], "little")
    footer = content[-8 - size : -8]
    if known:
        assert Footer(footer, len(content)).rows == 1000
    with pytest.raises(ValueError, match=f"it has the field {field} twice"):
        Footer(footer[:-1] + bytes([0x05, 2 * field, 0, 0]), len(content))
    with pytest.raises(ValueError, match="its footer is cut off"):
        Footer(footer[:-1], len(content))
