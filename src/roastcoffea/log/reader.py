"""Reading the log of the scheduler's plugin into tables, on the client."""

from __future__ import annotations

import json
import math
import struct
import zlib
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roastcoffea.backends.scheduler import added_up, of_spans
from roastcoffea.errors import error_text
from roastcoffea.log.plausible import MOST_CORES
from roastcoffea.log.received import ReceivedRecords, attempt_numbers
from roastcoffea.log.wire import (
    ARRIVAL,
    ARRIVAL_FIELDS,
    CHUNK,
    COUNTED,
    COUNTED_FIELDS,
    DEPARTURE,
    DEPARTURE_FIELDS,
    HEADER,
    HEADER_SIZE,
    NO_SIZE,
    NO_STRING,
    NO_TIME,
    PAUSE,
    PAUSE_FIELDS,
    PROBLEM,
    PROCESS_CPU,
    PROCESS_CPU_FIELDS,
    SAMPLE,
    SAMPLE_FIELDS,
    STRING,
    TASK,
    TASK_ERROR,
    TASK_FIELDS,
    TEXT_FIELDS,
    packing,
)
from roastcoffea.records.arrow import arrow_schema, table_of_rows
from roastcoffea.records.tasks import KINDS, OUTCOMES, TASK_COLUMNS
from roastcoffea.records.workers import LIFETIME_COLUMNS, PAUSE_COLUMNS, SAMPLE_COLUMNS
from roastcoffea.redaction import redacted

UNREADABLE: Final = (LookupError, TypeError, ValueError, struct.error, zlib.error)
"""What reading an entry raises that is damaged, or not of this version."""

AROUND_RUN: Final = 10.0
"""Seconds before and after the run in which its plugins may have counted."""

Counts = dict[tuple[Hashable, ...], float]
Rows = np.ndarray[Any, Any]


class Layout:
    """The fixed part of the entries of one kind."""

    def __init__(self, fields: tuple[tuple[str, str], ...]) -> None:
        self.names = [name for name, _ in fields]
        self.dtype = np.dtype([(name, "<" + code) for name, code in fields])
        self.texts = [place for place, name in enumerate(self.names) if name in TEXT_FIELDS]
        self._struct = struct.Struct(packing(fields))
        self.size = self._struct.size

    def values(self, payload: bytes, texts: int) -> tuple[Any, ...]:
        """Values at the beginning of an entry, of which so many texts have come so far.

        Raises
        ------
        struct.error, LookupError
            If the entry is too short, or holds the number of a text that did not come.
        """
        values = self._struct.unpack_from(payload)
        for place in self.texts:
            if texts <= values[place] != NO_STRING:
                raise LookupError(f"there is no text {values[place]}")
        return values


TASKS: Final = Layout(TASK_FIELDS)
SAMPLES: Final = Layout(SAMPLE_FIELDS)
ARRIVALS: Final = Layout(ARRIVAL_FIELDS)
DEPARTURES: Final = Layout(DEPARTURE_FIELDS)
PAUSES: Final = Layout(PAUSE_FIELDS)
LAST_CPU: Final = Layout(PROCESS_CPU_FIELDS)
COUNTS: Final = Layout(COUNTED_FIELDS)

KIND, OUTCOME = TASKS.names.index("kind"), TASKS.names.index("outcome")


