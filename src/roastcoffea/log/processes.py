"""Processes that write to disk: on which machine, and whether they are alive."""

from __future__ import annotations

import hashlib
import os
import socket
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final

UNKNOWN: Final = 0


@cache
def machine() -> str:
    """Equal for processes that see each other's process ids, and for no others."""
    parts = [socket.gethostname()]
    for read, path in ((Path.read_text, "/proc/sys/kernel/random/boot_id"), (os.readlink, "/proc/self/ns/pid")):
        with suppress(OSError):
            parts.append(str(read(Path(path))))
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()[:8]


def began(process: int) -> int | None:
    """Start of a process in the system's units, or UNKNOWN; None if there is no such process."""
    if sys.platform != "linux":
        import psutil

        try:
            return int(psutil.Process(process).create_time())
        except psutil.Error as error:
            return None if isinstance(error, psutil.NoSuchProcess) else UNKNOWN
    try:
        state, *numbers = Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None if Path("/proc/self/stat").exists() else UNKNOWN
    return None if state in (b"Z", b"X") else int(numbers[18])


def is_alive(where: str, process: int, start: int) -> bool | None:
    """Whether the process that had this number and start on a machine is alive; None if unknown."""
    now = began(process) if where == machine() else UNKNOWN
    return None if now is not None and UNKNOWN in (now, start) else now == start
