"""Arrow tables of records, on the client only: workers and schedulers never import this."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from roastcoffea.records.columns import Column, Kind

ARROW_TYPES: Final[Mapping[Kind, pa.DataType]] = {
    "text": pa.string(),
    "texts": pa.list_(pa.string()),
    "integer": pa.int64(),
    "integers": pa.list_(pa.int64()),
    "number": pa.float64(),
}


def arrow_schema(columns: Sequence[Column]) -> pa.Schema:
    """Arrow schema of a table of records."""
    return pa.schema([pa.field(column.name, ARROW_TYPES[column.kind]) for column in columns])


def table_of_rows(columns: Sequence[Column], rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    """Table of records from one mapping a row; a name that a row lacks was not measured."""
    return pa.Table.from_pylist(list(rows), schema=arrow_schema(columns))


def table_of_columns(columns: Sequence[Column], values: Mapping[str, Any]) -> pa.Table:
    """Table of records from one array a column, whatever their order."""
    schema = arrow_schema(columns)
    return pa.table({name: values[name] for name in schema.names}, schema=schema)
