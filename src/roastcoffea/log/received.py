"""Convert the attempt records received by the client to tables."""

from __future__ import annotations

import json
import struct
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from roastcoffea.errors import error_text, reported
from roastcoffea.interrupts import interrupts_held
from roastcoffea.log import packing
from roastcoffea.log.batches import Attempt, records_in, split_record, table_of_attempts, table_of_branches
from roastcoffea.log.completeness import Tally
from roastcoffea.log.stacks import SENT
from roastcoffea.records.arrow import arrow_schema, combined, row_codes, table_of_rows
from roastcoffea.records.chunks import CHUNK_COLUMNS, OTHER
from roastcoffea.records.run import OF_TASKS, PREPROCESSING_COLUMNS, PROFILE_COLUMNS, SECTION_COLUMNS
from roastcoffea.units import counted, were

BATCH: Final = 4096
"""Number of rows to collect before they are converted to columns."""

BATCH_OF_BRANCHES: Final = 128
"""Number of records to collect before their branches are converted to columns. A record may have hundreds of branches.
"""

DAMAGED: Final = (LookupError, RuntimeError, TypeError, ValueError, struct.error)
"""Exceptions raised when damaged records are unpacked, including exceptions from LZ4."""

Item = TypeVar("Item")

MOST_STACKS: Final = 20_000
"""Maximum number of distinct stacks to keep per dataset and Runner call."""

LARGEST: Final = 1e9
"""Maximum plausible time spent in one stack during an attempt, in seconds."""

Frame = tuple[str, str, int]
Stacks = dict[tuple[int, ...], list[float]]
"""Number of samples, seconds, and seconds by state for each stack, keyed by the numbers of the stack's frames."""

OTHERS: Final[Frame] = (OTHER, "", 0)


class Growing(Generic[Item]):
    """A table that grows item by item and leaves out items of the wrong type.

    Parameters
    ----------
    name : str
        Noun for the items in messages about omitted items.
    table_of : callable
        Converts a list of items to a table.
    batch : int
        Number of items to collect before they are converted to columns.
    """

    def __init__(self, name: str, table_of: Callable[[list[Item]], pa.Table], batch: int = BATCH) -> None:
        self._name = name
        self._table_of = table_of
        self._batch = batch
        self._lock = threading.RLock()
        self._waiting: list[Item] = []
        self._tables = [table_of([])]
        self._left_out = 0
        self._first = ""

    def add(self, item: Item) -> None:
        with self._lock:
            self._waiting.append(item)
            if len(self._waiting) >= self._batch:
                self.settle()

    def table(self) -> pa.Table:
        with self._lock:
            self._tables = [combined(self.parts())]
            return self._tables[0]

    def parts(self) -> pa.Table:
        """All items so far. The parts are not merged, which saves a copy."""
        self.settle()
        return pa.concat_tables(self._tables)

    def problems(self) -> list[str]:
        self.settle()
        text = f"{self._left_out} {self._name} could not be read and are left out; the first: {self._first}"
        return [text] if self._left_out else []

    def settle(self) -> None:
        with interrupts_held(), self._lock:
            waiting, self._waiting = self._waiting, []
            if waiting:
                self._tables += self._fitting(waiting)

    def _fitting(self, items: list[Item]) -> list[pa.Table]:
        """Convert items to tables. Bisection finds the items that do not fit the columns."""
        try:
            return [self._table_of(items)]
        except (TypeError, ValueError, OverflowError) as error:  # a value does not match its column's type
            if len(items) > 1:
                half = len(items) // 2
                return self._fitting(items[:half]) + self._fitting(items[half:])
            self._first = self._first or error_text(error)
            self._left_out += 1
            return []


