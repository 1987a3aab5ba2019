"""Dask's own metrics of the tasks of a run, and of each worker."""

from __future__ import annotations

from typing import Final

from roastcoffea.records.columns import Column

SPAN_COLUMNS: Final[tuple[Column, ...]] = (
    Column("context", "text", None, "where it was counted, such as execute or get-data"),
    Column("prefix", "text", None, "task prefix; none outside of tasks"),
    Column("activity", "text", None, "what was done, such as thread-cpu or disk-read"),
    Column("unit", "text", None, "unit of the amount"),
    Column("amount", "number", None, "how much of it"),
)
WORKER_SPAN_COLUMNS: Final[tuple[Column, ...]] = (
    Column("worker", "text", None, "address of the worker"),
    *SPAN_COLUMNS,
)
"""A worker that counted nothing has one row, without a context."""
