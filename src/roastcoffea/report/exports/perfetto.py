"""A run as a trace that Perfetto and Chrome show: a track for each worker thread, and counters.

The format is Chrome's JSON: processes and threads are numbered, times are microseconds from the beginning of the trace.
A worker is a process. Slices of a track never overlap, unless one lies within the other; here times are whole
nanoseconds, so that this is exact. https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

import gzip
import io
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from itertools import count
from pathlib import PurePath
from typing import Any, BinaryIO, Final, NamedTuple

import numpy as np
import pyarrow as pa

from roastcoffea.metrics.facts import clock_offsets
from roastcoffea.metrics.phases import PHASES
from roastcoffea.metrics.statistics import Numbers
from roastcoffea.records import tasks as task_records
from roastcoffea.records.chunks import OK
from roastcoffea.records.run import Run

Event = dict[str, Any]
Row = dict[str, Any]

NANOSECONDS: Final = 1_000_000_000
TOUCHING: Final = 1_000_000
"""Nanoseconds by which clocks may differ: a slice that begins so much before the last one's end is cut there."""

MOST_POINTS: Final = 10_000
"""Values of the storage rate; where there are more, neighbours are averaged, so that their bytes stay the same."""

TASK_COLUMNS: Final = ("worker", "thread", "start", "stop", "key", "run_id", "prefix", "kind", "attempt", "outcome")
TASK_FACTS: Final = ("key", "run_id", "kind", "attempt", "outcome", "error", "type", "nbytes")
CHUNK_FACTS: Final = (
    *("dataset", "file", "tree", "entry_start", "entry_stop", "events", "call", "attempt", "outcome", "error"),
    *("bytes_requested", "bytes_payload", "bytes_metadata", "bytes_transferred", "bytes_uncompressed", "branches"),
    *("cpu_seconds", "helper_cpu_seconds", "memory_peak", "overlaps"),
)
CALL_FACTS: Final = ("id", "executor", "outcome", "error", "chunks", "files")
OPENING_FACTS: Final = ("dataset", "file", "outcome", "error", "bytes_requested")

STEPS: Final = tuple(phase.name for phase in PHASES if phase.in_process)
PARTS: Final = tuple(dict.fromkeys("process" if phase.in_process else phase.name for phase in PHASES))
"""Phases of an attempt: those of STEPS alternate within "process"."""

LAID_OUT: Final = {"place": "one after another, each as long as its sum; in truth they alternate"}
RUN_TRACK: Final = "run"
CALLS: Final = "Runner calls"
FAILED_COLOUR: Final = "terrible"
"""Chrome's name for red."""


class Slice(NamedTuple):
    """Something that a thread did, in nanoseconds from the beginning, with what it did within."""

    name: str
    category: str
    start: int
    stop: int
    facts: Mapping[str, Any]
    inner: Sequence[Slice] = ()
    failed: bool = False

    def cut(self, low: int, high: int) -> Slice:
        """The slice with what lies within, between these moments."""
        start, stop = max(self.start, low), min(self.stop, high)
        stop = max(stop, start)
        return self._replace(start=start, stop=stop, inner=[one.cut(start, stop) for one in self.inner])

    def events(self, process: int, thread: int) -> Iterator[Event]:
        """Events of the slice and of those within it."""
        times = {"ts": self.start / 1000, "dur": (self.stop - self.start) / 1000}
        colour = {"cname": FAILED_COLOUR} if self.failed else {}
        place = {"pid": process, "tid": thread}
        yield {"ph": "X", "name": self.name, "cat": self.category} | times | place | {"args": self.facts} | colour
        for one in self.inner:
            yield from one.events(process, thread)


def write_perfetto(run: Run, file: BinaryIO, *, packed: bool = False) -> None:
    """Write a run as a trace; compressed where `packed`."""
    with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) if packed else nullcontext(file) as target:
        _write(run, target)


def _write(run: Run, file: Any) -> None:
    trace = Trace(run)
    text = io.TextIOWrapper(file, "utf-8", newline="")
    facts: dict[str, Any] = {"run": run.id, "name": run.name, "outcome": run.outcome, "error": run.error}
    facts |= {"start_unix_seconds": trace.origin, "problems": list(run.problems)}
    head = {"displayTimeUnit": "ms", "otherData": facts}
    text.write(_encoded(head)[:-1] + ', "traceEvents": [\n')
    before = ""
    for event in trace.events():
        text.write(before + _encoded(event))
        before = ",\n"
    text.write("\n]}\n")
    text.detach()


