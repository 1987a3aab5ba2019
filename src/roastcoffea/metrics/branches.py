"""What was read of each branch, over the attempts that counted."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roastcoffea.metrics.baskets import Reads, came_with_tree, split_reads
from roastcoffea.metrics.facts import among, counted_chunks
from roastcoffea.records.arrow import arrow_schema
from roastcoffea.records.columns import Column
from roastcoffea.records.run import Run

OF_ALL: Final = pc.ScalarAggregateOptions(skip_nulls=False)
"""A sum of which a part is not known is not known."""

BRANCH_COLUMNS: Final = (
    Column("dataset", "text", None, "dataset in the fileset"),
    Column("file", "text", None, "path or URL of the file"),
    Column("branch", "text", None, "branch, RNTuple field or Parquet column"),
    Column("bytes_payload", "integer", "B", "of baskets that nobody had read before in this run"),
    Column("bytes_reread", "integer", "B", "of baskets that had been read before in this run"),
    Column("bytes_uncompressed", "integer", "B", "size after decompression, of all that was read"),
    Column("baskets", "integer", "baskets", "baskets that nobody had read before in this run"),
    Column("chunks", "integer", "chunks", "chunks that read the branch"),
    Column("read_seconds", "number", "s", "waiting for storage"),
    Column("decompress_seconds", "number", "s", "CPU time of the chunks' threads in decompression"),
    Column("interpret_seconds", "number", "s", "CPU time of the chunks' threads in interpretation"),
)
"""One row for each branch of a file in a dataset, over the attempts that counted."""

KEYS: Final = ("dataset", "file", "branch")
AMOUNTS: Final = tuple(column.name for column in BRANCH_COLUMNS if column.name not in KEYS)


def tree_branches_of(chunks: pa.Table, reads: Reads) -> pa.Table:
    """Branches of trees of files by dataset: keys, tree, amounts, and whether baskets came with the tree."""
    seconds = [column.name for column in BRANCH_COLUMNS if column.kind == "number"]
    table = pa.table(
        {
            **{name: chunks[name].take(pa.array(reads.attempt)) for name in ("dataset", "file", "tree")},
            **{name: reads.table[name] for name in ("branch", "bytes_uncompressed", *seconds)},
            "bytes_payload": reads.payload,
            "bytes_reread": reads.all_reread,
            "baskets": reads.baskets,
            "chunks": np.ones(len(reads.attempt), dtype=np.int64),
            "embedded": came_with_tree(reads.table),
        }
    )
    return _summed(table, (*KEYS, "tree"), {"embedded": "any"})


def over_trees(tree_branches: pa.Table) -> pa.Table:
    """Branches of files by dataset, with BRANCH_COLUMNS, of branches that are told apart by tree."""
    return _summed(tree_branches, KEYS, {})


def _summed(table: pa.Table, keys: tuple[str, ...], others: dict[str, str]) -> pa.Table:
    """Sums of the amounts by these keys, and other columns in other ways."""
    ways = dict.fromkeys(AMOUNTS, "sum") | others
    found = table.group_by(list(keys)).aggregate([(name, way, OF_ALL) for name, way in ways.items()])
    columns = [*keys, *(f"{name}_{way}" for name, way in ways.items())]
    return found.select(columns).rename_columns([*keys, *ways]).sort_by([(key, "ascending") for key in keys])


NO_TREE_BRANCHES: Final = pa.schema(
    [*arrow_schema(BRANCH_COLUMNS), pa.field("tree", pa.string()), pa.field("embedded", pa.bool_())]
).empty_table()


def branches_of(run: Run) -> pa.Table | None:
    """Branches of files by dataset, with BRANCH_COLUMNS; None where they were not measured."""
    if run.chunks is None or run.branch_reads is None or run.chunks["id"].null_count:
        return None
    counted = among(run.chunks, counted_chunks(run.chunks))
    return over_trees(tree_branches_of(run.chunks, split_reads(run.chunks, counted, run.branch_reads)))
