"""Attempts of tasks in the log, as a table, and the workers' clock offsets that follow from their times."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa

from roastcoffea.log.clocks import offset_within
from roastcoffea.log.kinds import MERGED, MOST_LEVELS, NO_SIZE, NO_TIME, TASK, TASK_CHUNK, TASK_ERROR
from roastcoffea.log.layout import Layout, Rows, Texts, text_of
from roastcoffea.log.received import attempt_numbers
from roastcoffea.records.arrow import table_of_columns
from roastcoffea.records.tasks import KINDS, OUTCOMES, TASK_COLUMNS
from roastcoffea.redaction import redacted
from roastcoffea.units import counted

NAMES: Final = [name for name, _ in TASK.fields]

KIND, OUTCOME = NAMES.index("kind"), NAMES.index("outcome")
SIZE: Final = struct.calcsize(TASK.packing)
OF_CHUNK: Final = {"dataset": pa.string(), "file": pa.string(), "entry_start": pa.int64(), "entry_stop": pa.int64()}
"""Columns of the chunk of a task that failed."""

OF_MERGE: Final = ("merge_level", "inputs", "input_bytes")
"""Columns of a merge, in the order of its entry."""


class AttemptLog:
    """Attempts of tasks, in order of their end."""

    def __init__(self, texts: Texts) -> None:
        self.readers = {TASK: self._take, TASK_ERROR: self._take_error, TASK_CHUNK: self._take_chunk}
        self.readers[MERGED] = self._take_merged
        self._texts = texts
        self._layout = Layout(TASK.fields, texts)
        self._packed = bytearray()
        self._keys: list[str | None] = []
        self._errors: dict[int, str] = {}
        self._chunks: dict[int, dict[str, Any]] = {}
        self._merged: dict[int, tuple[int, ...]] = {}
        self._is_whole = False
        self._impossible = 0

    def __len__(self) -> int:
        return len(self._keys)

    def _take(self, payload: bytes) -> None:
        self._is_whole = False
        values = self._layout.values(payload)
        if values[KIND] >= len(KINDS) or values[OUTCOME] >= len(OUTCOMES):
            raise LookupError(f"unknown kind {values[KIND]} or outcome {values[OUTCOME]}")
        self._packed += payload[:SIZE]
        self._keys.append(text_of(payload[SIZE:]) or None)
        self._is_whole = True

    def _take_error(self, payload: bytes) -> None:
        """The text of an error follows its task."""
        if not self._is_whole:
            raise LookupError("its task could not be read")
        self._errors[len(self._keys) - 1] = redacted(text_of(payload))

    def _take_chunk(self, payload: bytes) -> None:
        """The chunk of a failed task follows the task."""
        if not self._is_whole:
            raise LookupError("its task could not be read")
        dataset, file, _, start, stop = json.loads(text_of(payload))
        if not (isinstance(start, int) and isinstance(stop, int)):
            raise TypeError("it has no entries")
        names = {"dataset": redacted(str(dataset)), "file": redacted(str(file))}
        self._chunks[len(self._keys) - 1] = names | {"entry_start": start, "entry_stop": stop}

    def _take_merged(self, payload: bytes) -> None:
        """What a merge merges follows its task."""
        if not self._is_whole:
            raise LookupError("its task could not be read")
        level, inputs, size = struct.unpack(MERGED.packing, payload)
        if level > MOST_LEVELS or size < 0:
            raise ValueError(f"level {level} of merges of {size} B")
        self._merged[len(self._keys) - 1] = level, inputs, size

    @property
    def problems(self) -> list[str]:
        """Problems of the last table."""
        text = f"{counted(self._impossible, 'task')} ended before they started: their times were discarded"
        return [text] if self._impossible else []

    def table(self, offset: float) -> pa.Table:
        """Finished attempts, and those active at the end; `offset` is the scheduler's clock minus the client's."""
        rows = self._rows()
        clocks = np.nan_to_num(self._clocks(rows))[np.minimum(rows["worker"], len(self._texts.known))]
        clock = np.where(np.isnan(rows["shift"]), 0.0, rows["shift"] + clocks) + offset
        began, unknown = rows["start"] - clock, rows["start"] == NO_TIME
        keys = pa.array(self._keys, pa.string())
        columns: dict[str, Any] = {
            "key": keys,
            "kind": pa.array(KINDS, pa.string()).take(pa.array(rows["kind"])),
            "outcome": pa.array(OUTCOMES, pa.string()).take(pa.array(rows["outcome"])),
            "thread": pa.array(rows["thread"].astype(np.int64), mask=rows["thread"] == 0),
            "attempt": pa.array(attempt_numbers(keys)),
            "stolen": pa.array(rows["stolen"].astype(np.int64)),
            "error": _sparse(self._errors, len(keys), pa.string()),
            "start": pa.array(began, mask=unknown),
            "stop": pa.array(rows["stop"] - clock, mask=rows["stop"] == NO_TIME),
            "seen": pa.array(rows["seen"] - offset),
            "startup_seconds": pa.nulls(len(keys), pa.float64()),
        }
        for name, kind in OF_CHUNK.items():
            columns[name] = _sparse({row: chunk[name] for row, chunk in self._chunks.items()}, len(keys), kind)
        columns |= self._columns_of_merges()
        for name in ("worker", "prefix", "type", "span"):
            columns[name] = self._texts.column(rows[name])
        for name in ("nbytes", "run_id"):
            columns[name] = pa.array(rows[name], mask=rows[name] == NO_SIZE)
        for name in ("runnable", "assigned"):
            columns[name] = pa.array(rows[name] - offset, mask=rows[name] == NO_TIME)
        for name in ("arrived", "ready", "seceded"):
            columns[name] = pa.array(began + rows[name], mask=unknown | np.isnan(rows[name]))
        return table_of_columns(TASK_COLUMNS, columns)

    def _columns_of_merges(self) -> dict[str, pa.Array]:
        """What each merge merges; nothing for other tasks."""
        rows = len(self._keys)
        return {
            name: _sparse({row: merged[place] for row, merged in self._merged.items()}, rows, pa.int64())
            for place, name in enumerate(OF_MERGE)
        }

    def clocks(self) -> dict[str, float]:
        """Seconds by which each worker's clock is ahead of the scheduler's, by address; NaN if unknown."""
        return dict(zip(self._texts.known, self._clocks(self._rows()).tolist(), strict=False))

    def _rows(self) -> Rows:
        """All rows, without the times of those that ended before they started."""
        rows = self._layout.rows(self._packed)
        backwards = (rows["stop"] != NO_TIME) & ~(rows["stop"] >= rows["start"])
        self._impossible = int(np.count_nonzero(backwards))
        if self._impossible:
            rows = rows.copy()
            rows["start"][backwards] = rows["stop"][backwards] = NO_TIME
        return rows

    def _clocks(self, rows: Rows) -> Rows:
        """Seconds by which each worker's clock is ahead of the scheduler's, by index of its address; NaN if unknown.

        No task arrives before it is assigned, and none is reported finished before it ends: that bounds the offset.
        """
        number = len(self._texts.known)
        known = rows[~np.isnan(rows["shift"]) & (rows["stop"] != NO_TIME) & (rows["assigned"] != NO_TIME)]
        began, worker = known["start"] - known["shift"], np.minimum(known["worker"], number)
        low, high = np.full(number + 1, -np.inf), np.full(number + 1, np.inf)
        np.maximum.at(low, worker, known["stop"] - known["shift"] - known["seen"])
        np.minimum.at(high, worker, began + known["arrived"] - known["assigned"])
        return np.array([offset_within(*bounds) for bounds in zip(low.tolist(), high.tolist(), strict=True)])


def _sparse(values: Mapping[int, Any], rows: int, kind: pa.DataType) -> pa.Array:
    """Column of so many rows, of which these have a value."""
    if not values:
        return pa.nulls(rows, kind)
    places, unknown = np.zeros(rows, np.int64), np.ones(rows, np.bool_)
    places[list(values)] = np.arange(len(values))
    unknown[list(values)] = False
    return pa.array(list(values.values()), kind).take(pa.array(places, mask=unknown))
