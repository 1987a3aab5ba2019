"""Clocks and memory of this process, cheap enough to read around every chunk."""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Callable
from typing import Any, Final

from roastcoffea.instrument.shared import joined, leave, lock_of
from roastcoffea.interrupts import raise_if_interrupted

_STATE = "_roastcoffea_open_intervals"


class _OfThisProcess(dict[str, int]):
    """Facts about this process that do not hold for any other: a pickle of it is empty."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _OfThisProcess, ()


_earlier_programs: Final = _OfThisProcess()
"""Peak memory of programs that the process ran before this one: the accounting's mark is never below it."""

LONGEST_STATUS = 16384
LONGEST_LINE = 256

SLACK = 1 << 20
"""Bytes by which two readings of unchanged memory may differ, and the accuracy of peaks."""


def process_name() -> str:
    """Name of this process among the workers of a run: host and number."""
    return f"{socket.gethostname()}/{os.getpid()}"


def resident_memory() -> int | None:
    """Resident memory of this process in bytes; None if the system does not report it."""
    try:
        pages = _of_file("/proc/self/statm", os.O_RDONLY, os.read, LONGEST_STATUS).split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError) as error:
        raise_if_interrupted(error)
    try:
        import psutil

        return int(psutil.Process().memory_info().rss)
    except ImportError as error:
        raise_if_interrupted(error)
        return None


def _of_file(path: str, flags: int, use: Callable[[int, Any], Any], given: Any) -> Any:
    """Result of an `os` function on a small kernel file; file objects would double the cost."""
    file = os.open(path, flags | os.O_CLOEXEC)
    try:
        return use(file, given)
    finally:
        os.close(file)


def _highest_and_resident_memory() -> tuple[int | None, int | None]:
    """High-water mark and current resident memory, from one reading to save time."""
    try:
        text = _of_file("/proc/self/status", os.O_RDONLY, os.read, LONGEST_STATUS)
        return _kilobytes(text, b"VmHWM:"), _kilobytes(text, b"VmRSS:")
    except (OSError, ValueError) as error:
        raise_if_interrupted(error)
        return None, resident_memory()


def _highest_by_usage() -> int | None:
    """High-water mark from the system's accounting, at a tenth of the cost; see `Interval` for when it is valid."""
    try:
        import resource
    except ImportError as error:
        raise_if_interrupted(error)
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


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


class _OfThread:
    """A file of the kernel's about this thread, until `close`: opening takes several times as long as reading.

    Without `close` an object in C closes it, because Python drops what handlers of signals raise in `__del__`.
    """

    name: str
    read = 0
    """Bytes that were read of it."""

    _closing: Any = None

    def __init__(self) -> None:
        try:
            self._file = os.open(f"/proc/thread-self/{self.name}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise_if_interrupted(error)
            self._file = -1
        else:
            self._closing = select.epoll.fromfd(self._file)

    def _second_word(self) -> int | None:
        """The second word in it; None if the system does not report it."""
        try:
            text = os.pread(self._file, LONGEST_LINE, 0)
            self.read += len(text)
            return int(text.split(None, 2)[1])
        except (OSError, IndexError, ValueError) as error:
            raise_if_interrupted(error)
            return None

    def close(self) -> None:
        """Close the file."""
        self._file = -1
        if self._closing is not None:
            self._closing.close()


class CoreWait(_OfThread):
    """Time for which this thread was runnable without a core."""

    name = "schedstat"

    def seconds(self) -> float | None:
        """Seconds since the thread started; None if the system does not report them."""
        waited = self._second_word()
        return None if waited is None else waited * 1e-9


class BytesRead(_OfThread):
    """Bytes that this thread read with `read()` and its like, from files, pipes and the kernel; not through mmap."""

    name = "io"

    def bytes(self) -> int | None:
        """Bytes since the thread started, without those of this file; None if the system does not report them."""
        own, read = self.read, self._second_word()
        return None if read is None else read - own


SHORTEST: Final = 2e-3
"""Shortest wait, in seconds, for which the thread's run queue is read: that costs a system call."""
ASKED_OFTEN: Final = 16
"""Number of readings after which only waits of twice that length are read: a chunk may wait thousands of times."""


class Delays:
    """Parts of a thread's waits for storage in which it had no core; the times are those of one thread."""

    core_wait: CoreWait | None = None
    """Time that the thread has waited for a core, during process()."""
    off_core = 0.0
    """Wall time minus CPU time of that thread at the last reading of its run queue."""
    delay = 0.0
    """Result of that reading."""
    shortest, answers = SHORTEST, 0
    waits_since = 0.0
    """Wall time minus CPU time of that thread when it started to wait for a basket."""

    def delayed(self, off_core: float) -> float:
        """Seconds without a core during the wait that ends now; 0 for short waits.

        `off_core` is the thread's wall time minus its CPU time.
        """
        waited = off_core - self.waits_since
        return 0.0 if self.core_wait is None or waited < self.shortest else min(self._asked(off_core), waited)

    def waits(self, off_core: float) -> None:
        """Record that the thread waits from now on: earlier time is not part of this wait."""
        self.waits_since = off_core
        if self.core_wait is not None and off_core - self.off_core > 2 * self.shortest:
            self._asked(off_core)

    def _asked(self, off_core: float) -> float:
        """Seconds for which the thread waited for a core since the last reading."""
        self.off_core = off_core
        before, self.delay = self.delay, (self.core_wait and self.core_wait.seconds()) or self.delay
        self.answers += 1
        self.shortest = SHORTEST * (1 << self.answers // ASKED_OFTEN)
        return self.delay - before


class Interval:
    """Memory of the process from construction to `close`, and the number of overlapping intervals.

    The kernel keeps one high-water mark per process. Each new interval passes the mark to the open intervals and resets
    it, so that nested and overlapping intervals all see their own peak. The accounting's mark is never below that of a
    program that the process ran before: it is valid for a single interval that starts with at least that much.

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
            usage = _highest_by_usage() if self._exact else None
            if usage is not None and usage > _earlier_programs.get("at most", usage):
                # because the mark was just reset
                self._by_usage, self.before = True, usage
            else:
                self.before = resident_memory()
                self._by_usage = usage is not None and self.before is not None and usage <= self.before + SLACK
                if usage is not None and self._by_usage:
                    _earlier_programs["at most"] = usage
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
            if self.peak is None:
                mark, self.after = None, resident_memory()
            elif self._by_usage and len(self._state.open) == 1:
                mark, self.after = _highest_by_usage(), resident_memory()
            else:
                mark, self.after = _highest_and_resident_memory()
            leave(self._state, self)
            # the kernel's mark is exact only while the memory is held: a later reading of the same peak may be lower
            for other in tuple(self._state.open):
                other.raise_peak(mark)
        if mark is None or not (self._exact or mark != self._mark_before):
            self.peak = None
        else:
            self.raise_peak(mark)
            self.raise_peak(self.after)
