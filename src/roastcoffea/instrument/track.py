"""Processor API (sections, custom values, decorator) and the registry of open chunks."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from numbers import Integral, Real
from threading import get_ident
from typing import Any, Final

from roastcoffea.errors import error_text, reported
from roastcoffea.instrument.gauges import Interval
from roastcoffea.instrument.shared import Function, Row, joined, leave, lock_of, name_here, portable
from roastcoffea.interrupts import raise_if_interrupted
from roastcoffea.redaction import Added, redacted, redacted_beginning

CHUNKS: Final = "_roastcoffea_open_chunks"
"""Name of the shared state, which contains the process's open chunks and each context's `current` chunk."""

_OUTSIDE: Final[set[int]] = set()
"""Threads in which roastcoffea itself is writing files."""


class OpenChunk:
    """A chunk attempt, as seen by the code that runs in it.

    `requested_bytes` returns the number of bytes that the attempt has requested from storage so far, or None if the
    number is unknown. `peak_memory` is passed on to `Sections`.
    """

    entered: Sections | None = None
    """The attempt's sections, created on first use because most analyses have none."""

    recorded: dict[str, Any] | None = None
    """Custom values by name, created on first use."""

    meter: Any = None
    """The attempt's meter: either a `FilesMeter`, or a chunk's `Meter`, which has a `FilesMeter` in `others`."""

    ended = False

    def __init__(self, requested_bytes: Callable[[], int | None] = lambda: None, *, peak_memory: bool = True) -> None:
        self.requested_bytes, self._peak_memory = requested_bytes, peak_memory

    @property
    def sections(self) -> Sections:
        # several threads may create the sections at the same time, but setdefault is atomic
        sections: Sections = self.__dict__.setdefault("entered", Sections(peak_memory=self._peak_memory))
        if self.ended:
            sections.close()
        return sections


class open_chunk:  # noqa: N801  (a context, like those in contextlib)
    """Context manager that makes a chunk the current one, and closes its open sections at the end."""

    __slots__ = ("_chunk", "_state", "_token")

    def __init__(self, chunk: OpenChunk) -> None:
        self._chunk = chunk

    def __enter__(self) -> OpenChunk:
        chunk = self._chunk
        self._state = state = joined(CHUNKS, chunk, current=ContextVar("roastcoffea_chunk", default=None))
        try:
            self._token = state.current.set(chunk)
        except BaseException:
            leave(state, chunk)
            raise
        finally:
            state.lock.release()
        return chunk

    def __exit__(self, *_: object) -> None:
        try:
            self._state.current.reset(self._token)
        finally:
            with lock_of(self._state):
                leave(self._state, self._chunk)
            self._chunk.ended = True
            if self._chunk.entered is not None:
                self._chunk.entered.close()


def open_chunk_of(ambiguous: Callable[[OpenChunk], None], others: tuple[str, ...] = ()) -> OpenChunk | None:
    """Return the calling code's open chunk, if it can be determined.

    A thread started by the processor is recognised if it runs in a copy of the processor's context. Any other thread is
    assigned to the process's open chunk, provided there is only one.

    Parameters
    ----------
    ambiguous : callable
        Called with each open chunk if there are several candidates.
    others : tuple, optional
        Name prefixes of threads that do not work for any chunk.
    """
    state = sys.modules.get(name_here(CHUNKS))
    if state is None or (_OUTSIDE and get_ident() in _OUTSIDE):
        return None
    chunk: OpenChunk | None = state.current.get()
    if chunk is not None:
        return chunk if chunk in state.open else None
    worker = sys.modules.get("distributed.worker")
    if worker is not None and hasattr(worker.thread_state, "key"):
        return None  # the thread is running another task
    if others and threading.current_thread().name.startswith(others):
        return None
    with state.lock:
        chunks: list[OpenChunk] = list(state.open)
    if len(chunks) == 1:
        return chunks[0]
    for chunk in chunks:
        ambiguous(chunk)
    return None


