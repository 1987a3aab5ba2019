"""Finished attempts of Dask tasks, as recorded by the scheduler; Dask's own metrics of tasks and workers."""

import dataclasses
from typing import Final

from roastcoffea.records.chunks import CHUNK_COLUMNS
from roastcoffea.records.columns import Column, picked

PROCESSOR: Final = "processor"
MERGE: Final = "merge"
PREPROCESSING: Final = "preprocessing"
OTHER: Final = "other"
KINDS: Final = (OTHER, PROCESSOR, MERGE, PREPROCESSING)

MERGE_PREFIX: Final = "reduce"
"""Prefix of coffea's tasks that merge results, including those of preprocessing."""

OK: Final = "ok"
ERROR: Final = "error"
LOST: Final = "worker lost"
CANCELLED: Final = "cancelled"
UNFINISHED: Final = "unfinished"
OUTCOMES: Final = (OK, ERROR, LOST, CANCELLED, UNFINISHED)

TASK_COLUMNS: Final[tuple[Column, ...]] = (
    Column(
        "key", "text", None, "key of the task; none for other users' tasks, of which only worker and times are kept"
    ),
    Column("run_id", "integer", None, "number that the scheduler gave this attempt"),
    Column("prefix", "text", None, "task prefix: the key without its token"),
    Column("kind", "text", None, 'its role in this run: "processor", "merge", "preprocessing" or "other"'),
    Column("worker", "text", None, "address of the worker"),
    Column("thread", "integer", None, "identity of the thread in its process"),
    Column("runnable", "number", "s", "when all its inputs were available (Unix time, the client's clock)"),
    Column("assigned", "number", "s", "when the scheduler assigned it to the worker (Unix time, the client's clock)"),
    Column("arrived", "number", "s", "when it arrived at the worker (Unix time, the client's clock)"),
    Column("ready", "number", "s", "when the worker had its inputs (Unix time, the client's clock)"),
    Column("start", "number", "s", "when it started on its thread (Unix time, the client's clock)"),
    Column("stop", "number", "s", "when it ended on its thread (Unix time, the client's clock)"),
    Column(
        "startup_seconds",
        "number",
        "s",
        "of its time, start of the process that was made for it alone, until its chunk or file began (TaskVine)",
    ),
    Column("seceded", "number", "s", "when it seceded from the thread pool (Unix time, the client's clock)"),
    Column("seen", "number", "s", "when the scheduler learned of its end (Unix time, the client's clock)"),
    Column("nbytes", "integer", "B", "size of the result in memory"),
    Column("type", "text", None, "type of the result"),
    Column("outcome", "text", None, '"ok", "error", "worker lost", "cancelled" or "unfinished" (when the run stopped)'),
    Column("attempt", "integer", None, "number of this attempt at its task, from 1, among recorded ones"),
    Column("stolen", "integer", None, "times it was moved to another worker before it started (work stealing)"),
    Column("span", "text", None, "identity of the Dask span that counts it"),
    Column("error", "text", None, "text of the error, if any"),
    *(
        dataclasses.replace(column, meaning=f"{column.meaning}, if its attempt failed")
        for column in picked(CHUNK_COLUMNS, "dataset", "file", "entry_start", "entry_stop")
    ),
    Column("merge_level", "integer", None, "of a merge, its level in the tree: 1 merges results of chunks"),
    Column("inputs", "integer", None, "of a merge, the results that it merges"),
    Column("input_bytes", "integer", "B", "of a merge, their size in memory"),
)

SPAN_COLUMNS: Final[tuple[Column, ...]] = (
    Column("context", "text", None, "context of the count, such as execute or get-data"),
    Column("prefix", "text", None, "task prefix; none outside tasks"),
    Column("activity", "text", None, "activity, such as thread-cpu or disk-read"),
    Column("unit", "text", None, "unit of the amount"),
    Column("amount", "number", None, "the amount"),
)
WORKER_SPAN_COLUMNS: Final = (Column("worker", "text", None, "address of the worker"), *SPAN_COLUMNS)
"""A worker without counts has one row, without a context."""
