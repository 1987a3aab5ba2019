"""Build the worker tables from the log: lifetimes, pauses, samples and counts."""

from __future__ import annotations

import json
import math
import struct
import zlib
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roastcoffea.errors import error_text
from roastcoffea.log.attempts import AttemptLog, SamplingLog
from roastcoffea.log.batches import MOST_CORES
from roastcoffea.log.kinds import (
    ARRIVAL,
    CHUNK,
    CLOSING,
    COUNTED,
    DEPARTURE,
    GPU,
    HEADER,
    HEADER_SIZE,
    JOB,
    KILLED,
    NO_SIZE,
    NO_STRING,
    PAUSE,
    PROBLEM,
    PROCESS_CPU,
    RESUMED,
    SAMPLE,
    STRING,
    Kind,
)
from roastcoffea.log.layout import Layout, Rows, Texts, inflated, text_of
from roastcoffea.log.marks import added_up, of_spans
from roastcoffea.log.received import ReceivedRecords
from roastcoffea.records.arrow import table_of_columns, table_of_rows
from roastcoffea.records.workers import LIFETIME_COLUMNS, OF_JOB, PAUSE_COLUMNS, SAMPLE_COLUMNS
from roastcoffea.units import counted, were

EXECUTING, CPU, SEEN = map([name for name, _ in SAMPLE.fields].index, ("executing", "cpu_seconds", "last_seen"))


OF_READING: Final = ("of_job", "again", "cpu_before", "sampled_cpu")
"""Fields in a lifetime that are not columns of the table."""

NO_GPU: Final = {"gpu_percent": math.nan, "gpu_memory": NO_SIZE}

Counts = dict[tuple[Hashable, ...], float]
Row = dict[str, Any]


