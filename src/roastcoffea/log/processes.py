"""Processes that write to disk: where they are, whether they are alive, what they lock, and what they remove."""

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


@cache
def machine() -> str:
    """Equal for processes that see each other's process ids, and for no others."""
    parts = [socket.gethostname()]
    for read, path in ((Path.read_text, "/proc/sys/kernel/random/boot_id"), (os.readlink, "/proc/self/ns/pid")):
        with suppress(OSError):
            parts.append(str(read(Path(path))))
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()[:8]


@cache
def kernel() -> str:
    """Equal for processes whose locks of files any file system shows to each other: of one host since its boot."""
    with suppress(OSError):
        return hashlib.sha256(Path("/proc/sys/kernel/random/boot_id").read_bytes()).hexdigest()[:8]
    return machine()


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


def locked(file: int, *, shared: bool = False) -> bool | None:
    """Whether an open file is locked for this process now; None where its file system has no locks.

    The lock ends when the file is closed. Two shared locks get along, and none with another one.
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
    """Remove files of a folder as far as possible, and the folder if nothing else is in it."""
    for file in files:
        with suppress(OSError):
            file.unlink()
    with suppress(OSError):
        folder.rmdir()
