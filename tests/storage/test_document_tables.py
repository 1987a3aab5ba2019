"""Tables come back as they were, or an error says which file is wrong."""

from __future__ import annotations

import json
import math
import pickle
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from saved_runs import a_run

from roastcoffea.errors import MeasurementError
from roastcoffea.records.arrow import plain, table_of_rows
from roastcoffea.records.workers import SAMPLE_COLUMNS, SPAN_COLUMNS
from roastcoffea.storage.document import TABLES, span_table, spans_by_worker, spans_of, worker_span_table
from roastcoffea.storage.store import load_run, save_run


def test_numbers_that_are_none_are_kept(tmp_path: Path) -> None:
    samples = table_of_rows(
        SAMPLE_COLUMNS, [{"cpu_percent": math.nan}, {"cpu_percent": None}, {"cpu_percent": -math.inf}]
    )
    loaded = load_run(save_run(a_run(samples=samples, coffea_report={"x": math.nan}), tmp_path))
    assert str(loaded.samples["cpu_percent"].to_pylist()) == "[nan, None, -inf]"  # type: ignore[index]
    assert math.isnan(loaded.coffea_report["x"])


def test_a_table_without_its_columns_is_not_saved(tmp_path: Path) -> None:
    chunks = pa.table({"dataset": ["a"]})
    with pytest.raises(MeasurementError, match=r"chunks of run .* lacks the columns id, file, tree"):
        save_run(a_run(chunks=chunks), tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("table", list(TABLES))
def test_a_missing_table_is_named(table: str, saved: Path) -> None:
    (saved / f"{table}.parquet").unlink()
    with pytest.raises(MeasurementError, match=rf"{table}.parquet is missing; restore"):
        load_run(saved)


@pytest.mark.parametrize("table", list(TABLES))
def test_missing_columns_are_named(table: str, saved: Path) -> None:
    file = saved / f"{table}.parquet"
    column = TABLES[table][0].name
    pq.write_table(pq.ParquetFile(file).read().drop_columns([column]), file)
    with pytest.raises(MeasurementError, match=rf"{table}.parquet lacks the columns {column}; restore"):
        load_run(saved)


def test_further_columns_are_read(saved: Path) -> None:
    file = saved / "tasks.parquet"
    pq.write_table(a_run().tasks.append_column("extra", pa.array(range(1000))), file)
    assert load_run(saved).tasks["extra"].to_pylist() == list(range(1000))  # type: ignore[index]


@pytest.mark.parametrize("table", ["tasks", "samples", "lifetimes"])
def test_a_table_that_another_program_wrote_again_is_read(table: str, saved: Path) -> None:
    file = saved / f"{table}.parquet"
    pd.read_parquet(file).assign(extra=1).to_parquet(file)
    assert getattr(load_run(saved), table).drop_columns(["extra"]) == getattr(a_run(), table)


SHOW_WITH_PEAK = """
import re, sys
from roastcoffea.cli import main
status = main(["show", sys.argv[1]])
print("peak", re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1])
sys.exit(status)
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the peak memory from /proc")
@pytest.mark.parametrize("table", ["chunks", "samples"])
def test_millions_of_equal_rows_in_a_small_file_are_refused_before_they_take_memory(table: str, saved: Path) -> None:
    rows, file, document = 3_000_000, saved / f"{table}.parquet", json.loads((saved / "run.json").read_text())
    of_type = {kind: pa.array([value]).take(pa.array(np.zeros(rows, np.int32))) for kind, value in VALUES}
    schema = pq.read_schema(file)
    arrays = [of_type[field.type] if field.type in of_type else pa.nulls(rows, field.type) for field in schema]
    pq.write_table(pa.table(arrays, schema=schema), file, compression="zstd")
    del arrays, of_type
    assert file.stat().st_size < 4_000_000
    document["tables"][table]["rows"] = rows
    (saved / "run.json").write_text(json.dumps(document))
    shown = subprocess.run([sys.executable, "-c", SHOW_WITH_PEAK, saved], check=False, capture_output=True, text=True)
    assert shown.returncode
    assert f"{file} cannot be read" in shown.stderr
    assert f"it claims to hold {rows} rows" in shown.stderr
    assert "restore it from a copy, or repeat the measurement" in shown.stderr
    assert int(shown.stdout.rpartition("peak")[2]) < 400_000  # kB


VALUES = [(pa.int64(), 1), (pa.float64(), 0.5), (pa.string(), "equal")]


def cycle(values: list[str], rows: int) -> pa.Array:
    return pa.array(values).take(pa.array(np.arange(rows) % len(values)))


def idle_states(rows: int) -> Mapping[str, Any]:
    """200 workers that have nothing to do."""
    samples = 1.7e9 + np.arange(rows // 200 + 1) + np.random.default_rng(1).uniform(0, 1e-3, rows // 200 + 1)
    zeros = dict.fromkeys(("processing", "nbytes", "occupancy"), np.zeros(rows))
    return (
        {"worker": cycle([f"tcp://10.1.2.3:{port}" for port in range(200)], rows)}
        | zeros
        | {"time": np.repeat(samples, 200)[:rows]}
    )


def equal_files(rows: int) -> Mapping[str, Any]:
    """Chunks of files that have the same number of entries."""
    texts = {"call": cycle(["c" * 32], rows), "dataset": cycle(["tt"], rows)}
    files = pa.array([f"root://host.example.org//store/mc/{'x' * 80}/{number}.root" for number in range(rows // 100)])
    start = np.arange(rows) % 100 * 100_000
    place = {"file": files.take(pa.array(np.arange(rows) // 100)), "entry_start": start, "entry_stop": start + 100_000}
    return texts | place


def equal_reads(rows: int) -> Mapping[str, Any]:
    """Reads of embedded branches."""
    chunks = np.random.default_rng(1).integers(0, 2**63, rows // 300 + 1)
    zeros = dict.fromkeys(("bytes_payload", "bytes_again", "baskets"), np.zeros(rows))
    branches = cycle([f"Collection_{number}" for number in range(300)], rows)
    return {"chunk": np.repeat(chunks, 300)[:rows], "branch": branches} | zeros


def bare_chunks(rows: int) -> Mapping[str, Any]:
    """Attempts of which nothing is known but that they were, by chunks that read the same 300 columns."""
    columns = pa.ListArray.from_arrays(np.arange(rows + 1, dtype=np.int32) // 4 * 300, cycle(NAMES, rows // 4 * 300))
    return {"id": np.random.default_rng(1).integers(0, 2**63, rows), "coffea_columns": columns}


NAMES = [f"Collection_branch_{number}-data" for number in range(300)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("table", "rows_of"),
    [
        ("worker_states", idle_states),
        ("asked", equal_files),
        ("branch_reads", equal_reads),
        ("chunks", bare_chunks),
    ],
)
def test_large_tables_of_equal_work_are_read(
    table: str, rows_of: Callable[[int], Mapping[str, Any]], tmp_path: Path
) -> None:
    rows = 200_000
    found, schema = rows_of(rows), getattr(a_run(), table).schema
    large = pa.table(
        [
            pa.array(found[field.name]).cast(field.type) if field.name in found else pa.nulls(rows, field.type)
            for field in schema
        ],
        schema=schema,
    )
    assert plain(getattr(load_run(save_run(a_run(**{table: large}), tmp_path)), table)).equals(large)


class Canary:
    def __reduce__(self) -> Any:
        return (pytest.fail, ("something was unpickled",))


def test_nothing_is_unpickled(saved: Path) -> None:
    poison = pickle.dumps(Canary())
    file = saved / "tasks.parquet"
    tasks = a_run().tasks
    metadata = {
        "ARROW:extension:name": "arrow.py_extension_type",
        "ARROW:extension:metadata": poison,
    }
    extra = pa.field("extra", pa.int64(), metadata=metadata)
    table = tasks.append_column(extra, pa.array(range(1000))).replace_schema_metadata({"pandas": poison})
    pq.write_table(table, file)
    loaded = load_run(saved).tasks
    assert loaded is not None
    assert loaded.schema.metadata is None
    assert loaded.drop_columns(["extra"]) == tasks


METRICS = {
    ("execute", "Dijets", "thread-cpu", "seconds"): 1.5,
    ("execute", "N/A", "idle or other spans", "seconds"): math.inf,
    ("get-data", "disk-read", "bytes"): 2000,
    ("context", "unit"): 0,
    ("alone",): -1,
}


def test_metrics_come_back_by_their_tuples() -> None:
    assert spans_of(span_table(METRICS)) == METRICS
    assert spans_of(span_table({})) == {}


def test_bytes_and_counts_come_back_as_whole_numbers() -> None:
    amounts = {"bytes": (64, 0.5, math.inf), "count": (3, 0), "seconds": (2.0, 0.25)}
    for unit, values in amounts.items():
        for value in values:
            key = ("execute", "Dijets", "disk-write", unit)
            assert repr(spans_of(span_table({key: value}))) == repr({key: value})
            of_worker = {"A": {key: value}}
            assert repr(spans_by_worker(worker_span_table(of_worker))) == repr(of_worker)


def test_what_is_of_no_task_has_no_prefix() -> None:
    row = span_table({("get-data", "disk-read", "bytes"): 2000}).to_pylist()
    assert row == [{"context": "get-data", "prefix": None, "activity": "disk-read", "unit": "bytes", "amount": 2000.0}]


CUSTOM: dict[tuple[Any, ...], float] = {
    ("execute", "p", "a", "b", "s"): 1.5,
    ("execute", "p", "a/b", "s"): 2.5,
    ("execute", "p", ("a", "b"), "s"): 3.5,
    ("execute", "p", "parts: ('a', 'b')", "s"): 4.5,
    ("execute", "p", "step", 3, None, ("x", 1.5), "seconds"): 5.5,
    ("execute", "p", 3, "s"): 6.5,
    ("execute", "p", "3", "s"): 7.5,
    ("execute", "p", "literal: 3", "s"): 8.5,
    ("execute", None, "x", "s"): 9.5,
    ("execute", "p", "", "s"): 10.5,
    ("execute", b"p", True, "s"): 11.5,
    (1,): 12.5,
}
"""Keys under which a program can count in Dask's metrics."""


def test_custom_metrics_keep_their_keys(tmp_path: Path) -> None:
    assert spans_of(span_table(CUSTOM)) == CUSTOM
    assert [*map(repr, spans_of(span_table(CUSTOM)))] == [*map(repr, CUSTOM)]
    run = a_run(span_metrics=CUSTOM, span_metrics_per_worker={"tcp://1": CUSTOM})
    assert load_run(save_run(run, tmp_path)) == run


def test_keys_that_become_the_same_text_are_summed() -> None:
    metrics = {("execute", "p", key, "s"): amount for key, amount in ((frozenset({1}), 1.5), ("frozenset({1})", 2.0))}
    expected = {("execute", "p", "frozenset({1})", "s"): 3.5}
    assert spans_of(span_table(metrics)) == expected
    assert spans_by_worker(worker_span_table({"tcp://1": metrics})) == {"tcp://1": expected}


@pytest.mark.parametrize("text", ["literal: (", "literal: [1]", "literal: x()", "parts: 3", "parts: ([1],)"])
def test_a_text_that_stands_for_no_key_is_itself(text: str) -> None:
    row = {"context": "execute", "prefix": "p", "activity": text, "unit": "s", "amount": 1.5}
    assert spans_of(table_of_rows(SPAN_COLUMNS, [row])) == {("execute", "p", text, "s"): 1.5}


def test_an_empty_key_is_refused() -> None:
    with pytest.raises(ValueError, match="empty key"):
        span_table({(): 1.0})


def test_workers_come_back_with_what_each_counted() -> None:
    by_worker = {"tcp://1": METRICS, "tcp://2": {}, "tcp://3": {("alone",): 2.0}}
    assert spans_by_worker(worker_span_table(by_worker)) == by_worker
    assert spans_by_worker(worker_span_table({})) == {}
