"""What Runner calls asked for, as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from roastcoffea.records.arrow import arrow_schema
from roastcoffea.records.calls import ASKED_COLUMNS
from roastcoffea.redaction import redacted_each


class AskedItems:
    """Files and chunks that were asked for, without what is secret in their names.

    Attributes
    ----------
    files : int
        Files whose metadata were asked for.
    chunks : int
        Chunks that were asked for.
    """

    def __init__(self) -> None:
        self.files = self.chunks = 0
        self._tables: list[pa.Table] = [arrow_schema(ASKED_COLUMNS).empty_table()]

    def add(self, call: str, items: Sequence[Any]) -> int:
        """Take coffea's items of a Runner call; give how many files became equal to others without their secrets."""
        chunks = sum(hasattr(item, "entrystart") for item in items)
        self.chunks += chunks
        self.files += len(items) - chunks
        uuids = [getattr(item, "fileuuid", None) for item in items]
        files = [str(item.filename) for item in items]
        clean_files = redacted_each(files)
        columns = {
            "call": [call] * len(items),
            "dataset": redacted_each(str(item.dataset) for item in items),
            "file": clean_files,
            "tree": redacted_each(None if item.treename is None else str(item.treename) for item in items),
            "uuid": [None if uuid is None else uuid.hex() for uuid in uuids],
            "entry_start": [getattr(item, "entrystart", None) for item in items],
            "entry_stop": [getattr(item, "entrystop", None) for item in items],
        }
        self._tables.append(pa.table(columns, schema=arrow_schema(ASKED_COLUMNS)))
        return len(set(files)) - len(set(clean_files))

    def table(self) -> pa.Table:
        """One row for each item, in the order of asking."""
        return pa.concat_tables(self._tables)
