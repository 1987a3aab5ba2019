"""A run as a trace for Perfetto and Chrome: a track for each worker thread, and counters.

The format is Chrome's JSON: processes and threads are numbered, times are microseconds from the start of the trace. A
worker is a process. Slices of a track must not overlap unless one is inside the other; integer nanoseconds make this
exact. https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

import gzip
import io
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from itertools import chain, count
from pathlib import PurePath
from typing import Any, BinaryIO, Final, NamedTuple, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roastcoffea.metrics.facts import clock_offsets
from roastcoffea.metrics.phases import PHASES
from roastcoffea.metrics.statistics import Numbers
from roastcoffea.records import tasks as task_records
from roastcoffea.records.chunks import OK
from roastcoffea.records.run import Run
from roastcoffea.visualization.inputs import on_clients_clock

Event = dict[str, Any]
Row = dict[str, Any]

NANOSECONDS: Final = 1_000_000_000
TOUCHING: Final = 1_000_000
"""Tolerance between clocks in nanoseconds: a slice that starts this much before another's end is cut there."""

MOST_POINTS: Final = 10_000
"""Most values of the storage rate; beyond that, neighbours are averaged, which keeps their bytes."""

TASK_FACTS: Final = ("key", "run_id", "kind", "attempt", "outcome", "error", "type", "nbytes")
TASK_COLUMNS: Final = ("thread", "start", "stop", "prefix", *TASK_FACTS)
CHUNK_FACTS: Final = (
    *("dataset", "file", "tree", "entry_start", "entry_stop", "events", "call", "attempt", "outcome", "error"),
    *("bytes_requested", "bytes_payload", "bytes_metadata", "bytes_transferred", "bytes_uncompressed", "branches"),
    *("cpu_seconds", "helper_cpu_seconds", "memory_peak", "overlaps", "custom"),
)
CALL_FACTS: Final = ("id", "executor", "outcome", "error", "chunks", "files")
OPENING_FACTS: Final = ("dataset", "file", "outcome", "error", "bytes_requested")

STEPS: Final = tuple(phase.name for phase in PHASES if phase.in_process)
PARTS: Final = tuple(dict.fromkeys("process" if phase.in_process else phase.name for phase in PHASES))
"""Phases of an attempt; those of STEPS alternate inside "process"."""

LAID_OUT: Final = {"place": "in sequence, each with its total duration; in reality they alternate"}


class Slice(NamedTuple):
    """Work of a thread, in nanoseconds from the start, with the slices inside it."""

    name: str
    category: str
    start: int
    stop: int
    facts: Mapping[str, Any]
    inner: Sequence[Slice] = ()
    failed: bool = False

    def cut(self, low: int, high: int) -> Slice:
        """The slice and those inside it, cut to these moments."""
        start, stop = max(self.start, low), min(self.stop, high)
        stop = max(stop, start)
        return self._replace(start=start, stop=stop, inner=[one.cut(start, stop) for one in self.inner])

    def events(self, process: int, thread: int) -> Iterator[Event]:
        """Events of the slice and of those inside it."""
        event = {"ph": "X", "name": self.name, "cat": self.category, "ts": self.start / 1000}
        event |= {"dur": (self.stop - self.start) / 1000, "pid": process, "tid": thread, "args": self.facts}
        # Chrome's name for red
        yield event | ({"cname": "terrible"} if self.failed else {})
        for one in self.inner:
            yield from one.events(process, thread)


def write_perfetto(run: Run, file: BinaryIO, *, packed: bool = False) -> None:
    """Write a run as a trace, compressed if `packed`."""
    trace = Trace(run)
    facts: dict[str, Any] = {"run": run.id, "name": run.name, "outcome": run.outcome, "error": run.error}
    facts |= {"start_unix_seconds": trace.origin, "problems": list(run.problems)}
    head = {"displayTimeUnit": "ms", "otherData": facts}
    with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) if packed else nullcontext(file) as target:
        text = io.TextIOWrapper(cast(BinaryIO, target), "utf-8", newline="")
        text.write(_encoded(head)[:-1] + ', "traceEvents": [\n')
        for number, event in enumerate(trace.events()):
            text.write((",\n" if number else "") + _encoded(event))
        text.write("\n]}\n")
        text.detach()