class WorkerLog:
    """Arrivals and departures of workers.

    Parameters
    ----------
    clocks : callable
        Returns each worker's clock minus the scheduler's clock, in seconds, by address; NaN if unknown.
    """

    def __init__(self, texts: Texts, clocks: Callable[[], dict[str, float]]) -> None:
        takes: dict[Kind, Callable[[Row, bytes], None]] = {
            ARRIVAL: self._take_arrival,
            DEPARTURE: self._take_departure,
            PAUSE: self._take_pause,
            PROCESS_CPU: self._take_last_cpu,
            COUNTED: self._take_counted,
            RESUMED: self._take_resumed,
            # the nanny's message may come after its worker's departure, but before another worker arrives at the
            # address
            KILLED: lambda row, _: self._learn(row, killed_memory=row["memory"]),
            CLOSING: lambda row, _: self._learn(row, closing=row["time"]),
            GPU: self._take_gpu,
            JOB: lambda row, rest: self._learn(row, of_job=(_checked_job(json.loads(rest)), row["time"])),
        }
        self.readers = {kind: Layout(kind.fields, texts).reader(take) for kind, take in takes.items()}
        self.readers[SAMPLE] = self._take_sample
        self._texts = texts
        self._clocks = clocks
        self._of_samples = Layout(SAMPLE.fields, texts)
        self._samples = bytearray()
        self._gpu: dict[tuple[str, float], Row] = {}
        self._executing: dict[str | None, int] = {}
        self._lifetimes: list[Row] = []
        self._present: dict[str, Row] = {}
        self._pauses: list[Row] = []
        self._pausing: dict[str, Row] = {}
        self._counted: dict[tuple[str, int], Counts] = {}
        self._impossible = 0
        self._before: dict[str, Row] = {}
        self.gaps: list[tuple[float, float]] = []
        """Start and end of each period without records, on the scheduler's clock."""
        self.loads: list[dict[str, Any]] = []
        """First and last load (`limits.load`) of each departed worker."""

    # reading

    def _take_arrival(self, row: Row, _: bytes) -> None:
        row |= {name: row[name] or None for name in ("process", "memory_limit")}
        before = self._before.pop(row["worker"], None)
        if before is not None and before["process"] == row["process"]:
            before |= {"stop": None, "again": row["time"], "sampled_cpu": None}
            self._present[row["worker"]] = before
            return
        row |= {"start": row.pop("time"), "stop": None, "cpu_seconds": None, "killed_memory": None}
        self._present[row["worker"]] = row
        self._lifetimes.append(row)

    def _take_resumed(self, times: Row, _: bytes) -> None:
        """After a gap, record present workers as new arrivals and all other workers as departed."""
        since, time = times.values()
        if not (math.isfinite(since) and math.isfinite(time)):
            raise ValueError("it has no times")
        for worker, row in self._present.items():
            self._end_pause(worker, since)
            row |= {"stop": since, "cpu_before": _cpu_of(row)}
        self._before, self._present = self._present, {}
        self._executing.clear()
        self.gaps.append((since, time))

    def _take_gpu(self, row: Row, _: bytes) -> None:
        self._gpu[row.pop("worker"), row.pop("time")] = row

    def _take_departure(self, row: Row, _: bytes) -> None:
        self._present.pop(row["worker"])["stop"] = row["time"]
        self._executing.pop(row["worker"], None)
        self._end_pause(row["worker"], row["time"])

    def _take_pause(self, row: Row, _: bytes) -> None:
        self._end_pause(row["worker"], row["time"])
        if row["paused"]:
            self._pausing[row["worker"]] = {"worker": row["worker"], "start": row["time"], "stop": None}
            self._pauses.append(self._pausing[row["worker"]])

    def _end_pause(self, worker: str, time: float) -> None:
        self._pausing.pop(worker, {})["stop"] = time

    def _learn(self, row: Row, **known: Any) -> None:
        """Add values to the lifetime of the latest worker at this address."""
        for lifetime in self._of_worker(row["worker"])[-1:]:
            lifetime.update(known)

    def _take_last_cpu(self, row: Row, rest: bytes) -> None:
        """Record the last message from a worker, which is sent just before or after the worker departs."""
        self.loads += json.loads(rest or b"[]")
        self._learn(row, cpu_seconds=row["cpu_seconds"])

    def _take_counted(self, row: Row, rest: bytes) -> None:
        counts = {_hashable(key): float(amount) for key, amount in json.loads(inflated(rest))}
        self._counted[row["worker"], len(self._of_worker(row["worker"]))] = counts

    def _take_sample(self, payload: bytes) -> None:
        values = self._of_samples.values(payload)
        worker = values[0]
        if worker == NO_STRING:
            raise LookupError("it has no worker")
        address = self._texts[worker]
        self._executing[address] = values[EXECUTING]
        lifetime = self._present.get(address or "")
        # CPU time starts at 0 when the worker arrives, and after each gap
        if lifetime is not None and values[SEEN] >= (lifetime.get("again") or lifetime["start"]):
            lifetime["sampled_cpu"] = lifetime.get("sampled_cpu") if math.isnan(values[CPU]) else values[CPU]
        self._samples += payload[: self._of_samples.size]

    def _of_worker(self, worker: str) -> list[Row]:
        return [lifetime for lifetime in self._lifetimes if lifetime["worker"] == worker]

    # tables

    @property
    def here(self) -> int:
        """Number of current workers, according to the log so far."""
        return len(self._present)

    @property
    def names(self) -> set[str]:
        """Names of the workers that have arrived so far."""
        return {str(row["name"]) for row in list(self._lifetimes)}

    @property
    def silent(self) -> list[int]:
        """Process IDs of workers that departed without sending a last message."""
        return [row["process"] for row in self._lifetimes if row["stop"] is not None and row["cpu_seconds"] is None]

    @property
    def threads(self) -> tuple[int, int] | None:
        """Current number of worker threads, and the number that are executing tasks; None if unknown."""
        found = [
            (row["threads"], min(self._executing[worker], row["threads"]))
            for worker, row in list(self._present.items())
            if worker in self._executing
        ]
        return (sum(all_of for all_of, _ in found), sum(busy for _, busy in found)) if found else None

    @property
    def problems(self) -> list[str]:
        text = f"{counted(self._impossible, 'worker CPU time')} {were(self._impossible)} impossible and discarded"
        return [text] if self._impossible else []

    def counted(
        self, present: Iterable[tuple[str, Iterable[tuple[Any, float]]]], spans: Iterable[str | None]
    ) -> dict[str, Counts]:
        """Dask's counts for each worker: counts from tasks in these spans, and counts recorded outside tasks.

        Parameters
        ----------
        present
            Addresses and counts of the present workers. The counts of departed workers are in the log.
        spans
            Span IDs.
        """
        spans = set(spans)
        counted: dict[str, Counts] = {}
        left = ((worker, counts.items()) for (worker, _), counts in self._counted.items())
        for worker, counts in (*left, *present):
            counted[worker] = added_up([counted.get(worker, {}), of_spans(dict(counts), spans)])
        return counted

    def lifetimes(self, offset: float, start: float, stop: float) -> pa.Table:
        """Worker lifetimes between start and stop, on the client's clock."""
        clocks = self._clocks()
        self._impossible, rows = 0, []
        for lifetime in self._lifetimes:
            begin, end = _within(lifetime, offset, start, stop)
            cpu = _cpu_of(lifetime)
            # the count may also include a few seconds before and after the run
            if cpu is not None and not 0 <= cpu <= MOST_CORES * (max(end - begin, 0.0) + 10.0):
                cpu, self._impossible = None, self._impossible + 1
            clock = clocks.get(lifetime["worker"], math.nan)
            known, closing = lifetime.get("of_job"), lifetime.get("closing")
            rows.append(
                {name: value for name, value in lifetime.items() if name not in OF_READING}
                | ({} if known is None else job_columns(known[0], known[1] - offset))
                | {"closing": None if closing is None else max(closing - offset, start)}
                | {"start": min(begin, stop), "stop": max(end, begin), "cpu_seconds": cpu}
                | {"clock_offset": None if math.isnan(clock) else clock + offset}
            )
        return table_of_rows(LIFETIME_COLUMNS, rows)

    def pauses(self, offset: float, start: float, stop: float) -> pa.Table:
        """Worker pauses between start and stop, on the client's clock."""
        spans = [_within(pause, offset, start, stop) for pause in self._pauses]
        rows = [pause | {"start": begin, "stop": end} for pause, (begin, end) in zip(self._pauses, spans, strict=True)]
        return table_of_rows(PAUSE_COLUMNS, [row for row in rows if row["start"] < row["stop"]])

    def samples(self, offset: float) -> pa.Table:
        """Table of worker samples; `offset` is the scheduler's clock minus the client's clock, in seconds."""
        rows = self._of_samples.rows(self._samples)
        limits = {lifetime["worker"]: lifetime["memory_limit"] for lifetime in self._lifetimes}
        limit_of = pa.array([limits.get(text) for text in self._texts.known], pa.int64())
        columns: dict[str, pa.Array] = {name: _measured(rows[name]) for name, _ in SAMPLE.fields}
        workers = self._texts.column(rows["worker"])
        columns |= {
            "worker": workers,
            "memory_limit": limit_of.take(pa.array(rows["worker"])),
            "noted": pc.add(columns["last_seen"], pc.subtract(columns["noted"], offset)),
        }
        taken = zip(workers.to_pylist(), rows["time"].tolist(), strict=True) if self._gpu else ()
        loads = [self._gpu.get(each, NO_GPU) for each in taken]
        for name, unknown in NO_GPU.items():
            columns[name] = _measured(np.array([load[name] for load in loads] or np.full(len(rows), unknown)))
        return table_of_columns(SAMPLE_COLUMNS, columns)