class ReceivedRecords:
    """Chunk attempts with their branches and sections, and files opened during preprocessing.

    A record that arrives twice is counted once. `take` may be called from several threads.
    """

    def __init__(self) -> None:
        self._noted: list[str] = []
        self._openings: list[pa.Table] = [table_of_rows(PREPROCESSING_COLUMNS, [])]
        self._attempts = Growing("chunk records", self._table_of_attempts, BATCH)
        self._branches = Growing("branch records", table_of_branches, BATCH_OF_BRANCHES)
        self._sections = Growing("section records", partial(table_of_rows, SECTION_COLUMNS), BATCH)
        self._profiles = ReceivedProfiles()
        self._set_aside: Counter[tuple[str, str]] = Counter()
        self._first_set_aside: dict[tuple[str, str], str] = {}
        self._known: set[int] = set()
        self._processes: dict[str, dict[str, Any]] = {}
        self._taking = threading.RLock()
        self._tally = Tally()

    @property
    def tally(self) -> Tally:
        self._attempts.settle()
        return self._tally

    @property
    def processes(self) -> dict[str, dict[str, Any]]:
        self._attempts.settle()
        return self._processes

    @property
    def problems(self) -> list[str]:
        tables: tuple[Growing[Any], ...] = (self._attempts, self._branches, self._sections)
        left_out = [problem for table in tables for problem in table.problems()]
        set_aside = [
            f"{counted(number, noun)} {what} {were(number)} discarded; the first: {self._first_set_aside[noun, what]}"
            for (noun, what), number in self._set_aside.items()
        ]
        return [*self._noted, *set_aside, *left_out]

    def take(self, blob: bytes) -> None:
        with self._taking, reported(self._note, "records could not be unpacked", DAMAGED):
            for record in records_in(blob):
                others = json.loads(record.rest) if record.rest else {}
                for problem in others.pop(packing.PROBLEMS, ()):
                    self._note(problem)
                identity = record.identity
                if identity == packing.NO_INTEGER:
                    # a record without an ID normally contains only problems
                    if record.texts.strip(packing.NO_TEXT.encode() + packing.NEW_LINE):
                        self._note("a chunk record has no ID and is left out")
                    continue
                if identity in self._known:
                    continue
                attempt, branches = split_record(record, others)
                self._known.add(identity)
                if branches is not None:
                    self._branches.add(branches)
                self._attempts.add(attempt)

    def _table_of_attempts(self, waiting: Sequence[Attempt]) -> pa.Table:
        if not waiting:
            return table_of_rows(CHUNK_COLUMNS, [])
        table, possible, odd = table_of_attempts(waiting)
        for what, row, found in odd:
            if what not in self._set_aside:
                file, start, stop = (table[name][row].as_py() for name in ("file", "entry_start", "entry_stop"))
                self._first_set_aside[what] = f"{found} in {file}, entries {start} to {stop}"
            self._set_aside[what] += 1
        opening = np.zeros(len(waiting), np.bool_)
        whose = table.select(["id", "call", "dataset", "worker"]).to_pylist()
        for row, attempt in enumerate(waiting):
            if attempt.others:
                opening[row] = attempt.others.get(packing.PREPROCESSING, False)
                self._take_others(whose[row], attempt.others, is_chunk=bool(possible[row] and not opening[row]))
        if opening.any():
            openings = table.filter(pa.array(opening & possible)).select(arrow_schema(PREPROCESSING_COLUMNS).names)
            self._openings.append(openings)
            for record in openings.to_pylist():
                self._tally.add(record, preprocessing=True)
        kept = possible & ~opening
        chunks = table if kept.all() else table.filter(pa.array(kept))
        self._tally.add_table(chunks)
        return chunks

    def _take_others(self, known: dict[str, Any], others: dict[str, Any], *, is_chunk: bool) -> None:
        if facts := others.get(packing.OF_PROCESS):
            self._processes[known["worker"]] = facts
        if not is_chunk:
            return
        if stacks := others.get(packing.PROFILE):
            with reported(self._note, "an attempt's profile could not be read", DAMAGED):
                self._profiles.add(known["call"], known["dataset"], stacks, known["id"])
        for row in others.get(packing.SECTIONS, ()):
            self._sections.add(row | {"chunk": known["id"]})

    def _note(self, problem: str) -> None:
        if problem not in self._noted:
            self._noted.append(problem)

    def chunks(self, calls: set[str]) -> pa.Table:
        """Chunk attempts in these Runner calls, ordered by start time and numbered within each task."""
        ours = self._attempts.parts()
        if set(ours["call"].unique().to_pylist()) - calls:
            ours = ours.filter(pc.is_in(ours["call"], pa.array(sorted(calls), pa.string())))
        return numbered_attempts(combined(ours, order=pc.sort_indices(ours["start"])))

    def calls(self) -> set[str]:
        """IDs of the Runner calls (real calls and stand-ins) that have at least one chunk attempt."""
        return set(self._attempts.parts()["call"].unique().drop_null().to_pylist())

    def calls_of_tasks(self) -> set[str]:
        """IDs of the stand-in calls for tasks that ran functions without a Runner."""
        return {call for call in self.calls() if call.startswith(OF_TASKS)}

    def branch_reads(self, chunks: pa.Table) -> pa.Table:
        return _of(self._branches.table(), chunks)

    def sections(self, chunks: pa.Table) -> pa.Table:
        self._attempts.settle()
        return _of(self._sections.table(), chunks)

    def profile(self, chunks: pa.Table) -> pa.Table:
        """Stacks sampled in process(), summed over all attempts in the Runner calls of these chunks."""
        self._attempts.settle()
        return self._profiles.table(set(chunks["call"].unique().to_pylist()))

    def preprocessing(self) -> pa.Table:
        """Files opened to count their entries, ordered by start time."""
        self._attempts.settle()
        return pa.concat_tables(self._openings).sort_by("start")