_encoded: Final = json.JSONEncoder(allow_nan=False, check_circular=False).encode


class Trace:
    """The events of a run."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._numbers = count(1)
        self._offsets, self._tasks, self._attempts = clock_offsets(run), _by_worker(run.tasks), _by_worker(run.chunks)
        self._openings = _by_worker(run.preprocessing)
        self._samples = _by_worker(run.samples)
        self.origin = self._beginning()

    def _beginning(self) -> float:
        """When the first thing in the trace began."""
        begun = [self._run.start]
        for table in (self._run.tasks, self._run.chunks, self._run.preprocessing, self._run.samples):
            name = "time" if table is self._run.samples else "start"
            known = [] if table is None else table[name].drop_null().to_numpy()
            begun += [float(np.min(known)) - max(self._offsets.values(), default=0.0)] if len(known) else []
        return min(begun)

    def events(self) -> Iterator[Event]:
        """All events: of the run, and worker by worker."""
        process = next(self._numbers)
        yield from _named(process, RUN_TRACK, 0)
        calls = [_call(call, self) for call in self._run.calls]
        yield from self._tracks(process, {CALLS: calls})
        yield from self._run_counters(process)
        workers = sorted({*self._tasks, *self._attempts, *self._openings, *self._samples, *self._offsets}, key=str)
        for place, worker in enumerate(workers, 1):
            yield from self._worker(worker, place)

    def at(self, moment: float, offset: float = 0.0) -> int:
        """Nanoseconds from the beginning, of a moment on a clock that is ahead by the offset."""
        return round((moment - offset - self.origin) * NANOSECONDS)

    def _worker(self, worker: str | None, place: int) -> Iterator[Event]:
        process = next(self._numbers)
        yield from _named(process, f"worker {worker}" if worker else "worker not known", place)
        lanes: dict[str, list[Slice]] = defaultdict(list)
        attempts = self._slices_of_attempts(worker)
        for row in self._rows(self._tasks, worker, (*TASK_COLUMNS, *TASK_FACTS)):
            if row["start"] is None:
                continue
            within = attempts.pop((row["key"], row["run_id"]), [])
            lanes[_lane(row["thread"])].append(self._task(row, [one for _, one in within]))
        for thread, one in (each for found in attempts.values() for each in found):
            lanes[thread].append(one)
        yield from self._tracks(process, dict(sorted(lanes.items())))
        yield from self._counter(process, "memory", "bytes", *self._worker_memory(worker))

    def _rows(self, tables: Mapping[str | None, pa.Table], worker: str | None, names: Sequence[str]) -> Iterator[Row]:
        if worker in tables:
            for batch in tables[worker].select(list(dict.fromkeys(names))).to_batches(max_chunksize=10_000):
                yield from batch.to_pylist()

    def _slices_of_attempts(self, worker: str | None) -> dict[Any, list[tuple[str, Slice]]]:
        """Slices of attempts of chunks and of openings of files with their thread, by task; each alone without one."""
        offset = self._offsets.get(worker, 0.0)
        phases = [f"{name}_seconds" for name in (*PARTS, *STEPS)]
        names = ("thread", "start", "stop", "key", "run_id")
        found: dict[Any, list[tuple[str, Slice]]] = defaultdict(list)
        chunks = self._rows(self._attempts, worker, (*names, *CHUNK_FACTS, *phases))
        openings = self._rows(self._openings, worker, (*names, *OPENING_FACTS))
        for number, (row, facts) in enumerate(
            [*((row, CHUNK_FACTS) for row in chunks), *((row, OPENING_FACTS) for row in openings)]
        ):
            if row["start"] is not None and row["stop"] is not None:
                task = number if row["key"] is None else (row["key"], row["run_id"])
                start, stop = (self.at(row[name], offset) for name in ("start", "stop"))
                found[task].append((_lane(row["thread"]), _attempt(row, start, stop, facts)))
        return found

    def _task(self, row: Row, inner: list[Slice]) -> Slice:
        """Slice of a task; one without an end that is known is as long as what is known of it."""
        start = self.at(row["start"])
        last = max([start, *(one.stop for one in inner)])
        stop = last if row["stop"] is None else max(self.at(row["stop"]), start)
        name = row["prefix"] or row["kind"] or "task"
        facts = _known(row, TASK_FACTS) | ({"stop": "not known"} if row["stop"] is None else {})
        failed = row["outcome"] != task_records.OK
        return Slice(name, str(row["kind"]), start, stop, facts, _placed(inner, start, stop), failed)

    def _tracks(self, process: int, lanes: Mapping[str, list[Slice]]) -> Iterator[Event]:
        """Tracks of threads, with one more where slices of a thread overlap."""
        place = 0
        for name, slices in lanes.items():
            for number, track in enumerate(_tracks_of(slices)):
                thread, place = next(self._numbers), place + 1
                label = name if not number else f"{name} (at the same time)"
                yield from _named(process, label, place, thread)
                for one in track:
                    yield from one.events(process, thread)

    def _run_counters(self, process: int) -> Iterator[Event]:
        yield from self._counter(process, "workers", "workers", *_workers(self._run))
        yield from self._counter(process, "memory of all workers", "bytes", *self._memory())
        yield from self._counter(process, "storage rate", "Gbit/s", *self._rate())

    def _counter(
        self, process: int, name: str, unit: str, times: Iterable[float], values: Iterable[float]
    ) -> Iterator[Event]:
        for moment, value in zip(times, np.asarray(values).tolist(), strict=True):
            ts = max(self.at(float(moment)), 0) / 1000
            yield {"ph": "C", "name": name, "pid": process, "ts": ts, "args": {unit: value}}

    def _worker_memory(self, worker: str | None) -> tuple[list[float], list[int]]:
        """When the worker's memory was sampled, and how much it was."""
        offset = self._offsets.get(worker, 0.0)
        rows = self._rows(self._samples, worker, ("time", "memory"))
        known = sorted((row["time"] - offset, row["memory"]) for row in rows if None not in row.values())
        return [moment for moment, _ in known], [size for _, size in known]

    def _memory(self) -> tuple[Numbers, Any]:
        """Memory of all workers: of each what its last sample tells, until it left."""
        changes: list[tuple[float, int]] = []
        left = _departures(self._run)
        for worker in self._samples:
            times, sizes = self._worker_memory(worker)
            changes += zip(times, np.diff(sizes, prepend=0).tolist(), strict=True)
            if sizes and left.get(worker, self._run.stop) < self._run.stop:
                changes.append((max(left[worker], times[-1]), -sizes[-1]))
        changes.sort()
        moments = np.array([moment for moment, _ in changes], dtype=np.float64)
        return moments, np.cumsum([change for _, change in changes], dtype=np.int64)

    def _rate(self) -> tuple[Numbers, Numbers]:
        """Gbit/s: the bytes that each attempt requested, spread over its time."""
        rows: list[Any] = [
            (row["start"] - offset, row["stop"] - offset, row["bytes_requested"])
            for tables in (self._attempts, self._openings)
            for worker, offset in ((worker, self._offsets.get(worker, 0.0)) for worker in tables)
            for row in self._rows(tables, worker, ("start", "stop", "bytes_requested"))
            if None not in row.values() and row["stop"] > row["start"]
        ]
        starts, stops, sizes = np.array(rows, dtype=np.float64).reshape(-1, 3).T
        return steps(starts, stops, 8e-9 * sizes / (stops - starts))