_encoded: Final = json.JSONEncoder(allow_nan=False, check_circular=False).encode


class Trace:
    """The events of a run."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._numbers = count(1)
        moments = ((run.tasks, "start"), (run.chunks, "start"), (run.preprocessing, "start"), (run.samples, "time"))
        begun = [pc.min(table[name]).as_py() for table, name in moments if table is not None]
        self._offsets = clock_offsets(run)
        ahead = max(self._offsets.values(), default=0.0)
        self.origin: float = min([run.start, *(moment - ahead for moment in begun if moment is not None)])
        """Start of the first slice."""
        on_workers = ((run.chunks, ("start", "stop")), (run.preprocessing, ("start", "stop")), (run.samples, ("time",)))
        chunks, openings, samples = (table and on_clients_clock(run, table, *names) for table, names in on_workers)
        self._tasks, self._attempts, self._openings = map(_by_worker, (run.tasks, chunks, openings))
        self._rate = _rate(chunks, openings)
        self._memory = {worker: _memory(table) for worker, table in _by_worker(samples).items()}

    def events(self) -> Iterator[Event]:
        """All events: of the run, then of each worker."""
        process = next(self._numbers)
        yield from _named(process, "run", 0)
        yield from self._tracks(process, {"Runner calls": [_call(call, self) for call in self._run.calls]})
        starts, stops = _known_columns(["start", "stop"], self._run.lifetimes)
        yield from self._counter(process, "workers", "workers", steps(starts, stops, np.ones(len(starts), np.int64)))
        yield from self._counter(process, "memory of all workers", "bytes", self._memory_of_all())
        yield from self._counter(process, "storage rate", "Gbit/s", self._rate)
        workers = sorted({*self._tasks, *self._attempts, *self._openings, *self._memory, *self._offsets}, key=str)
        for place, worker in enumerate(workers, 1):
            yield from self._worker(worker, place)

    def at(self, moment: float) -> int:
        """Nanoseconds from the start."""
        return round((moment - self.origin) * NANOSECONDS)

    def _worker(self, worker: str | None, place: int) -> Iterator[Event]:
        process = next(self._numbers)
        yield from _named(process, f"worker {worker}" if worker else "unknown worker", place)
        lanes: dict[str, list[Slice]] = defaultdict(list)
        attempts = self._slices_of_attempts(worker)
        for row in self._rows(self._tasks, worker, TASK_COLUMNS):
            if row["start"] is not None:
                within = [one for _, one in attempts.pop((row["key"], row["run_id"]), [])]
                lanes[_lane(row["thread"])].append(self._task(row, within))
        for lane, one in chain.from_iterable(attempts.values()):
            lanes[lane].append(one)
        yield from self._tracks(process, dict(sorted(lanes.items())))
        yield from self._counter(process, "memory", "bytes", self._memory.get(worker, ((), ())))

    def _rows(self, tables: Mapping[str | None, pa.Table], worker: str | None, names: Sequence[str]) -> Iterator[Row]:
        if worker in tables:
            for batch in tables[worker].select(list(dict.fromkeys(names))).to_batches(max_chunksize=10_000):
                yield from batch.to_pylist()

    def _slices_of_attempts(self, worker: str | None) -> dict[Any, list[tuple[str, Slice]]]:
        """Slices of attempts of chunks and file openings with their thread, by task; those without a task
        separately."""
        names = ("thread", "start", "stop", "key", "run_id")
        phases = [f"{name}_seconds" for name in (*PARTS, *STEPS)]
        found: dict[Any, list[tuple[str, Slice]]] = defaultdict(list)
        for tables, facts, more in ((self._attempts, CHUNK_FACTS, phases), (self._openings, OPENING_FACTS, [])):
            for row in self._rows(tables, worker, (*names, *facts, *more)):
                if row["start"] is not None and row["stop"] is not None:
                    task = len(found) if row["key"] is None else (row["key"], row["run_id"])
                    attempt = _attempt(row, self.at(row["start"]), self.at(row["stop"]), facts)
                    found[task].append((_lane(row["thread"]), attempt))
        return found

    def _task(self, row: Row, inner: list[Slice]) -> Slice:
        """Slice of a task; without a known end it is as long as its known parts."""
        start = self.at(row["start"])
        last = max([start, *(one.stop for one in inner)])
        stop = last if row["stop"] is None else max(self.at(row["stop"]), start)
        name = row["prefix"] or row["kind"] or "task"
        facts = _known(row, TASK_FACTS) | ({"stop": "unknown"} if row["stop"] is None else {})
        failed = row["outcome"] != task_records.OK
        return Slice(name, str(row["kind"]), start, stop, facts, _placed(inner, start, stop), failed)

    def _tracks(self, process: int, lanes: Mapping[str, list[Slice]]) -> Iterator[Event]:
        """Tracks of threads, with another one if slices of a thread overlap."""
        place = 0
        for name, slices in lanes.items():
            for number, track in enumerate(_tracks_of(slices)):
                thread, place = next(self._numbers), place + 1
                label = name if not number else f"{name} (at the same time)"
                yield from _named(process, label, place, thread)
                for one in track:
                    yield from one.events(process, thread)

    def _counter(self, process: int, name: str, unit: str, series: tuple[Any, Any]) -> Iterator[Event]:
        times, values = (np.asarray(each).tolist() for each in series)
        for moment, value in zip(times, values, strict=True):
            ts = max(self.at(moment), 0) / 1000
            yield {"ph": "C", "name": name, "pid": process, "ts": ts, "args": {unit: value}}

    def _memory_of_all(self) -> tuple[Numbers, Numbers]:
        """Memory of all workers: the last sample of each, until it left."""
        lifetimes, end = self._run.lifetimes, self._run.stop
        rows = [] if lifetimes is None else lifetimes.select(["worker", "stop"]).to_pylist()
        left = {row["worker"]: row["stop"] for row in rows if row["stop"] is not None}
        moments: list[Numbers] = [np.empty(0)]
        changes: list[Any] = [np.empty(0, np.int64)]
        for worker, (times, sizes) in self._memory.items():
            last = slice(-1, None) if left.get(worker, end) < end else slice(0)
            moments += [times, np.maximum(times[last], left.get(worker, end))]
            changes += [np.diff(sizes, prepend=0), -sizes[last]]
        time, change = np.concatenate(moments), np.concatenate(changes)
        order = np.lexsort((change, time))
        return time[order], np.cumsum(change[order])


def _known_columns(names: list[str], *tables: pa.Table | None) -> list[Numbers]:
    """Columns of the rows that have all of them."""
    known = [table.select(names).drop_null() for table in tables if table is not None]
    return [np.concatenate([np.empty(0), *(table[name].to_numpy() for table in known)]) for name in names]


def _memory(samples: pa.Table) -> tuple[Numbers, Numbers]:
    """Times and values of the samples of a worker's memory."""
    times, sizes = _known_columns(["time", "memory"], samples)
    order = np.lexsort((sizes, times))
    return times[order], sizes[order].astype(np.int64)


