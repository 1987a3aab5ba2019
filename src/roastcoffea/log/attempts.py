"""Build the tables of task attempts and samples, and estimate worker clock offsets."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from roastcoffea.log.kinds import (
    LEFT,
    MERGED,
    MOST_LEVELS,
    NO_SIZE,
    NO_STRING,
    NO_TIME,
    SAMPLING,
    TASK,
    TASK_CHUNK,
    TASK_ERROR,
    USAGE,
    WORKER_STATE_FIELDS,
)
from roastcoffea.log.layout import Layout, Rows, Texts, text_of
from roastcoffea.log.received import attempt_numbers
from roastcoffea.records.arrow import table_of_columns
from roastcoffea.records.workers import KINDS, OUTCOMES, SAMPLING_COLUMNS, TASK_COLUMNS, WORKER_STATE_COLUMNS
from roastcoffea.redaction import redacted
from roastcoffea.units import counted

RESET: Final = 1.0
"""Seconds by which bounds on a clock's offset contradict each other if a clock was reset; drift causes less."""


class ClockBounds:
    """Lower and upper bounds on a clock's offset, narrowed with each message."""

    def __init__(self) -> None:
        self._low, self._high = -math.inf, math.inf

    def narrow(self, low: float, high: float) -> bool:
        """Narrow the bounds; return whether they contradict each other because a clock was reset.

        In that case, the offset remains what it was when the run started.
        """
        lowest, highest = max(low, self._low), min(high, self._high)
        if lowest <= highest:
            self._low, self._high = lowest, highest
        return lowest - highest > RESET

    @property
    def offset(self) -> float:
        return offset_within(self._low, self._high)


def offset_within(low: float, high: float) -> float:
    """Estimate a clock's offset from its bounds: 0 if possible, otherwise the midpoint.

    Zero is preferred because two synchronised clocks are more likely than equal delays in both directions. The offset
    is NaN if a bound is unknown, or if the clock was reset.
    """
    if not (math.isfinite(low) and math.isfinite(high)) or low - high > RESET:
        return math.nan
    return 0.0 if low <= 0 <= high else (low + high) / 2


NAMES: Final = [name for name, _ in TASK.fields]

KIND, OUTCOME = NAMES.index("kind"), NAMES.index("outcome")
SIZE: Final = struct.calcsize(TASK.packing)
TOLD: Final = {
    **dict.fromkeys(("error", "dataset", "file"), pa.string()),
    **dict.fromkeys(("entry_start", "entry_stop", "merge_level", "inputs", "input_bytes"), pa.int64()),
}
"""Columns that have values for only a few attempts. The values come from log entries that follow the task's own entry.
"""


