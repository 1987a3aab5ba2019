"""Arrow tables and DataFrames of records, used only on the client. Workers and schedulers never import this module."""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import Table

from roastcoffea.records.columns import Column, Row

if TYPE_CHECKING:
    import pandas as pd

LARGEST_CODE: Final = 2**62
"""Maximum size of the code space. Beyond this limit, codes are renumbered from 0."""

ARROW_TYPES: Final = {
    "text": pa.string(),
    "texts": pa.list_(pa.string()),
    "integer": pa.int64(),
    "integers": pa.list_(pa.int64()),
    "number": pa.float64(),
    "values": pa.string(),
}


MANY: Final = 100_000
"""Minimum number of rows of a table that is made smaller."""


SHORT: Final = {pa.int16(): 2**14, pa.int32(): 2**30}
"""Maximum size of integers that are stored in fewer than 64 bits, so that sums of two fit as well."""


def give_memory_back(*tables: Table | None) -> None:
    """Return freed memory to the system if tables are large, because Arrow and glibc may keep a lot of it."""
    if sum(len(table) for table in tables if table is not None) < MANY:
        return
    pa.default_memory_pool().release_unused()
    if sys.platform == "linux" and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)):
        trim(0)


def smaller(table: Table) -> Table:
    """Make a large table smaller: texts other than task keys repeat, so each is stored once, and integers are short."""
    return combined(table) if len(table) >= MANY else table


def combined(table: Table, order: pa.Array | None = None) -> Table:
    """Combine the parts of each column and, if an order is given, reorder the rows.

    Allocating memory takes most of the time. Therefore, columns are combined one by one to reuse memory, and empty
    columns are shared.
    """
    nothing, columns = cache(partial(pa.nulls, len(table))), Row()
    for name in table.column_names:
        column = table[name]
        if column.null_count == len(column):
            columns[name] = nothing(column.type)
            continue
        if len(table) >= MANY:
            if column.type == pa.string() and name != "key":
                column = column.dictionary_encode()
            elif column.type == pa.int64():
                low, high = pc.min_max(column).as_py().values()
                column = column.cast(
                    next((short for short, most in SHORT.items() if max(-low, high) < most), pa.int64())
                )
        # joining a single part would copy it
        together = column.chunk(0) if column.num_chunks == 1 else column.unify_dictionaries().combine_chunks()
        columns[name] = together if order is None else together.take(order)
    return pa.table(columns)


def plain(table: Table) -> Table:
    """Replace dictionaries of texts with the texts, and short integers with 64-bit integers."""
    return table.cast(plain_schema(table.schema))


def plain_schema(schema: pa.Schema) -> pa.Schema:
    types = [
        each.value_type if pa.types.is_dictionary(each) else pa.int64() if pa.types.is_integer(each) else each
        for each in schema.types
    ]
    return pa.schema(map(pa.Field.with_type, schema, types), metadata=schema.metadata)


def arrow_schema(columns: Sequence[Column]) -> pa.Schema:
    return pa.schema([pa.field(column.name, ARROW_TYPES[column.kind]) for column in columns])


def table_of_rows(columns: Sequence[Column], rows: Iterable[Mapping[str, Any]]) -> Table:
    """Build a table from one mapping per row. Rows omit values that were not measured."""
    return Table.from_pylist(list(rows), schema=arrow_schema(columns))


def table_of_columns(columns: Sequence[Column], values: Mapping[str, Any]) -> Table:
    schema = arrow_schema(columns)
    return pa.table({name: values[name] for name in schema.names}, schema=schema)


def rows_in(table: Table | None, *columns: str) -> list[Row]:
    """Rows of a table, or none if there is no table; by default with all columns."""
    return [] if table is None else table.select(columns or table.column_names).to_pylist()


def pairs(table: Table | None, key: str, value: str) -> dict[Any, Any]:
    """Map one column to another; empty if there is no table."""
    return {} if table is None else dict(zip(table[key].to_pylist(), table[value].to_pylist(), strict=True))


def with_column(table: Table, name: str, values: Sequence[Any]) -> Table:
    place = table.schema.get_field_index(name)
    return table.set_column(place, table.field(place), pa.array(values, table.field(place).type))


def packed_parts(table: Table) -> Iterator[bytes]:
    for batch in table.to_batches(max_chunksize=10_000):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as stream:
            stream.write_batch(batch)
        yield sink.getvalue().to_pybytes()


def unpacked_part(data: bytes, schema: pa.Schema) -> Table:
    """Unpack part of a table; raise ValueError if its schema differs from `schema`."""
    table = pa.ipc.open_stream(pa.py_buffer(data)).read_all()
    table.validate(full=True)
    if not table.schema.equals(schema):
        raise ValueError(f"its columns are {', '.join(table.schema.names)}")
    return table


def frame_of(table: Table, columns: Sequence[Column]) -> pd.DataFrame:
    """Convert a table to a DataFrame, with each column's meaning and unit in `attrs["columns"]`."""
    import pandas as pd

    frame: pd.DataFrame = plain(table).to_pandas(types_mapper={pa.int64(): pd.Int64Dtype()}.get)
    for column in columns:
        if column.kind == "values":
            frame[column.name] = [None if text is None else json.loads(text) for text in table[column.name].to_pylist()]
    frame.attrs["columns"] = {column.name: column.documentation for column in columns}
    frame.attrs["units"] = {column.name: column.unit for column in columns if column.unit is not None}
    return frame


def absent_frame(columns: Sequence[Column], reason: str) -> pd.DataFrame:
    frame = frame_of(table_of_rows(columns, []), columns)
    frame.attrs["absent"] = reason
    return frame


def row_codes(rows: Table) -> npt.NDArray[np.int64]:
    """Assign an integer code to each row of a table. Equal rows share a code; nulls compare equal."""
    codes, different = np.zeros(len(rows), np.int64), 1
    for column in rows.columns:
        found = column.combine_chunks().dictionary_encode()
        # nulls get a code of their own
        number = len(found.dictionary) + 1
        if different * number > LARGEST_CODE:
            values, codes = np.unique(codes, return_inverse=True)
            different = len(values)
        codes = codes * number + found.indices.fill_null(number - 1).to_numpy()
        different *= number
    return codes
