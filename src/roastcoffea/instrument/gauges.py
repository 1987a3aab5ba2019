"""Clocks, memory and garbage of this process, and its modules, cheap enough to read around every chunk."""

from __future__ import annotations

import gc
import operator
import os
import select
import socket
import sys
from collections import deque
from functools import partial
from itertools import accumulate, repeat
from pathlib import Path
from threading import get_ident
from time import perf_counter, thread_time
from typing import Any

from roastcoffea.instrument.shared import Action, joined, leave, lock_of
from roastcoffea.interrupts import raise_if_interrupted

try:
    import resource
except ImportError:  # Windows has none
    resource = None  # type: ignore[assignment]

_STATE = "_roastcoffea_open_intervals"


def process_name() -> str:
    """Name of this process among the workers of a run: host and number."""
    return f"{socket.gethostname()}/{os.getpid()}"


def resident_memory() -> int | None:
    """Resident memory of this process in bytes; None if the system does not report it."""
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
    """Result of an `os` function on a small kernel file; file objects would double the cost."""
    file = os.open(path, flags | os.O_CLOEXEC)
    try:
        return use(file, given)
    finally:
        os.close(file)


def _highest_and_resident_memory() -> tuple[int | None, int | None]:
    """High-water mark and current resident memory, from one reading to save time."""
    try:
        text = _of_file("/proc/self/status", os.O_RDONLY, os.read, 16384)
        return _kilobytes(text, b"VmHWM:"), _kilobytes(text, b"VmRSS:")
    except (OSError, ValueError) as error:
        raise_if_interrupted(error)
        return None, resident_memory()


def switches() -> int | None:
    """How often this thread gave up its core of its own accord; None where nothing tells."""
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
    """A file of the kernel's about the thread that reads it first, or the given one, until `close`.

    It stays open, as opening takes several times as long as reading. Without `close` an object in C closes it, because
    Python drops what handlers of signals raise in `__del__`.
    """

    read = 0
    """Bytes that were read of it."""

    _closing: Any = None

    def __init__(self, name: str, thread: str = "thread-self") -> None:
        self._path, self._file = f"/proc/{thread}/{name}", -1

    def text(self) -> bytes:
        """What is in it; empty if the system does not report it."""
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
        """Close the file."""
        self._file = -1
        if self._closing is not None:
            self._closing.close()


class CoreWait(OfThread):
    """Time for which this thread was runnable without a core."""

    def __init__(self, thread: str = "thread-self") -> None:
        super().__init__("schedstat", thread)

    def seconds(self) -> float | None:
        """Seconds since the thread started; None if the system does not report them."""
        text = self.text()
        return int(text.split(None, 2)[1]) * 1e-9 if text else None


class BytesRead(OfThread):
    """Bytes that this thread read with `read()` and its like, from files, pipes and the kernel; not through mmap."""

    def __init__(self) -> None:
        super().__init__("io")

    def bytes(self) -> int | None:
        """Bytes since the thread started, without those of this file; None if the system does not report them."""
        own, text = self.read, self.text()
        return int(text.split(None, 2)[1]) - own if text else None