def attempt_numbers(keys: pa.Array) -> npt.NDArray[np.int64]:
    """Number the rows with the same key, starting from 1. Rows without a key are numbered 1."""
    found = pc.dictionary_encode(keys)
    numbers = np.ones(len(keys), np.int64)
    if len(found.dictionary) + keys.null_count < len(keys):
        import pandas as pd

        codes = pd.Series(found.indices.fill_null(-1).to_numpy())
        numbers += np.where(codes < 0, 0, codes.groupby(codes).cumcount())
    return numbers


def numbered_attempts(chunks: pa.Table) -> pa.Table:
    """Number the attempts at each Dask task or, outside Dask, at each chunk of a call."""
    key = chunks["key"].combine_chunks()
    numbers = attempt_numbers(key)
    alone = np.flatnonzero(key.is_null().to_numpy(zero_copy_only=False))
    place = chunks.select(["call", "dataset", "file", "tree", "entry_start", "entry_stop"]).take(pa.array(alone))
    numbers[alone] = attempt_numbers(pa.array(row_codes(place)))
    at = chunks.column_names.index("attempt")
    return chunks.set_column(at, chunks.schema.field(at), pa.array(numbers))


def _of(table: pa.Table, chunks: pa.Table) -> pa.Table:
    return table.filter(pc.is_in(table["chunk"], chunks["id"])) if len(table) else table


