"""Measurement of a chunk attempt: clocks, memory, phases, reads, sections."""

from __future__ import annotations

import math
import operator
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Final

from roastcoffea.errors import error_text, reported
from roastcoffea.instrument.channels import DaskTask
from roastcoffea.instrument.gauges import (
    BytesRead,
    CoreWait,
    Garbage,
    Interval,
    bytes_of_modules,
    modules_since,
    process_name,
    switches,
)
from roastcoffea.instrument.meter.files import FilesMeter
from roastcoffea.instrument.meter.formats import Meter
from roastcoffea.instrument.meter.openings import openings_noticed
from roastcoffea.instrument.meter.tally import READ, Tally
from roastcoffea.instrument.meter.writers import AMOUNTS, written_columns
from roastcoffea.instrument.sampler import Stacks, usual_interval
from roastcoffea.instrument.shared import Action, Row
from roastcoffea.instrument.track import OpenChunk, open_chunk, packed_values
from roastcoffea.log.packing import BRANCHES, PROBLEMS, PROFILE, SECTIONS
from roastcoffea.records.chunks import CHECKPOINT, ERROR, OK
from roastcoffea.redaction import Added, redacted

NOTHING: Final = nullcontext()

SENDING: Final = 0.85
"""CPU time to set up an attempt and to pack and send its record, relative to the time to make the record."""


def new_identity() -> int:
    return int.from_bytes(os.urandom(8), "little") >> 1


class Clocks:
    """Measures wall and CPU time from construction to `measured`, on this thread."""

    def __init__(self, task: DaskTask) -> None:
        self._task = task
        self.core_wait = CoreWait()
        self._start, self._wall = time.time(), time.perf_counter()
        # read the wall clock first: even if the thread loses its core here, its waits cannot exceed the wall time
        self._waited = self.core_wait.seconds()
        self.cpu, self._process_cpu = time.thread_time(), time.process_time()

    def measured(self) -> Row:
        cpu, process_cpu = time.thread_time(), time.process_time()
        waited = self.core_wait.seconds()
        wall = time.perf_counter() - self._wall
        self.core_wait.close()
        return {
            "id": new_identity(),
            "start": self._start,
            "stop": self._start + wall,
            "wall_seconds": wall,
            "cpu_seconds": cpu - self.cpu,
            "process_cpu_seconds": process_cpu - self._process_cpu,
            "core_wait_seconds": None if waited is None or self._waited is None else waited - self._waited,
            "thread": threading.get_ident(),
            **(self._task.known or {"worker": process_name()}),
        }


LOCK: Final = "lock_seconds"
WRITE_WAIT: Final = "write_wait_seconds"
READING: Final = ("read_seconds", "decompress_seconds", "interpret_seconds")


class Waits:
    """Measures this thread's off-CPU time in process(), from construction until `parts` is called.

    A thread that waits for the GIL wakes up once per switch interval (5 ms) to request the GIL, and the kernel counts
    each wake-up as a voluntary context switch. A thread that sleeps while other threads compute causes no such
    switches.
    """

    def __init__(self, meter: Tally, core_wait: CoreWait) -> None:
        self._meter = meter
        self._core_wait = core_wait
        self._delay = core_wait.seconds()
        self._switches, self._others, self._helper_cpu = switches(), time.process_time(), meter.helper_cpu
        self.wall, self.cpu = time.perf_counter(), time.thread_time()
        if self._delay is not None:
            meter.core_wait, meter.delay = core_wait, self._delay
            meter.off_core = self.wall - self.cpu

    def parts(
        self, wall: float, cpu: float, read: float, write: float = 0.0, aside: tuple[float, float] = (0.0, 0.0)
    ) -> dict[str, float]:
        """Columns for the waits, in seconds.

        Parameters
        ----------
        wall, cpu, read, write : float
            Wall time of process(), the thread's CPU time, and the time that the thread waited while reading and while
            writing, excluding waits for a core. Waits while writing may include waits for the GIL.
        aside : tuple of float
            CPU time and time spent waiting for a core, both to be excluded from the waits.
        """
        meter = self._meter
        meter.core_wait = None
        waited = max(wall - cpu - read, 0.0)
        delay = self._core_wait.seconds()
        if delay is None or self._delay is None:
            return {"wait_seconds": max(waited - write, 0.0), WRITE_WAIT: min(write, waited)}
        contention = min(max(delay - self._delay - aside[1], 0.0), waited)
        rest, lock = waited - contention, 0.0
        if wall and _has_lock():
            # upper limit on the time that this thread waited for the GIL while other threads held it
            others = time.process_time() - self._others - cpu - aside[0] - meter.helper_cpu + self._helper_cpu
            lock = min(rest, max(min(others * (1 - read / wall), longest_wait(self._switches)), 0.0))
        blocked = rest - lock
        written = min(write / rest, 1.0) * blocked if rest else 0.0
        rest = blocked - written
        return {"contention_seconds": contention, LOCK: lock, "blocked_seconds": rest, WRITE_WAIT: written}