class Delays:
    """Parts of a thread's waits for storage in which it had no core; the times are those of one thread."""

    core_wait: CoreWait | None = None
    """Time that the thread has waited for a core, during process()."""
    off_core = 0.0
    """Wall time minus CPU time of that thread at the last reading of its run queue."""
    delay = 0.0
    """Result of that reading."""
    shortest, answers = 2e-3, 0
    """Shortest wait, in seconds, for which the thread's run queue is read: that costs a system call."""
    waits_since = 0.0
    """Wall time minus CPU time of that thread when it started to wait for a basket."""

    def delayed(self, off_core: float) -> float:
        """Seconds without a core during the wait that ends now; 0 for short waits.

        `off_core` is the thread's wall time minus its CPU time.
        """
        waited = off_core - self.waits_since
        return 0.0 if waited < self.shortest else min(self._asked(off_core), waited)

    def waits(self, off_core: float) -> None:
        """Record that the thread waits from now on: earlier time is not part of this wait."""
        self.waits_since = off_core
        if off_core - self.off_core > 2 * self.shortest:
            self._asked(off_core)

    def _asked(self, off_core: float) -> float:
        """Seconds for which the thread waited for a core since the last reading."""
        before, self.off_core = self.delay, off_core
        if self.core_wait is not None:
            self.delay = self.core_wait.seconds() or before
            self.answers += 1
            # a chunk may wait thousands of times: after sixteen readings only waits of twice that length are read
            self.shortest = 2e-3 * (1 << self.answers // 16)
        return self.delay - before


class Interval:
    """Memory of the process from construction to `close`, and the number of overlapping intervals.

    The kernel keeps one high-water mark per process. Each new interval passes the mark to the open intervals and resets
    it, so that nested and overlapping intervals all see their own peak.

    Parameters
    ----------
    part : bool
        It is part of another interval and does not count as overlap.
    peak : bool
        Measure the peak, for which the kernel's mark is reset.
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
        """Take a high-water mark into account."""
        if mark is not None and self.peak is not None:
            self.peak = max(self.peak, mark)

    def close(self) -> None:
        """End the interval; `peak` stays None if the system does not report it."""
        with lock_of(self._state):
            mark, self.after = (None, resident_memory()) if self.peak is None else _highest_and_resident_memory()
            leave(self._state, self)
            # the kernel's mark is exact only while the memory is held: a later reading of the same peak may be lower
            for other in tuple(self._state.open):
                other.raise_peak(mark)
        if mark is None or not (self._exact or mark != self._mark_before):
            self.peak = None
        else:
            self.raise_peak(mark)
            self.raise_peak(self.after)


_ignored: Any = operator.is_
"""In C, and without an effect."""


class _Starts(map):  # type: ignore[type-arg]
    """An iterator that is advanced where a collection starts: by `setattr(iterator, phase, ...)`."""

    start, stop = property(None, next), property(None, _ignored)


class _Stops(map):  # type: ignore[type-arg]
    """The same where it stops."""

    start, stop = property(None, _ignored), property(None, next)


class Garbage:
    """Time that the process collects garbage, from construction to `close`; nothing of it stays in the interpreter.

    Any thread may collect, such as one that receives what a chunk waits for: collecting holds the interpreter.

    The callbacks have no code in Python. It would be where signals that came during a collection are handled, and
    Python drops what their handlers raise there.
    """

    def __init__(self) -> None:
        self._thread, self._began = get_ident(), perf_counter()
        self._starts, at_start = self._sums(_Starts)
        self._stops, at_stop = self._sums(_Stops)
        self._callbacks = [partial(setattr, at_start), partial(setattr, at_stop)]
        gc.callbacks.extend(self._callbacks)

    def _sums(self, kind: type[map[None]]) -> tuple[deque[tuple[float, float, int]], map[None]]:
        """The clocks of this thread and of the others at all starts, or stops, and the number of the others'.

        Clocks are floats, since Python looks for signals as it multiplies long integers.
        """
        sums = deque([(0.0, 0.0, 0)], 1)
        is_own, is_other = self._thread.__eq__, self._thread.__ne__
        wall = map(operator.sub, iter(perf_counter, None), repeat(self._began))
        own = map(operator.mul, map(is_own, iter(get_ident, None)), iter(thread_time, None))
        others = map(operator.mul, map(is_other, iter(get_ident, None)), wall)
        number = map(is_other, iter(get_ident, None))
        return sums, kind(sums.append, zip(*map(accumulate, (own, others, number)), strict=True))

    def seconds(self) -> tuple[float, float]:
        """CPU time of collections by the thread that has constructed this, and wall time of those by others."""
        own, others, open_ones = map(operator.sub, self._stops[0], self._starts[0])
        if open_ones < 0:  # another thread collects now
            others += perf_counter() - self._began
        return own, max(others, 0.0)

    def cost(self, waited: float, lock: float) -> float:
        """Seconds that collections cost the thread: its own, and those by others for which it had to wait.

        It computes on in a library that has let go of the interpreter while another thread collects.

        Parameters
        ----------
        waited, lock : float
            Upper limit on the thread's wait for the interpreter in seconds, and the part recorded as such: others'
            collections are in this part first.
        """
        own, others = self.seconds()
        return own + min(max(others - lock, 0.0), max(waited - lock, 0.0))

    def close(self) -> None:
        """Stop recording collections."""
        for callback in self._callbacks:
            if callback in gc.callbacks:
                gc.callbacks.remove(callback)


def _of_modules(number: int) -> list[str]:
    """Names of the modules that were loaded since there were this many."""
    return [*sys.modules][number:] if len(sys.modules) > number else []


def bytes_of_modules(number: int) -> int:
    """The most that was read to load the modules since there were this many."""
    size = 0
    for name in _of_modules(number):
        try:
            # an attribute of a module that is loaded when it is used would load it
            spec = object.__getattribute__(sys.modules.get(name), "__dict__").get("__spec__")
            if spec.cached:
                cached = Path(spec.cached)
                size += (cached if cached.exists() else Path(spec.origin)).stat().st_size
        except (AttributeError, OSError) as error:
            raise_if_interrupted(error)
    return size


def modules_since(number: int) -> list[str] | None:
    """Packages of the modules loaded since there were this many, at most 20; None if there are no new ones."""
    names = (name.partition(".")[0] for name in _of_modules(number))
    # shared state of our code is in sys.modules as well
    found = dict.fromkeys(name for name in names if not name.startswith(("_roastcoffea", "__roastcoffea")))
    return [*found][:20] or None
