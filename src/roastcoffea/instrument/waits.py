"""Waiting in process() other than for storage: for a core, the interpreter lock, or anything else."""

from __future__ import annotations

import math
import sys
import time
from typing import Final

from roastcoffea.instrument.gauges import CoreWait
from roastcoffea.instrument.meter.tally import Tally
from roastcoffea.instrument.switching import usual_interval
from roastcoffea.interrupts import raise_if_interrupted

SLACK: Final = 1.1
"""Seconds beyond the switch interval after which a thread waiting for the interpreter lock may wake, as timers are
late."""


LOCK: Final = "lock_seconds"


class Waits:
    """Time off the CPU of this thread in process(), from construction to `parts`.

    A thread that waits for the interpreter lock wakes up at each switch interval (5 ms) to demand it, which the kernel
    counts as voluntary switches: that distinguishes it from one that sleeps while others compute.
    """

    def __init__(self, meter: Tally, core_wait: CoreWait) -> None:
        self._meter = meter
        self._core_wait = core_wait
        self._delay = core_wait.seconds()
        self._switches, self._others, self._helper_cpu = switches(), time.process_time(), meter.helper_cpu
        self.wall, self.cpu = time.perf_counter(), time.thread_time()
        """Clocks of the thread at the beginning."""
        if self._delay is not None:
            meter.core_wait, meter.delay = core_wait, self._delay
            meter.off_core = self.wall - self.cpu

    def parts(self, wall: float, cpu: float, read: float) -> dict[str, float]:
        """Columns of the waits, in seconds.

        Parameters
        ----------
        wall, cpu, read : float
            Wall time of process(), CPU time of its thread, and its waiting for storage while it had a core.
        """
        meter = self._meter
        meter.core_wait = None
        waited = max(wall - cpu - read, 0.0)
        delay = self._core_wait.seconds()
        if delay is None or self._delay is None:
            return {"wait_seconds": waited}
        contention = min(delay - self._delay, waited)
        others = time.process_time() - self._others - cpu - meter.helper_cpu + self._helper_cpu
        rest = waited - contention
        lock = min(rest, self._longest_lock(others * (1 - read / wall) if wall else 0.0))
        return {"contention_seconds": contention, LOCK: lock, "blocked_seconds": rest - lock}

    def _longest_lock(self, others: float) -> float:
        """The longest that other threads can have held the lock while this one waited for it."""
        return max(min(others, longest_wait(self._switches)), 0.0) if _has_lock() else 0.0


def longest_wait(before: int | None) -> float:
    """The longest that this thread can have waited for the interpreter since it had given up its core so often.

    Infinite where nothing tells.
    """
    now = switches()
    return math.inf if now is None or before is None or not _has_lock() else (now - before) * SLACK * usual_interval()


def _has_lock() -> bool:
    """Whether this interpreter has one lock for all threads."""
    return bool(getattr(sys, "_is_gil_enabled", lambda: True)())


def switches() -> int | None:
    """How often this thread gave up its core of its own accord; None where nothing tells."""
    try:
        import resource

        return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
    except (ImportError, AttributeError) as error:
        raise_if_interrupted(error)
        return None