def _cpu_of(lifetime: Row) -> float | None:
    """A worker's CPU time over all recorded periods. The counter restarts after a gap."""
    cpu: float | None = lifetime.get("sampled_cpu") if lifetime["cpu_seconds"] is None else lifetime["cpu_seconds"]
    before: float | None = lifetime.get("cpu_before")
    return before if cpu is None else cpu + (before or 0.0)


def _checked_job(known: Any) -> dict[str, Any]:
    texts = {column.name for column in LIFETIME_COLUMNS if column.kind == "text"}
    for name, value in known.items() if isinstance(known, dict) else [("", None)]:
        fits = isinstance(value, str) if name in texts else isinstance(value, int | float) and math.isfinite(value)
        if not fits:
            raise ValueError(f"{name or 'it'} is {type(value).__name__}")
    return dict(known)


def job_columns(known: Mapping[str, Any], now: float) -> Row:
    """Batch job columns for `lifetimes`.

    Parameters
    ----------
    known
        A worker's job description.
    now
        Time of the description, on the client's clock.
    """
    start, age, closes = (known.get(name) for name in ("job_start", "job_age", "closes_in"))
    row = {name: known.get(name) for name in OF_JOB}
    row["job_start"] = now - age if start is None and age is not None else start
    row["lifetime_end"] = None if closes is None else now + closes
    return row


