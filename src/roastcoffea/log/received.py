"""Records of attempts received by the client, as tables."""

from __future__ import annotations

import json
import struct
import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from roastcoffea.errors import error_text, reported
from roastcoffea.interrupts import interrupts_held
from roastcoffea.log import packing
from roastcoffea.log.batches import (
    NO_COLUMNS,
    Lists,
    PackedParts,
    Waiting,
    batch_of,
    impossible_times,
    impossible_values,
    parts_of,
    table_of_branches,
)
from roastcoffea.log.completeness import Tally
from roastcoffea.log.profiles import ReceivedProfiles
from roastcoffea.records.arrow import row_codes, table_of_rows
from roastcoffea.records.chunks import CHUNK_COLUMNS, SECTION_COLUMNS
from roastcoffea.records.run import OF_TASKS, PREPROCESSING_COLUMNS
from roastcoffea.units import counted, were

BATCH: Final = 4096
"""Rows buffered before they become columns."""

BATCH_OF_BRANCHES: Final = 128
"""Records buffered before their branches become columns: each may have hundreds."""

OF_ATTEMPTS: Final = {packing.PROBLEMS, packing.PROFILE, packing.SECTIONS}
"""Values in addition to texts and figures with which an attempt of a chunk waits to become a row."""

DOES_NOT_FIT: Final = (TypeError, ValueError, OverflowError)
"""Errors of Arrow for a value that is not of its column's type."""

DAMAGED: Final = (LookupError, RuntimeError, TypeError, ValueError, struct.error)
"""Errors of unpacking damaged records, including those of LZ4."""

Item = TypeVar("Item")


class Growing(Generic[Item]):
    """A table that grows by items, leaving out those that do not fit.

    Parameters
    ----------
    name : str
        Name of the items, to report those left out.
    table_of : callable
        Returns a table of items.
    batch : int
        Items buffered before they become columns.
    """

    def __init__(self, name: str, table_of: Callable[[list[Item]], pa.Table], batch: int = BATCH) -> None:
        self._name = name
        self._table_of = table_of
        self._batch = batch
        self._waiting: list[Item] = []
        self._tables = [table_of([])]
        self._left_out = 0
        self._first = ""

    def add(self, item: Item) -> None:
        """Take an item."""
        self._waiting.append(item)
        if len(self._waiting) >= self._batch:
            self._settle()

    def add_table(self, table: pa.Table) -> None:
        """Take items that are columns already."""
        self._tables.append(table)

    def table(self) -> pa.Table:
        """All items so far."""
        self._tables = [whole(self.parts())]
        return self._tables[0]

    def parts(self) -> pa.Table:
        """All items so far, in as many parts as they came in: nothing is copied."""
        self._settle()
        return pa.concat_tables(self._tables)

    def problems(self) -> list[str]:
        """Report of left-out items."""
        text = f"{self._left_out} {self._name} could not be read and are left out; the first: {self._first}"
        return [text] if self._left_out else []

    def _settle(self) -> None:
        with interrupts_held():
            waiting, self._waiting = self._waiting, []
            if waiting:
                self._tables += self._fitting(waiting)

    def _fitting(self, items: list[Item]) -> list[pa.Table]:
        """Tables of the items that fit, found by halving."""
        try:
            return [self._table_of(items)]
        except DOES_NOT_FIT as error:
            if len(items) > 1:
                half = len(items) // 2
                return self._fitting(items[:half]) + self._fitting(items[half:])
            self._first = self._first or error_text(error)
            self._left_out += 1
            return []


