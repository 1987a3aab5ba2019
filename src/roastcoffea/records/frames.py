"""Records as pandas DataFrames, on the client only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.columns import Column

if TYPE_CHECKING:
    import pandas as pd


def frame_of(table: pa.Table, columns: Sequence[Column]) -> pd.DataFrame:
    """DataFrame of records, with the meaning and unit of its columns in `attrs["columns"]`."""
    import pandas as pd

    frame: pd.DataFrame = table.to_pandas(types_mapper={pa.int64(): pd.Int64Dtype()}.get)
    frame.attrs["columns"] = {column.name: column.documentation for column in columns}
    frame.attrs["units"] = {column.name: column.unit for column in columns if column.unit is not None}
    return frame


def absent_frame(columns: Sequence[Column], reason: str) -> pd.DataFrame:
    """Frame without rows, with the reason in `attrs["absent"]`."""
    frame = frame_of(table_of_rows(columns, []), columns)
    frame.attrs["absent"] = reason
    return frame
