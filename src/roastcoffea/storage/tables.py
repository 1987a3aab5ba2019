"""Tables of a run on disk: a Parquet file for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from roastcoffea.errors import MeasurementError
from roastcoffea.records.arrow import arrow_schema
from roastcoffea.records.asked import ASKED_COLUMNS
from roastcoffea.records.branches import BRANCH_READ_COLUMNS
from roastcoffea.records.chunks import CHUNK_COLUMNS
from roastcoffea.records.columns import Column
from roastcoffea.records.preprocessing import PREPROCESSING_COLUMNS
from roastcoffea.records.run import Run
from roastcoffea.records.sections import SECTION_COLUMNS
from roastcoffea.records.spans import SPAN_COLUMNS, WORKER_SPAN_COLUMNS
from roastcoffea.records.tasks import TASK_COLUMNS
from roastcoffea.records.workers import LIFETIME_COLUMNS, PAUSE_COLUMNS, SAMPLE_COLUMNS
from roastcoffea.storage.folders import synced_file
from roastcoffea.storage.reading import opened, reading
from roastcoffea.storage.spans import span_table, spans_by_worker, spans_of, worker_span_table

Tables = dict[str, pa.Table]

RECORDS: Final[Mapping[str, Sequence[Column]]] = {
    "asked": ASKED_COLUMNS,
    "chunks": CHUNK_COLUMNS,
    "branch_reads": BRANCH_READ_COLUMNS,
    "sections": SECTION_COLUMNS,
    "preprocessing": PREPROCESSING_COLUMNS,
    "tasks": TASK_COLUMNS,
    "samples": SAMPLE_COLUMNS,
    "lifetimes": LIFETIME_COLUMNS,
    "pauses": PAUSE_COLUMNS,
}
"""Tables that a run holds as they are."""

SPANS: Final = "span_metrics"
WORKER_SPANS: Final = "span_metrics_per_worker"
TABLES: Final[Mapping[str, Sequence[Column]]] = {**RECORDS, SPANS: SPAN_COLUMNS, WORKER_SPANS: WORKER_SPAN_COLUMNS}

SMALLEST_VALUE: Final = 4
"""Bytes that a value takes in memory, at the least: the offset of a text."""


def tables_of(run: Run) -> Tables:
    """What was measured of a run, by the names of its fields."""
    tables: Tables = {name: getattr(run, name) for name in RECORDS if getattr(run, name) is not None}
    if run.span_metrics is not None:
        tables[SPANS] = span_table(run.span_metrics)
    if run.span_metrics_per_worker is not None:
        tables[WORKER_SPANS] = worker_span_table(run.span_metrics_per_worker)
    for name, table in tables.items():
        check_columns(table, name, f"{name} of run {run.id}")
    return tables


def fields_of(tables: Tables) -> dict[str, object]:
    """Fields of a run that its tables hold."""
    fields: dict[str, object] = {**tables}
    for name, read in ((SPANS, spans_of), (WORKER_SPANS, spans_by_worker)):
        if name in tables:
            fields[name] = read(tables[name])
    return fields


def table_file(folder: Path, name: str) -> Path:
    """File of a table."""
    return folder / f"{name}.parquet"


def write_table(folder: Path, name: str, table: pa.Table) -> None:
    """Write a table to its file, which is not there yet."""
    with synced_file(table_file(folder, name)) as file:
        pq.write_table(table, file, compression="zstd", write_page_checksum=True, use_compliant_nested_type=False)


def read_table(folder: Path, name: str, rows: int) -> pa.Table:
    """Table of a file that has so many rows."""
    path = table_file(folder, name)
    with reading(path):
        with opened(path) as file, pq.ParquetFile(file, page_checksum_verification=True) as stored:
            _check_rows(stored.metadata.num_rows, rows)
            _check_memory(rows, stored.metadata.num_columns)
            table = stored.read()
        _check_rows(table.num_rows, rows)
        return _cast(table, name).replace_schema_metadata(None)


def _check_rows(found: int, expected: int) -> None:
    if found != expected:
        raise ValueError(f"{found} rows instead of {expected}")


def _check_memory(rows: int, columns: int) -> None:
    """Raise where a table has more rows than fit into this machine's memory: a few bytes can promise any number."""
    needed, memory = SMALLEST_VALUE * rows * columns, psutil.virtual_memory().total
    if needed > memory:
        raise MemoryError(f"{rows} rows need {needed} bytes of memory; there are {memory}")


def _cast(table: pa.Table, name: str) -> pa.Table:
    """Table with the types of its columns, where another program wrote it again with similar ones."""
    for field in arrow_schema(TABLES[name]):
        place = table.schema.get_field_index(field.name)
        if place >= 0 and table.schema.field(place).type != field.type:
            table = table.set_column(place, field, table.column(place).cast(field.type))
    return table


def check_columns(table: pa.Table, name: str, where: str) -> None:
    """Raise where a table lacks columns."""
    missing = [column.name for column in TABLES[name] if column.name not in table.column_names]
    if missing:
        raise MeasurementError(
            f"{where} lacks the columns {', '.join(missing)}; restore it from a copy, or measure again"
        )
