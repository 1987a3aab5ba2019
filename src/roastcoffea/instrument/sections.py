"""Sections of one attempt: what its passes through the parts that the user named have taken."""

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
from roastcoffea.redaction import Added, redacted

TIME: Final = "time"
MEMORY: Final = "memory"
BYTES: Final = "bytes"

SECTION_UNIT: Final = "section seconds"
"""Unit of sections among Dask's metrics: what comes in "seconds", Dask subtracts from the task's CPU time."""

MOST_SECTIONS: Final = 500
"""Different sections of an attempt; their names may be made in a loop over events."""

MOST_IN_DASK: Final = 1000
"""Most sections that are entered in a Dask worker's metrics: worker and scheduler keep them as long as they live."""

Amounts = dict[str, int | None]


TOTALS: Final = ("name", "count", "wall_seconds", "self_seconds", "cpu_seconds", "max_seconds")
GAUGED: Final = ("bytes", "memory_peak", "memory_delta")
"""Columns of the table of sections: what every pass adds to, and what is only known where it was gauged."""


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
        """Add the amounts of a gauge: of peaks the highest that is known; a sum with an unknown part is unknown."""
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
    """A pass through a section that goes on.

    A section that is entered directly inside of itself is the same section: the pass goes on, and its wall, CPU,
    bytes and memory are taken once, from the outermost to the end. Entered so by the kind that opened the pass it is
    recursion, and `count` goes up; by another kind it is not, so that `track_time("a"), track_memory("a")` is one pass.
    """

    __slots__ = ("began", "count", "cpu", "errors", "gauged", "inside", "name", "opener", "path", "section", "since")

    def __init__(self, name: str, path: str, section: Section, opener: str) -> None:
        self.name = name
        self.path = path
        """Names of the open passes down to this one; those that it began in may have ended since."""
        self.section = section
        self.opener = opener
        self.count = self.errors = 0
        self.gauged: tuple[str, ...] = ()
        self.inside = 0.0
        """Seconds in sections directly inside of this one that have ended."""
        self.began = self.since = time.perf_counter()
        """From `since` on its time is not yet in `inside` of the pass that it stands in."""
        self.cpu = time.thread_time()

    def end(self, stack: list[Pass], now: float, cpu: float | None) -> None:
        """Take the pass off its thread's open ones, and add it to its section.

        CPU time is unknown where another thread ended it.
        """
        last = len(stack) - 1
        if stack[last] is not self:
            _unstack(stack, self, now)
        else:
            # by its place, as the thread may have entered another section by now
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
    """What one `with` has entered: a pass, or a pass that goes on already."""

    sections: Sections
    passing: Pass
    kind: str
    gauge: Callable[[], Amounts] | None
    stack: list[Pass] | None
    """Open passes of the thread, where the pass itself ends with this entry."""

    def leave(self, *, failed: bool) -> None:
        """End what was entered; what goes wrong in that is noted, not raised."""
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
            sections.note(f"a pass through a section was not counted: {error_text(problem)}")

    def amounts(self) -> Amounts:
        """Close the gauge, if there is one; it tells once."""
        gauge, self.gauge = self.gauge, None
        return {} if gauge is None else gauge()


class Sections:
    """The sections of one attempt, from all of its threads; sections nest within a thread."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self._sections: dict[str, Section] = {}
        self.open: set[Entry] = set()
        self._closed = False
        self.stacks: defaultdict[int, list[Pass]] = defaultdict(list)
        """Open passes of each thread, by its identity, the innermost last.

        No `threading.local`: CPython 3.11 can stop for good where one is collected as garbage while all threads' frames
        are asked for, and Dask's profiler asks a hundred times a second.
        """
        # the collection of garbage may end a generator, and a section in it, while this thread holds the lock
        self.lock = threading.RLock()

    def enter(self, name: str, kind: str, requested_bytes: Callable[[], int | None]) -> Entry | None:
        """Enter a section; None where it cannot be measured, which is noted."""
        if not name.strip():
            self.note(f"a section without a name is not counted: give track_{kind} a name")
            return None
        try:
            stack = self.stacks[get_ident()]
            outer = stack[-1] if stack else None
            if outer is not None and outer.name == name:
                gauge = None if kind == TIME or kind in outer.gauged else _gauge(kind, requested_bytes)
                entry = Entry(self, outer, kind, gauge, None)
            else:
                path = name if outer is None else f"{outer.path}/{name}"
                section = self._sections.get(path)
                if section is None:
                    if len(self._sections) >= MOST_SECTIONS:
                        self.note(f"a chunk has more than {MOST_SECTIONS} different sections: the rest is not counted")
                        return None
                    section = self._sections.setdefault(path, Section(path))
                gauge = None if kind == TIME else _gauge(kind, requested_bytes)
                entry = Entry(self, Pass(name, path, section, kind), kind, gauge, stack)
                stack.append(entry.passing)
            if gauge is not None:
                entry.passing.gauged += (kind,)
            self.open.add(entry)
            if self._closed:
                self.close()
        except Exception as problem:  # noqa: BLE001  (as above)
            self.note(f"a pass through a section was not counted: {error_text(problem)}")
            return None
        return entry

    def close(self) -> None:
        """End with the attempt: what is still open, as in a generator that was left half way, is not counted."""
        self._closed = True
        while self.open:
            entry = self.open.pop()
            with reported(self.note, "a gauge of a section was not closed", Exception):
                entry.amounts()
            name = entry.passing.name
            self.note(f"section {name!r} was still open at the end of its chunk: that pass is not counted")

    def note(self, problem: str) -> None:
        """Take note of what was not measured, once."""
        if problem not in self.problems:
            self.problems.append(problem)

    def rows(self, added: Added | None = None) -> list[dict[str, Any]]:
        """Row of each section that was passed, without the chunk; to be called when the attempt is closed.

        Names are without secrets; `added` are patterns of these, as for `redacted`.
        """
        with self.lock:
            passed = [section.row() for section in self._sections.values() if section.count]
        return [{**row, "name": redacted(row["name"], added)} for row in passed]

    def meter_in_dask(self, rows: list[dict[str, Any]]) -> None:
        """Enter each section's wall time into the metrics of the Dask task on this thread, if there is one."""
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


def _unstack(stack: list[Pass], passing: Pass, now: float) -> None:
    """Take a pass out of its thread's open ones; those entered later stay, in what the pass stood in."""
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


def _gauge(kind: str, requested_bytes: Callable[[], int | None]) -> Callable[[], Amounts]:
    """What measures memory or bytes from now on; it ends and tells when it is called."""
    if kind == BYTES:
        before = requested_bytes()
        return lambda: {"bytes": _growth(before, requested_bytes())}
    interval = Interval(part=True)

    def amounts() -> Amounts:
        interval.close()
        return {"memory_peak": interval.peak, "memory_delta": _growth(interval.before, interval.after)}

    return amounts


def _growth(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else after - before
