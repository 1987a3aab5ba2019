"""Merges of results on the workers: the levels of the tree, how many results each merges, and their sizes."""

from __future__ import annotations

from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roastcoffea.metrics.catalogue import CENTRAL, fact, metric, refuse_if, table
from roastcoffea.metrics.facts import aggregated, complete_sum, rows_where
from roastcoffea.records.columns import Column
from roastcoffea.records.tasks import MERGE, OK
from roastcoffea.units import BYTE, COUNT

TASKS: Final = "records of tasks"

MERGE_COLUMNS: Final = (
    Column("level", "integer", None, "level in the tree; 1 merges results of chunks"),
    Column("merges", "integer", "tasks", "merges of this level, each attempt that gave a result"),
    Column("inputs", "integer", None, "results that they merged"),
    Column("inputs_max", "integer", None, "most results that one of them merged"),
    Column("input_bytes", "integer", "B", "size of these in memory"),
    Column("output_bytes", "integer", "B", "size of what they gave"),
    Column("largest_bytes", "integer", "B", "size of the largest of that"),
    Column("thread_seconds", "number", "s", "time that they took on their threads"),
    Column("start", "number", "s", "when the first one started (Unix time, the client's clock)"),
    Column("stop", "number", "s", "when the last one ended (Unix time, the client's clock)"),
)
"""One row for each level of merges on the workers."""


@fact
def merge_tasks(tasks: pa.Table) -> pa.Table:
    """Merges that gave a result, with what they merged."""
    found = rows_where(tasks, pc.and_(pc.equal(tasks["kind"], MERGE), pc.equal(tasks["outcome"], OK)))
    refuse_if(not len(found), "no result was merged on the workers")
    unknown = found["merge_level"].null_count
    refuse_if(unknown, f"the level of {unknown} of {len(found)} merges was not recorded")
    return found


@table
def merges(merge_tasks: pa.Table) -> pa.Table:
    """Merges by level."""
    seconds = pc.subtract(merge_tasks["stop"], merge_tasks["start"])
    rows = merge_tasks.append_column("seconds", seconds).append_column("one", pa.array(np.ones(len(seconds), np.int64)))
    steps = {
        "merges": ("one", "sum"),
        "inputs": ("inputs", "sum"),
        "inputs_max": ("inputs", "max"),
        "input_bytes": ("input_bytes", "sum"),
        "output_bytes": ("nbytes", "sum"),
        "largest_bytes": ("nbytes", "max"),
        "thread_seconds": ("seconds", "sum"),
        "start": ("start", "min"),
        "stop": ("stop", "max"),
    }
    found = aggregated(rows, ["merge_level"], steps, pc.ScalarAggregateOptions(), use_threads=False)
    names = [column.name for column in MERGE_COLUMNS]
    return found.rename_columns(["level", *steps]).select(names).sort_by("level")


of_merges = partial(metric, group=CENTRAL, source=TASKS)


@of_merges(COUNT, label="merges", formula="number of merges that gave a result")
def num_merges(merges: pa.Table) -> int:
    """Merges of results on the workers."""
    return int(pc.sum(merges["merges"]).as_py())


@of_merges(COUNT, label="merge levels", formula="highest level of a merge")
def merge_levels(merges: pa.Table) -> int:
    """Levels of the tree in which results are merged on the workers."""
    return int(pc.max(merges["level"]).as_py())


@of_merges(COUNT, label="inputs of a merge (mean)", formula="results that they merged / merges")
def merge_inputs_mean(merges: pa.Table, num_merges: int) -> float:
    """Results that a merge merges, on average."""
    return float(complete_sum(merges, "inputs", "levels")) / num_merges


@of_merges(BYTE, label="merged bytes", formula="sum of the sizes of what they merged")
def merged_bytes(merges: pa.Table) -> int:
    """Size in memory of all results that were merged on the workers."""
    return int(complete_sum(merges, "input_bytes", "levels"))