def _rate(*requests: pa.Table | None) -> tuple[Numbers, Numbers]:
    """Gbit/s: requested bytes of each attempt, spread over its duration."""
    rows = np.array(_known_columns(["start", "stop", "bytes_requested"], *requests))
    starts, stops, sizes = rows[:, rows[1] > rows[0]]
    return steps(starts, stops, 8e-9 * sizes / (stops - starts))


def steps(starts: Numbers, stops: Numbers, heights: Numbers) -> tuple[Numbers, Numbers]:
    """Changes of the sum of intervals, each with its own height: times and values, at most MOST_POINTS.

    Sums of integers are integers, unless neighbours are averaged.
    """
    moments = np.concatenate([starts, stops])
    times, places = np.unique(moments, return_inverse=True)
    changes = np.zeros_like(heights, shape=len(times))
    np.add.at(changes, places, np.concatenate([heights, -heights]))
    sums = np.cumsum(changes)
    if len(sums):
        sums[-1] = 0  # rounding errors
    if len(times) <= MOST_POINTS:
        return times, np.maximum(sums, 0)
    areas = np.concatenate([[0.0], np.cumsum(sums[:-1] * np.diff(times))])
    edges = np.linspace(times[0], times[-1], MOST_POINTS)
    means = np.diff(np.interp(edges, times, areas)) / np.diff(edges)
    return edges, np.append(np.maximum(means, 0.0), 0.0)