@contextmanager
def outside_chunks() -> Iterator[None]:
    """Context manager for files that roastcoffea itself writes while chunks may be running in other threads."""
    thread = get_ident()
    _OUTSIDE.add(thread)
    try:
        yield
    finally:
        _OUTSIDE.discard(thread)


def _unassigned(chunk: OpenChunk) -> None:
    chunk.sections.note(
        "sections and values from threads started by a processor were discarded: several chunks ran in the process, "
        "so it is unknown which chunk they belong to (run the thread's function in contextvars.copy_context())"
    )


def is_in_chunk() -> bool:
    state = sys.modules.get(name_here(CHUNKS))
    return state is not None and state.current.get() in state.open


# sections

TIME: Final = "time"
MEMORY: Final = "memory"
BYTES: Final = "bytes"

SECTION_UNIT: Final = "section seconds"
"""Unit of section times in Dask's metrics. Dask would subtract values in "seconds" from the task's CPU time."""

MOST_SECTIONS: Final = 500
"""Maximum number of distinct sections in an attempt, in case a loop over events generates section names."""

MOST_IN_DASK: Final = 1000
"""Maximum number of sections in a Dask worker's metrics. Workers and the scheduler never discard sections."""

SECTION_COLUMNS: Final = (
    *("name", "count", "wall_seconds", "self_seconds", "cpu_seconds", "max_seconds"),
    *("bytes", "memory_peak", "memory_delta", "errors"),
)

Amounts = dict[str, int | None]
"""Values that a gauge measures, by column of the sections table."""


class Pass:
    """An open pass through a section; `section` is the row with the section's totals.

    Entering a section directly inside itself continues the same pass. Wall time, CPU time, bytes and memory are each
    measured only once, by the outermost entry that tracks them. Re-entering the section with the same kind of tracker
    is recursion and increases `count`. Re-entering it with a different kind does not, so `track_time("a"),
    track_memory("a")` is a single pass.
    """

    __slots__ = ("began", "count", "cpu", "errors", "gauged", "inside", "name", "opener", "path", "section", "since")

    def __init__(self, name: str, path: str, section: Row, opener: str) -> None:
        self.name = name
        self.path = path
        """Path of the section: its name, prefixed by the names of the enclosing sections."""
        self.section = section
        self.opener = opener
        self.count = self.errors = 0
        self.gauged: tuple[str, ...] = ()
        self.inside = 0.0
        """Seconds spent in finished sections directly inside this pass."""
        self.began = self.since = time.perf_counter()
        """The time after `since` has not been added to the enclosing pass's `inside` yet."""
        self.cpu = time.thread_time()

    def end(self, stack: list[Pass], now: float, cpu: float | None) -> None:
        """Remove the pass from the thread's open passes, and add its times to the section.

        The CPU time is unknown if the pass ends on another thread. Passes that were opened inside this pass are moved
        to the enclosing pass.
        """
        at = stack.index(self)
        # delete by position, because the thread may have entered another section since
        del stack[at]
        outer = stack[at - 1] if at > 0 else None
        if outer is not None:
            outer.inside += now - self.since
        if at < len(stack):
            later = stack[at:]
            self.inside += now - later[0].since
            later[0].since = now
            for inner in later:
                inner.path = inner.name if outer is None else f"{outer.path}/{inner.name}"
                outer = inner
        section, wall = self.section, now - self.began
        section["count"] += self.count
        section["errors"] += self.errors
        section["wall_seconds"] += wall
        section["self_seconds"] += wall - self.inside
        section["max_seconds"] = max(section["max_seconds"], wall)
        if section["cpu_seconds"] is not None:
            section["cpu_seconds"] = None if cpu is None else section["cpu_seconds"] + cpu - self.cpu


