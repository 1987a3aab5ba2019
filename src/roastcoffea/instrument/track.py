"""What a user may write into a processor: named sections, recorded values, and a decorator; and the open chunks."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
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
"""Name of the state that has the chunks that are open in this process, and the `current` one of a context."""


class OpenChunk:
    """An attempt of a chunk, as seen by the code in it.

    `requested_bytes` returns the bytes that the attempt has requested from storage so far; None if unknown.
    `peak_memory` is that of `Sections`.
    """

    entered: Sections | None = None
    """Sections, created on first use: most analyses have none."""

    recorded: dict[str, Any] | None = None
    """Values by name, created on first use."""

    meter: Any = None
    """What meters the attempt: files that it opens itself, or a chunk, whose `others` does that."""

    ended = False

    def __init__(self, requested_bytes: Callable[[], int | None] = lambda: None, *, peak_memory: bool = True) -> None:
        self.requested_bytes, self._peak_memory = requested_bytes, peak_memory

    @property
    def sections(self) -> Sections:
        """Sections of the attempt, which several threads may enter first."""
        # a dictionary's own method, which is atomic
        sections: Sections = self.__dict__.setdefault("entered", Sections(peak_memory=self._peak_memory))
        if self.ended:
            sections.close()
        return sections


class open_chunk:  # noqa: N801  (a context, as those of contextlib)
    """Context in which this chunk is the current one; its end also ends open sections."""

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
    """The chunk that called this code, if known.

    A thread started by the processor knows it if it runs in a copy of the processor's context; otherwise it is the open
    chunk of this process, if there is only one.

    Parameters
    ----------
    ambiguous : callable
        Called with each open chunk if it may be any of several.
    others : tuple, optional
        Beginnings of the names of threads that work for no chunk.
    """
    state = sys.modules.get(name_here(CHUNKS))
    if state is None:
        return None
    chunk: OpenChunk | None = state.current.get()
    if chunk is not None:
        return chunk if chunk in state.open else None
    worker = sys.modules.get("distributed.worker")
    if worker is not None and hasattr(worker.thread_state, "key"):
        return None  # the thread runs another task
    if others and threading.current_thread().name.startswith(others):
        return None
    with state.lock:
        chunks: list[OpenChunk] = list(state.open)
    if len(chunks) == 1:
        return chunks[0]
    for chunk in chunks:
        ambiguous(chunk)
    return None


def _unassigned(chunk: OpenChunk) -> None:
    chunk.sections.note(
        "sections and values of threads that a processor started are not kept: several chunks ran in the process, "
        "and which one they belong to is unknown (run the thread's function in contextvars.copy_context())"
    )


def is_in_chunk() -> bool:
    """Whether a chunk is open in this very context."""
    state = sys.modules.get(name_here(CHUNKS))
    return state is not None and state.current.get() in state.open


# sections

TIME: Final = "time"
MEMORY: Final = "memory"
BYTES: Final = "bytes"

SECTION_UNIT: Final = "section seconds"
"""Unit of sections among Dask's metrics: Dask subtracts anything in "seconds" from the task's CPU time."""

MOST_SECTIONS: Final = 500
"""Most distinct sections of an attempt; their names may be made in a loop over events."""

MOST_IN_DASK: Final = 1000
"""Most sections added to a Dask worker's metrics: worker and scheduler keep them for their lifetime."""

SECTION_COLUMNS: Final = (
    *("name", "count", "wall_seconds", "self_seconds", "cpu_seconds", "max_seconds"),
    *("bytes", "memory_peak", "memory_delta", "errors"),
)

Amounts = dict[str, int | None]
"""Columns of the table of sections that are known only if gauged."""


class Pass:
    """An open pass through a section, of which `section` is the row with the totals.

    A section entered directly inside itself is the same pass: wall time, CPU, bytes and memory are measured once, by
    the outermost entry. If the same kind of tracker enters it again, it is recursion and `count` increases; another
    kind does not count, so that `track_time("a"), track_memory("a")` is one pass.
    """

    __slots__ = ("began", "count", "cpu", "errors", "gauged", "inside", "name", "opener", "path", "section", "since")

    def __init__(self, name: str, path: str, section: Row, opener: str) -> None:
        self.name = name
        self.path = path
        """Names of the open passes down to this one; outer ones may have ended since."""
        self.section = section
        self.opener = opener
        self.count = self.errors = 0
        self.gauged: tuple[str, ...] = ()
        self.inside = 0.0
        """Seconds in finished sections directly inside this one."""
        self.began = self.since = time.perf_counter()
        """Time after `since` is not yet in `inside` of the surrounding pass."""
        self.cpu = time.thread_time()

    def end(self, stack: list[Pass], now: float, cpu: float | None) -> None:
        """Remove the pass from its thread's open ones, and add it to its section.

        CPU time is unknown if another thread ended it. Passes entered later move to the surrounding one.
        """
        at = stack.index(self)
        # by position, because the thread may have entered another section by now
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
    """An entered `with` block: a new pass, or one that is already open."""

    sections: Sections
    passing: Pass
    kind: str
    gauge: Callable[[], Amounts] | None
    stack: list[Pass] | None
    """Open passes of the thread, if the pass ends with this entry."""

    def leave(self, *, failed: bool) -> None:
        """End the entry; errors in that are noted, not raised."""
        cpu, now = time.thread_time(), time.perf_counter()
        sections, passing = self.sections, self.passing
        try:
            amounts = self.amounts()
            with sections.lock:
                if self not in sections.open:
                    return  # the end of the attempt cut it off
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
            sections.note(f"a pass through a section was not counted: {error_text(problem)}")

    def amounts(self) -> Amounts:
        """Close the gauge, if there is one; it can be read once."""
        gauge, self.gauge = self.gauge, None
        return {} if gauge is None else gauge()


