"""Runs to be saved, with anything in their files and texts, and what is found in folders."""

from __future__ import annotations

import base64
import io
import json
import math
import os
import random
import socket
import stat
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from datetime import datetime, timezone
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from killed_saves import START

from roastcoffea.compat import legacy
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.chunks import BRANCH_READ_COLUMNS, CHUNK_COLUMNS
from roastcoffea.records.columns import Column
from roastcoffea.records.run import (
    ASKED_COLUMNS,
    FAILED,
    PREPROCESSING_COLUMNS,
    PROFILE_COLUMNS,
    SECTION_COLUMNS,
    Environment,
    Host,
    MergedRun,
    Run,
    RunnerCall,
)
from roastcoffea.records.workers import (
    CLIENT_STEP_COLUMNS,
    LIFETIME_COLUMNS,
    PAUSE_COLUMNS,
    REQUEST_COLUMNS,
    SAMPLE_COLUMNS,
    SAMPLING_COLUMNS,
    TASK_COLUMNS,
    WORKER_STATE_COLUMNS,
)
from roastcoffea.storage.document import TABLES, tables_of

assert datetime.fromtimestamp(START, timezone.utc) == datetime(2026, 3, 1, 23, 59, 58, 250_000, tzinfo=timezone.utc)


def a_run(**changes: Any) -> Run:
    """A run that has everything."""
    call = RunnerCall(
        id="call",
        processor="analysis.Dijets",
        executor="DaskExecutor",
        start=START + 1,
        stop=START + 9.5,
        outcome=FAILED,
        error="ValueError: 'μ'",
        chunks=3,
        fileset="ab" * 32,
        options={"chunksize": 2**20, "xrootdtimeout": None, "maxchunks": math.inf, "align": [1, 2]},
        report={"bytesread": 12, "columns": ["Jet_pt-data", "Jet_eta-data"], "processtime": 0.5},
    )
    run = Run(
        id="f" * 32,
        name="ttbar",
        start=START,
        stop=START + 10.25,
        outcome=FAILED,
        error="ValueError: no jets",
        backend="dask",
        environment=Environment(
            versions={"coffea": "2026.9.0"},
            client_host="login",
            hosts=(
                Host(name="node1", cores=8, memory=2**35, node_cores=64, node_memory=2**38),
                Host(name="node2", cores=None, memory=None),
            ),
        ),
        sampling_interval=0.5,
        calls=(call, replace(call, id="other", report=None, error=None)),
        merged=(
            MergedRun(
                id="a" * 32,
                name="job",
                start=START,
                stop=START + 9.5,
                outcome=FAILED,
                error="ValueError: no jets",
                backend="dask",
                client_host="login",
            ),
        ),
        asked=table_of_rows(
            ASKED_COLUMNS,
            [
                {"call": "0", "dataset": "tt", "file": "root://x//a.root", "tree": "Events"},
                {"call": "0", "dataset": "tt", "file": "a.root", "tree": "t", "entry_start": 0, "entry_stop": 2**40},
            ],
        ),
        chunks=table_of_rows(
            CHUNK_COLUMNS,
            [
                {
                    "dataset": "tt",
                    "file": "a b.root",
                    "events": 0,
                    "start": START,
                    "coffea_columns": ["Jet_pt", None],
                },
                {"dataset": "日本", "events": None, "memory_peak": 2**63 - 1, "coffea_columns": []},
                {},
            ],
        ),
        branch_reads=table_of_rows(
            BRANCH_READ_COLUMNS,
            [{"chunk": 2**62, "branch": "Jet_pt", "basket_bytes": [1, 2**40, None]}, {"basket_bytes": []}, {}],
        ),
        sections=table_of_rows(SECTION_COLUMNS, [{"chunk": 1, "name": "jets/µ", "count": 3, "bytes": None}]),
        profile=table_of_rows(
            PROFILE_COLUMNS,
            [
                {
                    "call": "0",
                    "functions": ["µ.process"],
                    "files": ["/a b.py"],
                    "lines": [7],
                    "samples": 2,
                    "seconds": 0.2,
                },
                {"functions": [], "files": [], "lines": []},
            ],
        ),
        preprocessing=table_of_rows(PREPROCESSING_COLUMNS, [{"id": 5, "file": "a b.root", "bytes_requested": 0}]),
        tasks=table_of_rows(TASK_COLUMNS, [{"key": f"k-{n}", "run_id": n, "thread": 2**62 + n} for n in range(1000)]),
        samples=table_of_rows(SAMPLE_COLUMNS, []),
        lifetimes=table_of_rows(LIFETIME_COLUMNS, [{"worker": "tcp://1", "threads": 4, "start": START}]),
        pauses=table_of_rows(PAUSE_COLUMNS, [{"worker": "tcp://1", "start": START, "stop": START + 1}]),
        sampling=table_of_rows(SAMPLING_COLUMNS, [{"time": START, "workers": 1, "late_seconds": 0.0, "missed": 0}]),
        worker_states=table_of_rows(
            WORKER_STATE_COLUMNS,
            [{"worker": "tcp://1", "time": START, "processing": 2, "nbytes": 2**40, "occupancy": 0.5}, {}],
        ),
        client_steps=table_of_rows(
            CLIENT_STEP_COLUMNS,
            [
                {"call": "0", "work": "processing", "step": "submit", "start": START, "graph_bytes": 2**40, "tasks": 3},
                {"step": "event loop", "start": START, "stop": START + 1, "cpu_seconds": 0.5, "late_seconds": 0.0},
            ],
        ),
        worker_requests=table_of_rows(
            REQUEST_COLUMNS,
            [
                {"name": "c-0", "time": START, "state": "held", "job": "17", "reason": "µ"},
                {"name": "c-1", "state": "requested"},
            ],
        ),
        span_metrics={
            ("execute", "Dijets", "thread-cpu", "seconds"): 1.5,
            ("gather-dep", "network", "bytes"): math.inf,
        },
        span_metrics_per_worker={"tcp://1": {("execute", "Dijets", "thread-cpu", "seconds"): 0.5}, "tcp://2": {}},
        coffea_report={"('a', 1)": {"b": [1, [2, [3]]]}, "$": "tuple", "of": [1], "1": 0.1, "": {"\0": True}},
        custom_metrics={"tt": {"entries": 3, "bytes": -math.inf, "size": 10**30, "none": None}},
        attempts={"processor": 3, "merge": 0},
        scheduler_clock_offset=-0.0125,
        dropped={"tasks": 2},
        gaps=((1e9 + 1.5, 1e9 + 2.25),),
        reported={"core_efficiency": 0.5, "per_dataset": {"tt": [1, 2]}},
        reported_by="another program",
        absent={"worker_cpu_time_seconds": "not on this system"},
        problems=("the scheduler did not answer in 5 s", "ünicode"),
    )
    return replace(run, **changes)


