"""Runner calls: what they requested, and coffea's preprocessing, which opens files to count their entries."""

from typing import Final

from roastcoffea.records.chunks import CHUNK_COLUMNS, ENDPOINT_COLUMNS
from roastcoffea.records.columns import Column, picked

OF_TASKS: Final = "tasks: "
"""Beginning of the identity of what stands for a Runner call where tasks run functions without one."""

ASKED_COLUMNS: Final[tuple[Column, ...]] = (
    Column("call", "text", None, "identity of the Runner call"),
    *picked(CHUNK_COLUMNS, "dataset", "file", "tree"),
    Column("uuid", "text", None, "the file's own identity (hexadecimal); none if the whole file was requested"),
    Column("entry_start", "integer", "events", "first entry of the chunk; none if the whole file was requested"),
    Column("entry_stop", "integer", "events", "entry after the last one; none if the whole file was requested"),
    Column("site", "text", None, "site that holds the file, if the fileset or coffea's map of sites names it"),
)
"""One row for each requested chunk, and for each file whose metadata was requested, in order of request."""

PREPROCESSING_COLUMNS: Final[tuple[Column, ...]] = (
    Column("id", "integer", None, "identity of the record"),
    *picked(CHUNK_COLUMNS, "dataset", "file", "tree"),
    Column("start", "number", "s", "when it began (Unix time, the worker's clock)"),
    Column("stop", "number", "s", "when it ended (Unix time, the worker's clock)"),
    Column("wall_seconds", "number", "s", "duration"),
    Column("cpu_seconds", "number", "s", "CPU time of the thread"),
    Column("bytes_requested", "integer", "B", "requested from storage"),
    Column("bytes_transferred", "integer", "B", "received from storage"),
    Column("source", "text", None, "what read the file"),
    *ENDPOINT_COLUMNS,
    *picked(CHUNK_COLUMNS, "worker", "thread", "key", "run_id"),
    Column("outcome", "text", None, '"ok", "error", or "traced" (to find out which columns to preload)'),
    Column("error", "text", None, "text of the error, if any"),
    Column("call", "text", None, "identity of the Runner call, if any"),
)