@dataclass(slots=True, eq=False)
class EnteredSection:
    """A `with` block that has been entered: a new pass, or another entry into an open pass."""

    sections: Sections
    passing: Pass
    kind: str
    gauge: Callable[[], Amounts] | None
    stack: list[Pass] | None
    """The thread's open passes, or None if the pass does not end with this entry."""

    def leave(self, *, failed: bool) -> None:
        cpu, now = time.thread_time(), time.perf_counter()
        sections, passing = self.sections, self.passing
        try:
            amounts = self.amounts()
            with sections.lock:
                if self not in sections.open:
                    return  # already closed at the end of the attempt
                sections.open.remove(self)
                if amounts:
                    _add(passing.section, amounts)
                    passing.gauged = tuple(kind for kind in passing.gauged if kind != self.kind)
                if self.kind == passing.opener:
                    passing.count += 1
                    passing.errors += failed
                if self.stack is not None:
                    of_this_thread = sections.stacks.get(get_ident()) is self.stack
                    passing.end(self.stack, now, cpu if of_this_thread else None)
        except Exception as problem:  # noqa: BLE001  (measuring must not fail the analysis)
            raise_if_interrupted(problem)
            sections.note(f"an entry into a section was not counted: {error_text(problem)}")

    def amounts(self) -> Amounts:
        """Close the gauge, if there is one, and return its readings. Later calls return an empty dictionary."""
        gauge, self.gauge = self.gauge, None
        return {} if gauge is None else gauge()


def _add(section: Row, amounts: Amounts) -> None:
    for name, amount in amounts.items():
        known = [amount, *([section[name]] if name in section else [])]
        if name == "memory_peak":
            section[name] = max(filter(None, known), default=None)
        else:
            section[name] = None if None in known else sum(filter(None, known))


class Sections:
    """An attempt's sections on all its threads. Sections are nested within each thread.

    If `peak_memory` is False, `track_memory` does not record peaks.
    """

    def __init__(self, *, peak_memory: bool = True) -> None:
        self._peak_memory = peak_memory
        self.problems: list[str] = []
        self._sections: dict[str, Row] = {}
        self.open: set[EnteredSection] = set()
        self._closed = False
        self.stacks: defaultdict[int, list[Pass]] = defaultdict(list)
        """Open passes by thread ID; the innermost pass is the last.

        The attribute is not a `threading.local`, because CPython 3.11 can deadlock if such an object is
        garbage-collected while all threads' frames are being read. Dask's profiler reads them a hundred times a second.
        """
        # reentrant: garbage collection may close a generator with an open section while this thread holds the lock
        self.lock = threading.RLock()

    def enter(self, name: str, kind: str, requested_bytes: Callable[[], int | None]) -> EnteredSection | None:
        """Enter a section. If the section cannot be measured, note the problem and return None."""
        if not name.strip():
            self.note(f"a section without a name is not counted; pass a name to track_{kind}")
            return None
        try:
            stack = self.stacks[get_ident()]
            outer = stack[-1] if stack else None
            path = name if outer is None else f"{outer.path}/{name}"
            same = outer if outer is not None and outer.name == name else None
            section = self._sections.get(path) if same is None else same.section
            if section is None:
                if len(self._sections) >= MOST_SECTIONS:
                    self.note(f"a chunk has more than {MOST_SECTIONS} different sections: the rest are not counted")
                    return None
                times = dict.fromkeys(SECTION_COLUMNS[2:6], 0.0)
                section = self._sections.setdefault(path, {"name": path, "count": 0, **times, "errors": 0})
            is_gauged = kind == TIME or (same is not None and kind in same.gauged)
            gauge = None if is_gauged else self._gauge(kind, requested_bytes)
            entry = EnteredSection(self, same or Pass(name, path, section, kind), kind, gauge, stack)
            if same is not None:
                entry.stack = None
            else:
                stack.append(entry.passing)
            if gauge is not None:
                entry.passing.gauged += (kind,)
            self.open.add(entry)
            if self._closed:
                self.close()
        except Exception as problem:  # noqa: BLE001  (as above)
            raise_if_interrupted(problem)
            self.note(f"an entry into a section was not counted: {error_text(problem)}")
            return None
        return entry

    def _gauge(self, kind: str, requested_bytes: Callable[[], int | None]) -> Callable[[], Amounts]:
        """Start measuring memory or bytes, and return a function that ends the measurement."""
        if kind == BYTES:
            before = requested_bytes()
            return lambda: {"bytes": _growth(before, requested_bytes())}
        interval = Interval(part=True, peak=self._peak_memory)

        def amounts() -> Amounts:
            interval.close()
            return {"memory_peak": interval.peak, "memory_delta": _growth(interval.before, interval.after)}

        return amounts

    def close(self) -> None:
        """Close the sections that are still open, e.g. in abandoned generators, without counting them."""
        self._closed = True
        while self.open:
            entry = self.open.pop()
            with reported(self.note, "a section's gauge was not closed", Exception):
                entry.amounts()
            name = entry.passing.name
            self.note(f"section {name!r} was still open at the end of its chunk: that entry is not counted")

    def note(self, problem: str) -> None:
        if problem not in self.problems:
            self.problems.append(problem)

    def rows(self, added: Added | None = None) -> list[Row]:
        """Return a row for each entered section, without the chunk's columns.

        The attempt must already be closed. Section names are redacted; `added` contains the user's secret patterns.
        """
        with self.lock:
            passed = [dict(section) for section in self._sections.values() if section["count"]]
        return [
            {column: row.get(column) for column in SECTION_COLUMNS} | {"name": redacted(row["name"], added)}
            for row in passed
        ]

    def meter_in_dask(self, rows: list[Row]) -> None:
        """Add each section's wall time to the metrics of the Dask task that runs on this thread, if any."""
        distributed = sys.modules.get("distributed.worker")
        if distributed is None or not rows:
            return
        try:
            worker = distributed.get_worker()
        except ValueError:
            return
        known = {key[-2] for key in tuple(worker.digests_total) if isinstance(key, tuple) and key[-1] == SECTION_UNIT}
        for row in rows:
            if row["name"] not in known and len(known) >= MOST_IN_DASK:
                self.note(f"sections are missing from Dask's span: a worker counts at most {MOST_IN_DASK} sections")
                continue
            known.add(row["name"])
            distributed.context_meter.digest_metric(row["name"], row["wall_seconds"], SECTION_UNIT)


