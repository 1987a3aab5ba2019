"""Clocks and memory of this process, cheap enough to read around every chunk."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from roastcoffea.instrument.shared import joined, leave, lock_of

_STATE = "_roastcoffea_open_intervals"


class _OfThisProcess(dict[str, int]):
    """What was learned of this process, and holds for no other: a pickle of it is empty."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _OfThisProcess, ()


_earlier_programs: Final = _OfThisProcess()
"""Memory that the programs which the process ran before this one took at most: the accounting's mark is never below."""

LONGEST_STATUS = 16384
LONGEST_LINE = 256

SLACK = 1 << 20
"""Bytes by which two readings of memory that has not changed may differ; the peak is no better known than this."""


def process_name() -> str:
    """Name of this process among the workers of a run: host and number."""
    return f"{socket.gethostname()}/{os.getpid()}"


def resident_memory() -> int | None:
    """Resident memory of this process in bytes; None where the system does not tell."""
    try:
        pages = _of_file("/proc/self/statm", os.O_RDONLY, os.read, LONGEST_STATUS).split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        with suppress(ImportError):
            import psutil

            return int(psutil.Process().memory_info().rss)
    return None


def _of_file(path: str, flags: int, use: Callable[[int, Any], Any], given: Any) -> Any:
    """What a function of `os` makes of a small file of the kernel's: file objects cost as much as the reading."""
    file = os.open(path, flags | os.O_CLOEXEC)
    try:
        return use(file, given)
    finally:
        os.close(file)


def _highest_and_resident_memory() -> tuple[int | None, int | None]:
    """High-water mark, and resident memory now: from one reading, which is what they cost."""
    try:
        text = _of_file("/proc/self/status", os.O_RDONLY, os.read, LONGEST_STATUS)
        return _kilobytes(text, b"VmHWM:"), _kilobytes(text, b"VmRSS:")
    except (OSError, ValueError):
        return None, resident_memory()


def _highest_by_usage() -> int | None:
    """High-water mark as the system's accounting has it; a tenth of the cost, and see `Interval` for when it holds."""
    try:
        import resource
    except ImportError:
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _kilobytes(text: bytes, name: bytes) -> int:
    at = text.index(name)
    return int(text[at + len(name) : text.index(b"kB", at)]) * 1024


def _restart_highest_resident_memory() -> bool:
    try:
        _of_file("/proc/self/clear_refs", os.O_WRONLY, os.write, b"5")
    except OSError:
        return False
    return True


class CoreWait:
    """How long this thread could have computed and had no core; `seconds` may be asked until `close`.

    The kernel's file is kept open: to find it takes several times as long as to read it.
    """

    def __init__(self) -> None:
        try:
            self._file = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._file = -1

    def seconds(self) -> float | None:
        """Seconds since the thread began; None where nothing tells."""
        try:
            return int(os.pread(self._file, LONGEST_LINE, 0).split()[1]) * 1e-9
        except (OSError, IndexError, ValueError):
            return None

    def close(self) -> None:
        """Let go of the file."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    __del__ = close


SHORTEST: Final = 2e-3
"""Seconds that a wait takes from which on it is asked whether the thread had a core: that costs a system call."""
ASKED_OFTEN: Final = 16
"""After so many answers only waits of twice that length are asked for: a chunk may wait thousands of times."""


class Delays:
    """How much of a thread's waits for storage it had no core for; the times are those of one thread."""

    core_wait: CoreWait | None = None
    """Tells how long the thread has waited for a core, while process() goes on."""
    off_core = 0.0
    """Wall time less CPU time of that thread when it was last asked how long it has waited for a core."""
    delay = 0.0
    """What it answered."""
    shortest, answers = SHORTEST, 0
    waits_since = 0.0
    """Wall time less CPU time of that thread since which it waits for a basket."""

    def delayed(self, off_core: float) -> float:
        """Seconds of the wait that ends now in which the thread had no core; 0 where the wait was short.

        `off_core` is the thread's wall time less its CPU time.
        """
        waited = off_core - self.waits_since
        return 0.0 if self.core_wait is None or waited < self.shortest else min(self._asked(off_core), waited)

    def waits(self, off_core: float) -> None:
        """Take note that the thread waits from now on: what came before is not of this wait."""
        self.waits_since = off_core
        if self.core_wait is not None and off_core - self.off_core > 2 * self.shortest:
            self._asked(off_core)

    def _asked(self, off_core: float) -> float:
        """Seconds for which the thread waited for a core since it was last asked."""
        self.off_core = off_core
        before, self.delay = self.delay, (self.core_wait and self.core_wait.seconds()) or self.delay
        self.answers += 1
        self.shortest = SHORTEST * (1 << self.answers // ASKED_OFTEN)
        return self.delay - before


class Interval:
    """Memory of the process from construction to `close`, and how many such intervals overlapped.

    The kernel keeps one high-water mark a process. Each interval that begins hands the mark to the intervals that are
    already open and restarts it, so nested and overlapping intervals all see their own peak.

    The accounting's mark is never below that of the program that the process ran before: it holds for an interval that
    begins with no less, and is alone.

    Parameters
    ----------
    part : bool
        It is part of another interval, and counts as overlap with none.
    """

    def __init__(self, *, part: bool = False) -> None:
        self.before: int | None = None
        self.after: int | None = None
        self.peak: int | None = None
        self.overlaps = 0
        self.part = part
        self._state = joined(_STATE, self)
        try:
            if len(self._state.open) > 1:
                mark = _highest_and_resident_memory()[0]
                for other in tuple(self._state.open):
                    other.raise_peak(mark)
            self._exact = _restart_highest_resident_memory()
            usage = _highest_by_usage() if self._exact else None
            if usage is not None and usage > _earlier_programs.get("at most", usage):
                # as the mark has just been restarted
                self._by_usage, self.before = True, usage
            else:
                self.before = resident_memory()
                self._by_usage = usage is not None and self.before is not None and usage <= self.before + SLACK
                if usage is not None and self._by_usage:
                    _earlier_programs["at most"] = usage
            self.peak = self.before
            self._mark_before = None if self._exact else _highest_and_resident_memory()[0]
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
        """End the interval; `peak` stays None where the system could not tell it."""
        with lock_of(self._state):
            if self._by_usage and len(self._state.open) == 1:
                mark, self.after = _highest_by_usage(), resident_memory()
            else:
                mark, self.after = _highest_and_resident_memory()
            leave(self._state, self)
            # the kernel's mark is exact only as long as the memory is held: the same peak may be less later
            for other in tuple(self._state.open):
                other.raise_peak(mark)
        if mark is None or not (self._exact or mark != self._mark_before):
            self.peak = None
        else:
            self.raise_peak(mark)
            self.raise_peak(self.after)
