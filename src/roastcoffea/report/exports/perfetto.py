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
from pathlib import Path, PurePath
from typing import Any, BinaryIO, Final, NamedTuple, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roastcoffea.metrics.facts import clock_offsets
from roastcoffea.metrics.phases import PHASES
from roastcoffea.metrics.profile import PROFILE_FORMATS, profile_of
from roastcoffea.metrics.statistics import Numbers
from roastcoffea.records import workers as task_records
from roastcoffea.records.chunks import OK
from roastcoffea.records.run import Run
from roastcoffea.report.exports import Format
from roastcoffea.storage.folders import whole_file
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
    """Work of a thread, in nanoseconds from the start."""

    name: str
    category: str
    start: int
    stop: int
    facts: Mapping[str, Any]
    failed: bool = False


Slices = Sequence[Slice]
"""A slice, followed by those inside it."""


def within(slices: Slices, low: int, high: int, later: int = 0) -> Slices:
    """Slices moved by some time, and cut to these moments."""
    return [
        one._replace(start=min(max(one.start + later, low), high), stop=min(max(one.stop + later, low), high))
        for one in slices
    ]


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
        yield from self._tracks(process, {"Runner calls": [[_call(call, self)] for call in self._run.calls]})
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
        lanes: dict[str, list[Slices]] = defaultdict(list)
        attempts = self._slices_of_attempts(worker)
        for row in _rows(self._tasks, worker, TASK_COLUMNS):
            if row["start"] is not None:
                inner = [slices for _, slices in attempts.pop((row["key"], row["run_id"]), [])]
                lanes[_lane(row["thread"])].append(self._task(row, inner))
        for lane, slices in chain.from_iterable(attempts.values()):
            lanes[lane].append(slices)
        yield from self._tracks(process, dict(sorted(lanes.items())))
        yield from self._counter(process, "memory", "bytes", self._memory.get(worker, ((), ())))

    def _slices_of_attempts(self, worker: str | None) -> dict[Any, list[tuple[str, Slices]]]:
        """Slices of attempts of chunks and of files opened, each with its thread, by task; others on their own."""
        names = ("thread", "start", "stop", "key", "run_id")
        phases = [f"{name}_seconds" for name in (*PARTS, *STEPS)]
        found: dict[Any, list[tuple[str, Slices]]] = defaultdict(list)
        for tables, facts, more in ((self._attempts, CHUNK_FACTS, phases), (self._openings, OPENING_FACTS, [])):
            for row in _rows(tables, worker, (*names, *facts, *more)):
                if row["start"] is not None and row["stop"] is not None:
                    task = len(found) if row["key"] is None else (row["key"], row["run_id"])
                    start = self.at(row["start"])
                    attempt = _attempt(row, start, max(self.at(row["stop"]), start), facts)
                    found[task].append((_lane(row["thread"]), attempt))
        return found

    def _task(self, row: Row, attempts: Sequence[Slices]) -> Slices:
        """A task; without a known end it is as long as its known parts.

        Its attempts are moved in sequence into it, because their times come from another clock.
        """
        start = self.at(row["start"])
        last = max([start, *(outer.stop for outer, *_ in attempts)])
        stop = last if row["stop"] is None else max(self.at(row["stop"]), start)
        facts = _known(row, TASK_FACTS) | ({"stop": "unknown"} if row["stop"] is None else {})
        name, failed = row["prefix"] or row["kind"] or "task", row["outcome"] != task_records.OK
        slices = [Slice(name, str(row["kind"]), start, stop, facts, failed)]
        low = start
        for attempt in sorted(attempts, key=lambda each: each[0].start):
            begin, length = attempt[0].start, attempt[0].stop - attempt[0].start
            moved = within(attempt, low, stop, min(max(begin, low), max(stop - length, low)) - begin)
            low = moved[0].stop
            slices += moved
        return slices

    def _tracks(self, process: int, lanes: Mapping[str, Sequence[Slices]]) -> Iterator[Event]:
        """Tracks of threads, with another one if slices of a thread overlap."""
        place = 0
        for name, slices in lanes.items():
            for number, track in enumerate(_tracks_of(slices)):
                thread, place = next(self._numbers), place + 1
                yield from _named(process, f"{name} (at the same time)" if number else name, place, thread)
                for one in chain.from_iterable(track):
                    event = {"ph": "X", "name": one.name, "cat": one.category, "ts": one.start / 1000}
                    event |= {"dur": (one.stop - one.start) / 1000, "pid": process, "tid": thread, "args": one.facts}
                    # Chrome's name for red
                    yield event | ({"cname": "terrible"} if one.failed else {})

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


def _tracks_of(slices: Iterable[Slices]) -> list[list[Slices]]:
    """Slices on as few tracks as possible without overlaps; those that barely overlap are cut."""
    tracks: list[list[Slices]] = []
    for one in sorted(slices, key=lambda each: (each[0].start, each[0].stop)):
        start, stop = one[0].start, one[0].stop
        for track in tracks:
            end = track[-1][0].stop
            if end - start <= min(TOUCHING, stop - start):
                track.append(within(one, end, max(stop, end)) if end > start else one)
                break
        else:
            tracks.append([one])
    return tracks


def _attempt(row: Row, start: int, stop: int, facts: Sequence[str]) -> Slices:
    """An attempt of a chunk with its phases, or the opening of a file."""
    name = f"{row['dataset']}: {PurePath(row['file'] or '').name}" if row["dataset"] else "chunk"
    is_chunk, failed = facts is CHUNK_FACTS, row["outcome"] not in (OK, "checkpoint")
    category = "chunk" if is_chunk else task_records.PREPROCESSING
    phases = _sequence(row, PARTS, start, stop, {}) if is_chunk else ()
    return [Slice(name, category, start, stop, _known(row, facts), failed), *phases]


def _sequence(row: Row, names: Sequence[str], start: int, stop: int, facts: Mapping[str, Any]) -> Iterator[Slice]:
    """Phases with a known, positive duration, in sequence up to a moment."""
    for name in names:
        if seconds := row[f"{name}_seconds"]:
            end = min(start + round(seconds * NANOSECONDS), stop)
            yield Slice(name, "phase", start, end, {"seconds": seconds, **facts})
            if name == "process":
                yield from _sequence(row, STEPS, start, end, LAID_OUT)
            start = end


def _call(call: Any, trace: Trace) -> Slice:
    facts = _known({name: getattr(call, name) for name in CALL_FACTS}, CALL_FACTS)
    start, stop = trace.at(call.start), trace.at(call.stop)
    return Slice(call.processor, "Runner call", start, max(start, stop), facts, failed=call.error is not None)


def _rows(tables: Mapping[str | None, pa.Table], worker: str | None, names: Sequence[str]) -> Iterator[Row]:
    if worker in tables:
        for batch in tables[worker].select(list(dict.fromkeys(names))).to_batches(max_chunksize=10_000):
            yield from batch.to_pylist()


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


def _export(measured: Any, path: Path, overwrite: bool) -> None:
    with whole_file(path, overwrite=overwrite) as file:
        write_perfetto(measured.run, file, packed=path.suffix == ".gz")


def _profile(file_format: str) -> Format:
    """A format of the profile, for viewers of flame graphs."""

    def write(measured: Any, path: Path, overwrite: bool) -> None:
        profile_of(measured.metrics).export(path, file_format, overwrite)

    return Format(f".{file_format}.{'txt' if file_format == 'collapsed' else 'json'}", write)


FORMATS: Final = {"perfetto": Format(".perfetto.json", _export), **{name: _profile(name) for name in PROFILE_FORMATS}}
