"""Waiting in process() other than for storage: for a core, the interpreter lock, or anything else."""

from __future__ import annotations

import sys
import time
from typing import Final

from roastcoffea.instrument.gauges import CoreWait
from roastcoffea.instrument.meter.tally import Tally
from roastcoffea.instrument.switching import usual_interval

SLACK: Final = 1.1
"""Seconds beyond the switch interval after which a thread waiting for the interpreter lock may wake, as timers are
late."""


class Waits:
    """Time off the CPU of this thread in process(), from construction to `parts`.

    A thread that waits for the interpreter lock wakes up at each switch interval (5 ms) to demand it, which the kernel
    counts as voluntary switches: that distinguishes it from one that sleeps while others compute.
    """

    def __init__(self, meter: Tally, core_wait: CoreWait) -> None:
        self._meter = meter
        self._core_wait = core_wait
        self._delay = core_wait.seconds()
        self._switches, self._others, self._helper_cpu = _switches(), time.process_time(), meter.helper_cpu
        if self._delay is not None:
            meter.core_wait, meter.delay = core_wait, self._delay
            meter.off_core = time.perf_counter() - time.thread_time()

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
        return {"contention_seconds": contention, "lock_seconds": lock, "blocked_seconds": rest - lock}

    def _longest_lock(self, others: float) -> float:
        """The longest that other threads can have held the lock while this one waited for it."""
        if not getattr(sys, "_is_gil_enabled", lambda: True)():
            return 0.0
        switches = _switches()
        if switches is not None and self._switches is not None:
            others = min(others, (switches - self._switches) * SLACK * usual_interval())
        return max(others, 0.0)


def _switches() -> int | None:
    """How often this thread gave up its core of its own accord; None where nothing tells."""
    try:
        import resource

        return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
    except (ImportError, AttributeError):
        return None