def _growth(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else after - before


@portable
def track_time(*processor_and_name: object) -> Tracked:
    """Time a section of a processor, as in `with track_time("jets"):`.

    The wall time, the thread's CPU time, and the numbers of entries and errors are summed within each chunk. Sections
    may be repeated and nested: a section "pt" inside a section "jets" is reported as "jets/pt". Nothing is measured
    unless a collector is open. A section with an empty name is not counted and is reported as a problem.

    Parameters
    ----------
    *processor_and_name : object
        The section name, optionally preceded by the processor, which is ignored.
    """
    return Tracked(TIME, processor_and_name, 2)


@portable
def track_memory(*processor_and_name: object) -> Tracked:
    """Time a section, and measure the process's peak memory and memory growth.

    Times are measured as in `track_time`. Memory is the resident memory of the whole process, including other chunks
    that run in the process at the same time.

    Parameters
    ----------
    *processor_and_name : object
        The section name, optionally preceded by the processor, which is ignored.
    """
    return Tracked(MEMORY, processor_and_name, 2)


@portable
def track_bytes(*processor_events_and_name: object) -> Tracked:
    """Time a section, and count the bytes requested from storage.

    Times are measured as in `track_time`. coffea reads a column when the column is first used, so columns that are
    already in memory are not requested again.

    Parameters
    ----------
    *processor_events_and_name : object
        The section name, optionally preceded by the processor and the events, which are ignored.
    """
    return Tracked(BYTES, processor_events_and_name, 3)


@portable
def track_metrics(process: Function) -> Function:
    """Return `process` unchanged; chunks are measured without this decorator.

    The decorator is kept for analyses written for version 0.1.2.
    """
    return process


class Tracked:
    __slots__ = ("_entry", "_kind", "_name")

    def __init__(self, kind: str, arguments: tuple[object, ...], most: int) -> None:
        name = arguments[-1] if arguments else None
        if not isinstance(name, str) or len(arguments) > most:
            ways = f'track_{kind}("name") or track_{kind}(self, "name")'
            found = ", ".join(type(argument).__name__ for argument in arguments) or "nothing"
            raise TypeError(f"track_{kind} takes the section name (a string) as its last argument: {ways}; got {found}")
        self._kind = kind
        self._name = name
        self._entry: EnteredSection | None = None

    def __enter__(self) -> None:
        chunk = open_chunk_of(_unassigned)
        if chunk is not None:
            self._entry = (chunk.entered or chunk.sections).enter(self._name, self._kind, chunk.requested_bytes)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._entry is not None:
            # Python raises GeneratorExit in an abandoned generator
            self._entry.leave(failed=kind not in {None, GeneratorExit})
            self._entry = None


Value = float | str | bool | None

PLAIN: Final = (bool, int, float, str, type(None))

MOST_VALUES: Final = 100
"""Maximum number of distinct names in a chunk, in case a loop over events generates names."""

LONGEST_NAME: Final = 200
LONGEST_TEXT: Final = 1000
"""Maximum lengths, in characters."""


@portable
def record(name: str, value: Any) -> None:
    """Record a custom value for the chunk: `record("selected", len(jets))`.

    The column `measurement.chunks["custom"]` contains a dictionary of these values for each attempt, and
    `measurement.custom` contains their sums by name and dataset. Recording a name again replaces its value. Strings are
    redacted and truncated to 1000 characters. Nothing is recorded unless a collector is open.

    Parameters
    ----------
    name : str
        Name of the value.
    value : number, str, bool or None
        The value, which may be a NumPy or Awkward scalar. None marks an unknown value. The sum of a bool is the number
        of times it was True. NaN is kept with the chunk but, like None, is excluded from sums, means, minima, maxima
        and the number of chunks.

    Raises
    ------
    TypeError
        The name is empty or not a string, or the value is not a scalar.
    ValueError
        The value is an integer with more than 1000 bits.
    """
    if not isinstance(name, str) or not name:
        raise TypeError(f"record takes a name (a non-empty string) as its first argument; got {name!r}")
    kept = scalar(name, value)
    if type(kept) is int and kept.bit_length() > 1000:  # larger integers cannot be converted to floats
        raise ValueError(f"record accepts integers of up to 1000 bits; {name!r} has {kept.bit_length()}")
    chunk = open_chunk_of(_unassigned)
    if chunk is not None:
        keep(chunk, name, kept)


def scalar(name: str, value: Any) -> Value:
    """Convert a scalar to a plain Python value; raise TypeError for any other object."""
    inner = value.item() if getattr(value, "ndim", None) == 0 and hasattr(value, "item") else value
    if type(inner) in PLAIN:
        return inner  # type: ignore[no-any-return]
    kinds: dict[Any, Any] = {str: str, Integral: int, Real: float}
    for kind, plain in kinds.items():
        if isinstance(inner, kind):
            return plain(inner)  # type: ignore[no-any-return]
    raise TypeError(f"record takes a number, string, bool or None; got {type(value).__name__} for {name!r}")


def keep(chunk: OpenChunk, name: str, value: Value) -> None:
    """Store a chunk's value. This function is thread-safe."""
    recorded = chunk.__dict__.setdefault("recorded", {})
    if name in recorded or len(recorded) < MOST_VALUES:
        recorded[name] = value
    else:
        chunk.sections.note(f"a chunk recorded more than {MOST_VALUES} different values: the rest are not kept")


def packed_values(recorded: dict[str, Value], added: Added | None = None) -> str:
    """Redact values and encode them as JSON; `added` contains the user's secret patterns."""
    values = {}
    for name, value in dict(recorded).items():
        clean = redacted_beginning(value, LONGEST_TEXT, added) if isinstance(value, str) else value
        values[redacted_beginning(name, LONGEST_NAME, added)] = clean
    return json.dumps(values)
