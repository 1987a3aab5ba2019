"""Branches as attempts of chunks read them: what was requested, and what it took to make arrays of it."""

from __future__ import annotations

from typing import Final

from roastcoffea.records.columns import Column

BRANCH_READ_COLUMNS: Final[tuple[Column, ...]] = (
    Column("chunk", "integer", None, "identity of the attempt's record"),
    Column("branch", "text", None, "branch, RNTuple field or Parquet column"),
    Column("bytes_payload", "integer", "B", "compressed size of its baskets, each counted once"),
    Column("bytes_again", "integer", "B", "of baskets that this attempt requested once more"),
    Column("bytes_uncompressed", "integer", "B", "size after decompression, of all that was read"),
    Column("baskets", "integer", "baskets", "baskets (RNTuple: clusters, Parquet: row groups), each counted once"),
    Column("basket_first", "integer", None, "number of the first one"),
    Column("basket_last", "integer", None, "number of the last one"),
    Column("basket_bytes", "integers", "B", "sizes from first to last; of many only those of first and last"),
    Column("read_seconds", "number", "s", "waiting for storage; none where a pool reads baskets"),
    Column("decompress_seconds", "number", "s", "CPU time of the thread in decompression"),
    Column("interpret_seconds", "number", "s", "CPU time of the thread in interpretation"),
)
"""One row for each branch that an attempt read. A basket that arrived with the tree (embedded) has size 0.

Seconds are given to one part in 32,768, and never too many.
"""