def steps(starts: Numbers, stops: Numbers, heights: Numbers) -> tuple[Numbers, Numbers]:
    """When the sum of intervals, each of its own height, changes, and to what; at most MOST_POINTS."""
    moments = np.concatenate([starts, stops])
    times, places = np.unique(moments, return_inverse=True)
    changes = np.zeros(len(times))
    np.add.at(changes, places, np.concatenate([heights, -heights]))
    sums = np.cumsum(changes)
    if len(sums):
        sums[-1] = 0.0  # what is left of rounding
    if len(times) <= MOST_POINTS:
        return times, np.maximum(sums, 0.0)
    areas = np.concatenate([[0.0], np.cumsum(sums[:-1] * np.diff(times))])
    edges = np.linspace(times[0], times[-1], MOST_POINTS)
    means = np.diff(np.interp(edges, times, areas)) / np.diff(edges)
    return edges, np.append(np.maximum(means, 0.0), 0.0)


def _tracks_of(slices: Iterable[Slice]) -> list[list[Slice]]:
    """Slices on as few tracks as it takes for none to overlap; one that barely does is cut."""
    tracks: list[list[Slice]] = []
    for one in sorted(slices, key=lambda each: (each.start, each.stop)):
        for track in tracks:
            if track[-1].stop - one.start <= min(TOUCHING, max(one.stop - one.start, 0)):
                track.append(one.cut(track[-1].stop, one.stop))
                break
        else:
            tracks.append([one])
    return tracks


