"""Low-overhead gauges for every chunk: clocks, memory, garbage collection, imports."""

from __future__ import annotations

import gc
import operator
import os
import select
import socket
import sys
from collections import deque
from functools import partial
from itertools import accumulate, islice, repeat
from pathlib import Path
from threading import get_ident
from time import perf_counter, thread_time
from typing import Any

from roastcoffea.instrument.shared import Action, joined, leave, lock_of
from roastcoffea.interrupts import raise_if_interrupted

try:
    import resource
except ImportError:  # not available on Windows
    resource = None  # type: ignore[assignment]

_STATE = "_roastcoffea_open_intervals"


def process_name() -> str:
    """Worker name for this process, made up of the host name and the process ID."""
    return f"{socket.gethostname()}/{os.getpid()}"


def resident_memory() -> int | None:
    """Resident memory of this process in bytes, or None if the system does not report it."""
    try:
        pages = _of_file("/proc/self/statm", os.O_RDONLY, os.read, 16384).split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError) as error:
        raise_if_interrupted(error)
    try:
        import psutil

        return int(psutil.Process().memory_info().rss)
    except ImportError:
        return None


def _of_file(path: str, flags: int, use: Action, given: Any) -> Any:
    """Apply an `os` function to a small /proc file, in half the time that a file object would take."""
    file = os.open(path, flags | os.O_CLOEXEC)
    try:
        return use(file, given)
    finally:
        os.close(file)


def _highest_and_resident_memory() -> tuple[int | None, int | None]:
    try:
        text = _of_file("/proc/self/status", os.O_RDONLY, os.read, 16384)
        return _kilobytes(text, b"VmHWM:"), _kilobytes(text, b"VmRSS:")
    except (OSError, ValueError) as error:
        raise_if_interrupted(error)
        return None, resident_memory()


def switches() -> int | None:
    """Number of this thread's voluntary context switches, or None if unknown."""
    this_thread = getattr(resource, "RUSAGE_THREAD", None)
    return None if this_thread is None else resource.getrusage(this_thread).ru_nvcsw


def _kilobytes(text: bytes, name: bytes) -> int:
    at = text.index(name)
    return int(text[at + len(name) : text.index(b"kB", at)]) * 1024


def _restart_highest_resident_memory() -> bool:
    try:
        _of_file("/proc/self/clear_refs", os.O_WRONLY, os.write, b"5")
    except OSError as error:
        raise_if_interrupted(error)
        return False
    return True


class OfThread:
    """A /proc file for the given thread or, by default, for the first thread that reads it.

    The file stays open until `close`, because opening it takes several times as long as reading it. If `close` is not
    called, a C object closes the file: in a `__del__` method, Python would drop exceptions raised by signal handlers.
    """

    read = 0

    _closing: Any = None

    def __init__(self, name: str, thread: str = "thread-self") -> None:
        self._path, self._file = f"/proc/{thread}/{name}", -1

    def text(self) -> bytes:
        """Read the file's content; the result is empty if the system does not provide the file."""
        try:
            if self._file < 0:
                self._file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
                self._closing = select.epoll.fromfd(self._file)
            text = os.pread(self._file, 512, 0)
        except OSError as error:
            raise_if_interrupted(error)
            return b""
        self.read += len(text)
        return text

    def close(self) -> None:
        self._file = -1
        if self._closing is not None:
            self._closing.close()


class CoreWait(OfThread):
    """Gauge for the time that a thread spends runnable but waiting for a core."""

    def __init__(self, thread: str = "thread-self") -> None:
        super().__init__("schedstat", thread)

    def seconds(self) -> float | None:
        """Seconds spent waiting since the thread started, or None if the system does not report them."""
        text = self.text()
        return int(text.split(None, 2)[1]) * 1e-9 if text else None


