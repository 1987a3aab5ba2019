"""Clocks and memory of this process, cheap enough to read around every chunk."""

from __future__ import annotations

import os
import sys
import threading
from types import ModuleType

_STATE = "_roastcoffea_open_intervals"


def resident_memory() -> int | None:
    """Resident memory of this process in bytes; None where the system does not tell."""
    try:
        with open("/proc/self/statm", "rb") as statm:  # noqa: PTH123  (pathlib costs as much as the reading)
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return _resident_memory_from_psutil()


def _resident_memory_from_psutil() -> int | None:
    try:
        import psutil
    except ImportError:
        return None
    return int(psutil.Process().memory_info().rss)


def _highest_resident_memory() -> int | None:
    try:
        with open("/proc/self/status", "rb") as status:  # noqa: PTH123
            text = status.read()
        at = text.index(b"VmHWM:")
        return int(text[at + 6 : text.index(b"kB", at)]) * 1024
    except (OSError, ValueError):
        return None


def _restart_highest_resident_memory() -> bool:
    try:
        with open("/proc/self/clear_refs", "wb", buffering=0) as clear_refs:  # noqa: PTH123
            clear_refs.write(b"5")
    except OSError:
        return False
    return True


def _joined(interval: Interval) -> ModuleType:
    """State of the process with the interval among the open ones; the caller holds its lock.

    It stands in `sys.modules` while an interval is open, and only then: code that was pickled by value has no globals
    to share.
    """
    while True:
        state = sys.modules.get(_STATE)
        if state is None:
            fresh = ModuleType(_STATE)
            fresh.__dict__.update(lock=threading.Lock(), open=set())
            state = sys.modules.setdefault(_STATE, fresh)
        state.lock.acquire()
        if sys.modules.get(_STATE) is state:
            state.open.add(interval)
            return state
        state.lock.release()


class Interval:
    """Memory of the process from construction to `close`, and how many such intervals overlapped.

    The kernel keeps one high-water mark a process. Each interval that begins hands the mark to the intervals that are
    already open and restarts it, so nested and overlapping intervals all see their own peak.
    """

    def __init__(self) -> None:
        self.before: int | None
        self.after: int | None = None
        self.peak: int | None = None
        self.overlaps = 0
        self._state = _joined(self)
        try:
            self._mark_before = mark = _highest_resident_memory()
            for other in self._state.open:
                other.raise_peak(mark)
            self._exact = _restart_highest_resident_memory()
            overlaps = len(self._state.open) - 1
            for interval in self._state.open:
                interval.overlaps = max(interval.overlaps, overlaps)
            self.before = self.peak = resident_memory()
        finally:
            self._state.lock.release()

    def raise_peak(self, mark: int | None) -> None:
        """Take a high-water mark into account."""
        if mark is not None and self.peak is not None:
            self.peak = max(self.peak, mark)

    def close(self) -> None:
        """End the interval; `peak` stays None where the system could not tell it."""
        with self._state.lock:
            mark = _highest_resident_memory()
            self._state.open.discard(self)
            if not self._state.open:
                sys.modules.pop(_STATE, None)
        self.after = resident_memory()
        if mark is None or not (self._exact or mark != self._mark_before):
            self.peak = None
        else:
            self.raise_peak(mark)