def _placed(inner: list[Slice], low: int, high: int) -> list[Slice]:
    """Slices moved to lie between these moments, one after another, as their moments come from another clock."""
    placed: list[Slice] = []
    for one in sorted(inner, key=lambda each: each.start):
        length = one.stop - one.start
        moved = min(max(one.start, low), max(high - length, low))
        placed.append(_moved(one, moved - one.start).cut(low, high))
        low = placed[-1].stop
    return placed


def _moved(one: Slice, by: int) -> Slice:
    return one._replace(start=one.start + by, stop=one.stop + by, inner=[_moved(each, by) for each in one.inner])


def _attempt(row: Row, start: int, stop: int, facts: Sequence[str]) -> Slice:
    """Slice of an attempt of a chunk with its phases, or of the opening of a file."""
    stop = max(start, stop)
    is_chunk = facts is CHUNK_FACTS
    inner = _sequence(row, PARTS, start, stop) if is_chunk else []
    inner = [_with_steps(one, row) if one.name == "process" else one for one in inner]
    name = f"{row['dataset']}: {PurePath(row['file'] or '').name}" if row["dataset"] else "chunk"
    category = "chunk" if is_chunk else task_records.PREPROCESSING
    return Slice(name, category, start, stop, _known(row, facts), inner, row["outcome"] not in (OK, "checkpoint"))


def _with_steps(process: Slice, row: Row) -> Slice:
    return process._replace(inner=_sequence(row, STEPS, process.start, process.stop, LAID_OUT))


def _sequence(
    row: Row, names: Sequence[str], start: int, stop: int, facts: Mapping[str, Any] | None = None
) -> list[Slice]:
    """Phases that are known and took time, one after another, up to a moment."""
    found: list[Slice] = []
    for name in names:
        seconds = row[f"{name}_seconds"]
        if seconds:
            end = start + round(seconds * NANOSECONDS)
            found.append(Slice(name, "phase", start, end, {"seconds": seconds} | dict(facts or {})).cut(start, stop))
            start = found[-1].stop
    return found


def _call(call: Any, trace: Trace) -> Slice:
    facts = _known({name: getattr(call, name) for name in CALL_FACTS}, CALL_FACTS)
    start, stop = trace.at(call.start), trace.at(call.stop)
    return Slice(call.processor, "Runner call", start, max(start, stop), facts, failed=call.error is not None)


def _known(row: Row, names: Sequence[str]) -> dict[str, Any]:
    """Facts that are known, and that JSON can hold."""
    values = ((name, row[name]) for name in names)
    return {
        name: value
        for name, value in values
        if value is not None and not (isinstance(value, float) and not math.isfinite(value))
    }


def _lane(thread: int | None) -> str:
    return "thread not known" if thread is None else f"thread {thread}"


def _named(process: int, name: str, place: int, thread: int | None = None) -> Iterator[Event]:
    """Events that name a process or thread and give it its place."""
    kind = "process" if thread is None else "thread"
    where = {"ph": "M", "pid": process} | ({} if thread is None else {"tid": thread})
    yield where | {"name": f"{kind}_name", "args": {"name": name}}
    yield where | {"name": f"{kind}_sort_index", "args": {"sort_index": place}}


def _by_worker(table: pa.Table | None) -> dict[str | None, pa.Table]:
    """Rows of each worker."""
    if table is None or not len(table):
        return {}
    ordered = table.sort_by("worker").combine_chunks()
    codes = ordered["worker"].combine_chunks().dictionary_encode(null_encoding="encode")
    workers = codes.dictionary.to_pylist()
    edges = np.flatnonzero(np.diff(codes.indices.to_numpy(), prepend=-1))
    bounds = [*edges.tolist(), len(ordered)]
    return {
        worker: ordered.slice(low, high - low)
        for worker, low, high in zip(workers, bounds[:-1], bounds[1:], strict=True)
    }


def _departures(run: Run) -> dict[str | None, float]:
    """When each worker left."""
    rows = [] if run.lifetimes is None else run.lifetimes.select(["worker", "stop"]).to_pylist()
    return {row["worker"]: row["stop"] for row in rows if row["stop"] is not None}


def _workers(run: Run) -> tuple[Numbers, Numbers]:
    """When the number of workers changed, and to what."""
    rows = [] if run.lifetimes is None else run.lifetimes.select(["start", "stop"]).drop_null().to_pylist()
    starts, stops = np.array([(row["start"], row["stop"]) for row in rows], dtype=np.float64).reshape(-1, 2).T
    return steps(starts, stops, np.ones(len(rows)))
