"""Sections that the user named in a processor, as attempts of chunks passed through them."""

from __future__ import annotations

from typing import Final

from roastcoffea.records.columns import Column

SECTION_COLUMNS: Final[tuple[Column, ...]] = (
    Column("chunk", "integer", None, "identity of the attempt's record"),
    Column("name", "text", None, "name of the section, after those that it stands in: outer/inner"),
    Column("count", "integer", None, "how often it was passed"),
    Column("wall_seconds", "number", "s", "wall time in it"),
    Column("self_seconds", "number", "s", "wall time in it and in no section inside of it"),
    Column("cpu_seconds", "number", "s", "CPU time of the thread in it"),
    Column("max_seconds", "number", "s", "longest pass"),
    Column("bytes", "integer", "B", "requested from storage in it (track_bytes)"),
    Column("memory_peak", "integer", "B", "highest resident memory of the process in it (track_memory)"),
    Column("memory_delta", "integer", "B", "growth of resident memory over its passes, summed (track_memory)"),
    Column("errors", "integer", None, "passes that an exception ended"),
)
"""One row for each section of an attempt."""