def _tracks_of(slices: Iterable[Slice]) -> list[list[Slice]]:
    """Slices on as few tracks as possible without overlaps; slices that barely overlap are cut."""
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
    """Slices moved in sequence between these moments, because their times come from another clock."""
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
    """Slice of an attempt of a chunk with its phases, or of a file opening."""
    stop = max(start, stop)
    is_chunk = facts is CHUNK_FACTS
    inner = _sequence(row, PARTS, start, stop, {}) if is_chunk else []
    name = f"{row['dataset']}: {PurePath(row['file'] or '').name}" if row["dataset"] else "chunk"
    category = "chunk" if is_chunk else task_records.PREPROCESSING
    return Slice(name, category, start, stop, _known(row, facts), inner, row["outcome"] not in (OK, "checkpoint"))


def _sequence(row: Row, names: Sequence[str], start: int, stop: int, facts: Mapping[str, Any]) -> list[Slice]:
    """Phases with a known, positive duration, in sequence up to a moment."""
    found: list[Slice] = []
    for name in names:
        seconds = row[f"{name}_seconds"]
        if seconds:
            end = start + round(seconds * NANOSECONDS)
            within = _sequence(row, STEPS, start, min(end, stop), LAID_OUT) if name == "process" else []
            found.append(Slice(name, "phase", start, end, {"seconds": seconds, **facts}, within).cut(start, stop))
            start = found[-1].stop
    return found


def _call(call: Any, trace: Trace) -> Slice:
    facts = _known({name: getattr(call, name) for name in CALL_FACTS}, CALL_FACTS)
    start, stop = trace.at(call.start), trace.at(call.stop)
    return Slice(call.processor, "Runner call", start, max(start, stop), facts, failed=call.error is not None)


def _known(row: Row, names: Sequence[str]) -> dict[str, Any]:
    """Known facts that JSON can hold."""
    known = {name: row[name] for name in names if row[name] is not None}
    return {name: value for name, value in known.items() if not isinstance(value, float) or math.isfinite(value)}


def _lane(thread: int | None) -> str:
    return "unknown thread" if thread is None else f"thread {thread}"


def _named(process: int, name: str, place: int, thread: int | None = None) -> Iterator[Event]:
    """Events that name a process or thread and set its position."""
    kind = "process" if thread is None else "thread"
    where = {"ph": "M", "pid": process} | ({} if thread is None else {"tid": thread})
    yield where | {"name": f"{kind}_name", "args": {"name": name}}
    yield where | {"name": f"{kind}_sort_index", "args": {"sort_index": place}}


def _by_worker(table: pa.Table | None) -> dict[str | None, pa.Table]:
    """Rows of each worker."""
    if table is None or not len(table):
        return {}
    ordered = table.sort_by("worker").combine_chunks()
    runs = pc.run_end_encode(ordered["worker"].combine_chunks())
    ends = runs.run_ends.to_pylist()
    bounds = zip(runs.values.to_pylist(), [0, *ends], ends, strict=False)
    return {worker: ordered.slice(low, high - low) for worker, low, high in bounds}
