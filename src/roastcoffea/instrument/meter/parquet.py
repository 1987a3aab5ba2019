"""Columns of a Parquet file: Arrow reads whole columns, in all row groups, and tells no bytes."""

from __future__ import annotations

from functools import partial
from operator import attrgetter
from threading import get_ident
from time import perf_counter, thread_time
from typing import Any, Final

from roastcoffea.instrument.meter.shadows import ColumnShadow, Shadow
from roastcoffea.instrument.meter.tally import READ, Tally

FOOTER_END: Final = 8
"""Bytes at the end of a Parquet file: the footer's length, and a magic number."""


def watch_parquet(tally: Tally, mapping: Any, file: Any) -> None:
    """Meter the reading of a Parquet file that Arrow has opened."""
    tally.kinds.append("ParquetFile")
    tally.transferred = None
    tally.without_source = file.metadata.serialized_size + FOOTER_END
    tally.tree_branches = len(file.schema_arrow.names)
    tally.shadow(file, "read", partial(ReadShadow, file.metadata))
    tally.shadow(mapping, "extract_column", partial(ColumnShadow, attrgetter("column")))


class ReadShadow(Shadow):
    """`read` of Arrow's Parquet file."""

    __slots__ = ("metadata",)

    def __init__(self, metadata: Any, original: Any, tally: Tally) -> None:
        super().__init__(original, tally)
        self.metadata = metadata

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        wall, cpu = perf_counter(), thread_time()
        table = self.original(*args, **kwargs)
        cpu = thread_time() - cpu
        waited = max(perf_counter() - wall - cpu, 0.0)
        try:
            columns = args[0] if args else kwargs.get("columns")
            names = table.column_names if columns is None else list(columns)
            for column in names:
                self._came(column, cpu / len(names), waited / len(names))
        except Exception as problem:
            self.tally.miss("bytes of columns", problem, *READ)
        return table

    def _came(self, column: str, cpu: float, waited: float) -> None:
        """Take note of a column that Arrow has read."""
        tally = self.tally
        read = tally.branch_read(column)
        with tally.lock:
            for group in range(self.metadata.num_row_groups):
                compressed, uncompressed = self._sizes(group, column)
                tally.without_source = (tally.without_source or 0) + compressed
                read.add(group, compressed)
                read.uncompressed += uncompressed
            here = tally.places[get_ident()]
            here.waited += waited
            here.stepped += cpu
            if here.own:
                tally.read += waited
                read.decompress += cpu
            else:
                tally.helper_cpu += cpu

    def _sizes(self, group: int, column: str) -> tuple[int, int]:
        """Compressed and uncompressed bytes of a column in a row group."""
        row_group = self.metadata.row_group(group)
        leaves = [row_group.column(leaf) for leaf in range(row_group.num_columns)]
        ours = [leaf for leaf in leaves if f"{leaf.path_in_schema}.".startswith(f"{column}.")]
        return sum(leaf.total_compressed_size for leaf in ours), sum(leaf.total_uncompressed_size for leaf in ours)
