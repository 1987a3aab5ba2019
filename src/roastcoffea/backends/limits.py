"""Resources that a process may use on its host, what it uses of them, and throttling by control groups."""

from __future__ import annotations

import math
import os
import socket
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

GROUPS_OF_PROCESS = "/proc/self/cgroup"
ALL_GROUPS = "/sys/fs/cgroup"

Withheld = tuple[float | None, int | None, float | None]
"""Seconds and periods of throttling, and seconds of steal on the host; None if unknown."""

THROTTLED_UNITS = {"throttled_usec": 1e-6, "throttled_time": 1e-9}
"""Seconds per unit of the throttled time in control groups of version 2 and 1."""


def limits() -> dict[str, Any]:
    """Cores and memory that this process may use, and those of its node; None if unknown.

    `affinity` is a hexadecimal mask of the processors it may run on. Processes with the same `group` share the quotas
    of their control groups.
    """
    from dask.system import CPU_COUNT
    from distributed.system import MEMORY_LIMIT

    return {
        "cores": CPU_COUNT,
        "memory": MEMORY_LIMIT,
        "node_cores": os.cpu_count(),
        "node_memory": _known(lambda: os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")),
        "affinity": _known(lambda: f"{sum(1 << processor for processor in os.sched_getaffinity(0)):x}"),
        "group": zlib.crc32(_text(GROUPS_OF_PROCESS).encode()),
    }


def versions_of(packages: Iterable[str]) -> dict[str, str]:
    """Versions of those packages that are installed for this process."""
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for package in packages:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def _known(ask: Callable[[], Any]) -> Any:
    """Value from the system; None if it has none."""
    with suppress(AttributeError, OSError, ValueError):
        return ask()


def throttling(of_process: str = GROUPS_OF_PROCESS, groups: str = ALL_GROUPS) -> tuple[float, int] | None:
    """Seconds and periods of throttling of this process's control groups so far, over all processors.

    A group shares the quotas, and so the throttling, of the groups above it. None if no group reports it.

    Parameters
    ----------
    of_process, groups : str
        The system's file with the groups of this process, and its folder of all groups.
    """
    amounts = (_throttled(_text(path)) for path in _stat_files(of_process, groups))
    found = [amount for amount in amounts if amount is not None]
    return (sum(seconds for seconds, _ in found), sum(periods for _, periods in found)) if found else None


def stolen(statistics: str = "/proc/stat") -> float | None:
    """Seconds for which the hypervisor took processors from this virtual machine so far (steal); None if unknown."""
    total = _text(statistics).partition("\n")[0].split()
    with suppress(IndexError, ValueError, AttributeError):
        return int(total[8]) / os.sysconf("SC_CLK_TCK")
    return None


def load(*, parent: bool = False) -> dict[str, Any]:
    """CPU time so far, in seconds, of this host and of this process, with all threads, and optionally of its parent.

    `hidden` is why the kernel's counters of the host cannot be read here; None if they can. `system` is its boot, which
    containers on one host share. The times of a process are `own` and those of `children` that it has waited for.
    """
    pids = ["self", str(os.getppid())] if parent else ["self"]
    found: dict[str, Any] = {
        "host": socket.gethostname(),
        "system": _text("/proc/sys/kernel/random/boot_id") or socket.gethostname(),
        "processes": [used for used in map(_used, pids) if used],
        "hidden": None,
    }
    try:
        numbers = [int(number) for number in _text("/proc/stat").partition("\n")[0].split()[1:]]
        # user, nice and system, and interrupts; guests are part of user
        busy = (sum(numbers[:3]) + sum(numbers[5:7])) / os.sysconf("SC_CLK_TCK")
        found |= {"time": time.clock_gettime(time.CLOCK_BOOTTIME), "busy": busy if numbers else None}
    except (AttributeError, OSError, ValueError):
        found |= {"time": None, "busy": None}
    if not found["busy"]:
        found["hidden"] = "the system does not report the CPU time of the host"
    elif any(line.split()[4:5] == ["/proc/stat"] for line in _text("/proc/self/mountinfo").splitlines()):
        found["hidden"] = "the container shows its own CPU time as that of the host"
    return found


def _used(pid: str) -> dict[str, Any] | None:
    """CPU time of a process so far, with what identifies it; None if the system does not report it."""
    fields = _text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    with suppress(IndexError, ValueError, AttributeError, OSError):
        ticks = os.sysconf("SC_CLK_TCK")
        times = [int(fields[place]) / ticks for place in (11, 12, 13, 14, 19)]
        parent = int(fields[1])
        this = {"pid": os.getpid() if pid == "self" else int(pid), "parent": parent, "born": times[4]}
        return this | {"own": times[0] + times[1], "children": times[2] + times[3]}
    return None


def withheld() -> Withheld:
    """Throttling and steal of this process and its host so far."""
    throttled = throttling()
    return (*((None, None) if throttled is None else throttled), stolen())


def withheld_since(before: Withheld) -> Withheld:
    """Throttling and steal of this process and its host since then."""
    seconds, periods, taken = (
        None if now is None or then is None else now - then for now, then in zip(withheld(), before, strict=True)
    )
    return seconds, None if periods is None else int(periods), taken


def _stat_files(of_process: str, groups: str) -> Iterator[str]:
    """Possible paths of statistics of this process's groups, and of the groups above them."""
    for line in _text(of_process).splitlines():
        _, controllers, path = (*line.split(":", 2), "", "", "")[:3]
        if not path or (controllers and "cpu" not in controllers.split(",")):
            continue
        mounts = [f"{groups}/{controllers}", f"{groups}/cpu"] if controllers else [f"{groups}/unified", groups]
        mount = next(filter(os.path.isdir, mounts), None)
        names = [name for name in path.split("/") if name]
        if mount is not None:
            yield from ("/".join([mount, *names[:depth], "cpu.stat"]) for depth in range(len(names) + 1))


def _throttled(statistics: str) -> tuple[float, int] | None:
    """Seconds and periods of throttling in a group's statistics; None if missing."""
    fields = dict(line.split(" ", 1) for line in statistics.splitlines() if " " in line)
    for name, unit in THROTTLED_UNITS.items():
        with suppress(KeyError, ValueError):
            return int(fields[name]) * unit, int(fields["nr_throttled"])
    return None


def _text(path: str) -> str:
    """Content of a system file; empty if it cannot be read."""
    with suppress(OSError, UnicodeDecodeError), open(path) as file:  # noqa: PTH123  (as cheap as it can be)
        return file.read()
    return ""


class Usage(NamedTuple):
    """CPU time of this thread, time that it was runnable without a core, and CPU time of the process, so far."""

    loop_cpu: float
    loop_queue: float
    process_cpu: float


def usage() -> Usage:
    """Usage of this thread and its process so far; NaN if the system does not report it."""
    return Usage(time.thread_time(), _queued(), time.process_time())


def _queued(of_thread: str = "/proc/thread-self/schedstat") -> float:
    """Seconds for which this thread was runnable and had no core."""
    with suppress(OSError, IndexError, ValueError):
        file = os.open(of_thread, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return int(os.read(file, 256).split()[1]) * 1e-9
        finally:
            os.close(file)
    return math.nan