def contents(folder: Path) -> dict[str, bytes]:
    """Every file under a folder, hidden ones too."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def a_socket(path: Path) -> None:
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(f"/proc/self/fd/{folder}/{path.name}")  # the path itself may be longer than the system takes
    finally:
        os.close(folder)


def write_legacy(folder: Path) -> None:
    """A measurement of 0.1.2, with a few numbers."""
    metadata = {"format": legacy.FORMAT, "timestamp": "2025-01-01T12:00:00"}
    (folder / "metadata.json").write_text(json.dumps(metadata))
    (folder / "metrics.json").write_text('{"total_events": 10}')
    (folder / "start_end_time.txt").write_text("1.0,2.0\n")


def modes(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): stat.S_IMODE(path.lstat().st_mode) for path in folder.rglob("*")}


def hidden_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


def edited(saved: Path, edit: Callable[[dict[str, Any]], Any]) -> None:
    document = json.loads((saved / "run.json").read_text())
    edit(document)
    (saved / "run.json").write_text(json.dumps(document))


def rows(run: Run) -> list[Any]:
    return [table.to_pylist() for table in tables_of(run).values()]


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


HOST = "zqnode17.hushlab.org"
ADDRESSES = ("10.93.71.5", "2001:db8:77::5")
SERVER = "dcache-door-zq.hushgrid.net"
USER = "qwertuser"
FULL_NAME = "Qwert Zuiop"
FOLDER = f"/zhome/{USER}/hush dir"
DISK = "/bigdisk/hushproject"
SITE, JOB, QUEUE = "T2_ZZ_HUSH", "98127364.3", "hushqueue"
ORIGINALS = (
    *(HOST, "zqnode17", "hushlab", *ADDRESSES, SERVER, "dcache-door-zq", "hushgrid", USER, FULL_NAME, "Qwert"),
    *("zhome", "hush dir", "hushdir", "bigdisk", "hushproject", SITE, JOB, QUEUE),
)
"""What must not be found."""

ERROR = (
    f"OSError: [Errno 13] denied: '{FOLDER}/ana.py' for {USER} on {HOST} (zqnode17, {ADDRESSES[0]}, {ADDRESSES[1]}); "
    f"tcp://{ADDRESSES[0]}:4000, tls://[{ADDRESSES[1]}]:4001, root://{USER}@{SERVER}:1094/{DISK}/f.root?a=1, "
    f"{DISK}/x.py:3, "
    f"job {JOB} of {QUEUE} at {SITE}, ../../hushdir/x/y.py, ~{USER}/hushdir/z.py, C:\\Users\\{USER}\\hushdir\\x.py, "
    f"/DC=org/O=hushlab/CN={FULL_NAME}/CN=1234, {USER}@hushlab.org, /store/user/{USER}/hushdir/f.root"
)
"""Free text with all of them."""

NATURAL: Mapping[str, str] = {
    "worker": f"tcp://{HOST}:4000",
    "host": ADDRESSES[0],
    "node": HOST,
    "endpoint": f"{SERVER}:1094",
    "left_endpoint": f"{SERVER}:1095",
    "file": f"root://{SERVER}/{DISK}/hushdir/f.root",
    "files": f"{FOLDER}/ana.py",
    "job": JOB,
    "queue": QUEUE,
    "site": SITE,
    "client_host": HOST,
}
"""What is usual in a field."""


class Plants(NamedTuple):
    """What is planted: any text, and what is usual in a field."""

    text: str = ERROR
    usual: Mapping[str, str] = NATURAL

    def cell(self, column: Column, text: str) -> Any:
        """A text as a value of a column; None where it has none."""
        values = json.dumps({self.text[-40:]: self.text})
        return {"text": text, "texts": [text, None], "values": values}.get(column.kind)

    def table(self, columns: Sequence[Column], rows: list[dict[str, Any]]) -> pa.Table:
        """Rows, and two more with a text in each column of text: what is usual there, and any."""
        more = [
            {column.name: cell for column in columns if (cell := self.cell(column, of(column))) is not None}
            for of in (lambda column: self.usual.get(column.name, self.text), lambda _: self.text)
        ]
        return table_of_rows(columns, [*rows, *((rows[-1] if rows else {}) | row for row in more)])

    def value(self, value: Any, name: str = "") -> Any:
        """A value with these in all its texts, and in those of its parts."""
        if isinstance(value, str):
            return self.usual.get(name, f"{value} {self.text}")
        if is_dataclass(value) and not isinstance(value, type):
            names = {each.name for each in fields(value)} - {"outcome", "id", *TABLES}
            of_host = {"name": "node"} if isinstance(value, Host) else {}
            return replace(value, **{each: self.value(getattr(value, each), of_host.get(each, each)) for each in names})
        if isinstance(value, Mapping):
            return {self.value(key): self.value(item) for key, item in value.items()}
        return type(value)(map(self.value, value)) if isinstance(value, list | tuple) else value

    def run(self) -> Run:
        """A run with these wherever there is text, in columns that were added yesterday as well."""
        run = self.value(a_run())
        tables = {
            name: self.table(columns, getattr(run, name).to_pylist())
            for name, columns in TABLES.items()
            if isinstance(getattr(run, name), pa.Table)
        }
        text = self.text[-40:]
        spans = {("execute", self.text, self.text, "seconds"): 1.0, (text, "count"): 2, ("get-data", text): 3}
        worker = self.usual.get("worker", self.text)
        return replace(run, **tables, span_metrics=spans, span_metrics_per_worker={worker: spans})


def planted_run() -> Run:
    """A run with names wherever there is text."""
    return Plants().run()
