"""Identity and locks of processes that write files, and the permissions and removal of their files."""

from __future__ import annotations

import hashlib
import os
import socket
import sys
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final

if sys.platform != "win32":
    import fcntl

UNKNOWN: Final = 0
"""Placeholder for the start time of a process if the system does not report it."""

OWN_FOLDER: Final = 0o700
OWN_FILE: Final = 0o600
"""Permissions for output: private, because records contain paths, hosts and errors."""


@cache
def machine() -> str:
    """Return an ID shared by exactly those processes that can see each other's process IDs."""
    parts = [socket.gethostname()]
    for read, path in ((Path.read_text, "/proc/sys/kernel/random/boot_id"), (os.readlink, "/proc/self/ns/pid")):
        with suppress(OSError):
            parts.append(str(read(Path(path))))
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()[:8]


@cache
def kernel() -> str:
    """Return an ID for the host since its last boot. All processes with this ID see each other's file locks."""
    with suppress(OSError):
        return hashlib.sha256(Path("/proc/sys/kernel/random/boot_id").read_bytes()).hexdigest()[:8]
    return machine()


def began(process: int) -> int | None:
    """Return the start time of a process in the system's units, or UNKNOWN.

    Return None if there is no such process.
    """
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
    """Whether the process with this machine, ID and start time is alive, or None if this is unknown."""
    now = began(process) if where == machine() else UNKNOWN
    return None if now is not None and UNKNOWN in (now, start) else now == start


def locked(file: int, *, shared: bool = False) -> bool | None:
    """Lock an open file, and return whether it was locked, or None if its file system does not support locks.

    The lock is released when the file is closed. Only shared locks are compatible with each other.
    """
    if sys.platform == "win32":
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_NB | (fcntl.LOCK_SH if shared else fcntl.LOCK_EX))
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def remove_files(folder: Path, files: Iterable[Path]) -> None:
    for file in files:
        with suppress(OSError):
            file.unlink()
    with suppress(OSError):
        folder.rmdir()
