"""Records of attempts received by the client, as tables."""

from __future__ import annotations

import struct
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from roastcoffea.errors import error_text, reported
from roastcoffea.log import packing
from roastcoffea.log.packing import PackedBranches
from roastcoffea.log.plausible import impossible_times, impossible_values
from roastcoffea.log.profiles import ReceivedProfiles
from roastcoffea.records.arrow import arrow_schema, table_of_columns, table_of_rows
from roastcoffea.records.calls import OF_TASKS, PREPROCESSING_COLUMNS
from roastcoffea.records.chunks import BRANCH_READ_COLUMNS, CHECKPOINT, CHUNK_COLUMNS, OK, SECTION_COLUMNS
from roastcoffea.records.phases import PHASES
from roastcoffea.units import counted, were

BATCH: Final = 4096
"""Rows buffered before they become columns."""

BATCH_OF_BRANCHES: Final = 128
"""Records buffered before their branches become columns: each may have hundreds."""

MOST_BETWEEN: Final = 256
"""Most unread baskets between read ones that are listed with size 0 in a branch's sizes."""

CLASSES: Final = tuple(dict.fromkeys(phase.time_class for phase in PHASES))
CLASS_OF_COLUMN: Final = tuple((phase.column, phase.time_class) for phase in PHASES)

LARGEST_CODE: Final = 2**62

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


@dataclass(slots=True)
class Tally:
    """How much was received so far: chunks with a result and their events, failed attempts, bytes of all, and files.

    Bytes are None until an attempt reports any. Seconds are those of attempts of chunks: their wall time (and
    the sum of its squares), that of the failed ones, CPU time, and the time in each class of phases.
    """

    chunks: int = 0
    events: int = 0
    failed: int = 0
    bytes: int | None = None
    files: int = 0
    wall_seconds: float = 0.0
    wall_squares: float = 0.0
    failed_seconds: float = 0.0
    cpu_seconds: float = 0.0
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(CLASSES, 0.0))
    """It keeps its size: another thread may copy it meanwhile."""

    def add(self, record: Mapping[str, Any], *, preprocessing: bool) -> None:
        """Count a record."""
        gave = record.get("outcome") in (OK, CHECKPOINT)
        requested = record.get("bytes_requested")
        if requested is not None:
            self.bytes = (self.bytes or 0) + requested
        self.files += preprocessing and gave
        self.failed += not gave
        if gave and not preprocessing:
            self.chunks += 1
            self.events += record.get("events") or 0
        if not preprocessing:
            self._add_seconds(record, gave=gave)

    def _add_seconds(self, record: Mapping[str, Any], *, gave: bool) -> None:
        wall = record.get("wall_seconds") or 0.0
        self.wall_seconds += wall
        self.wall_squares += wall * wall
        self.cpu_seconds += (record.get("cpu_seconds") or 0.0) + (record.get("helper_cpu_seconds") or 0.0)
        if not gave:
            self.failed_seconds += wall
            return
        for column, time_class in CLASS_OF_COLUMN:
            self.seconds[time_class] += record.get(column) or 0.0


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
        self._taking = threading.Lock()
        self.tally = Tally()

    @property
    def problems(self) -> list[str]:
        """Problems reported by workers, and unreadable records."""
        tables: tuple[Growing[Any], ...] = (self._chunks, self._branches, self._sections, self._preprocessing)
        set_aside = [
            f"{counted(number, noun)} {what} {were(number)} discarded; the first: {self._first_set_aside[noun, what]}"
            for (noun, what), number in self._set_aside.items()
        ]
        return [*self._noted, *set_aside, *(problem for table in tables for problem in table.problems())]

    def take(self, blob: bytes) -> None:
        """Take packed records."""
        with self._taking, reported(self._note, "records could not be unpacked", DAMAGED):
            for record in packing.unpacked_records(blob):
                for problem in record.pop(packing.PROBLEMS, ()):
                    self._note(problem)
                if record and record["id"] not in self._known:
                    self._known.add(record["id"])
                    self._take(record)

    def _take(self, record: dict[str, Any]) -> None:
        facts = record.pop(packing.OF_PROCESS, None)
        if facts:
            self.processes[record["worker"]] = facts
        if not self._is_possible(record):
            return
        branches = record.pop(packing.BRANCHES, None)
        preprocessing = bool(record.pop(packing.PREPROCESSING, False))
        self.tally.add(record, preprocessing=preprocessing)
        if preprocessing:
            self._preprocessing.add(record)
            return
        if branches is not None:
            self._branches.add((record["id"], branches))
        if stacks := record.pop(packing.PROFILE, None):
            with reported(self._note, "the profile of an attempt could not be read", DAMAGED):
                self._profiles.add(record.get("call"), record.get("dataset"), stacks)
        for row in record.pop(packing.SECTIONS, ()):
            self._sections.add(row | {"chunk": record["id"]})
        self._chunks.add(record)

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
        ours = self._chunks.parts()
        if set(ours["call"].unique().to_pylist()) - calls:
            ours = ours.filter(pc.is_in(ours["call"], pa.array(sorted(calls), pa.string())))
        return numbered_attempts(whole(ours, order=pc.sort_indices(ours["start"])))

    def calls(self) -> set[str]:
        """Runner calls, or what stands for one, that any attempt of a chunk was of."""
        return set(self._chunks.parts()["call"].unique().drop_null().to_pylist())

    def calls_of_tasks(self) -> set[str]:
        """What stands for a Runner call where tasks ran functions without one."""
        return {call for call in self.calls() if call.startswith(OF_TASKS)}

    def branch_reads(self, chunks: pa.Table) -> pa.Table:
        """Branches that these attempts read."""
        return _of(self._branches.table(), chunks)

    def sections(self, chunks: pa.Table) -> pa.Table:
        """Sections that these attempts passed."""
        return _of(self._sections.table(), chunks)

    def profile(self, chunks: pa.Table) -> pa.Table:
        """Stacks in process(), summed over all attempts of the Runner calls that these are of."""
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


