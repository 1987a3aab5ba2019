"""What an event loop uses of its core: CPU time of its thread, and time without a core.

This module may be pickled by value. Its functions are called on the thread of the event loop.
"""

from __future__ import annotations

import math
import os
import time
from contextlib import suppress
from typing import NamedTuple

OF_THREAD = "/proc/thread-self/schedstat"
LONGEST_LINE = 256


class Usage(NamedTuple):
    """CPU time of this thread, time that it was runnable without a core, and CPU time of the process, so far."""

    loop_cpu: float
    loop_queue: float
    process_cpu: float


def usage() -> Usage:
    """Usage of this thread and its process so far; NaN if the system does not report it."""
    return Usage(time.thread_time(), _queued(), time.process_time())


def _queued(of_thread: str = OF_THREAD) -> float:
    """Seconds for which this thread was runnable and had no core."""
    with suppress(OSError, IndexError, ValueError):
        file = os.open(of_thread, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return int(os.read(file, LONGEST_LINE).split()[1]) * 1e-9
        finally:
            os.close(file)
    return math.nan
