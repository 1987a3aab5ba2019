"""Records of attempts that came home, as tables, on the client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from roastcoffea.records.arrow import arrow_schema, table_of_rows
from roastcoffea.records.branches import BRANCH_READ_COLUMNS
from roastcoffea.records.chunks import CHUNK_COLUMNS
from roastcoffea.records.columns import Column
from roastcoffea.records.preprocessing import PREPROCESSING_COLUMNS
from roastcoffea.records.sections import SECTION_COLUMNS
from roastcoffea.records.wire import BRANCHES, PREPROCESSING, SECTIONS, TOLD, unpacked_records

BATCH: Final = 4096
"""Rows that wait to become columns."""


class Rows:
    """A table that grows by rows."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = columns
        self._waiting: list[dict[str, Any]] = []
        self._tables = [arrow_schema(columns).empty_table()]

    def add(self, row: dict[str, Any]) -> None:
        """Take a row; what it lacks was not measured."""
        self._waiting.append(row)
        if len(self._waiting) >= BATCH:
            self._tables.append(table_of_rows(self._columns, self._waiting))
            self._waiting = []

    def table(self) -> pa.Table:
        """All rows so far."""
        return pa.concat_tables([*self._tables, table_of_rows(self._columns, self._waiting)]).combine_chunks()


class ReceivedRecords:
    """Attempts of chunks with their branches and sections, and openings of files in preprocessing.

    A record that comes by two ways counts once.
    """

    def __init__(self) -> None:
        self.problems: list[str] = []
        self._chunks = Rows(CHUNK_COLUMNS)
        self._branches = Rows(BRANCH_READ_COLUMNS)
        self._sections = Rows(SECTION_COLUMNS)
        self._preprocessing = Rows(PREPROCESSING_COLUMNS)
        self._known: set[int] = set()

    def take(self, blob: bytes) -> None:
        """Take packed records."""
        for record in unpacked_records(blob):
            if record["id"] not in self._known:
                self._known.add(record["id"])
                self._take(record)

    def _take(self, record: dict[str, Any]) -> None:
        for problem in record.pop(TOLD, ()):
            self._note(problem)
        if record.pop(PREPROCESSING, False):
            self._preprocessing.add(record)
            return
        for rows, name in ((self._branches, BRANCHES), (self._sections, SECTIONS)):
            for row in record.pop(name, ()):
                rows.add(row | {"chunk": record["id"]})
        self._chunks.add(record)

    def _note(self, problem: str) -> None:
        if problem not in self.problems:
            self.problems.append(problem)

    def chunks(self, calls: set[str]) -> pa.Table:
        """Attempts of chunks of these Runner calls in the order of their beginning; those of one task are numbered."""
        seen = self._chunks.table()
        ours = seen.filter(pc.is_in(seen["call"], pa.array(sorted(calls), pa.string()))).sort_by("start")
        at = ours.column_names.index("attempt")
        return ours.set_column(at, ours.schema.field(at), pa.array(_attempts(ours), pa.int64()))

    def branch_reads(self, chunks: pa.Table) -> pa.Table:
        """Branches that these attempts read."""
        return _of(self._branches.table(), chunks)

    def sections(self, chunks: pa.Table) -> pa.Table:
        """Sections that these attempts passed."""
        return _of(self._sections.table(), chunks)

    def preprocessing(self) -> pa.Table:
        """Openings of files to learn their number of entries, in the order of their beginning."""
        return self._preprocessing.table().sort_by("start")


def attempt_numbers(keys: Sequence[Any]) -> list[int]:
    """For each row: which one of its key it is, from 1."""
    seen: dict[Any, int] = {}
    numbers = []
    for key in keys:
        seen[key] = seen.get(key, 0) + 1
        numbers.append(seen[key])
    return numbers


def _attempts(chunks: pa.Table) -> list[int]:
    """Numbers of attempts: at a Dask task, elsewhere at a chunk of a Runner call."""
    names = ("key", "call", "dataset", "file", "tree", "entry_start", "entry_stop")
    rows = zip(*(chunks[name].to_pylist() for name in names), strict=True)
    return attempt_numbers([tuple(chunk) if key is None else key for key, *chunk in rows])


def _of(table: pa.Table, chunks: pa.Table) -> pa.Table:
    return table.filter(pc.is_in(table["chunk"], chunks["id"]))