def row_codes(rows: pa.Table) -> npt.NDArray[np.int64]:
    """A number for each row of a table; equal rows share it, and null equals null."""
    codes, different = np.zeros(len(rows), np.int64), 1
    for column in rows.columns:
        found = column.combine_chunks().dictionary_encode(null_encoding="encode")
        if different * len(found.dictionary) > LARGEST_CODE:
            values, codes = np.unique(codes, return_inverse=True)
            different = len(values)
        codes = codes * len(found.dictionary) + found.indices.to_numpy()
        different *= len(found.dictionary)
    return codes


def _of(table: pa.Table, chunks: pa.Table) -> pa.Table:
    return table.filter(pc.is_in(table["chunk"], chunks["id"])) if len(table) else table


def table_of_branches(records: Sequence[tuple[int, PackedBranches]]) -> pa.Table:
    """Table of the branches of attempts, each with the attempt's identity."""
    if not records:
        return arrow_schema(BRANCH_READ_COLUMNS).empty_table()
    branches = [branches for _, branches in records]
    counts = [len(one.names) for one in branches]
    columns = {
        "chunk": pa.array(np.repeat(np.array([identity for identity, _ in records], dtype=np.int64), counts)),
        "branch": pa.array([name for one in branches for name in one.names], pa.string()),
    }
    for row, name in enumerate(packing.BRANCH_INTEGERS):
        columns[name] = pa.array(_joined([one.integers[row] for one in branches]))
    for row, name in enumerate(packing.BRANCH_SECONDS):
        seconds = np.concatenate([one.seconds[row] for one in branches])
        columns[name] = pa.array(seconds.astype(np.float64), from_pandas=True)
    columns |= _columns_of_baskets(branches, columns["baskets"].to_numpy())
    return table_of_columns(BRANCH_READ_COLUMNS, columns)


def _joined(integers: Sequence[npt.NDArray[np.uint64]]) -> npt.NDArray[np.int64]:
    return np.concatenate(integers).astype(np.int64)


def _columns_of_baskets(branches: Sequence[PackedBranches], baskets: npt.NDArray[np.int64]) -> dict[str, pa.Array]:
    """First and last basket of branches with this many, and sizes from one to the other; 0 if not read."""
    listed = _joined([one.listed for one in branches])
    numbers, sizes = (_joined([getattr(one, name) for one in branches]) for name in ("baskets", "sizes"))
    order = np.lexsort((numbers, np.repeat(np.arange(len(listed)), listed)))
    numbers, sizes = numbers[order], sizes[order]
    ends = np.cumsum(listed)
    some = listed > 0
    first, last = np.zeros_like(listed), np.zeros_like(listed)
    first[some], last[some] = numbers[(ends - listed)[some]], numbers[ends[some] - 1]
    spans = np.where(some, last - first + 1, 0)
    gaps = np.flatnonzero((listed == baskets) & (listed < spans))
    if len(gaps):
        numbers_of, sizes_of = np.split(numbers, ends[:-1]), np.split(sizes, ends[:-1])
        for row in gaps:
            if spans[row] - listed[row] > MOST_BETWEEN:
                sizes_of[row] = sizes_of[row][[0, -1]]
            else:
                filled = np.zeros(spans[row], np.int64)
                filled[numbers_of[row] - first[row]] = sizes_of[row]
                sizes_of[row] = filled
        ends, sizes = np.cumsum(list(map(len, sizes_of))), np.concatenate(sizes_of)
    offsets = np.append(0, ends).astype(np.int32)
    return {
        "basket_first": pa.array(first, mask=~some),
        "basket_last": pa.array(last, mask=~some),
        packing.BASKET_BYTES: pa.ListArray.from_arrays(pa.array(offsets), pa.array(sizes)),
    }
