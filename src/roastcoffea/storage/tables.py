"""Tables of a run on disk: a Parquet file for each.

Dask's own metrics are tables as well: a key is its context, a task prefix if it is of a task, an activity and a unit.
What a program counts under other keys is kept in the same columns: "parts: ('a', 'b')" stands for an activity of
several parts, and "literal: 3" for a part that is no text.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any, Final

import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from roastcoffea.errors import UnreadableMeasurementError
from roastcoffea.records.arrow import arrow_schema, table_of_rows
from roastcoffea.records.calls import ASKED_COLUMNS, PREPROCESSING_COLUMNS
from roastcoffea.records.chunks import BRANCH_READ_COLUMNS, CHUNK_COLUMNS, SECTION_COLUMNS
from roastcoffea.records.columns import Column
from roastcoffea.records.profile import PROFILE_COLUMNS
from roastcoffea.records.run import Run, SpanMetrics
from roastcoffea.records.tasks import SPAN_COLUMNS, TASK_COLUMNS, WORKER_SPAN_COLUMNS
from roastcoffea.records.workers import (
    LIFETIME_COLUMNS,
    PAUSE_COLUMNS,
    SAMPLE_COLUMNS,
    SAMPLING_COLUMNS,
    WORKER_STATE_COLUMNS,
)
from roastcoffea.storage.folders import synced_file
from roastcoffea.storage.reading import literal, opened, reading

Tables = dict[str, pa.Table]

RECORDS: Final[Mapping[str, Sequence[Column]]] = {
    "asked": ASKED_COLUMNS,
    "chunks": CHUNK_COLUMNS,
    "branch_reads": BRANCH_READ_COLUMNS,
    "sections": SECTION_COLUMNS,
    "profile": PROFILE_COLUMNS,
    "preprocessing": PREPROCESSING_COLUMNS,
    "tasks": TASK_COLUMNS,
    "samples": SAMPLE_COLUMNS,
    "lifetimes": LIFETIME_COLUMNS,
    "pauses": PAUSE_COLUMNS,
    "sampling": SAMPLING_COLUMNS,
    "worker_states": WORKER_STATE_COLUMNS,
}
"""Tables that a run holds as they are."""

SPANS: Final = "span_metrics"
WORKER_SPANS: Final = "span_metrics_per_worker"
TABLES: Final[Mapping[str, Sequence[Column]]] = {**RECORDS, SPANS: SPAN_COLUMNS, WORKER_SPANS: WORKER_SPAN_COLUMNS}

SMALLEST_VALUE: Final = 4
"""Bytes that a value takes in memory, at the least: the offset of a text."""

FEW_ROWS: Final = 100_000
"""Rows that are read in one thread: for fewer, handing columns to several takes longer than reading them."""

PARTS: Final = ("context", "prefix", "activity", "unit")
PARTS_OF: Final = {1: PARTS[:1], 2: (PARTS[0], PARTS[3]), 3: (PARTS[0], *PARTS[2:])}
"""Columns of shorter keys: what is not of a task has no prefix."""

SEVERAL: Final = "parts: "
LITERAL: Final = "literal: "
"""Before the Python literal of an activity's parts, and of a part that is no text."""
COUNTED: Final = ("bytes", "count")
"""Units of whole numbers."""


def span_table(metrics: SpanMetrics) -> pa.Table:
    """Table of a span's metrics."""
    return table_of_rows(SPAN_COLUMNS, _rows(metrics))


def worker_span_table(by_worker: Mapping[str, SpanMetrics]) -> pa.Table:
    """Table of each worker's metrics; one that counted nothing has a row without them."""
    rows = [row | {"worker": worker} for worker, metrics in by_worker.items() for row in (*_rows(metrics),) or ({},)]
    return table_of_rows(WORKER_SPAN_COLUMNS, rows)


def spans_of(table: pa.Table) -> dict[tuple[Hashable, ...], float]:
    """A span's metrics, by tuple."""
    found: dict[tuple[Hashable, ...], float] = {}
    for _, key, amount in _keys(table):
        _add(found, key, amount)
    return found


def spans_by_worker(table: pa.Table) -> dict[str, SpanMetrics]:
    """Each worker's metrics, by its address and tuple."""
    found: dict[str, dict[tuple[Hashable, ...], float]] = {}
    for worker, key, amount in _keys(table):
        metrics = found.setdefault(str(worker), {})
        if key:
            _add(metrics, key, amount)
    return dict(found)