def longest_wait(before: int | None) -> float:
    """Upper limit on the thread's GIL wait time, in seconds, since its switch count was `before`.

    The limit is infinite if the system does not report switches or Python has no GIL.
    """
    now = switches()
    if now is None or before is None or not _has_lock():
        return math.inf
    # a waiting thread wakes up after the interval, or up to 10 % later because timers fire late
    return (now - before) * 1.1 * usual_interval()


def _has_lock() -> bool:
    return bool(getattr(sys, "_is_gil_enabled", lambda: True)())


class Attempt:
    """Measures a chunk attempt from construction to `end`.

    `added` contains the user's secret patterns. `profile` enables stack sampling in the user's function, and
    `peak_memory` enables the measurement of peak memory.
    """

    cache_function: Action
    _began: float
    noticed: AbstractContextManager[Any] = NOTHING
    """Context manager active while coffea's closure opens the chunk's file itself."""

    def __init__(
        self,
        task: DaskTask,
        added: Added | None = None,
        *,
        profile: bool = False,
        peak_memory: bool = True,
        meter: Meter | None = None,
    ) -> None:
        self.problems: list[str] = []
        self._clocks = Clocks(task)
        self._entered = self._clocks.cpu
        """The thread's CPU time when our own code last began."""
        self._measuring = self._unpickling = 0.0
        self._added = added
        self._stacks = Stacks(self.problems.append) if profile else None
        self.meter = Meter() if meter is None else meter
        self._open = OpenChunk(self._requested, peak_memory=peak_memory)
        self.current = open_chunk(self._open)
        self._opened: float | None = None
        self._ended: float | None = None
        self._payload_before = 0
        self._checkpoint = self._saving = 0.0
        self._loaded = False
        self._phases: dict[str, float] = {}
        self._unmetered: int | None = None
        self._written: int | None = None
        """Bytes that the thread wrote in process(), by the system's count."""
        self._modules = len(sys.modules)
        self._switches = switches()
        self._memory = Interval(peak=peak_memory)
        try:
            self._garbage = Garbage()
        except BaseException:
            self._memory.close()
            raise

    def run_closure(self, closure: Action, *args: Any, **kwargs: Any) -> Any:
        """Run coffea's closure, which opens the file and calls process()."""
        with self.current, self.noticed:
            self._measuring += time.thread_time() - self._entered
            self._began = time.perf_counter() - self._unpickling
            return closure(*args, **kwargs)

    def unpickled(self, processor: bytes) -> Any:
        """Unpickle the processor, which coffea would do while it opens the file."""
        import cloudpickle
        import lz4.frame

        wall, cpu = time.perf_counter(), time.thread_time()
        found = cloudpickle.loads(lz4.frame.decompress(processor))
        self._entered += time.thread_time() - cpu
        self._unpickling = time.perf_counter() - wall
        return found

    def _requested(self) -> int | None:
        """Bytes requested from storage so far, including requests for files other than the chunk's."""
        own, others = self.meter.requested(), self.meter.others
        return own if others is None or own is None else own + (others.requested() or 0)

    def end(self, error: BaseException | None = None) -> Row:
        result = None if self._ended is None else time.perf_counter() - self._ended - self._saving
        self._entered = time.thread_time()
        meter, sections = self.meter, self._open.entered
        others = meter.others
        try:
            self._garbage.close()
        finally:
            try:
                self._memory.close()
            finally:
                meter.close()
        branches = meter.branch_columns()
        record: Row = {BRANCHES: branches, **self._phases}
        record.update(
            tree_branches=meter.tree_branches,
            file_bytes=meter.file_bytes,
            source=meter.source,
            **meter.server_columns(),
            memory_before=self._memory.before,
            memory_after=self._memory.after,
            memory_peak=self._memory.peak,
            overlaps=self._memory.overlaps,
            helper_cpu_seconds=meter.helper_cpu,
            checkpoint_seconds=self._checkpoint,
            result_seconds=result,
            imports=modules_since(self._modules),
            outcome=CHECKPOINT if self._loaded else OK,
            bytes_unmetered=self._unmetered,
            bytes_other=0,
            bytes_cached=meter.cached + (0 if others is None else others.cached),
            **written_columns(meter.writes, self._written, self._added),
        )
        meter.writes = None  # breaks a reference cycle
        if others is not None:
            record |= others.other_columns(self._added, with_failed=error is not None)
        # a chunk loaded from a checkpoint reads nothing
        record |= dict.fromkeys(READ, 0) if self._loaded else self._amounts(branches)
        if self._open.recorded:
            record["custom"] = packed_values(self._open.recorded, self._added)
        if sections is not None:
            record[SECTIONS] = rows = sections.rows(self._added)
            if self._unmetered is not None:
                passes = sum(row["count"] for row in rows if row["memory_peak"] is not None)
                # a pass through a section reads up to 4096 bytes from the kernel to measure memory
                record["bytes_unmetered"] = max(self._unmetered - 4096 * passes, 0)
                # it also writes a byte, to reset the kernel's high-water mark
                record["bytes_written_unmetered"] -= min(passes, max(record["bytes_written_unmetered"], 0))
            with reported(self.problems.append, "sections were not added to Dask's metrics", Exception):
                sections.meter_in_dask(rows)
            self.problems += sections.problems
        if self._stacks is not None and (stacks := self._stacks.packed(self._added)):
            record[PROFILE] = stacks
        if problems := [*self.problems, *meter.problems]:
            record[PROBLEMS] = [redacted(problem, self._added) for problem in problems]
        if meter.unknown and not self._loaded:
            record.update(dict.fromkeys(meter.unknown))
        if error is not None:
            record.update(outcome=ERROR, error=error_text(error, self._added))
        record |= (clocks := self._clocks.measured())
        idle = clocks["wall_seconds"] - clocks["cpu_seconds"] - (clocks["core_wait_seconds"] or 0.0)
        waited = min(idle, longest_wait(self._switches))
        record["gc_seconds"] = self._garbage.cost(waited, record.get(LOCK, 0.0))
        ending = self._clocks.cpu + clocks["cpu_seconds"] - self._entered
        record["measuring_seconds"] = self._measuring + ending * (1 + SENDING)
        return record

    def _amounts(self, branches: Row) -> Row:
        meter = self.meter
        requested = meter.requested()
        payload = sum(branches["bytes_payload"]) + sum(branches["bytes_again"])
        metadata = None if requested is None else requested - payload
        if requested is not None and meter.requested_before is not None:
            # bytes requested before the events were built, excluding preloaded baskets, plus late metadata
            metadata = meter.requested_before - self._payload_before + meter.late_metadata
        return {
            "bytes_requested": requested,
            "bytes_payload": payload,
            "bytes_metadata": metadata,
            "bytes_transferred": None if requested is None else meter.transferred,
            "bytes_uncompressed": sum(branches["bytes_uncompressed"]),
            "branches": len(meter.branches),
        }

    # inside coffea's function

    def sampled(self, function: Action) -> Action:
        return function if self._stacks is None else partial(self._stacks.run, function)

    def cache(self) -> Any:
        """Return the cache and record the time: coffea requests the cache once the file is open."""
        self._opened = time.perf_counter()
        self._phases["open_seconds"] = self._opened - self._began - self._checkpoint
        return self.cache_function()

    def notice_opening(self) -> None:
        self.meter.opens()
        self._open.meter, self.noticed = self.meter, openings_noticed(self.meter, everything=True)

    def process(self, function: Action, events: Any) -> Any:
        built, self._entered = time.perf_counter(), time.thread_time()
        self.meter.events_are_built(events)
        self.meter.requested_before, self._payload_before = self.meter.requested(), self.meter.payload
        preloaded = self._built(built)
        try:
            with openings_noticed(self.meter) if self.noticed is NOTHING else NOTHING:
                return self.timed(function, events)
        finally:
            for name, seconds in preloaded.items():
                self._phases[name] = self._phases.get(name, 0.0) + seconds

    def _built(self, now: float) -> dict[str, float]:
        """Record the phases before process(), and return the preloading time by phase."""
        meter, preloaded = self.meter, dict[str, float]()
        if self._opened is None:  # the time when opening ended is unknown
            self._phases["open_seconds"] = now - self._began - self._checkpoint
            return preloaded
        if meter.preloads:
            meter.preloads = False
            meter.asked.clear()
            preloaded = dict(zip(READING, meter.seconds(), strict=True))
        self._phases["build_seconds"] = now - self._opened - sum(preloaded.values())
        return preloaded

    def timed(self, function: Action, *args: Any) -> Any:
        """Run the user's function and split its time into phases."""
        meter, self._open.meter = self.meter, self.meter
        before, measured = meter.seconds(), meter.measuring()
        reads, clock, modules = BytesRead(), self._clocks.core_wait, len(sys.modules)
        meter.reads, counted, of_clock = reads, reads.both(), clock.read
        waits = Waits(meter, clock)
        self._measuring += waits.cpu - self._entered
        meter.in_process = True
        try:
            return function(*args)
        finally:
            self._entered, ended = time.thread_time(), time.perf_counter()
            cpu, wall = self._entered - waits.cpu, ended - waits.wall
            meter.in_process = False
            others, writes = meter.others, meter.writes
            # before further steps are added up, which is no part of process()
            measured = sum(each.measuring() for each in filter(None, (meter, others))) - measured
            read, decompress, interpret = map(operator.sub, meter.seconds(), before)
            if others is not None:
                others.in_process, others.core_wait = False, None
                meter.helper_cpu += others.helper_cpu
                of_others = others.seconds()
                self._phases["other_read_seconds"] = max(of_others[0] - others.aside[3], 0.0)
                read, decompress, interpret = map(operator.add, (read, decompress, interpret), of_others)
            # bytes read by the thread that were not metered
            now_counted = reads.both()
            reads.close()
            known = clock.read - of_clock + bytes_of_modules(modules)
            for each in filter(None, (meter, others)):
                known += each.metered_reads
                each.reads = None
            if counted is not None and now_counted is not None:
                read_bytes, self._written = map(operator.sub, now_counted, counted)
                self._unmetered = max(read_bytes - known, 0)
            files = meter if isinstance(meter, FilesMeter) else others
            delay, cpu_aside = 0.0, 0.0
            if files is not None:
                # opening files and building events are separate phases
                delay, *aside = files.aside
                cpu_aside = aside[1]
                times = map(operator.sub, (wall, cpu, read, decompress, interpret), aside)
                wall, cpu, read, decompress, interpret = (max(seconds, 0.0) for seconds in times)
                for name, seconds in files.phases.items():
                    self._phases[name] = self._phases.get(name, 0.0) + seconds
            compute = max(cpu - decompress - interpret, 0.0)
            measured = max(min(measured, compute, wall), 0.0)
            self._measuring += measured
            wall, cpu, compute = wall - measured, cpu - measured, compute - measured
            write_cpu, write = (0.0, 0.0) if writes is None else (min(writes.cpu, compute), writes.wait)
            self._phases |= {
                "process_seconds": wall,
                **dict(zip(READING, (read, decompress, interpret), strict=True)),
                "compute_seconds": compute - write_cpu,
                "write_cpu_seconds": write_cpu,
                **waits.parts(wall, cpu, read, write, (cpu_aside + measured, delay)),
            }
            self._ended = time.perf_counter()
            self._measuring += time.thread_time() - self._entered

    def load(self, checkpointer: Any, processor: Any, metadata: Any) -> Any:
        """Load the chunk's checkpoint. If there is one, coffea does not process the chunk."""
        began = time.perf_counter()
        output = checkpointer.load(metadata, processor)
        self._checkpoint += time.perf_counter() - began
        self._loaded = output is not None
        return output

    def save(self, checkpointer: Any, processor: Any, output: Any, metadata: Any) -> None:
        began = time.perf_counter()
        checkpointer.save(output, metadata, processor)
        self._saving = time.perf_counter() - began
        self._checkpoint += self._saving


def exceptions_in(result: Any, depth: int = 3) -> Iterator[BaseException]:
    """Yield exceptions that a function returned, either directly or in small built-in containers."""
    if isinstance(result, BaseException):
        yield result
    elif depth and isinstance(result, (dict, list, tuple, set, frozenset)) and len(result) <= 1000:
        for value in result.values() if isinstance(result, dict) else result:
            yield from exceptions_in(value, depth - 1)


def columns_of_returned(result: Any, failed: list[Row], added: Added | None) -> list[Row]:
    """Columns for returned exceptions, except failures to open files."""
    known = {other["error"] for other in failed}
    texts = (error_text(each, added) for each in exceptions_in(result))
    return [{"outcome": ERROR, "error": text, "bytes_requested": 0} for text in texts if text not in known]


def further(record: Row) -> Row:
    """Create a record for another file in the same task, without the task's time."""
    none = {name: 0.0 for name, value in record.items() if name.endswith("_seconds") and value is not None}
    del none["wall_seconds"]
    none |= {name: record[name] and 0 for name in AMOUNTS} | {"id": new_identity()}
    return none | {name: record[name] for name in ("call", "dataset", "worker", "outcome")}
