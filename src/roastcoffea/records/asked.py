"""What Runner calls asked for: files to be opened by preprocessing, and chunks to be processed."""

from __future__ import annotations

from typing import Final

from roastcoffea.records.columns import Column

ASKED_COLUMNS: Final[tuple[Column, ...]] = (
    Column("call", "text", None, "identity of the Runner call"),
    Column("dataset", "text", None, "dataset in the fileset"),
    Column("file", "text", None, "path or URL of the file"),
    Column("tree", "text", None, "tree or RNTuple in the file"),
    Column("uuid", "text", None, "the file's own identity (hexadecimal); none where the file itself was asked for"),
    Column("entry_start", "integer", "events", "first entry of the chunk; none where the file itself was asked for"),
    Column("entry_stop", "integer", "events", "entry after its last one; none where the file itself was asked for"),
)
"""One row for each chunk, and for each file whose metadata were asked for, in the order of asking."""