class AttemptLog:
    def __init__(self, texts: Texts) -> None:
        others = {
            TASK_ERROR: lambda payload: self._tell(error=redacted(text_of(payload))),
            TASK_CHUNK: self._take_chunk,
            MERGED: self._take_merged,
        }
        self.readers = {TASK: self._take, **others}
        self._texts = texts
        self._layout = Layout(TASK.fields, texts)
        self._packed = bytearray()
        self._keys: list[str | None] = []
        self._told: dict[str, dict[int, Any]] = {name: {} for name in TOLD}
        self._is_whole = False
        self._impossible = self._misplaced = 0

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

    def _tell(self, **values: Any) -> None:
        """Add an entry's values to the preceding task."""
        if not self._is_whole:
            raise LookupError("its task could not be read")
        for name, value in values.items():
            self._told[name][len(self._keys) - 1] = value

    def _take_chunk(self, payload: bytes) -> None:
        dataset, file, _, start, stop = json.loads(text_of(payload))
        if not (isinstance(start, int) and isinstance(stop, int)):
            raise TypeError("it has no entries")
        self._tell(dataset=redacted(str(dataset)), file=redacted(str(file)), entry_start=start, entry_stop=stop)

    def _take_merged(self, payload: bytes) -> None:
        level, inputs, size = struct.unpack(MERGED.packing, payload)
        if level > MOST_LEVELS or size < 0:
            raise ValueError(f"impossible merge: level {level}, {size} B")
        self._tell(merge_level=level, inputs=inputs, input_bytes=size)

    @property
    def problems(self) -> list[str]:
        number = self._impossible + self._misplaced
        text = f"impossible times of {counted(number, 'task')} were discarded: a worker's clock may have been reset"
        return [text] if number else []

    def table(self, offset: float) -> pa.Table:
        """Table of finished and running attempts.

        `offset` is the scheduler's clock minus the client's clock, in seconds.
        """
        rows = self._rows()
        # where the offset is unknown because the clock was reset, Dask's own adjustment is better: it is renewed with
        # each heartbeat, and wrong until then
        clock = rows["shift"] + self._clocks(rows)[np.minimum(rows["worker"], len(self._texts.known))]
        was_reset = np.isnan(clock) & ~np.isnan(rows["shift"]) & (rows["stop"] != NO_TIME)
        misplaced = was_reset & (np.maximum(rows["assigned"] - rows["start"], rows["stop"] - rows["seen"]) > RESET)
        self._misplaced = int(np.count_nonzero(misplaced))
        clock = np.nan_to_num(clock) + offset
        began, unknown = rows["start"] - clock, misplaced | (rows["start"] == NO_TIME)
        keys = pa.array(self._keys, pa.string())
        columns: dict[str, Any] = {
            "key": keys,
            "kind": pa.array(KINDS, pa.string()).take(pa.array(rows["kind"])),
            "outcome": pa.array(OUTCOMES, pa.string()).take(pa.array(rows["outcome"])),
            "thread": pa.array(rows["thread"].astype(np.int64), mask=rows["thread"] == 0),
            "attempt": pa.array(attempt_numbers(keys)),
            "stolen": pa.array(rows["stolen"].astype(np.int64)),
            "start": pa.array(began, mask=unknown),
            "stop": pa.array(rows["stop"] - clock, mask=misplaced | (rows["stop"] == NO_TIME)),
            "seen": pa.array(rows["seen"] - offset),
            "startup_seconds": pa.nulls(len(keys), pa.float64()),
        }
        for name, kind in TOLD.items():
            columns[name] = _sparse(self._told[name], len(keys), kind)
        for name in ("worker", "prefix", "type", "span"):
            columns[name] = self._texts.column(rows[name])
        for name in ("nbytes", "run_id"):
            columns[name] = pa.array(rows[name], mask=rows[name] == NO_SIZE)
        for name in ("runnable", "assigned"):
            columns[name] = pa.array(rows[name] - offset, mask=rows[name] == NO_TIME)
        for name in ("arrived", "ready", "seceded"):
            columns[name] = pa.array(began + rows[name], mask=unknown | np.isnan(rows[name]))
        return table_of_columns(TASK_COLUMNS, columns)

    def clocks(self) -> dict[str, float]:
        """Each worker's clock minus the scheduler's clock, in seconds, by address; NaN if unknown."""
        return dict(zip(self._texts.known, self._clocks(self._rows()).tolist(), strict=False))

    def _rows(self) -> Rows:
        """All rows. If an attempt ends before it starts, its times are dropped."""
        rows = self._layout.rows(self._packed)
        backwards = (rows["stop"] != NO_TIME) & ~(rows["stop"] >= rows["start"])
        self._impossible = int(np.count_nonzero(backwards))
        if self._impossible:
            rows = rows.copy()
            rows["start"][backwards] = rows["stop"][backwards] = NO_TIME
        return rows

    def _clocks(self, rows: Rows) -> Rows:
        """Each worker's clock minus the scheduler's clock, in seconds, by address index; NaN if unknown.

        The offset is bounded because a task reaches its worker after it is assigned, and ends before the scheduler
        learns that it has finished.
        """
        number = len(self._texts.known)
        known = rows[~np.isnan(rows["shift"]) & (rows["stop"] != NO_TIME) & (rows["assigned"] != NO_TIME)]
        began, worker = known["start"] - known["shift"], np.minimum(known["worker"], number)
        low, high = np.full(number + 1, -np.inf), np.full(number + 1, np.inf)
        np.maximum.at(low, worker, known["stop"] - known["shift"] - known["seen"])
        np.minimum.at(high, worker, began + known["arrived"] - known["assigned"])
        return np.array([offset_within(*bounds) for bounds in zip(low.tolist(), high.tolist(), strict=True)])


def _sparse(values: Mapping[int, Any], rows: int, kind: pa.DataType) -> pa.Array:
    if not values:
        return pa.nulls(rows, kind)
    places = pc.index_in(pa.array(np.arange(rows)), pa.array(list(values), pa.int64()))
    return pa.array(list(values.values()), kind).take(places)


MOST_STATES: Final = 2_000_000
"""Maximum number of rows in the worker state table. Beyond this limit, only every n-th sample is kept."""