def _within(row: Row, offset: float, start: float, stop: float) -> tuple[float, float]:
    """Clip an interval to the run. An interval without an end lasts until `stop`."""
    end = stop if row["stop"] is None else min(row["stop"] - offset, stop)
    return max(row["start"] - offset, start), end


def _measured(values: Rows) -> pa.Array:
    if values.dtype.kind == "f":
        return pa.array(values.astype(np.float64), from_pandas=True)
    integers = values.astype(np.int64)
    return pa.array(integers, mask=integers == NO_SIZE)


def _hashable(key: Any) -> Any:
    return tuple(map(_hashable, key)) if isinstance(key, list) else key


UNREADABLE: Final = (LookupError, TypeError, ValueError, struct.error, zlib.error)
"""Exceptions raised when an entry is damaged or comes from another version."""

Readers = Mapping[Kind, Callable[[bytes], None]]


class ClusterLog:
    """A scheduler plugin's records, received as entries and returned as tables.

    An unreadable entry is skipped and counted, and later entries are read as if it did not exist. Each part reads
    certain kinds of entries: attempts and samples, workers, or chunk records. `read_also` adds readers for further
    kinds.
    """

    def __init__(self) -> None:
        self.texts = Texts()
        self.attempts = AttemptLog(self.texts)
        self.workers = WorkerLog(self.texts, self.attempts.clocks)
        self.sampling = SamplingLog(self.texts)
        self.received = ReceivedRecords()
        self._problems: list[str] = []
        self._unreadable: Counter[str] = Counter()
        self._readers: dict[bytes, Callable[[bytes], None]] = {}
        of_texts = {STRING: self.texts.take, PROBLEM: lambda text: self._problems.append(text_of(text))}
        of_parts = self.attempts.readers | self.workers.readers | self.sampling.readers
        self.read_also({CHUNK: self.received.take, **of_texts, **of_parts})

    def read_also(self, readers: Readers) -> None:
        """Add readers for further entry kinds; they raise an `UNREADABLE` exception for a damaged entry."""
        self._readers |= {kind.code: read for kind, read in readers.items()}

    def feed(self, data: bytes) -> None:
        """Read the next complete entries of the log, in order."""
        at = 0
        while at < len(data):
            try:
                code, length = struct.unpack_from(HEADER, data, at)
            except struct.error as problem:
                self._skip("a truncated header", problem)
                return
            start = at + HEADER_SIZE
            at = start + length
            try:
                self._readers[code](data[start:at])
            except UNREADABLE as problem:
                self._skip(f"kind {code[0]}, {length} B", problem)

    @property
    def problems(self) -> list[str]:
        what = f"{self._unreadable.total()} scheduler log entries could not be read and were skipped"
        unreadable = [f"{what}; the first: {first}" for first in self._unreadable][:1]
        return [*self._problems, *unreadable, *self.attempts.problems, *self.workers.problems, *self.sampling.problems]

    def _skip(self, entry: str, problem: Exception) -> None:
        self._unreadable[f"{entry} ({error_text(problem)})"] += 1
