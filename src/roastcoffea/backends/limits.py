"""Resource limits, resource usage and throttling of this process."""

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
"""Throttled time in seconds, number of throttled periods, and host steal time in seconds; each is None if unknown."""

THROTTLED_UNITS = {"throttled_usec": 1e-6, "throttled_time": 1e-9}
"""Maps the names of the throttled-time fields in cgroups v2 and v1 to the fields' units in seconds."""


def limits() -> dict[str, Any]:
    """Cores and memory available to this process and on its node; None if unknown.

    `affinity` is a hexadecimal mask of the CPUs on which the process may run. Processes with the same `group` share
    cgroup quotas.
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
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for package in packages:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def _known(ask: Callable[[], Any]) -> Any:
    with suppress(AttributeError, OSError, ValueError):
        return ask()


def throttling(of_process: str = GROUPS_OF_PROCESS, groups: str = ALL_GROUPS) -> tuple[float, int] | None:
    """Throttled time (in seconds, summed over all CPUs) and number of throttled periods.

    Both are summed over this process's control groups and their parents, whose quotas also apply. None if no group
    reports throttling.

    Parameters
    ----------
    of_process, groups : str
        System file that lists this process's control groups, and directory that contains all control groups.
    """
    amounts = (_throttled(_text(path)) for path in _stat_files(of_process, groups))
    found = [amount for amount in amounts if amount is not None]
    return (sum(seconds for seconds, _ in found), sum(periods for _, periods in found)) if found else None


def stolen(statistics: str = "/proc/stat") -> float | None:
    """The host's steal time so far, in CPU seconds; None if unknown."""
    total = _text(statistics).partition("\n")[0].split()
    with suppress(IndexError, ValueError, AttributeError):
        return int(total[8]) / os.sysconf("SC_CLK_TCK")
    return None


def load(*, parent: bool = False) -> dict[str, Any]:
    """CPU seconds used so far on this host, by this process and, optionally, by its parent.

    `hidden` is the reason why the host's counters cannot be read, or None. `system` is the boot ID, which containers on
    the same host share. `own` is the CPU time of a process, and `children` is the CPU time of the children that it has
    waited for.
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
        # user, nice, system and interrupt time; guest time is included in user time
        busy = (sum(numbers[:3]) + sum(numbers[5:7])) / os.sysconf("SC_CLK_TCK")
        found |= {"time": time.clock_gettime(time.CLOCK_BOOTTIME), "busy": busy if numbers else None}
    except (AttributeError, OSError, ValueError):
        found |= {"time": None, "busy": None}
    if not found["busy"]:
        found["hidden"] = "the system does not report the host's CPU time"
    elif any(line.split()[4:5] == ["/proc/stat"] for line in _text("/proc/self/mountinfo").splitlines()):
        found["hidden"] = "the container reports its own CPU time as the host's"
    return found


def _used(pid: str) -> dict[str, Any] | None:
    """A process's ID, parent ID, start time and CPU times; None if not reported."""
    fields = _text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    with suppress(IndexError, ValueError, AttributeError, OSError):
        ticks = os.sysconf("SC_CLK_TCK")
        times = [int(fields[place]) / ticks for place in (11, 12, 13, 14, 19)]
        parent = int(fields[1])
        this = {"pid": os.getpid() if pid == "self" else int(pid), "parent": parent, "born": times[4]}
        return this | {"own": times[0] + times[1], "children": times[2] + times[3]}
    return None


def withheld() -> Withheld:
    throttled = throttling()
    return (*((None, None) if throttled is None else throttled), stolen())


def withheld_since(before: Withheld) -> Withheld:
    seconds, periods, taken = (
        None if now is None or then is None else now - then for now, then in zip(withheld(), before, strict=True)
    )
    return seconds, None if periods is None else int(periods), taken


def _stat_files(of_process: str, groups: str) -> Iterator[str]:
    """Possible statistics files of this process's control groups and their parents."""
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
    fields = dict(line.split(" ", 1) for line in statistics.splitlines() if " " in line)
    for name, unit in THROTTLED_UNITS.items():
        with suppress(KeyError, ValueError):
            return int(fields[name]) * unit, int(fields["nr_throttled"])
    return None


def _text(path: str) -> str:
    with suppress(OSError, UnicodeDecodeError), open(path) as file:  # noqa: PTH123  (cheaper than pathlib)
        return file.read()
    return ""


class Usage(NamedTuple):
    """A thread's CPU time, its time waiting for a core, and its process's CPU time, in seconds; NaN if not reported."""

    loop_cpu: float
    loop_queue: float
    process_cpu: float


def usage() -> Usage:
    return Usage(time.thread_time(), _queued(), time.process_time())


def _queued(of_thread: str = "/proc/thread-self/schedstat") -> float:
    """Seconds that this thread spent runnable but waiting for a core."""
    with suppress(OSError, IndexError, ValueError):
        file = os.open(of_thread, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return int(os.read(file, 256).split()[1]) * 1e-9
        finally:
            os.close(file)
    return math.nan