def _add(section: Row, amounts: Amounts) -> None:
    """Add the amounts of a gauge: of peaks the highest known one; a sum with an unknown part is unknown."""
    for name, amount in amounts.items():
        known = [amount, *([section[name]] if name in section else [])]
        if name == "memory_peak":
            section[name] = max(filter(None, known), default=None)
        else:
            section[name] = None if None in known else sum(filter(None, known))


class Sections:
    """The sections of one attempt, from all of its threads; sections nest within a thread.

    Without `peak_memory`, those of `track_memory` have no peak.
    """

    def __init__(self, *, peak_memory: bool = True) -> None:
        self._peak_memory = peak_memory
        self.problems: list[str] = []
        self._sections: dict[str, Row] = {}
        self.open: set[EnteredSection] = set()
        self._closed = False
        self.stacks: defaultdict[int, list[Pass]] = defaultdict(list)
        """Open passes of each thread, by its identity, innermost last.

        No `threading.local`: CPython 3.11 can deadlock if one is garbage-collected while all threads' frames are read,
        and Dask's profiler reads them a hundred times a second.
        """
        # garbage collection may end a generator, and a section in it, while this thread holds the lock
        self.lock = threading.RLock()

    def enter(self, name: str, kind: str, requested_bytes: Callable[[], int | None]) -> EnteredSection | None:
        """Enter a section; None if it cannot be measured, which is noted."""
        if not name.strip():
            self.note(f"a section without a name is not counted: give track_{kind} a name")
            return None
        try:
            stack = self.stacks[get_ident()]
            outer = stack[-1] if stack else None
            path = name if outer is None else f"{outer.path}/{name}"
            same = outer if outer is not None and outer.name == name else None
            section = self._sections.get(path) if same is None else same.section
            if section is None:
                if len(self._sections) >= MOST_SECTIONS:
                    self.note(f"a chunk has more than {MOST_SECTIONS} different sections: the rest is not counted")
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
            self.note(f"a pass through a section was not counted: {error_text(problem)}")
            return None
        return entry

    def _gauge(self, kind: str, requested_bytes: Callable[[], int | None]) -> Callable[[], Amounts]:
        """Start a measurement of memory or bytes, and return a function that ends it and returns the result."""
        if kind == BYTES:
            before = requested_bytes()
            return lambda: {"bytes": _growth(before, requested_bytes())}
        interval = Interval(part=True, peak=self._peak_memory)

        def amounts() -> Amounts:
            interval.close()
            return {"memory_peak": interval.peak, "memory_delta": _growth(interval.before, interval.after)}

        return amounts

    def close(self) -> None:
        """End with the attempt: open sections, as in a generator that was abandoned, are not counted."""
        self._closed = True
        while self.open:
            entry = self.open.pop()
            with reported(self.note, "a gauge of a section was not closed", Exception):
                entry.amounts()
            name = entry.passing.name
            self.note(f"section {name!r} was still open at the end of its chunk: that pass is not counted")

    def note(self, problem: str) -> None:
        """Record once what was not measured."""
        if problem not in self.problems:
            self.problems.append(problem)

    def rows(self, added: Added | None = None) -> list[Row]:
        """Rows of the sections that were passed, without the chunk; to be called after the attempt is closed.

        Names are without secrets; `added` are patterns of secrets, as for `redacted`.
        """
        with self.lock:
            passed = [dict(section) for section in self._sections.values() if section["count"]]
        return [
            {column: row.get(column) for column in SECTION_COLUMNS} | {"name": redacted(row["name"], added)}
            for row in passed
        ]

    def meter_in_dask(self, rows: list[Row]) -> None:
        """Add each section's wall time to the metrics of the Dask task on this thread, if there is one."""
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
                self.note(f"Dask's span lacks some sections: a worker counts at most {MOST_IN_DASK} different ones")
                continue
            known.add(row["name"])
            distributed.context_meter.digest_metric(row["name"], row["wall_seconds"], SECTION_UNIT)