class BytesRead(OfThread):
    """Gauge for the bytes that this thread reads and writes with `read()`, `write()` and similar calls, excluding mmap.

    Ordinary files, pipes and /proc files all count.
    """

    def __init__(self) -> None:
        super().__init__("io")

    def both(self) -> tuple[int, int] | None:
        """Bytes read and written since the thread started, excluding this gauge's own reads; None if unknown."""
        own, text = self.read, self.text()
        if not text:
            return None
        _, read, _, written, _ = text.split(None, 4)
        return int(read) - own, int(written)

    def bytes(self) -> int | None:
        """Bytes read, as in `both`."""
        both = self.both()
        return both and both[0]


class Delays:
    """Measures how long a thread waits for a core while it waits for storage."""

    core_wait: CoreWait | None = None
    """Gauge for the thread's time waiting for a core; set while process() is running."""
    off_core = 0.0
    """Wall time minus CPU time of the thread, as of the last reading of the run-queue time."""
    delay = 0.0
    """Time the thread had waited for a core, as of the last reading of the run-queue time."""
    shortest, answers = 2e-3, 0
    """Shortest wait, in seconds, after which the run-queue time is read, because each read costs a system call."""
    waits_since = 0.0
    """The thread's wall time minus its CPU time when the thread started to wait for a basket."""

    def delayed(self, off_core: float) -> float:
        """Seconds that the thread waited for a core during the wait that is ending; 0 for short waits.

        `off_core` is the thread's wall time minus its CPU time.
        """
        waited = off_core - self.waits_since
        return 0.0 if waited < self.shortest else min(self._asked(off_core), waited)

    def waits(self, off_core: float) -> None:
        self.waits_since = off_core
        if off_core - self.off_core > 2 * self.shortest:
            self._asked(off_core)

    def _asked(self, off_core: float) -> float:
        """Seconds that the thread has waited for a core since the run-queue time was last read."""
        before, self.off_core = self.delay, off_core
        if self.core_wait is not None:
            self.delay = self.core_wait.seconds() or before
            self.answers += 1
            # a chunk may wait thousands of times, so the minimum wait doubles every sixteen reads
            self.shortest = 2e-3 * (1 << self.answers // 16)
        return self.delay - before


class Interval:
    """Measures process memory from construction to `close`, and counts overlapping intervals.

    The kernel keeps a single high-water mark per process. Each new interval passes the mark on to the open intervals
    and resets it, so every interval gets its own peak, even if intervals are nested or overlap.

    Parameters
    ----------
    part : bool
        Whether this interval is part of another interval and therefore does not count as overlapping.
    peak : bool
        Whether to measure the peak, which requires resetting the kernel's mark.
    """

    def __init__(self, *, part: bool = False, peak: bool = True) -> None:
        self.before: int | None = None
        self.after: int | None = None
        self.peak: int | None = None
        self.overlaps = 0
        self.part = part
        self._state = joined(_STATE, self)
        try:
            if peak and len(self._state.open) > 1:
                mark = _highest_and_resident_memory()[0]
                for other in tuple(self._state.open):
                    other.raise_peak(mark)
            self._exact = peak and _restart_highest_resident_memory()
            self.before = resident_memory()
            self.peak = self.before if peak else None
            self._mark_before = None if self._exact or not peak else _highest_and_resident_memory()[0]
            whole = [interval for interval in tuple(self._state.open) if not interval.part]
            for interval in whole:
                interval.overlaps = max(interval.overlaps, len(whole) - 1)
        except BaseException:
            leave(self._state, self)
            raise
        finally:
            self._state.lock.release()

    def raise_peak(self, mark: int | None) -> None:
        if mark is not None and self.peak is not None:
            self.peak = max(self.peak, mark)

    def close(self) -> None:
        """End the interval. If the system does not report the peak, `peak` is None."""
        with lock_of(self._state):
            mark, self.after = (None, resident_memory()) if self.peak is None else _highest_and_resident_memory()
            leave(self._state, self)
            # the kernel's mark is exact only while the memory is in use; if it is read later, the same peak may appear
            # lower
            for other in tuple(self._state.open):
                other.raise_peak(mark)
        if mark is None or not (self._exact or mark != self._mark_before):
            self.peak = None
        else:
            self.raise_peak(mark)
            self.raise_peak(self.after)


_ignored: Any = operator.is_


class _Starts(map):  # type: ignore[type-arg]
    """Iterator that `setattr(iterator, phase, ...)` advances when a collection starts."""

    start, stop = property(None, next), property(None, _ignored)


class _Stops(map):  # type: ignore[type-arg]
    start, stop = property(None, _ignored), property(None, next)


class Garbage:
    """Measures the process's garbage collection time from construction to `close`.

    A collection holds the GIL and may run on any thread, e.g. on a thread that receives a chunk's data.

    The callbacks contain no Python code. Otherwise, Python would handle signals in the callbacks during a collection,
    and would drop exceptions raised by the signal handlers.
    """

    def __init__(self) -> None:
        self._thread, self._began = get_ident(), perf_counter()
        self._starts, at_start = self._sums(_Starts)
        self._stops, at_stop = self._sums(_Stops)
        self._callbacks = [partial(setattr, at_start), partial(setattr, at_stop)]
        gc.callbacks.extend(self._callbacks)

    def _sums(self, kind: type[map[None]]) -> tuple[deque[tuple[float, float, int]], map[None]]:
        """Sum the clock readings at all starts or ends, separately for this thread and for other threads.

        The third sum is the number of readings on other threads. Clock values are floats, because Python checks for
        signals when it multiplies long integers.
        """
        sums = deque([(0.0, 0.0, 0)], 1)
        is_own, is_other = self._thread.__eq__, self._thread.__ne__
        wall = map(operator.sub, iter(perf_counter, None), repeat(self._began))
        own = map(operator.mul, map(is_own, iter(get_ident, None)), iter(thread_time, None))
        others = map(operator.mul, map(is_other, iter(get_ident, None)), wall)
        number = map(is_other, iter(get_ident, None))
        return sums, kind(sums.append, zip(*map(accumulate, (own, others, number)), strict=True))

    def seconds(self) -> tuple[float, float]:
        """CPU time of collections on the constructing thread, and wall time of all other collections."""
        own, others, open_ones = map(operator.sub, self._stops[0], self._starts[0])
        if open_ones < 0:  # another thread is collecting now
            others += perf_counter() - self._began
        return own, max(others, 0.0)

    def cost(self, waited: float, lock: float) -> float:
        """Seconds that this thread lost to its own and other threads' garbage collections.

        A thread in a library that has released the GIL keeps computing during another thread's collection.

        Parameters
        ----------
        waited, lock : float
            Upper limit on the thread's wait for the GIL, in seconds, and the part of this wait that is recorded as lock
            wait. Other threads' collections are attributed to the recorded part first.
        """
        own, others = self.seconds()
        return own + min(max(others - lock, 0.0), max(waited - lock, 0.0))

    def close(self) -> None:
        for callback in self._callbacks:
            if callback in gc.callbacks:
                gc.callbacks.remove(callback)


def _of_modules(number: int) -> list[str]:
    return [*sys.modules][number:] if len(sys.modules) > number else []


def bytes_of_modules(number: int) -> int:
    """Upper limit on the number of bytes read to load modules since `sys.modules` had this length."""
    size = 0
    for name in _of_modules(number):
        try:
            # normal attribute access would import a lazily loaded module
            spec = object.__getattribute__(sys.modules.get(name), "__dict__").get("__spec__")
            if spec.cached:
                cached = Path(spec.cached)
                size += (cached if cached.exists() else Path(spec.origin)).stat().st_size
        except (AttributeError, OSError) as error:
            raise_if_interrupted(error)
    return size


def modules_since(number: int) -> list[str] | None:
    """Up to 20 outermost modules loaded since `sys.modules` had this length, or None."""
    loaded = dict.fromkeys(_of_modules(number))
    # sys.modules also contains our shared state
    ours = ("_roastcoffea", "__roastcoffea")
    outer = (name for name in loaded if name.rpartition(".")[0] not in loaded and not name.startswith(ours))
    return list(islice(outer, 20)) or None
