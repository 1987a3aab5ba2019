"""Values that the user recorded in chunks, summed by name and dataset."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from typing import Any, Final

import pyarrow as pa

from roastcoffea.metrics.catalogue import CHUNKS, fact, metric
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.columns import Column
from roastcoffea.units import STRUCTURE

MOST_TEXTS: Final = 20

CUSTOM_TOTALS: Final = (
    Column("name", "text", None, "name of the value (roastcoffea.record)"),
    Column("dataset", "text", None, "dataset in the fileset"),
    Column("chunks", "integer", "chunks", "chunks that recorded a value"),
    Column("sum", "number", None, "sum of its numbers; for bools, how many are True"),
    Column("mean", "number", None, "mean of its numbers over chunks"),
    Column("min", "number", None, "smallest of its numbers"),
    Column("max", "number", None, "largest of its numbers"),
    Column("texts", "texts", None, f"distinct texts, the first {MOST_TEXTS}; none for numbers"),
)
"""One row per value and dataset, over attempts that counted; a repeated chunk counts once."""


@fact
def custom_totals(counted_chunks: pa.Table) -> pa.Table:
    """Values by name and dataset, with CUSTOM_TOTALS."""
    found: dict[tuple[str, str], list[Any]] = defaultdict(list)
    known = counted_chunks.select(["dataset", "custom"])
    known = known.filter(known["custom"].is_valid())
    for row in known.to_pylist():
        for name, value in json.loads(row["custom"]).items():
            found[name, row["dataset"]].append(value)
    rows = [{"name": name, "dataset": dataset, **_total(found[name, dataset])} for name, dataset in _order(found)]
    return table_of_rows(CUSTOM_TOTALS, rows)


def _order(keys: Any) -> list[tuple[str, str]]:
    return sorted(keys, key=lambda key: (key[0], key[1] or ""))


def _total(values: list[Any]) -> dict[str, Any]:
    texts = list(dict.fromkeys(value for value in values if isinstance(value, str)))
    amounts = [value for value in values if isinstance(value, int | float) and not math.isnan(value)]
    row: dict[str, Any] = {
        "chunks": len(amounts) + sum(isinstance(value, str) for value in values),
        "texts": texts[:MOST_TEXTS] or None,
    }
    if amounts:
        total = float(sum(amounts))
        row |= {"sum": total, "mean": total / len(amounts), "min": float(min(amounts)), "max": float(max(amounts))}
    return row


@metric(STRUCTURE, group=CHUNKS, source="chunk records", formula="sums, means and limits over attempts that counted")
def custom(custom_totals: pa.Table) -> dict[str, dict[str, dict[str, Any]]]:
    """Values that the processor recorded, by name and dataset: {name: {dataset: {column: amount}}}.

    Columns are `chunks`, `sum`, `mean`, `min`, `max` and `texts`; empty if nothing was recorded.
    """
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for row in custom_totals.to_pylist():
        found.setdefault(row.pop("name"), {})[row.pop("dataset")] = row
    return found