class ClusterLog:
    """What a collector's plugin on the scheduler saw, entry by entry, and as tables at the end.

    An entry that cannot be read is skipped and counted; those after it are read as if it had been no part of the log.
    """

    def __init__(self) -> None:
        self.received = ReceivedRecords()
        self._problems: list[str] = []
        self._unreadable: Counter[str] = Counter()
        self._set_aside: dict[str, int] = {}
        self._texts: list[str] = []
        self._place_of: dict[str, int] = {}
        self._places: list[int] = []
        self._tasks = bytearray()
        self._keys: list[str | None] = []
        self._errors: dict[int, str] = {}
        self._has_task = False
        self._samples = bytearray()
        self._lifetimes: list[dict[str, Any]] = []
        self._present: dict[str, dict[str, Any]] = {}
        self._pauses: list[dict[str, Any]] = []
        self._pausing: dict[str, dict[str, Any]] = {}
        self._counted: dict[tuple[str, int], Counts] = {}
        self._readers: dict[bytes, Callable[[bytes], None]] = {
            STRING: self._take_text,
            TASK: self._take_task,
            TASK_ERROR: self._take_error,
            CHUNK: self.received.take,
            SAMPLE: self._take_sample,
            ARRIVAL: self._take_arrival,
            DEPARTURE: self._take_departure,
            PAUSE: self._take_pause,
            PROCESS_CPU: self._take_last_cpu,
            COUNTED: self._take_counted,
            PROBLEM: self._take_problem,
        }

    @property
    def workers(self) -> int:
        """Workers that are here now, as far as the log goes."""
        return len(self._present)

    @property
    def problems(self) -> list[str]:
        """What the plugin reported, and what of its log could not be read."""
        problems = list(self._problems)
        if self._unreadable:
            first = next(iter(self._unreadable))
            problems.append(
                f"{self._unreadable.total()} entries of the scheduler's log could not be read and were skipped; "
                f"the first: {first}"
            )
        return problems + [f"{number} {what}" for what, number in self._set_aside.items() if number]

    # reading

    def feed(self, data: bytes) -> None:
        """Take a piece of the log: whole entries, in order."""
        at = 0
        while at < len(data):
            try:
                kind, length = struct.unpack_from(HEADER, data, at)
            except struct.error as problem:
                self._skip("the end of a piece", problem)
                return
            start = at + HEADER_SIZE
            at = start + length
            try:
                self._readers[kind](data[start:at])
            except UNREADABLE as problem:
                self._skip(f"kind {kind[0]}, {length} B", problem)

    def _skip(self, entry: str, problem: Exception) -> None:
        self._unreadable[f"{entry} ({error_text(problem)})"] += 1

    def _take_text(self, payload: bytes) -> None:
        text = _text(payload)
        if text not in self._place_of:
            self._place_of[text] = len(self._texts)
            self._texts.append(text)
        self._places.append(self._place_of[text])

    def _take_task(self, payload: bytes) -> None:
        self._has_task = False
        values = TASKS.values(payload, len(self._places))
        if values[KIND] >= len(KINDS) or values[OUTCOME] >= len(OUTCOMES):
            raise LookupError(f"there is no kind {values[KIND]}, or no outcome {values[OUTCOME]}")
        self._tasks += payload[: TASKS.size]
        self._keys.append(_text(payload[TASKS.size :]) or None)
        self._has_task = True

    def _take_error(self, payload: bytes) -> None:
        """The text of an error stands behind the task that it is of."""
        if not self._has_task:
            raise LookupError("it is of a task that could not be read")
        self._errors[len(self._keys) - 1] = redacted(_text(payload))

    def _take_sample(self, payload: bytes) -> None:
        worker, *_ = SAMPLES.values(payload, len(self._places))
        if worker == NO_STRING:
            raise LookupError("it is of no worker")
        self._samples += payload[: SAMPLES.size]

    def _take_problem(self, payload: bytes) -> None:
        self._problems.append(_text(payload))

    def _row(self, layout: Layout, payload: bytes) -> dict[str, Any]:
        """Values of an entry by name, with texts in place of their numbers."""
        row = dict(zip(layout.names, layout.values(payload, len(self._places)), strict=True))
        if row["worker"] == NO_STRING:
            raise LookupError("it is of no worker")
        return row | {
            name: None if row[name] == NO_STRING else self._texts[self._places[row[name]]]
            for name in TEXT_FIELDS
            if name in row
        }

    def _take_arrival(self, payload: bytes) -> None:
        row = self._row(ARRIVALS, payload)
        lifetime = {
            "worker": row["worker"],
            "name": row["name"],
            "host": row["host"],
            "process": row["process"] or None,
            "threads": row["threads"],
            "memory_limit": row["memory_limit"] or None,
            "start": row["time"],
            "stop": None,
            "cpu_seconds": None,
        }
        self._present[row["worker"]] = lifetime
        self._lifetimes.append(lifetime)

    def _take_departure(self, payload: bytes) -> None:
        row = self._row(DEPARTURES, payload)
        self._present.pop(row["worker"])["stop"] = row["time"]
        self._end_pause(row["worker"], row["time"])

    def _take_pause(self, payload: bytes) -> None:
        row = self._row(PAUSES, payload)
        self._end_pause(row["worker"], row["time"])
        if row["paused"]:
            pause = {"worker": row["worker"], "start": row["time"], "stop": None}
            self._pauses.append(pause)
            self._pausing[row["worker"]] = pause

    def _end_pause(self, worker: str, time: float) -> None:
        """A pause ends with the worker at the latest."""
        pausing = self._pausing.pop(worker, None)
        if pausing is not None:
            pausing["stop"] = time

    def _take_last_cpu(self, payload: bytes) -> None:
        """The last message of a worker that leaves comes before or after its departure."""
        row = self._row(LAST_CPU, payload)
        latest = [lifetime for lifetime in self._lifetimes if lifetime["worker"] == row["worker"]]
        if latest:
            latest[-1]["cpu_seconds"] = row["cpu_seconds"]

    def _take_counted(self, payload: bytes) -> None:
        """What Dask counted on a worker that left; one at the same address before it has its own."""
        worker = self._row(COUNTS, payload)["worker"]
        counts = {_hashable(key): float(amount) for key, amount in json.loads(zlib.decompress(payload[COUNTS.size :]))}
        arrivals = sum(lifetime["worker"] == worker for lifetime in self._lifetimes)
        self._counted[worker, arrivals] = counts

    # tables

    def counted_per_worker(
        self, present: Iterable[tuple[str, Iterable[tuple[Any, float]]]], spans: Iterable[str | None]
    ) -> dict[str, Counts]:
        """What Dask counted on each worker in the tasks of these spans, and outside of tasks.

        Parameters
        ----------
        present
            Address and counts of the workers that are here; those that left are in the log.
        spans
            Identities of the spans.
        """
        spans = set(spans)
        counted: dict[str, Counts] = {}
        left = ((worker, counts.items()) for (worker, _), counts in self._counted.items())
        for worker, counts in (*left, *present):
            counted[worker] = added_up([counted.get(worker, {}), of_spans(dict(counts), spans)])
        return counted

    def _rows(self, layout: Layout, packed: bytearray) -> Rows:
        """Rows in which each text has one number only."""
        rows = np.frombuffer(packed, layout.dtype)
        if len(self._texts) == len(self._places):
            return rows
        places = np.append(np.array(self._places, np.uint32), np.uint32(NO_STRING))
        rows = rows.copy()
        for name in (layout.names[place] for place in layout.texts):
            rows[name] = places[np.minimum(rows[name], len(self._places))]
        return rows

    def _texts_of(self, numbers: Rows) -> pa.Array:
        """Texts of these numbers as an Arrow column."""
        known = pa.array(self._texts, pa.string())
        return known.take(pa.array(numbers.astype(np.int64), mask=numbers == NO_STRING))

    def lifetimes(self, offset: float, start: float, stop: float) -> pa.Table:
        """When the workers were there between start and stop, on the client's clock."""
        last_cpu = self._last_cpu()
        clocks = self._clock_of_workers()
        impossible = 0
        rows = []
        for lifetime in self._lifetimes:
            begin = max(lifetime["start"] - offset, start)
            end = stop if lifetime["stop"] is None else min(lifetime["stop"] - offset, stop)
            cpu = lifetime["cpu_seconds"]
            if cpu is None:
                cpu = last_cpu.get((lifetime["worker"], lifetime["start"]))
            if cpu is not None and not 0 <= cpu <= MOST_CORES * (max(end - begin, 0.0) + AROUND_RUN):
                cpu, impossible = None, impossible + 1
            clock = clocks.get(lifetime["worker"], math.nan)
            rows.append(
                lifetime
                | {"start": min(begin, stop), "stop": max(end, begin), "cpu_seconds": cpu}
                | {"clock_offset": None if math.isnan(clock) else clock + offset}
            )
        self._set_aside["CPU time(s) of workers were impossible and set aside"] = impossible
        return table_of_rows(LIFETIME_COLUMNS, rows)

    def pauses(self, offset: float, start: float, stop: float) -> pa.Table:
        """When workers were paused between start and stop, on the client's clock."""
        rows = []
        for pause in self._pauses:
            begin = max(pause["start"] - offset, start)
            end = stop if pause["stop"] is None else min(pause["stop"] - offset, stop)
            if begin < end:
                rows.append(pause | {"start": begin, "stop": end})
        return table_of_rows(PAUSE_COLUMNS, rows)

    def _last_cpu(self) -> dict[tuple[str, float], float]:
        """The last CPU time that each worker reported, by its address and arrival."""
        samples = self._sampled()
        samples = samples[~np.isnan(samples["cpu_seconds"])]
        samples = samples[np.lexsort((samples["last_seen"], samples["worker"]))]
        arrivals: dict[str, list[float]] = {}
        for lifetime in self._lifetimes:
            arrivals.setdefault(lifetime["worker"], []).append(lifetime["start"])
        last: dict[tuple[str, float], float] = {}
        for number, address in enumerate(self._texts):
            first, after = np.searchsorted(samples["worker"], [number, number + 1])
            seen = samples["last_seen"][first:after]
            for start, end in pairwise([*arrivals.get(address, ()), math.inf]):
                row = np.searchsorted(seen, end) - 1
                if row >= 0 and seen[row] >= start:
                    last[address, start] = float(samples["cpu_seconds"][first + row])
        return last

    def _sampled(self) -> Rows:
        return self._rows(SAMPLES, self._samples)

    def samples(self, offset: float) -> pa.Table:
        """Samples of the workers, in the order of taking; `offset` is the scheduler's clock less the client's."""
        rows = self._sampled()
        limits = {lifetime["worker"]: lifetime["memory_limit"] for lifetime in self._lifetimes}
        limit_of = pa.array([limits.get(text) for text in self._texts], pa.int64())
        columns: dict[str, Any] = {
            "worker": self._texts_of(rows["worker"]),
            "memory_limit": limit_of.take(pa.array(rows["worker"])),
        }
        for name, code in SAMPLE_FIELDS[1:]:
            columns[name] = _measured(rows[name], code)
        columns["noted"] = pc.add(columns["last_seen"], pc.subtract(columns["noted"], offset))
        return _table(SAMPLE_COLUMNS, columns)

    def _error_texts(self) -> pa.Array:
        texts = np.full(len(self._keys), None, dtype=object)
        for row, text in self._errors.items():
            texts[row] = text
        return pa.array(texts, pa.string())

    def _task_rows(self) -> Rows:
        """Rows of tasks, without the times of those that ended before they began."""
        rows = self._rows(TASKS, self._tasks)
        backwards = (rows["stop"] != NO_TIME) & ~(rows["stop"] >= rows["start"])
        impossible = int(np.count_nonzero(backwards))
        if impossible:
            rows = rows.copy()
            rows["start"][backwards] = rows["stop"][backwards] = NO_TIME
        self._set_aside["task(s) ended before they began: their times were set aside"] = impossible
        return rows

    def _clock_of_workers(self) -> dict[str, float]:
        """By which seconds each worker's clock is before the scheduler's, by address; NaN is not known."""
        return dict(zip(self._texts, self._clocks(self._task_rows()).tolist(), strict=False))

    def _clocks(self, rows: Rows) -> Rows:
        """By which seconds each worker's clock is before the scheduler's, by number of the worker; NaN is not known.

        No task arrives before it is assigned, and none is seen to end before it ended: that bounds the offset. Within
        the bounds it is taken as 0 where that is possible, else as their middle.
        """
        known = rows[~np.isnan(rows["shift"]) & (rows["stop"] != NO_TIME) & (rows["assigned"] != NO_TIME)]
        began, worker = known["start"] - known["shift"], np.minimum(known["worker"], len(self._texts))
        low = np.full(len(self._texts) + 1, -np.inf)
        high = np.full(len(self._texts) + 1, np.inf)
        np.maximum.at(low, worker, known["stop"] - known["shift"] - known["seen"])
        np.minimum.at(high, worker, began + known["arrived"] - known["assigned"])
        bounded = np.isfinite(low) & np.isfinite(high)
        middle = (np.where(bounded, low, np.nan) + np.where(bounded, high, np.nan)) / 2
        return np.where(bounded & (low <= 0) & (high >= 0), 0.0, middle)

    def tasks(self, offset: float) -> pa.Table:
        """Finished attempts of tasks, and those that went on at the end, in the order of their end."""
        rows = self._task_rows()
        shifted = ~np.isnan(rows["shift"])
        clocks = np.nan_to_num(self._clocks(rows))[np.minimum(rows["worker"], len(self._texts))]
        clock = np.where(shifted, np.nan_to_num(rows["shift"]) + clocks, 0.0) + offset
        began = rows["start"] - clock
        unknown = rows["start"] == NO_TIME
        times = {
            "start": pa.array(began, mask=unknown),
            "stop": pa.array(rows["stop"] - clock, mask=rows["stop"] == NO_TIME),
            "seen": pa.array(rows["seen"] - offset),
        }
        for name in ("runnable", "assigned"):
            times[name] = pa.array(rows[name] - offset, mask=rows[name] == NO_TIME)
        for name in ("arrived", "ready", "seceded"):
            times[name] = pa.array(began + rows[name], mask=unknown | np.isnan(rows[name]))
        keys = pa.array(self._keys, pa.string())
        columns = {
            "key": keys,
            "kind": pa.array(KINDS, pa.string()).take(pa.array(rows["kind"])),
            "outcome": pa.array(OUTCOMES, pa.string()).take(pa.array(rows["outcome"])),
            "nbytes": pa.array(rows["nbytes"], mask=rows["nbytes"] == NO_SIZE),
            "run_id": pa.array(rows["run_id"], mask=rows["run_id"] == NO_SIZE),
            "thread": pa.array(rows["thread"].astype(np.int64), mask=rows["thread"] == 0),
            "attempt": pa.array(attempt_numbers(keys)),
            "stolen": pa.array(rows["stolen"].astype(np.int64)),
            "error": self._error_texts(),
            **{name: self._texts_of(rows[name]) for name in ("worker", "prefix", "type", "span")},
            **times,
        }
        return _table(TASK_COLUMNS, columns)


def _measured(values: Rows, code: str) -> pa.Array:
    """Numbers with null where the plugin marked them as not measured."""
    if code in "df":
        numbers = values.astype(np.float64)
        return pa.array(numbers, mask=np.isnan(numbers))
    integers = values.astype(np.int64)
    return pa.array(integers, mask=integers == NO_SIZE)


def _table(columns: Any, values: Mapping[str, Any]) -> pa.Table:
    schema = arrow_schema(columns)
    return pa.table({field.name: values[field.name] for field in schema}, schema=schema)


def _text(payload: bytes) -> str:
    return payload.decode("utf-8", "replace")


def _hashable(key: Any) -> Any:
    """A key with tuples in place of the lists that JSON made of them."""
    return tuple(map(_hashable, key)) if isinstance(key, list) else key
