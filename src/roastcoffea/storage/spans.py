"""Dask's own metrics as tables: a key is its context, a task prefix if it is of a task, an activity and a unit."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import Final

import pyarrow as pa

from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.run import SpanMetrics
from roastcoffea.records.spans import SPAN_COLUMNS, WORKER_SPAN_COLUMNS

PARTS: Final = ("context", "prefix", "activity", "unit")
PARTS_OF: Final = {1: PARTS[:1], 2: (PARTS[0], PARTS[3]), 3: (PARTS[0], *PARTS[2:])}
"""Columns of shorter keys: what is not of a task has no prefix."""

Row = dict[str, str | float | None]


def span_table(metrics: SpanMetrics) -> pa.Table:
    """Table of a span's metrics."""
    return table_of_rows(SPAN_COLUMNS, _rows(metrics))


def worker_span_table(by_worker: Mapping[str, SpanMetrics]) -> pa.Table:
    """Table of each worker's metrics; one that counted nothing has a row without them."""
    rows = [row | {"worker": worker} for worker, metrics in by_worker.items() for row in (*_rows(metrics),) or ({},)]
    return table_of_rows(WORKER_SPAN_COLUMNS, rows)


def spans_of(table: pa.Table) -> dict[tuple[Hashable, ...], float]:
    """A span's metrics, by tuple."""
    return {key: amount for _, key, amount in _keys(table)}


def spans_by_worker(table: pa.Table) -> dict[str, SpanMetrics]:
    """Each worker's metrics, by its address and tuple."""
    found: dict[str, dict[tuple[Hashable, ...], float]] = {}
    for worker, key, amount in _keys(table):
        metrics = found.setdefault(str(worker), {})
        if key:
            metrics[key] = amount
    return dict(found)


def _rows(metrics: SpanMetrics) -> Iterator[Row]:
    for key, amount in metrics.items():
        if not key:
            raise ValueError("span metrics have an empty key")
        parts = [str(part) for part in key]
        # what a program counts under a name of several parts
        activity = [] if len(parts) <= len(PARTS) else ["/".join(parts[2:-1])]
        parts = [*parts[:2], *activity, parts[-1]] if activity else parts
        yield {**dict(zip(PARTS_OF.get(len(parts), PARTS), parts, strict=True)), "amount": float(amount)}


def _keys(table: pa.Table) -> Iterator[tuple[str | None, tuple[Hashable, ...], float]]:
    for row in table.to_pylist():
        yield row.get("worker"), tuple(row[part] for part in PARTS if row[part] is not None), row["amount"]
