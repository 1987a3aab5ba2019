"""Byte ledgers of runs that differ from the one by hand."""

from __future__ import annotations

from typing import Any

from handmade import BRANCH_READS, CHUNKS, PREPROCESSINGS, TASKS, handmade_run

from roastcoffea.measurement import Measurement
from roastcoffea.metrics import ByteLedger, Metrics
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.chunks import BRANCH_READ_COLUMNS, CHUNK_COLUMNS
from roastcoffea.records.run import PREPROCESSING_COLUMNS, RunnerCall
from roastcoffea.records.tasks import TASK_COLUMNS

Rows = list[dict[str, Any]]

BY_DESIGN = "1 attempt has unaccounted bytes (50 B in total)"
"""What the certificate of the run by hand says of it in any case."""


def ledger_of(
    chunks: Rows = CHUNKS,
    reads: Rows = BRANCH_READS,
    tasks: Rows | None = TASKS,
    preprocessing: Rows | None = PREPROCESSINGS,
    **changes: Any,
) -> ByteLedger:
    """Ledger of the run by hand with other records."""
    tables = {
        "chunks": (CHUNK_COLUMNS, chunks),
        "branch_reads": (BRANCH_READ_COLUMNS, reads),
        "tasks": (TASK_COLUMNS, tasks),
        "preprocessing": (PREPROCESSING_COLUMNS, preprocessing),
    }
    made = {name: None if rows is None else table_of_rows(columns, rows) for name, (columns, rows) in tables.items()}
    return Measurement(handmade_run(**made | changes)).byte_ledger


def with_ids(*changed: int, **values: Any) -> Rows:
    """Chunks with some values of these changed."""
    return [row | values if row["id"] in changed else row for row in CHUNKS]


def runner_call(name: str, chunks: int | None, **changes: Any) -> RunnerCall:
    """A call that handed out so many chunks."""
    fields: dict[str, Any] = {
        "processor": "P",
        "executor": "E",
        "start": 0.0,
        "stop": 1.0,
        "outcome": "finished",
        "report": None,
    }
    return RunnerCall(id=name, chunks=chunks, **fields | changes)


def metrics_of(chunks: Rows, reads: Rows) -> Metrics:
    """Metrics of the run by hand with other chunks and reads."""
    tables = {"chunks": table_of_rows(CHUNK_COLUMNS, chunks), "branch_reads": table_of_rows(BRANCH_READ_COLUMNS, reads)}
    return Measurement(handmade_run(**tables)).metrics
