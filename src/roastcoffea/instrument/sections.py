"""Sections of one attempt: totals of its passes through the parts named by the user."""

from __future__ import annotations

import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from threading import get_ident
from typing import Any, Final

from roastcoffea.errors import error_text, reported
from roastcoffea.instrument.gauges import Interval
from roastcoffea.interrupts import raise_if_interrupted
from roastcoffea.redaction import Added, redacted

TIME: Final = "time"
MEMORY: Final = "memory"
BYTES: Final = "bytes"

SECTION_UNIT: Final = "section seconds"
"""Unit of sections among Dask's metrics: Dask subtracts anything in "seconds" from the task's CPU time."""

MOST_SECTIONS: Final = 500
"""Most distinct sections of an attempt; their names may be made in a loop over events."""

MOST_IN_DASK: Final = 1000
"""Most sections added to a Dask worker's metrics: worker and scheduler keep them for their lifetime."""

Amounts = dict[str, int | None]


TOTALS: Final = ("name", "count", "wall_seconds", "self_seconds", "cpu_seconds", "max_seconds")
GAUGED: Final = ("bytes", "memory_peak", "memory_delta")
"""Columns of the table of sections: summed for every pass, and known only if gauged."""


class Section:
    """Totals over the passes through one section."""

    __slots__ = ("amounts", "errors", *TOTALS)

    def __init__(self, name: str) -> None:
        self.name = name
        self.count = 0
        self.wall_seconds = self.self_seconds = self.max_seconds = 0.0
        self.cpu_seconds: float | None = 0.0
        self.errors = 0
        self.amounts: Amounts = {}

    def add(self, amounts: Amounts) -> None:
        """Add the amounts of a gauge: of peaks the highest known one; a sum with an unknown part is unknown."""
        for name, amount in amounts.items():
            known = [self.amounts[name], amount] if name in self.amounts else [amount]
            if name == "memory_peak":
                self.amounts[name] = max(filter(None, known), default=None)
            else:
                self.amounts[name] = None if None in known else sum(filter(None, known))

    def row(self) -> dict[str, Any]:
        """Row of the table of sections, without the chunk."""
        totals = zip(TOTALS, attrgetter(*TOTALS)(self), strict=True)
        return {**dict(totals), **dict.fromkeys(GAUGED), "errors": self.errors, **self.amounts}


class Pass:
    """An open pass through a section.

    A section entered directly inside itself is the same pass: wall time, CPU, bytes and memory are measured once, by
    the outermost entry. If the same kind of tracker enters it again, it is recursion and `count` increases; another
    kind does not count, so that `track_time("a"), track_memory("a")` is one pass.
    """

    __slots__ = ("began", "count", "cpu", "errors", "gauged", "inside", "name", "opener", "path", "section", "since")

    def __init__(self, name: str, path: str, section: Section, opener: str) -> None:
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

        CPU time is unknown if another thread ended it.
        """
        last = len(stack) - 1
        if stack[last] is not self:
            _unstack(stack, self, now)
        else:
            # by position, because the thread may have entered another section by now
            del stack[last]
            if last > 0:
                stack[last - 1].inside += now - self.since
        section, wall = self.section, now - self.began
        section.count += self.count
        section.errors += self.errors
        section.wall_seconds += wall
        section.self_seconds += wall - self.inside
        section.max_seconds = max(section.max_seconds, wall)
        if section.cpu_seconds is not None:
            section.cpu_seconds = None if cpu is None else section.cpu_seconds + cpu - self.cpu


@dataclass(slots=True, eq=False)
class Entry:
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
            amounts = None if self.gauge is None else self.amounts()
            with sections.lock:
                if self not in sections.open:
                    return  # the end of the attempt cut it off
                sections.open.remove(self)
                if amounts is not None:
                    passing.section.add(amounts)
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


class Sections:
    """The sections of one attempt, from all of its threads; sections nest within a thread.

    Without `peak_memory`, those of `track_memory` have no peak.
    """

    def __init__(self, *, peak_memory: bool = True) -> None:
        self._peak_memory = peak_memory
        self.problems: list[str] = []
        self._sections: dict[str, Section] = {}
        self.open: set[Entry] = set()
        self._closed = False
        self.stacks: defaultdict[int, list[Pass]] = defaultdict(list)
        """Open passes of each thread, by its identity, innermost last.

        No `threading.local`: CPython 3.11 can deadlock if one is garbage-collected while all threads' frames are read,
        and Dask's profiler reads them a hundred times a second.
        """
        # garbage collection may end a generator, and a section in it, while this thread holds the lock
        self.lock = threading.RLock()

    def enter(self, name: str, kind: str, requested_bytes: Callable[[], int | None]) -> Entry | None:
        """Enter a section; None if it cannot be measured, which is noted."""
        if not name.strip():
            self.note(f"a section without a name is not counted: give track_{kind} a name")
            return None
        try:
            stack = self.stacks[get_ident()]
            outer = stack[-1] if stack else None
            if outer is not None and outer.name == name:
                gauge = None if kind == TIME or kind in outer.gauged else self._gauge(kind, requested_bytes)
                entry = Entry(self, outer, kind, gauge, None)
            else:
                path = name if outer is None else f"{outer.path}/{name}"
                section = self._sections.get(path)
                if section is None:
                    if len(self._sections) >= MOST_SECTIONS:
                        self.note(f"a chunk has more than {MOST_SECTIONS} different sections: the rest is not counted")
                        return None
                    section = self._sections.setdefault(path, Section(path))
                gauge = None if kind == TIME else self._gauge(kind, requested_bytes)
                entry = Entry(self, Pass(name, path, section, kind), kind, gauge, stack)
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

    def rows(self, added: Added | None = None) -> list[dict[str, Any]]:
        """Rows of the sections that were passed, without the chunk; to be called after the attempt is closed.

        Names are without secrets; `added` are patterns of secrets, as for `redacted`.
        """
        with self.lock:
            passed = [section.row() for section in self._sections.values() if section.count]
        return [{**row, "name": redacted(row["name"], added)} for row in passed]

    def meter_in_dask(self, rows: list[dict[str, Any]]) -> None:
        """Add each section's wall time to the metrics of the Dask task on this thread, if there is one."""
        distributed = sys.modules.get("distributed.worker")
        if distributed is None or not rows:
            return
        try:
            worker = distributed.get_worker()
        except ValueError as error:
            raise_if_interrupted(error)
            return
        known = {key[-2] for key in tuple(worker.digests_total) if isinstance(key, tuple) and key[-1] == SECTION_UNIT}
        for row in rows:
            if row["name"] not in known and len(known) >= MOST_IN_DASK:
                self.note(f"Dask's span lacks some sections: a worker counts at most {MOST_IN_DASK} different ones")
                continue
            known.add(row["name"])
            distributed.context_meter.digest_metric(row["name"], row["wall_seconds"], SECTION_UNIT)


def _unstack(stack: list[Pass], passing: Pass, now: float) -> None:
    """Remove a pass from its thread's open ones; those entered later move to the surrounding pass."""
    at = stack.index(passing)
    del stack[at]
    outer = stack[at - 1] if at > 0 else None
    if outer is not None:
        outer.inside += now - passing.since
    later = stack[at:]
    if later:
        passing.inside += now - later[0].since
        later[0].since = now
    for inner in later:
        inner.path = inner.name if outer is None else f"{outer.path}/{inner.name}"
        outer = inner


def _growth(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else after - before
