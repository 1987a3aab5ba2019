"""Reading the log of the scheduler's plugin into tables, on the client."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roastcoffea.backends.received import ReceivedRecords, attempt_numbers
from roastcoffea.records.arrow import arrow_schema, table_of_rows
from roastcoffea.records.tasks import KINDS, OUTCOMES, TASK_COLUMNS
from roastcoffea.records.wire import (
    ARRIVAL,
    ARRIVAL_FIELDS,
    CHUNK,
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
    packing,
)
from roastcoffea.records.workers import LIFETIME_COLUMNS, PAUSE_COLUMNS, SAMPLE_COLUMNS
from roastcoffea.redaction import redacted

_TASK_SIZE = struct.calcsize(packing(TASK_FIELDS))


def _dtype(fields: tuple[tuple[str, str], ...]) -> np.dtype[Any]:
    return np.dtype([(name, "<" + code) for name, code in fields])


class ClusterLog:
    """What a collector's plugin on the scheduler saw, entry by entry, and as tables at the end."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.received = ReceivedRecords()
        self._strings: list[str] = []
        self._tasks = bytearray()
        self._keys: list[str] = []
        self._errors: dict[int, str] = {}
        self._samples = bytearray()
        self._lifetimes: list[dict[str, Any]] = []
        self._present: dict[int, dict[str, Any]] = {}
        self._pauses: list[dict[str, Any]] = []
        self._pausing: dict[int, dict[str, Any]] = {}

    @property
    def workers(self) -> int:
        """Workers that are there now, as far as was told."""
        return len(self._present)

    def feed(self, data: bytes) -> None:
        """Take a piece of the log: whole entries, in order."""
        at = 0
        while at < len(data):
            kind, length = struct.unpack_from(HEADER, data, at)
            payload = data[at + HEADER_SIZE : at + HEADER_SIZE + length]
            at += HEADER_SIZE + length
            self._take(kind, payload)

    def _take(self, kind: bytes, payload: bytes) -> None:
        if kind == TASK:
            self._tasks += payload[:_TASK_SIZE]
            self._keys.append(_text(payload[_TASK_SIZE:]))
        elif kind == CHUNK:
            self.received.take(payload)
        elif kind == SAMPLE:
            self._samples += payload
        elif kind == STRING:
            self._strings.append(_text(payload))
        elif kind == TASK_ERROR:
            self._errors[len(self._keys) - 1] = redacted(_text(payload))
        elif kind == ARRIVAL:
            self._arrival(_unpacked(ARRIVAL_FIELDS, payload))
        elif kind == DEPARTURE:
            left = _unpacked(DEPARTURE_FIELDS, payload)
            self._present.pop(left["worker"])["stop"] = left["time"]
            self._paused(left | {"paused": False})
        elif kind == PAUSE:
            self._paused(_unpacked(PAUSE_FIELDS, payload))
        elif kind == PROCESS_CPU:
            self._final_cpu(_unpacked(PROCESS_CPU_FIELDS, payload))
        elif kind == PROBLEM:
            self.problems.append(_text(payload))

    def _arrival(self, values: dict[str, Any]) -> None:
        lifetime = {
            "worker": self._string(values["worker"]),
            "name": self._string(values["name"]),
            "host": self._string(values["host"]),
            "process": values["process"] or None,
            "threads": values["threads"],
            "memory_limit": values["memory_limit"] or None,
            "start": values["time"],
            "stop": None,
            "cpu_seconds": None,
        }
        self._present[values["worker"]] = lifetime
        self._lifetimes.append(lifetime)

    def _paused(self, values: dict[str, Any]) -> None:
        """A pause ends with the worker at the latest."""
        pausing = self._pausing.pop(values["worker"], None)
        if pausing is not None:
            pausing["stop"] = values["time"]
        if values["paused"]:
            pause = {"worker": self._string(values["worker"]), "start": values["time"], "stop": None}
            self._pauses.append(pause)
            self._pausing[values["worker"]] = pause

    def _final_cpu(self, values: dict[str, Any]) -> None:
        """The last word of a worker that leaves comes before or after its departure."""
        address = self._string(values["worker"])
        latest = [lifetime for lifetime in self._lifetimes if lifetime["worker"] == address]
        if latest:
            latest[-1]["cpu_seconds"] = values["cpu_seconds"]

    def _string(self, number: int) -> str | None:
        return None if number == NO_STRING else self._strings[number]

    def _texts(self, numbers: np.ndarray[Any, Any]) -> pa.Array:
        """Interned strings as an Arrow column."""
        known = pa.array(self._strings, pa.string())
        return known.take(pa.array(numbers.astype(np.int64), mask=numbers == NO_STRING))

    def lifetimes(self, offset: float, start: float, stop: float) -> pa.Table:
        """When the workers were there between start and stop, on the client's clock."""
        last_cpu = self._last_cpu()
        clocks = dict(zip(self._strings, self._clocks(self._task_rows()).tolist(), strict=False))
        rows = []
        for lifetime in self._lifetimes:
            begin = max(lifetime["start"] - offset, start)
            end = stop if lifetime["stop"] is None else min(lifetime["stop"] - offset, stop)
            cpu = lifetime["cpu_seconds"]
            if cpu is None:
                cpu = last_cpu.get((lifetime["worker"], lifetime["start"]))
            clock = clocks.get(lifetime["worker"], math.nan)
            rows.append(
                lifetime
                | {"start": min(begin, stop), "stop": max(end, begin), "cpu_seconds": cpu}
                | {"clock_offset": None if math.isnan(clock) else clock + offset}
            )
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
        for number, address in enumerate(self._strings):
            first, after = np.searchsorted(samples["worker"], [number, number + 1])
            seen = samples["last_seen"][first:after]
            for start, end in pairwise([*arrivals.get(address, ()), math.inf]):
                row = np.searchsorted(seen, end) - 1
                if row >= 0 and seen[row] >= start:
                    last[address, start] = float(samples["cpu_seconds"][first + row])
        return last

    def _sampled(self) -> np.ndarray[Any, Any]:
        return np.frombuffer(self._samples, _dtype(SAMPLE_FIELDS))

    def samples(self, offset: float) -> pa.Table:
        """Samples of the workers, in the order of taking; `offset` is the scheduler's clock less the client's."""
        rows = self._sampled()
        limits = {lifetime["worker"]: lifetime["memory_limit"] for lifetime in self._lifetimes}
        limit_of = pa.array([limits.get(text) for text in self._strings], pa.int64())
        columns: dict[str, Any] = {
            "worker": self._texts(rows["worker"]),
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

    def _task_rows(self) -> np.ndarray[Any, Any]:
        return np.frombuffer(self._tasks, _dtype(TASK_FIELDS))

    def _clocks(self, rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """By which seconds each worker's clock is before the scheduler's, by number of the worker; NaN is not known.

        No task arrives before it is assigned, and none is seen to end before it ended: that bounds the offset. Within
        the bounds it is taken as 0 where that is possible, else as their middle.
        """
        known = rows[~np.isnan(rows["shift"]) & (rows["stop"] != NO_TIME) & (rows["assigned"] != NO_TIME)]
        began, worker = known["start"] - known["shift"], np.minimum(known["worker"], len(self._strings))
        low = np.full(len(self._strings) + 1, -np.inf)
        high = np.full(len(self._strings) + 1, np.inf)
        np.maximum.at(low, worker, known["stop"] - known["shift"] - known["seen"])
        np.minimum.at(high, worker, began + known["arrived"] - known["assigned"])
        bounded = np.isfinite(low) & np.isfinite(high)
        middle = (np.where(bounded, low, np.nan) + np.where(bounded, high, np.nan)) / 2
        return np.where(bounded & (low <= 0) & (high >= 0), 0.0, middle)

    def tasks(self, offset: float) -> pa.Table:
        """Finished attempts of tasks, and those that went on at the end, in the order of their end."""
        rows = self._task_rows()
        shifted = ~np.isnan(rows["shift"])
        clocks = np.nan_to_num(self._clocks(rows))[np.minimum(rows["worker"], len(self._strings))]
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
            "run_id": pa.array(rows["run_id"]),
            "thread": pa.array(rows["thread"].astype(np.int64), mask=rows["thread"] == 0),
            "attempt": pa.array(attempt_numbers(keys)),
            "stolen": pa.array(rows["stolen"].astype(np.int64)),
            "error": self._error_texts(),
            **{name: self._texts(rows[name]) for name in ("worker", "prefix", "type", "span")},
            **times,
        }
        return _table(TASK_COLUMNS, columns)


def _unpacked(fields: tuple[tuple[str, str], ...], payload: bytes) -> dict[str, Any]:
    values = struct.unpack(packing(fields), payload)
    return {name: value for (name, _), value in zip(fields, values, strict=True)}


def _measured(values: np.ndarray[Any, Any], code: str) -> pa.Array:
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