def _growth(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else after - before


@portable
def track_time(*processor_and_name: object) -> Tracked:
    """Time a section of a processor: `with track_time("jets"):`.

    Wall time, CPU time of the thread, number of passes and errors are summed for each chunk. Sections may be repeated
    and nested: a section "pt" inside "jets" is "jets/pt". Without a collector it does nothing. A section with an empty
    name is not counted, and is reported as a problem.

    Parameters
    ----------
    *processor_and_name : object
        The name, or the processor and the name. The processor is ignored.
    """
    return Tracked(TIME, processor_and_name, 2)


@portable
def track_memory(*processor_and_name: object) -> Tracked:
    """Time a section like `track_time`, and measure the peak and growth of the process's resident memory in it.

    Other chunks that run in the process at the same time are included.

    Parameters
    ----------
    *processor_and_name : object
        The name, or the processor and the name. The processor is ignored.
    """
    return Tracked(MEMORY, processor_and_name, 2)


@portable
def track_bytes(*processor_events_and_name: object) -> Tracked:
    """Time a section like `track_time`, and count the bytes that the chunk requests from storage in it.

    Columns are read on first use; those already in memory are not requested again.

    Parameters
    ----------
    *processor_events_and_name : object
        The name, optionally after the processor and the events. Only the name is used.
    """
    return Tracked(BYTES, processor_events_and_name, 3)


@portable
def track_metrics(process: Function) -> Function:
    """Return `process` unchanged: chunks are measured without this decorator of older analyses."""
    return process


class Tracked:
    """A section for one `with` block."""

    __slots__ = ("_entry", "_kind", "_name")

    def __init__(self, kind: str, arguments: tuple[object, ...], most: int) -> None:
        name = arguments[-1] if arguments else None
        if not isinstance(name, str) or len(arguments) > most:
            ways = f'track_{kind}("name") or track_{kind}(self, "name")'
            found = ", ".join(type(argument).__name__ for argument in arguments) or "nothing"
            raise TypeError(f"track_{kind} takes the name of a section, as text, last: {ways}; it was given: {found}")
        self._kind = kind
        self._name = name
        self._entry: EnteredSection | None = None

    def __enter__(self) -> None:
        chunk = open_chunk_of(_unassigned)
        if chunk is not None:
            self._entry = (chunk.entered or chunk.sections).enter(self._name, self._kind, chunk.requested_bytes)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._entry is not None:
            # an abandoned generator is closed by GeneratorExit
            self._entry.leave(failed=kind not in {None, GeneratorExit})
            self._entry = None


Value = float | str | bool | None

PLAIN: Final = (bool, int, float, str, type(None))

MOST_VALUES: Final = 100
"""Most distinct names in a chunk; they may be made in a loop over events."""

LONGEST_NAME: Final = 200
LONGEST_TEXT: Final = 1000
"""Most characters kept."""


@portable
def record(name: str, value: Any) -> None:
    """Record a value of your own for the chunk: `record("selected", len(jets))`.

    It appears in `measurement.chunks["custom"]`, a dictionary per attempt, and is summed by name and dataset in
    `measurement.custom`. Recording a name again replaces its value; text is kept up to 1000 characters, without
    secrets. Without a collector it does nothing.

    Parameters
    ----------
    name : str
        Name of the value.
    value : number, str, bool or None
        Also a NumPy or awkward scalar; None if unknown. The sum of a bool is the number of times it was True. NaN is
        kept with the chunk, but like None it is left out of sums, means, limits and the number of chunks.

    Raises
    ------
    TypeError
        The name is empty or not text, or the value is not a scalar.
    ValueError
        The value is an integer of more than 1000 bits.
    """
    if not isinstance(name, str) or not name:
        raise TypeError(f"record takes the name of a value as text, first; it was given {name!r}")
    kept = scalar(name, value)
    if type(kept) is int and kept.bit_length() > 1000:  # a larger one has no float
        raise ValueError(f"record keeps integers of up to 1000 bits; {name!r} has {kept.bit_length()}")
    chunk = open_chunk_of(_unassigned)
    if chunk is not None:
        keep(chunk, name, kept)


def scalar(name: str, value: Any) -> Value:
    """A scalar as a Python object; TypeError for anything else."""
    inner = value.item() if getattr(value, "ndim", None) == 0 and hasattr(value, "item") else value
    if type(inner) in PLAIN:
        return inner  # type: ignore[no-any-return]
    kinds: dict[Any, Any] = {str: str, Integral: int, Real: float}
    for kind, plain in kinds.items():
        if isinstance(inner, kind):
            return plain(inner)  # type: ignore[no-any-return]
    raise TypeError(f"record takes a number, text, bool or None; {name!r} was given {type(value).__name__}")


def keep(chunk: OpenChunk, name: str, value: Value) -> None:
    """Keep a value with its chunk; safe for several threads."""
    recorded = chunk.__dict__.setdefault("recorded", {})
    if name in recorded or len(recorded) < MOST_VALUES:
        recorded[name] = value
    else:
        chunk.sections.note(f"a chunk recorded more than {MOST_VALUES} different values: the rest is not kept")


def packed_values(recorded: dict[str, Value], added: Added | None = None) -> str:
    """Values as JSON, without secrets; `added` are patterns of secrets, as for `redacted`."""
    values = {}
    for name, value in dict(recorded).items():
        clean = redacted_beginning(value, LONGEST_TEXT, added) if isinstance(value, str) else value
        values[redacted_beginning(name, LONGEST_NAME, added)] = clean
    return json.dumps(values)
