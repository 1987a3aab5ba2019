"""Items of work for executors; a process that works on them imports no more than this module."""

from __future__ import annotations

import json
import resource
import threading
import time

from roastcoffea.instrument.gauges import process_name


def spun(seconds: float) -> set[str]:
    """Use that much CPU on this thread; give the record of the chunk, and the process's CPU so far."""
    start, end = time.time(), time.thread_time() + seconds
    while time.thread_time() < end:
        pass
    return record(start)


def slept(seconds: float) -> set[str]:
    """Sleep; give the record of the chunk."""
    start = time.time()
    time.sleep(seconds)
    return record(start)


def record(start: float) -> set[str]:
    """Record of a chunk that began then and ends now."""
    row = {"worker": process_name(), "thread": threading.get_ident(), "start": start, "stop": time.time()}
    return {json.dumps(row | {"cpu": time.process_time()})}


def cpu_of_children() -> float:
    """CPU time of the children that this process has waited for."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