class ReceivedRecords:
    """Attempts of chunks with their branches and sections, and openings of files in preprocessing.

    A record that arrives twice counts once; `take` may be called on several threads.
    """

    def __init__(self) -> None:
        self._noted: list[str] = []
        self._chunks = Growing("records of chunks", partial(table_of_rows, CHUNK_COLUMNS))
        self._branches = Growing("records of branches", table_of_branches, BATCH_OF_BRANCHES)
        self._sections = Growing("records of sections", partial(table_of_rows, SECTION_COLUMNS))
        self._preprocessing = Growing("records of preprocessing", partial(table_of_rows, PREPROCESSING_COLUMNS))
        self._profiles = ReceivedProfiles()
        self._set_aside: Counter[tuple[str, str]] = Counter()
        self._first_set_aside: dict[tuple[str, str], str] = {}
        self._known: set[int] = set()
        self.processes: dict[str, dict[str, Any]] = {}
        """What workers outside of Dask reported of their processes."""
        self._taking = threading.RLock()
        self._tally = Tally()
        self._waiting: list[Waiting] = []
        self._lists = Lists()

    @property
    def tally(self) -> Tally:
        """How much was received so far."""
        self._settle()
        return self._tally

    @property
    def problems(self) -> list[str]:
        """Problems reported by workers, and unreadable records."""
        self._settle()
        tables: tuple[Growing[Any], ...] = (self._chunks, self._branches, self._sections, self._preprocessing)
        set_aside = [
            f"{counted(number, noun)} {what} {were(number)} discarded; the first: {self._first_set_aside[noun, what]}"
            for (noun, what), number in self._set_aside.items()
        ]
        return [*self._noted, *set_aside, *(problem for table in tables for problem in table.problems())]

    def take(self, blob: bytes) -> None:
        """Take packed records."""
        with self._taking, reported(self._note, "records could not be unpacked", DAMAGED):
            content = packing.checked_content(blob)
            parts = parts_of(content)
            if parts is not None and parts.identity != packing.NO_INTEGER:  # others have only problems
                others = json.loads(parts.rest) if parts.rest else {}
                if others.keys() <= OF_ATTEMPTS:
                    self._wait(parts, others)
                    return
            for record in packing.records_in(content):
                for problem in record.pop(packing.PROBLEMS, ()):
                    self._note(problem)
                if record and self._is_new(record["id"]):
                    self._take(record)

    def _is_new(self, identity: int) -> bool:
        before = len(self._known)
        self._known.add(identity)
        return len(self._known) > before

    def _wait(self, parts: PackedParts, others: dict[str, Any]) -> None:
        """Take a record that becomes columns together with others."""
        for problem in others.pop(packing.PROBLEMS, ()):
            self._note(problem)
        identity = parts.identity
        if not self._is_new(identity):
            return
        texts, lines, branches = parts.texts, b"", None
        if parts.integers:
            *own, lines = texts.split(packing.NEW_LINE, len(packing.OF_TEXTS))
            texts = packing.NEW_LINE.join(own)
            numbers = parts.branches, 0, parts.width, parts.integers
            self._branches.add((identity, packing.unpacked_branches(self._lists.names(lines), *numbers)))
        if not texts.endswith(NO_COLUMNS):
            branches = self._lists.shared(lines)
        self._waiting.append(Waiting(texts, parts.figures, others, branches))
        if len(self._waiting) >= BATCH:
            self._settle()

    def _settle(self) -> None:
        """Make columns of the records that wait for it."""
        with interrupts_held(), self._taking:
            waiting, self._waiting = self._waiting, []
            if not waiting:
                return
            try:
                batch = batch_of(waiting, self._lists)
            except DOES_NOT_FIT:
                for each in waiting:
                    self._take(each.record())
                return
            self._tally.add_table(batch.table)
            self._chunks.add_table(batch.table)
            for row, others in batch.others:
                known = {name: batch.table[name][row].as_py() for name in ("id", "call", "dataset")}
                self._add_others(known | others)
            for record in batch.odd:
                self._take(record)

    def _take(self, record: dict[str, Any]) -> None:
        facts = record.pop(packing.OF_PROCESS, None)
        if facts:
            self.processes[record["worker"]] = facts
        if not self._is_possible(record):
            return
        branches = record.pop(packing.BRANCHES, None)
        preprocessing = bool(record.pop(packing.PREPROCESSING, False))
        self._tally.add(record, preprocessing=preprocessing)
        if preprocessing:
            self._preprocessing.add(record)
            return
        if branches is not None:
            self._branches.add((record["id"], branches))
        self._add_others(record)
        self._chunks.add(record)

    def _add_others(self, record: dict[str, Any]) -> None:
        """Take the profile and the sections out of a record."""
        if stacks := record.pop(packing.PROFILE, None):
            with reported(self._note, "the profile of an attempt could not be read", DAMAGED):
                self._profiles.add(record.get("call"), record.get("dataset"), stacks, record.get("id"))
        for row in record.pop(packing.SECTIONS, ()):
            self._sections.add(row | {"chunk": record["id"]})

    def _is_possible(self, record: dict[str, Any]) -> bool:
        """Whether the times of a record are possible; other impossible values are removed as not measured."""
        where = f"in {record.get('file')}, entries {record.get('entry_start')} to {record.get('entry_stop')}"
        wrong = impossible_times(record)
        values = {} if wrong else impossible_values(record)
        what = ("record", "with impossible times") if wrong else ("impossible value", "in records")
        for found in [wrong] if wrong else values.values():
            self._set_aside[what] += 1
            self._first_set_aside.setdefault(what, f"{found} {where}")
        record |= dict.fromkeys(values)
        return not wrong

    def _note(self, problem: str) -> None:
        if problem not in self._noted:
            self._noted.append(problem)

    def chunks(self, calls: set[str]) -> pa.Table:
        """Attempts of chunks of these Runner calls in order of their start; those of one task are numbered."""
        self._settle()
        ours = self._chunks.parts()
        if set(ours["call"].unique().to_pylist()) - calls:
            ours = ours.filter(pc.is_in(ours["call"], pa.array(sorted(calls), pa.string())))
        return numbered_attempts(whole(ours, order=pc.sort_indices(ours["start"])))

    def calls(self) -> set[str]:
        """Runner calls, or what stands for one, that any attempt of a chunk was of."""
        self._settle()
        return set(self._chunks.parts()["call"].unique().drop_null().to_pylist())

    def calls_of_tasks(self) -> set[str]:
        """What stands for a Runner call where tasks ran functions without one."""
        return {call for call in self.calls() if call.startswith(OF_TASKS)}

    def branch_reads(self, chunks: pa.Table) -> pa.Table:
        """Branches that these attempts read."""
        return _of(self._branches.table(), chunks)

    def sections(self, chunks: pa.Table) -> pa.Table:
        """Sections that these attempts passed."""
        self._settle()
        return _of(self._sections.table(), chunks)

    def profile(self, chunks: pa.Table) -> pa.Table:
        """Stacks in process(), summed over all attempts of the Runner calls that these are of."""
        self._settle()
        return self._profiles.table(set(chunks["call"].unique().to_pylist()))

    def preprocessing(self) -> pa.Table:
        """File openings to count entries, in order of their start."""
        return self._preprocessing.table().sort_by("start")