class SamplingLog:
    def __init__(self, texts: Texts) -> None:
        self.readers = {SAMPLING: self._take, USAGE: self._take_usage}
        self.problems: list[str] = []
        self._texts = texts
        self._layout = Layout(SAMPLING.fields, texts)
        self._usage = Layout(USAGE.fields, texts)
        self._used = bytearray()
        self._used_in: list[int] = []
        self._states = Layout(WORKER_STATE_FIELDS, texts)
        self._samples = bytearray()
        self._rows = bytearray()
        self._counts: list[int] = []

    def _take(self, payload: bytes) -> None:
        time, *_ = self._layout.values(payload)
        if not math.isfinite(time):
            raise ValueError("it has no time")
        fixed, rows = payload[: self._layout.size], payload[self._layout.size :]
        found = np.frombuffer(rows, self._states.dtype)
        self._states.check(found)
        if (found["worker"] == NO_STRING).any():
            raise LookupError("it has no worker")
        self._samples += fixed
        self._rows += rows
        self._counts.append(len(found))

    def _take_usage(self, payload: bytes) -> None:
        """Store the scheduler's cumulative usage for the preceding sample."""
        loop_cpu, _, process_cpu, _ = self._usage.values(payload)
        if not math.isfinite(loop_cpu + process_cpu):
            raise ValueError("it has no CPU time")
        if len(self._used_in) >= len(self._counts):
            raise LookupError("its sample could not be read")
        self._used += payload[: self._usage.size]
        self._used_in.append(len(self._counts) - 1)

    def sampling(self, offset: float) -> pa.Table:
        """Table of samples; `offset` is the scheduler's clock minus the client's clock, in seconds."""
        samples = self._layout.rows(self._samples)
        columns = {
            "time": samples["time"] - offset,
            "workers": samples["workers"].astype(np.int64),
            "late_seconds": pa.array(samples["late"].astype(np.float64), from_pandas=True),
            "missed": samples["missed"].astype(np.int64),
            **self._used_so_far(),
        }
        return table_of_columns(SAMPLING_COLUMNS, columns)

    def _used_so_far(self) -> dict[str, pa.Array]:
        used = np.zeros(len(self._counts), self._usage.dtype)
        for name, code in USAGE.fields:
            used[name] = np.nan if code == "d" else NO_SIZE
        used[self._used_in] = self._usage.rows(self._used)
        numbers = {
            f"{name}_seconds": pa.array(used[name], from_pandas=True) for name, code in USAGE.fields if code == "d"
        }
        return numbers | {"transitions": pa.array(used["transitions"], mask=used["transitions"] == NO_SIZE)}

    def states(self, offset: float) -> pa.Table:
        samples, rows = self._layout.rows(self._samples), self._states.rows(self._rows)
        first = np.repeat(np.arange(len(samples)), self._counts)
        order = np.lexsort((first, rows["worker"]))
        rows, first = rows[order], first[order]
        # a row is valid until the worker's next row, or until a sample that lists all present workers
        whole = np.append(np.flatnonzero(samples["whole"]), len(samples))
        end = whole[np.searchsorted(whole, first, side="right")]
        same = rows["worker"][1:] == rows["worker"][:-1]
        end[:-1][same] = np.minimum(end[:-1], first[1:])[same]
        here = rows["processing"] != LEFT
        rows, first, end = rows[here], first[here], end[here]
        every = self._thinned(int((end - first).sum()))
        first, end = -(-first // every), -(-end // every)
        row, sample = _expanded(first, end - first)
        order = np.argsort(sample, kind="stable")
        place, kinds = row[order], {"processing": np.int64, "nbytes": np.int64, "occupancy": np.float64}
        columns = {
            "worker": self._texts.column(rows["worker"][place]),
            "time": samples["time"][every * sample[order]] - offset,
            **{name: rows[name].astype(kind)[place] for name, kind in kinds.items()},
        }
        return table_of_columns(WORKER_STATE_COLUMNS, columns)

    def _thinned(self, rows: int) -> int:
        """Interval between the samples to keep, chosen to limit the size of the table."""
        every = max(-(-rows // MOST_STATES), 1)
        self.problems = (
            [f"worker states are kept for one in {every} samples, because all samples would need {rows} rows"]
            if every > 1
            else []
        )
        return every


Indices = npt.NDArray[np.int64]


def _expanded(first: Indices, counts: Indices) -> tuple[Indices, Indices]:
    """Repeat each row for all of its samples; return the row indices and the sample indices."""
    row = np.repeat(np.arange(len(first)), counts)
    within = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
    return row, first[row] + within
