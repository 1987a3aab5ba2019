"""What the kernel counts of a busy host, so that tests need not guess how long something may take there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


def core_wait() -> float:
    """Seconds in which this thread could have computed and had no core; 0 where the kernel does not count them."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except OSError:
        return 0.0


def contention() -> float:
    """Seconds, since the host was started, in which something on it had to wait for a core."""
    try:
        some = Path("/proc/pressure/cpu").read_text().splitlines()[0]
    except OSError:
        return 0.0
    return int(some.rpartition("=")[2]) / 1e6


def stolen(core: int) -> float:
    """Seconds that a host took of a virtual core: they are neither CPU time nor waiting of any process."""
    try:
        rows = map(str.split, Path("/proc/stat").read_text().splitlines())
    except OSError:
        return 0.0
    return sum(int(row[8]) for row in rows if row[0] == f"cpu{core}") / os.sysconf("SC_CLK_TCK")


@dataclass
class Wait:
    """Seconds of waiting for cores, known at the end of the block."""

    seconds: float = 0.0


@contextmanager
def waiting_for_cores() -> Iterator[Wait]:
    """How long this thread waits for a core in the block."""
    wait, before = Wait(), core_wait()
    yield wait
    wait.seconds = core_wait() - before


@contextmanager
def contended() -> Iterator[Wait]:
    """How long something on this host waits for a core while the block runs."""
    wait, before = Wait(), contention()
    yield wait
    wait.seconds = contention() - before
