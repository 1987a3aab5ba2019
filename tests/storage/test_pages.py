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
from roastcoffea.storage.thrift import structure

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
        size = TABLE.slice(0, rows).nbytes
        assert size <= footer.claimed(io.BytesIO(content)) < 20 * size + 10_000


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


def fields_of(footer: bytes) -> dict[int, tuple[int, bytes]]:
    """Type and bytes of each field."""
    fields, place, number = {}, 0, 0
    while head := footer[place]:
        before, number = number, number + (head >> 4)
        _, end = structure(footer, place, after=before, until=number)
        fields[number] = head & 15, footer[place + 1 : end]
        place = end
    return fields


def numbered(number: int, kind: int, content: bytes) -> bytes:
    """A field with its number written out."""
    left, digits = number << 1, b""
    while left > 127:
        digits, left = digits + bytes([left & 127 | 128]), left >> 7
    return bytes([kind]) + digits + bytes([left]) + content


NO_ROWS = numbered(3, 3, b"\0") + numbered(4, 10, b"\x0c")
"""As a byte and a set, which Arrow passes over to find those of the right type."""


def test_what_is_taken_for_known_holds_nothing_but_the_schema() -> None:
    """Otherwise a second file had its rows in what is known, and a smaller number behind it."""
    content = written(pa.table({"in no order": np.arange(1000)}), use_dictionary=False)
    size = int.from_bytes(content[-8:-4], "little")
    field = {number: numbered(number, *found) for number, found in fields_of(content[-8 - size : -8]).items()}
    first = field[1] + field[3] + field[4] + field[2]
    assert Footer(first + b"\0", len(content)).rows == 1000
    with pytest.raises(ValueError, match="it has the field 3 twice"):
        Footer(first + NO_ROWS + b"\0", len(content))


def test_numbers_of_fields_that_others_count_from_the_beginning_again() -> None:
    content = written(pa.table({"numbered far": np.arange(1000)}), use_dictionary=False)
    size = int.from_bytes(content[-8:-4], "little")
    found = fields_of(content[-8 - size : -8])
    field = {number: numbered(number, *one) for number, one in found.items()}
    far = numbered(2**16 + 3, *found[3]) + numbered(2**16 + 4, *found[4])
    no_rows = numbered(3, 6, b"\0") + numbered(4, 9, b"\x0c")
    for rows, refused in ((NO_ROWS, "a value of type 10"), (no_rows, "the field 65539, which cannot be")):
        with pytest.raises(ValueError, match=f"it has {refused}"):
            Footer(field[1] + field[2] + rows + far + b"\0", len(content))
