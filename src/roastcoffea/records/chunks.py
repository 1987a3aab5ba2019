"""Attempts of chunks: what the probe saw of each attempt to process a range of events of one file."""

from __future__ import annotations

from typing import Final

from roastcoffea.records.columns import Column

OK: Final = "ok"
ERROR: Final = "error"
SKIPPED: Final = "skipped"
CHECKPOINT: Final = "checkpoint"

CHUNK_COLUMNS: Final[tuple[Column, ...]] = (
    Column("dataset", "text", None, "dataset in the fileset"),
    Column("file", "text", None, "path or URL of the file"),
    Column("tree", "text", None, "tree or RNTuple in the file"),
    Column("uuid", "text", None, "the file's own identity, as coffea's preprocessing read it (hexadecimal)"),
    Column("entry_start", "integer", "events", "first entry of the chunk"),
    Column("entry_stop", "integer", "events", "entry after the last one of the chunk"),
    Column("events", "integer", "events", "events that were processed; none where the attempt gave no result"),
    Column("start", "number", "s", "when the attempt began (Unix time, the worker's clock)"),
    Column("stop", "number", "s", "when the attempt ended (Unix time, the worker's clock)"),
    Column("wall_seconds", "number", "s", "duration of the attempt: opening, building events, processing"),
    Column("cpu_seconds", "number", "s", "CPU time of the thread that ran the attempt"),
    Column("process_cpu_seconds", "number", "s", "CPU time of the whole process meanwhile, all threads"),
    Column("memory_before", "integer", "B", "resident memory of the process at the beginning"),
    Column("memory_after", "integer", "B", "resident memory of the process at the end"),
    Column("memory_peak", "integer", "B", "highest resident memory of the process meanwhile (Linux only)"),
    Column("overlaps", "integer", "chunks", "most other chunks open in the same process at one time meanwhile"),
    Column("worker", "text", None, "address of the worker"),
    Column("thread", "integer", None, "identity of the thread in its process"),
    Column("key", "text", None, "key of the Dask task"),
    Column("run_id", "integer", None, "number that the scheduler gave to this attempt of the task"),
    Column("attempt", "integer", None, "which attempt of its task this is, from 1"),
    Column("outcome", "text", None, '"ok", "error", "skipped" (bad file) or "checkpoint" (loaded, not computed)'),
    Column("error", "text", None, "text of the error, where there was one"),
    Column("call", "text", None, "identity of the Runner call that asked for the chunk"),
    Column("coffea_bytes_read", "integer", "B", "bytes requested of the file (coffea's savemetrics)"),
    Column("coffea_entries", "integer", "events", "events in the chunk (coffea's savemetrics)"),
    Column("coffea_process_seconds", "number", "s", "wall time of process() (coffea's savemetrics)"),
    Column("coffea_columns", "texts", None, "columns that were read (coffea's savemetrics)"),
)