def whole(table: pa.Table, order: pa.Array | None = None) -> pa.Table:
    """A table in one part, in this order.

    Memory that is new to the process takes most of the time: it goes column by column, so that what one of them gives
    back is used for the next, and columns without any value share theirs.
    """
    nothing: dict[pa.DataType, pa.Array] = {}
    arrays = []
    for column in table.columns:
        if column.null_count == len(column):
            if column.type not in nothing:
                nothing[column.type] = pa.nulls(len(column), column.type)
            arrays.append(nothing[column.type])
            continue
        together = column.combine_chunks()
        arrays.append(together if order is None else together.take(order))
    return pa.Table.from_arrays(arrays, schema=table.schema)


def attempt_numbers(keys: pa.Array) -> npt.NDArray[np.int64]:
    """Number of each row among those of its key, from 1; a row without a key stands alone."""
    found = pc.dictionary_encode(keys)
    numbers = np.ones(len(keys), np.int64)
    if len(found.dictionary) + keys.null_count < len(keys):
        import pandas as pd

        codes = pd.Series(found.indices.fill_null(-1).to_numpy())
        numbers += np.where(codes < 0, 0, codes.groupby(codes).cumcount())
    return numbers


def numbered_attempts(chunks: pa.Table) -> pa.Table:
    """Records of chunks with the numbers of their attempts: at a Dask task, otherwise at a chunk of a Runner call."""
    key = chunks["key"].combine_chunks()
    numbers = attempt_numbers(key)
    alone = np.flatnonzero(key.is_null().to_numpy(zero_copy_only=False))
    place = chunks.select(["call", "dataset", "file", "tree", "entry_start", "entry_stop"]).take(pa.array(alone))
    numbers[alone] = attempt_numbers(pa.array(row_codes(place)))
    at = chunks.column_names.index("attempt")
    return chunks.set_column(at, chunks.schema.field(at), pa.array(numbers))


def _of(table: pa.Table, chunks: pa.Table) -> pa.Table:
    return table.filter(pc.is_in(table["chunk"], chunks["id"])) if len(table) else table