def _add(metrics: dict[tuple[Hashable, ...], float], key: tuple[Hashable, ...], amount: float) -> None:
    """Add to a key's amount: keys of parts that are neither text nor literals can have become the same texts."""
    metrics[key] = metrics[key] + amount if key in metrics else amount


def _rows(metrics: SpanMetrics) -> Iterator[dict[str, str | float]]:
    for key, amount in metrics.items():
        if not key:
            raise ValueError("span metrics have an empty key")
        parts = [_text(part) for part in key]
        if len(parts) > len(PARTS):
            parts = [*parts[:2], _several(key[2:-1]), parts[-1]]
        yield {**dict(zip(PARTS_OF.get(len(parts), PARTS), parts, strict=True)), "amount": float(amount)}


def _text(part: Hashable) -> str:
    """Text that stands for a part of a key: itself, if it cannot be taken for that of something else."""
    if isinstance(part, str) and not part.startswith((SEVERAL, LITERAL)):
        return part
    return f"{LITERAL}{part!r}" if _is_literal(part) else str(part)


def _several(parts: tuple[Hashable, ...]) -> str:
    """Text that stands for an activity of several parts."""
    return f"{SEVERAL}{tuple(part if _is_literal(part) else str(part) for part in parts)!r}"


def _is_literal(part: Hashable) -> bool:
    """Whether what Python prints of it can be read again."""
    try:
        return literal(repr(part)) == part
    except ValueError:
        return False


def _parts(text: str) -> tuple[Hashable, ...]:
    """Parts of a key that a text stands for."""
    with suppress(ValueError):
        if text.startswith(LITERAL):
            return (literal(text.removeprefix(LITERAL)),)
        if text.startswith(SEVERAL) and isinstance(parts := literal(text.removeprefix(SEVERAL)), tuple):
            return parts
    return (text,)


def _keys(table: pa.Table) -> Iterator[tuple[str | None, tuple[Hashable, ...], float]]:
    for row in table.to_pylist():
        key = tuple(chain.from_iterable(_parts(row[part]) for part in PARTS if row[part] is not None))
        amount = row["amount"]
        # the column has floats: Dask's whole numbers are whole again
        yield row.get("worker"), key, int(amount) if row["unit"] in COUNTED and amount.is_integer() else amount


SPAN_FORMS: Final[dict[str, Any]] = {SPANS: (span_table, spans_of), WORKER_SPANS: (worker_span_table, spans_by_worker)}
"""What makes a table of a run's field, and the field of a table, where a run does not hold the table as it is."""


def tables_of(run: Run) -> Tables:
    """What was measured of a run, by the names of its fields."""
    measured = {name: value for name in TABLES if (value := getattr(run, name)) is not None}
    tables = {name: SPAN_FORMS[name][0](value) if name in SPAN_FORMS else value for name, value in measured.items()}
    for name, table in tables.items():
        check_columns(table, name, f"{name} of run {run.id}")
    return tables


def fields_of(tables: Tables) -> dict[str, object]:
    """Fields of a run that its tables hold."""
    return {name: SPAN_FORMS[name][1](table) if name in SPAN_FORMS else table for name, table in tables.items()}


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
            needed, memory = SMALLEST_VALUE * rows * stored.metadata.num_columns, psutil.virtual_memory().total
            if needed > memory:  # a few bytes can promise any number of rows
                raise MemoryError(f"{rows} rows need {needed} bytes of memory; there are {memory}")
            table = stored.read(use_threads=rows > FEW_ROWS)
        _check_rows(table.num_rows, rows)
        # another program may have written it again with similar types
        ours = {field.name: field for field in arrow_schema(TABLES[name])}
        return table.cast(pa.schema([ours.get(field.name, field) for field in table.schema]))


def _check_rows(found: int, expected: int) -> None:
    if found != expected:
        raise ValueError(f"{found} rows instead of {expected}")


def check_columns(table: pa.Table, name: str, where: str) -> None:
    """Raise where a table lacks columns."""
    if missing := ", ".join(column.name for column in TABLES[name] if column.name not in table.column_names):
        raise UnreadableMeasurementError(
            f"{where} lacks the columns {missing}; restore it from a copy, or measure again"
        )
