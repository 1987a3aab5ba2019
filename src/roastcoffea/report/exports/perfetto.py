"""Export a run as a trace for Perfetto and Chrome, with worker thread tracks and counters.

The format is Chrome's JSON. Processes and threads are numbered, and times are in microseconds from the start of the
trace. Each worker is a process. Slices on a track must not overlap unless they are nested; computing in integer
nanoseconds guarantees this.

Format reference: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
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
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from roastcoffea.metrics.facts import clock_offsets, on_clients_clock
from roastcoffea.metrics.phases import MEASURING, PHASES
from roastcoffea.metrics.profile import PROFILE_FORMATS, profile_of
from roastcoffea.records import workers as task_records
from roastcoffea.records.arrow import plain
from roastcoffea.records.chunks import OK
from roastcoffea.records.run import Run
from roastcoffea.report.exports import Format
from roastcoffea.storage.folders import whole_file

Event = dict[str, Any]
Row = dict[str, Any]

TASK_FACTS: Final = ("key", "run_id", "kind", "attempt", "outcome", "error", "type", "nbytes")
CHUNK_FACTS: Final = (
    *("dataset", "file", "tree", "entry_start", "entry_stop", "events", "call", "attempt", "outcome", "error"),
    *("bytes_requested", "bytes_payload", "bytes_metadata", "bytes_transferred", "bytes_uncompressed", "branches"),
    *("cpu_seconds", "helper_cpu_seconds", "memory_peak", "overlaps", "custom"),
)
CALL_FACTS: Final = ("id", "executor", "outcome", "error", "chunks", "files")
OPENING_FACTS: Final = ("dataset", "file", "outcome", "error", "bytes_requested")

STEPS: Final = tuple(phase.name for phase in PHASES if phase.in_process)
PARTS: Final = tuple(
    dict.fromkeys("process" if phase.in_process else phase.name for phase in PHASES if phase.time_class != MEASURING)
)
"""Phases of an attempt; the phases in STEPS alternate inside "process"."""

LAID_OUT: Final = {"place": "shown in sequence with their total durations; in reality, they alternate"}


class Slice(NamedTuple):
    """Work on a thread, timed in nanoseconds from the trace start."""

    name: str
    category: str
    start: int
    stop: int
    facts: Mapping[str, Any]
    failed: bool = False


Slices = Sequence[Slice]
"""A slice, followed by the slices nested in it."""


def within(slices: Slices, low: int, high: int, later: int = 0) -> Slices:
    """Shift slices by `later`, and clip them to an interval."""
    return [
        one._replace(start=min(max(one.start + later, low), high), stop=min(max(one.stop + later, low), high))
        for one in slices
    ]


def write_perfetto(run: Run, file: BinaryIO, *, packed: bool = False) -> None:
    """Write a run as a trace. The trace is compressed if `packed` is set."""
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
    def __init__(self, run: Run) -> None:
        self._run = run
        self._numbers = count(1)
        on_workers = ((run.chunks, ("start", "stop")), (run.preprocessing, ("start", "stop")), (run.samples, ("time",)))
        chunks, openings, samples = (table and on_clients_clock(run, table, *names) for table, names in on_workers)
        moments = ((run.tasks, "start"), (chunks, "start"), (openings, "start"), (samples, "time"))
        begun = [pc.min(table[name]).as_py() for table, name in moments if table is not None]
        self.origin: float = min([run.start, *filter(None, begun)])
        """Unix time at which the first slice starts."""
        self._tasks, self._attempts, self._openings = map(_by_worker, (run.tasks, chunks, openings))
        requested = _known(("start", "stop", "bytes_requested"), chunks, openings).query("stop > start")
        seconds = requested["stop"] - requested["start"]
        self._rate = steps(requested["start"], requested["stop"], 8e-9 * requested["bytes_requested"] / seconds)
        if samples is not None:
            place = samples.column_names.index("worker")
            samples = samples.set_column(place, "worker", pc.fill_null(samples["worker"], ""))
        memory = _known(("worker", "time", "memory"), samples).sort_values(["worker", "time", "memory"])
        self._memory = dict(iter(memory.set_index("time").groupby("worker")["memory"]))
        left = _known(("worker", "stop"), run.lifetimes).query("stop < @run.stop").set_index("worker")["stop"]
        # each sample holds until the next sample, or until its worker leaves
        last = memory["worker"].map(left.to_dict()).fillna(math.inf).clip(lower=memory["time"])
        self._memory_of_all = steps(
            memory["time"], memory.groupby("worker")["time"].shift(-1).fillna(last), memory["memory"].astype(int)
        )

    def events(self) -> Iterator[Event]:
        process = next(self._numbers)
        yield from _named(process, "run", 0)
        yield from self._tracks(process, {"Runner calls": [[_call(call, self)] for call in self._run.calls]})
        there = _known(("start", "stop"), self._run.lifetimes)
        yield from self._counter(process, "workers", "workers", steps(there["start"], there["stop"], 1))
        yield from self._counter(process, "memory of all workers", "bytes", self._memory_of_all)
        yield from self._counter(process, "storage rate", "Gbit/s", self._rate)
        workers = {*self._tasks, *self._attempts, *self._openings, *self._memory}
        workers |= {worker or "" for worker in clock_offsets(self._run)}
        for place, worker in enumerate(sorted(workers), 1):
            yield from self._worker(worker, place)

    def at(self, moment: float) -> int:
        """Convert a time to nanoseconds from the start of the trace."""
        return round((moment - self.origin) * 1e9)

    def _worker(self, worker: str, place: int) -> Iterator[Event]:
        process = next(self._numbers)
        yield from _named(process, f"worker {worker}" if worker else "unknown worker", place)
        lanes: dict[str, list[Slices]] = defaultdict(list)
        attempts: dict[Any, list[tuple[str, Slices]]] = defaultdict(list)
        for tables in (self._attempts, self._openings):
            for row in _rows(tables, worker):
                if row["start"] is not None and row["stop"] is not None:
                    task = len(attempts) if row["key"] is None else (row["key"], row["run_id"])
                    start = self.at(row["start"])
                    slices = _attempt(row, start, max(self.at(row["stop"]), start), tables is self._attempts)
                    attempts[task].append((_lane(row), slices))
        for row in _rows(self._tasks, worker):
            if row["start"] is not None:
                inner = [slices for _, slices in attempts.pop((row["key"], row["run_id"]), [])]
                lanes[_lane(row)].append(self._task(row, inner))
        for lane, slices in chain.from_iterable(attempts.values()):
            lanes[lane].append(slices)
        yield from self._tracks(process, dict(sorted(lanes.items())))
        yield from self._counter(process, "memory", "bytes", self._memory.get(worker, pd.Series()))

    def _task(self, row: Row, attempts: Sequence[Slices]) -> Slices:
        """A task and its attempts. A task with an unknown end is assumed to last until its last attempt ends.

        Attempts are shifted into the task in sequence, because their times come from a different clock.
        """
        start = self.at(row["start"])
        last = max([start, *(outer.stop for outer, *_ in attempts)])
        stop = last if row["stop"] is None else max(self.at(row["stop"]), start)
        facts = _facts(row, TASK_FACTS) | ({"stop": "unknown"} if row["stop"] is None else {})
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
        """Tracks for threads. A thread whose slices overlap gets additional tracks."""
        place = 0
        for name, slices in lanes.items():
            for number, track in enumerate(_tracks_of(slices)):
                thread, place = next(self._numbers), place + 1
                yield from _named(process, f"{name} (concurrent)" if number else name, place, thread)
                for one in chain.from_iterable(track):
                    event = {"ph": "X", "name": one.name, "cat": one.category, "ts": one.start / 1000}
                    event |= {"dur": (one.stop - one.start) / 1000, "pid": process, "tid": thread, "args": one.facts}
                    # Chrome's name for red
                    yield event | ({"cname": "terrible"} if one.failed else {})

    def _counter(self, process: int, name: str, unit: str, series: pd.Series) -> Iterator[Event]:
        for moment, value in zip(series.index.tolist(), series.tolist(), strict=True):
            ts = max(self.at(moment), 0) / 1000
            yield {"ph": "C", "name": name, "pid": process, "ts": ts, "args": {unit: value}}


def _known(names: Sequence[str], *tables: pa.Table | None) -> pd.DataFrame:
    frames = [plain(table.select(names).drop_null()).to_pandas() for table in tables if table is not None]
    return pd.concat(frames) if frames else pd.DataFrame({name: [] for name in names})


def steps(starts: Any, stops: Any, heights: Any) -> pd.Series:
    """Step function that sums the heights of overlapping intervals. Integers stay integers."""
    high = np.broadcast_to(heights, len(starts))
    changes = pd.concat([pd.Series(high, starts), pd.Series(-high, stops)]).groupby(level=0).sum()
    # a floating-point sum would end close to 0, but not at 0
    return changes[np.isfinite(changes.index)].cumsum().round(9).clip(lower=0)


def _tracks_of(slices: Iterable[Slices]) -> list[list[Slices]]:
    """Arrange slices on as few tracks as possible, so that they do not overlap. Slight overlaps are trimmed."""
    tracks: list[list[Slices]] = []
    for one in sorted(slices, key=lambda each: (each[0].start, each[0].stop)):
        start, stop = one[0].start, one[0].stop
        for track in tracks:
            end = track[-1][0].stop
            if end - start <= min(1_000_000, stop - start):  # clocks agree to within a millisecond
                track.append(within(one, end, max(stop, end)) if end > start else one)
                break
        else:
            tracks.append([one])
    return tracks


def _attempt(row: Row, start: int, stop: int, is_chunk: bool) -> Slices:
    name = f"{row['dataset']}: {PurePath(row['file'] or '').name}" if row["dataset"] else "chunk"
    failed, facts = row["outcome"] not in (OK, "checkpoint"), CHUNK_FACTS if is_chunk else OPENING_FACTS
    category = "chunk" if is_chunk else task_records.PREPROCESSING
    phases = _sequence(row, PARTS, start, stop, {}) if is_chunk else ()
    return [Slice(name, category, start, stop, _facts(row, facts), failed), *phases]


def _sequence(row: Row, names: Sequence[str], start: int, stop: int, facts: Mapping[str, Any]) -> Iterator[Slice]:
    """Phases with a known, positive duration, placed one after another until `stop`."""
    for name in names:
        if seconds := row[f"{name}_seconds"]:
            end = min(start + round(seconds * 1e9), stop)
            yield Slice(name, "phase", start, end, {"seconds": seconds, **facts})
            if name == "process":
                yield from _sequence(row, STEPS, start, end, LAID_OUT)
            start = end


def _call(call: Any, trace: Trace) -> Slice:
    start, stop = trace.at(call.start), trace.at(call.stop)
    facts = _facts({name: getattr(call, name) for name in CALL_FACTS}, CALL_FACTS)
    return Slice(call.processor, "Runner call", start, max(start, stop), facts, failed=call.error is not None)


def _rows(tables: Mapping[str, pa.Table], worker: str) -> Iterator[Row]:
    for batch in tables[worker].to_batches(max_chunksize=10_000) if worker in tables else ():
        yield from batch.to_pylist()


def _facts(row: Row, names: Sequence[str]) -> dict[str, Any]:
    found = {name: row[name] for name in names if row[name] is not None}
    return {name: value for name, value in found.items() if not isinstance(value, float) or math.isfinite(value)}


def _lane(row: Row) -> str:
    return "unknown thread" if row["thread"] is None else f"thread {row['thread']}"


def _named(process: int, name: str, place: int, thread: int | None = None) -> Iterator[Event]:
    kind = "process" if thread is None else "thread"
    where = {"ph": "M", "pid": process} | ({} if thread is None else {"tid": thread})
    yield where | {"name": f"{kind}_name", "args": {"name": name}}
    yield where | {"name": f"{kind}_sort_index", "args": {"sort_index": place}}


def _by_worker(table: pa.Table | None) -> dict[str, pa.Table]:
    """Rows by worker. The key for unknown workers is the empty string."""
    if table is None:
        return {}
    places = pc.fill_null(plain(table.select(["worker"]))["worker"], "").to_pandas()
    return {worker: table.take(rows) for worker, rows in places.groupby(places).indices.items()}


def _export(measured: Any, path: Path, overwrite: bool) -> None:
    with whole_file(path, overwrite=overwrite) as file:
        write_perfetto(measured.run, file, packed=path.suffix == ".gz")


def _profile(file_format: str) -> Format:

    def write(measured: Any, path: Path, overwrite: bool) -> None:
        profile_of(measured.metrics).export(path, file_format, overwrite)

    return Format(f".{file_format}.{'txt' if file_format == 'collapsed' else 'json'}", write)


FORMATS: Final = {"perfetto": Format(".perfetto.json", _export), **{name: _profile(name) for name in PROFILE_FORMATS}}
