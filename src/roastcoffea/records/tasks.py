"""Finished attempts of Dask tasks, as the scheduler saw them end; Dask's own metrics of tasks and workers."""

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
"""Prefix of coffea's tasks that merge results, also of preprocessing."""

OK: Final = "ok"
ERROR: Final = "error"
LOST: Final = "worker lost"
CANCELLED: Final = "cancelled"
UNFINISHED: Final = "unfinished"
OUTCOMES: Final = (OK, ERROR, LOST, CANCELLED, UNFINISHED)

TASK_COLUMNS: Final[tuple[Column, ...]] = (
    Column(
        "key", "text", None, "key of the task; none for tasks of other users, of which only place and times are kept"
    ),
    Column("run_id", "integer", None, "number that the scheduler gave to this attempt"),
    Column("prefix", "text", None, "task prefix: the key without its token"),
    Column("kind", "text", None, 'what it did for this run: "processor", "merge", "preprocessing" or "other"'),
    Column("worker", "text", None, "address of the worker"),
    Column("thread", "integer", None, "identity of the thread in its process"),
    Column("runnable", "number", "s", "when nothing it needs was missing any more (Unix time, the client's clock)"),
    Column("assigned", "number", "s", "when the scheduler gave it to the worker (Unix time, the client's clock)"),
    Column("arrived", "number", "s", "when the worker had it (Unix time, the client's clock)"),
    Column("ready", "number", "s", "when the worker had its inputs (Unix time, the client's clock)"),
    Column("start", "number", "s", "when it began to compute (Unix time, the client's clock)"),
    Column("stop", "number", "s", "when it ended to compute (Unix time, the client's clock)"),
    Column("seceded", "number", "s", "when it gave its place among the threads away (Unix time, the client's clock)"),
    Column("seen", "number", "s", "when the scheduler learned of its end (Unix time, the client's clock)"),
    Column("nbytes", "integer", "B", "size of the result in memory"),
    Column("type", "text", None, "type of the result"),
    Column("outcome", "text", None, '"ok", "error", "worker lost", "cancelled" or "unfinished" (when the run stopped)'),
    Column("attempt", "integer", None, "which attempt of its task this is, from 1, among those seen"),
    Column("stolen", "integer", None, "how often it was moved to another worker before it began (work stealing)"),
    Column("span", "text", None, "identity of the Dask span that counts it"),
    Column("error", "text", None, "text of the error, where there was one"),
    *(
        dataclasses.replace(column, meaning=f"{column.meaning}, where its attempt failed")
        for column in picked(CHUNK_COLUMNS, "dataset", "file", "entry_start", "entry_stop")
    ),
)

SPAN_COLUMNS: Final[tuple[Column, ...]] = (
    Column("context", "text", None, "where it was counted, such as execute or get-data"),
    Column("prefix", "text", None, "task prefix; none outside of tasks"),
    Column("activity", "text", None, "what was done, such as thread-cpu or disk-read"),
    Column("unit", "text", None, "unit of the amount"),
    Column("amount", "number", None, "how much of it"),
)
WORKER_SPAN_COLUMNS: Final = (Column("worker", "text", None, "address of the worker"), *SPAN_COLUMNS)
"""A worker that counted nothing has one row, without a context."""