class ReceivedProfiles:
    """Stacks summed over attempts. The number of distinct stacks is limited."""

    def __init__(self) -> None:
        self._numbers: dict[Frame, int] = {}
        self._sums: dict[tuple[str | None, str | None], Stacks] = {}
        self._longest: dict[tuple[str | None, str | None], tuple[float, int | None, Stacks]] = {}

    def add(self, call: str | None, dataset: str | None, packed: Sequence[Any], chunk: int | None = None) -> None:
        """Add an attempt's packed profile.

        Raises
        ------
        LookupError, TypeError, ValueError
            If the profile is damaged. In this case, nothing is added.
        """
        texts, frames, stacks = packed
        places: list[tuple[int, ...]] = [()]
        known: list[Frame] = []
        for parent, function, file, line in _rows(frames, 4):
            # in a damaged record, parents may follow their children
            places.append((*places[_place(parent, len(places))], len(known)))
            known.append((str(texts[function]), str(texts[file]), int(line)))
        found = [(places[_place(last, len(places))], _amounts(amounts)) for last, *amounts in _rows(stacks, 6)]
        numbers = [self._numbers.get(frame, -1) for frame in known]
        sums, own = self._sums.setdefault((call, dataset), {}), Stacks()
        for path, amounts in found:
            # frames are numbered only once a stack that contains them is kept
            kept = tuple([numbers[place] for place in path])
            if kept not in sums:
                room = len(sums) < MOST_STACKS
                kept = tuple(self._number(known[place]) for place in path) if room else (self._number(OTHERS),)
            for each in (sums, own):
                before = each.get(kept, [0.0] * len(amounts))
                each[kept] = [one + more for one, more in zip(before, amounts, strict=True)]
        seconds = sum(amounts[1] for amounts in own.values())
        if seconds > self._longest.get((call, dataset), (0.0,))[0]:
            self._longest[call, dataset] = seconds, chunk, own

    def _number(self, frame: Frame) -> int:
        return self._numbers.setdefault(frame, len(self._numbers))

    def table(self, calls: Collection[str]) -> pa.Table:
        known = list(self._numbers)
        values: dict[str, list[Any]] = {column.name: [] for column in PROFILE_COLUMNS}
        for (call, dataset), sums in self._sums.items():
            if call not in calls:
                continue
            _, chunk, own = self._longest.get((call, dataset), (0.0, None, Stacks()))
            for path, amounts, identity in (*_less(sums, own), *((*item, chunk) for item in own.items())):
                frames = [known[number] for number in path]
                row = [call, dataset, *([frame[part] for frame in frames] for part in range(3)), int(amounts[0])]
                for column, value in zip(values.values(), [*row, *amounts[1:], identity], strict=True):
                    column.append(value)
        return pa.table(values, schema=arrow_schema(PROFILE_COLUMNS))


def _less(sums: Stacks, own: Stacks) -> Iterator[tuple[tuple[int, ...], list[float], None]]:
    for path, amounts in sums.items():
        less = own.get(path)
        rest = amounts if less is None else [max(one - other, 0.0) for one, other in zip(amounts, less, strict=True)]
        if less is None or rest[0] or rest[1] > 0.5 / packing.PROFILE_UNITS:
            yield path, rest, None


def with_files(profile: pa.Table, files: Mapping[str, Mapping[str, str]]) -> pa.Table:
    """Fill in missing file names for functions that were sent to workers."""
    if SENT not in pc.list_flatten(profile["files"]).unique().to_pylist():
        return profile
    rows = zip(*(profile[name].to_pylist() for name in ("call", "functions", "files")), strict=True)
    named = [
        [known.get(name, file) if file == SENT else file for name, file in zip(functions, places, strict=True)]
        for call, functions, places in rows
        for known in [files.get(call, {})]
    ]
    place = profile.schema.get_field_index("files")
    return profile.set_column(place, profile.schema.field(place), pa.array(named, profile["files"].type))


def _rows(numbers: Sequence[Any], width: int) -> Iterator[Sequence[Any]]:
    if len(numbers) % width:
        raise ValueError(f"{len(numbers)} numbers do not form rows of {width}")
    return (numbers[at : at + width] for at in range(0, len(numbers), width))


def _place(frame: int, known: int) -> int:
    """Index of a frame's stack among the known stacks. The empty stack has index 0."""
    if not -1 <= frame < known - 1:
        raise ValueError(f"unknown frame {frame}")
    return frame + 1


def _amounts(packed: Sequence[int]) -> list[float]:
    samples, *units = packed
    seconds = [number / packing.PROFILE_UNITS for number in units]
    if not all(0 <= amount <= LARGEST for amount in (samples, *seconds)):
        raise ValueError("a stack has impossible values")
    return [samples, *seconds]
