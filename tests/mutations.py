"""Folders of measurements with something in them that no version of roastcoffea wrote."""

from __future__ import annotations

import base64
import io
import json
import random
import struct
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

WRONG: tuple[Any, ...] = (
    None,
    True,
    -1,
    10**400,
    1e308,
    "text",
    "NaN",
    "\ud800",
    "\x1b[2J\x1b]0;title\x07",
    "9" * 5000,
    [],
    [[1]],
    {},
    {"a": {"b": None}},
    {"$": "float", "of": "nan"},
    {"$": "set", "of": [[]]},
    {"$": "int", "of": "f" * 5000},
    {"$": "unknown", "of": 1},
)
"""What stands in the place of a value."""


class Mutation(NamedTuple):
    """What was done to a folder, and the new content of the files that it changed."""

    what: str
    files: Mapping[str, bytes]


def mutations(folder: Path, seed: int) -> Iterator[Mutation]:
    """Endless mutations of a folder: of its bytes, its JSON, its tables, and of what both say of each other."""
    chosen = random.Random(seed)
    files = {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
    kinds: list[Callable[[Mapping[str, bytes], random.Random], Mutation]] = [damaged, json_changed]
    if any(name.endswith(".parquet") for name in files):
        kinds += [table_crafted, table_crafted, footer_changed, rows_claimed]
    while True:
        yield chosen.choice(kinds)(files, chosen)


def damaged(files: Mapping[str, bytes], chosen: random.Random) -> Mutation:
    """Bytes of a file that are lost, changed, repeated, or overwritten."""
    name = chosen.choice(list(files))
    whole = files[name]
    start = chosen.randrange(len(whole))
    stop = min(start + chosen.choice((1, 2, 8, 100)), len(whole))
    kind = chosen.choice(("cut", "bit", "bytes", "zeros", "ones", "removed", "twice"))
    inner = {
        "bit": bytes([whole[start] ^ 1 << chosen.randrange(8)]) + whole[start + 1 : stop],
        "bytes": chosen.randbytes(stop - start),
        "zeros": bytes(stop - start),
        "ones": b"\xff" * (stop - start),
        "removed": b"",
        "twice": 2 * whole[start:stop],
    }
    content = whole[:start] if kind == "cut" else whole[:start] + inner[kind] + whole[stop:]
    return Mutation(f"{name}: {kind} at {start}", {name: content})


# JSON


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths to all values in a document, the inner ones first."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from places(item, (*path, key))
    if path:
        yield path


def with_value(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    """Copy of a document with another value at a path."""
    changed = json.loads(json.dumps(document))
    *outer, last = path
    inner = changed
    for key in outer:
        inner = inner[key]
    inner[last] = value
    return changed


def json_changed(files: Mapping[str, bytes], chosen: random.Random) -> Mutation:
    """A value of a JSON file that is of another type or size, or a large document in its place."""
    name = chosen.choice([name for name in files if name.endswith(".json")])
    document = json.loads(files[name])
    if chosen.random() < 0.1:
        what = chosen.choice(list(DOCUMENTS))
        return Mutation(f"{name}: {what}", {name: DOCUMENTS[what]()})
    path = chosen.choice(list(places(document)))
    wrong = chosen.choice(WRONG if chosen.random() < 0.8 else list(huge()))
    changed = with_value(document, path, wrong)
    if name == "run.json" and chosen.random() < 0.2:
        changed["schema"] = chosen.randrange(1, 13)
    return Mutation(f"{name}: {path} = {str(wrong)[:60]}", {name: json.dumps(changed).encode()})


def huge() -> Iterator[Any]:
    """Values that claim to be far larger than they are."""
    for shape in ((2**40,), (2**20, 2**20), (0, 2**62), (-1,), (2**70,)):
        for kind in ("<f8", "|V1000000000", "|O", [["a", "<f8"]]):
            yield {"$": "numpy.array", "of": base64.b64encode(array_header(shape, kind)).decode()}
    yield {"$": "numpy.array", "of": base64.b64encode(b"\x93NUMPY\x02\x00\xff\xff\xff\x7f").decode()}
    yield {"$": "dict", "of": [[{"$": "tuple", "of": ["(" * 5000]}, 1]]}


def array_header(shape: tuple[int, ...], kind: Any) -> bytes:
    """Header of an array of numpy's format, without its numbers."""
    text = repr({"descr": kind, "fortran_order": False, "shape": shape}).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


DOCUMENTS: Mapping[str, Callable[[], bytes]] = {
    "empty": lambda: b"",
    "lists in lists": lambda: b"[" * 200_000,
    "objects in objects": lambda: b'{"a":' * 100_000,
    "no text": lambda: b"\xff\xfe\x00",
    "a long number": lambda: b"9" * 1_000_000,
    "many lists": lambda: b"[" + b"[]," * 300_000 + b"[]]",
    "many objects": lambda: b'{"run": [' + b'{"":1},' * 100_000 + b"{}]}",
    "nothing": lambda: b"null",
}


# tables


def written(table: pa.Table, **settings: Any) -> bytes:
    """A table as the bytes of a file."""
    file = io.BytesIO()
    pq.write_table(table, file, **{"compression": "zstd", "use_compliant_nested_type": False} | settings)
    return file.getvalue()


LONG = 200_000
"""Rows of a table that compresses well."""


def columns_of(rows: int) -> Mapping[str, Callable[[], Any]]:
    """Columns of other types and contents than ours."""
    return {
        "texts": lambda: pa.array(["\x1b[31m"] * rows),
        "no UTF-8": lambda: pa.array([b"\xff\xfe"] * rows, pa.binary()).view(pa.string()),
        "bytes": lambda: pa.array([b"a"] * rows),
        "bools": lambda: pa.array([True] * rows),
        "nulls": lambda: pa.nulls(rows),
        "huge numbers": lambda: pa.array([2**63 - 1] * rows),
        "negative numbers": lambda: pa.array([-(2**63)] * rows),
        "fractions": lambda: pa.array([0.5] * rows),
        "no numbers": lambda: pa.array([float("nan"), float("inf")] * (rows // 2) + [0.0] * (rows % 2)),
        "moments": lambda: pa.array([0] * rows, pa.timestamp("ns", "UTC")),
        "decimals": lambda: pa.array([1] * rows, pa.decimal128(38, 37)),
        "lists": lambda: pa.array([[1]] * rows),
        "lists of texts": lambda: pa.array([["a", None]] * rows),
        "lists of lists": lambda: pa.array([[[["a"]]]] * rows),
        "structures": lambda: pa.array([{"a": {"b": 1}}] * rows),
        "maps": lambda: pa.array([[("a", 1)]] * rows, pa.map_(pa.string(), pa.int64())),
        "fixed sizes": lambda: pa.array([b"a" * 1000] * rows, pa.binary(1000)),
        "dictionaries": lambda: pa.array(["a"] * rows).dictionary_encode(),
        "JSON in JSON": lambda: pa.array(['{"a": {"b": [1]}}'] * rows),
        "a long text": lambda: pa.array(["x" * 1_000_000] * min(rows, 20), pa.large_string()),
    }


def table_crafted(files: Mapping[str, bytes], chosen: random.Random) -> Mutation:
    """A table with a column of another type, or with other rows or columns."""
    name = chosen.choice([name for name in files if name.endswith(".parquet")])
    table = pq.read_table(io.BytesIO(files[name]))
    what = chosen.choice(("column", "column", "column", "further", "missing", "twice", "long", "metadata", "codec"))
    settings: dict[str, Any] = {}
    if what in {"column", "further"}:
        kind = chosen.choice(list(columns_of(0)))
        column = columns_of(len(table))[kind]()
        column = column if len(column) == len(table) else pa.nulls(len(table))
        place = chosen.randrange(table.num_columns)
        label = table.column_names[place] if what == "column" else "f\x1b[2Jurther"
        table = table.set_column(place, label, column) if what == "column" else table.append_column(label, column)
        what = f"{what} {label} of {kind}"
    elif what == "missing":
        table = table.drop_columns([chosen.choice(table.column_names)])
    elif what == "twice":
        table = table.append_column(table.column_names[0], table.column(0))
    elif what == "long":
        rows = pa.nulls(LONG) if not len(table) else pa.array([0] * LONG)
        columns = dict(zip(table.column_names, table.columns, strict=True))
        table = pa.table(
            {label: column.take(rows) if len(table) else rows.cast(column.type) for label, column in columns.items()}
        )
    elif what == "metadata":
        schema = base64.b64encode(chosen.randbytes(200))
        table = table.replace_schema_metadata({"ARROW:schema": schema, "pandas": b"{" * 1000})
    else:
        settings = {"compression": chosen.choice(("none", "snappy", "gzip", "brotli", "lz4"))}
    return Mutation(f"{name}: {what}", {name: written(table, **settings)} | _with_rows(files, name, len(table), chosen))


def _with_rows(files: Mapping[str, bytes], name: str, rows: int, chosen: random.Random) -> dict[str, bytes]:
    """run.json that tells the same number of rows, most of the time."""
    document = json.loads(files["run.json"])
    described = document["tables"].get(name.removesuffix(".parquet"))
    if described is None or described["rows"] == rows or chosen.random() < 0.1:
        return {}
    described["rows"] = rows
    return {"run.json": json.dumps(document).encode()}


def footer_changed(files: Mapping[str, bytes], chosen: random.Random) -> Mutation:
    """Bytes in the footer of a table, or in the header of its first page, which say how much there is."""
    name = chosen.choice([name for name in files if name.endswith(".parquet")])
    whole = bytearray(files[name])
    footer = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    start = chosen.choice((footer, footer, footer, 4))
    for _ in range(chosen.choice((1, 1, 2, 5))):
        place = min(start + chosen.randrange(400), len(whole) - 1)
        whole[place] = chosen.choice((0, 1, 0x7F, 0x80, 0xFF, chosen.randrange(256)))
    if chosen.random() < 0.1:
        whole[-8:-4] = chosen.randbytes(4)
    return Mutation(f"{name}: its footer", {name: bytes(whole)})


def rows_claimed(files: Mapping[str, bytes], chosen: random.Random) -> Mutation:
    """Another number of rows in run.json and in the table's footer."""
    name = chosen.choice([name for name in files if name.endswith(".parquet")])
    table = pq.read_table(io.BytesIO(files[name]))
    rows = chosen.choice((0, 1, 100, 2**31, 2**40, 2**62, -1))
    whole = with_claimed_rows(files[name], len(table), rows, chosen.choice((1, -1)))
    document = json.loads(files["run.json"])
    document["tables"][name.removesuffix(".parquet")]["rows"] = rows
    return Mutation(f"{name}: {rows} rows", {name: whole, "run.json": json.dumps(document).encode()})


def with_claimed_rows(content: bytes, old: int, new: int, times: int = -1) -> bytes:
    """A table whose footer says another number of rows."""
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    changed = content[footer:-8].replace(b"\x16" + _number(old), b"\x16" + _number(new), times)
    return content[:footer] + changed + struct.pack("<I", len(changed)) + b"PAR1"


def _number(value: int) -> bytes:
    """A whole number of Thrift's compact protocol."""
    rest = (value << 1 ^ value >> 63) & (2**64 - 1)
    digits = bytearray()
    while rest > 127:
        digits.append(rest & 127 | 128)
        rest >>= 7
    return bytes(digits + bytes([rest]))


# what no file of a few kilobytes may do


def bombs(files: Mapping[str, bytes]) -> Iterator[Mutation]:
    """Small tables that are far larger in memory, each with a run.json that agrees."""
    tables: dict[str, Callable[[], bytes]] = {
        "a long text for each row": lambda: written(
            pa.table({"key": pa.array(["x" * 500_000]).dictionary_encode().take(pa.array([0] * 100_000))})
        ),
        "a long text for each of few rows": lambda: written(
            pa.table({"key": pa.array(["x" * 500_000]).dictionary_encode().take(pa.array([0] * 40_000))})
        ),
        "long texts with the same beginning": lambda: written(
            pa.table({"key": [f"{'x' * 100_000}{number}" for number in range(500)]}),
            use_dictionary=False,
            column_encoding={"key": "DELTA_BYTE_ARRAY"},
        ),
        "pages of zeros": lambda: written(
            pa.table({"start": np.zeros(10_000_000)}), use_dictionary=False, data_page_size=2**30
        ),
        "one value for all rows": lambda: written(pa.table({"start": np.zeros(20_000_000)})),
        "nothing in all rows": lambda: written(pa.table({"error": pa.nulls(20_000_000, pa.string())})),
        "a list of a million": lambda: written(pa.table({"key": pa.array([np.ones(10_000_000, np.int64)])})),
        "many row groups": lambda: written(pa.table({"start": np.zeros(12_000)}), row_group_size=1),
        "many columns": lambda: written(pa.table({f"c{number}": [1] for number in range(12_000)})),
        "few of the columns": lambda: written(pa.table({"key": pa.nulls(8_000_000)})),
        "nested columns": lambda: written(pa.table({"key": _nested(45)})),
    }
    for what, make in tables.items():
        content = make()
        document = json.loads(files["run.json"])
        document["schema"] = 8
        document["tables"]["tasks"]["rows"] = pq.ParquetFile(
            io.BytesIO(content), thrift_container_size_limit=10**8, thrift_string_size_limit=10**9
        ).metadata.num_rows
        yield Mutation(what, {"tasks.parquet": content, "run.json": json.dumps(document).encode()})


def _nested(depth: int) -> pa.Array:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return pa.array([value])


def first(count: int, folder: Path, seed: int) -> list[Mutation]:
    """So many mutations of a folder."""
    return list(islice(mutations(folder, seed), count))
