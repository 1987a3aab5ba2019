"""Hidden names beside those of measurements: they tell the process that writes, so that what it leaves is found."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import socket
import sys
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final

PREFIX: Final = ".roastcoffea-"
UNFINISHED: Final = "unfinished"
COMPLETE: Final = "complete"
REPLACED: Final = "replaced"
"""Folders in a hidden folder: what is being written, what waits for its place, and what stepped aside for it."""

LONGEST_SAVE: Final = 7 * 86_400
"""Seconds after which a writer on another machine is gone; whether it lives cannot be seen from here."""

_BY_PROCESS: Final = re.compile(r"\.roastcoffea-(?P<machine>[0-9a-f]{8})-(?P<process>\d+)-(?P<began>\d+)-[0-9a-f]{8}")
_OLDER: Final = re.compile(r"\.roastcoffea-[0-9a-f]{16}")
"""Hidden names of versions that did not tell the process."""

_UNKNOWN: Final = 0


def hidden_in(parent: Path) -> list[Path]:
    """What was or is being written in a folder, the newest first."""
    found = [path for path in entries(parent) if path.name.startswith(PREFIX)]
    known = [path for path in found if _BY_PROCESS.fullmatch(path.name) or _OLDER.fullmatch(path.name)]
    return sorted(known, key=changed, reverse=True)


def entries(folder: Path) -> list[Path]:
    """What lies in a folder; nothing where it cannot be read."""
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def changed(path: Path) -> float:
    """Unix time of the last change of something in a folder, or of a file; now where it is gone."""
    try:
        return path.lstat().st_mtime
    except OSError:
        return time.time()


def hidden_path(parent: Path) -> Path:
    """New path for what this process writes."""
    process = os.getpid()
    return parent / f"{PREFIX}{_machine()}-{process}-{_began(process) or _UNKNOWN}-{secrets.token_hex(4)}"


def writer_lives(hidden: Path) -> bool | None:
    """Whether the process that writes it is there; None where that cannot be told."""
    by = _BY_PROCESS.fullmatch(hidden.name)
    if by is None and hidden.is_dir():
        return None  # it may be the only copy of a measurement, and does not tell its name
    if by is not None and by["machine"] == _machine():
        began = _began(int(by["process"]))
        if began is None or _UNKNOWN not in (began, int(by["began"])):
            return began == int(by["began"])
    return False if time.time() - changed(hidden) > LONGEST_SAVE else None


def older_left_overs(parent: Path) -> list[Path]:
    """Hidden folders of versions that did not tell to which name they belong."""
    return [hidden for hidden in hidden_in(parent) if _OLDER.fullmatch(hidden.name) and hidden.is_dir()]


@cache
def _machine() -> str:
    """What is equal for processes that see each other's numbers, and for no others."""
    parts = [socket.gethostname()]
    for read, path in ((Path.read_text, "/proc/sys/kernel/random/boot_id"), (os.readlink, "/proc/self/ns/pid")):
        with suppress(OSError):
            parts.append(str(read(Path(path))))
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()[:8]


def _began(process: int) -> int | None:
    """When a process began, in a unit of the system's, or _UNKNOWN; None where there is none of that number."""
    if sys.platform != "linux":
        return _began_elsewhere(process)
    try:
        state, *numbers = Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None if Path("/proc/self/stat").exists() else _UNKNOWN
    return None if state in (b"Z", b"X") else int(numbers[18])


def _began_elsewhere(process: int) -> int | None:
    import psutil

    try:
        return int(psutil.Process(process).create_time())
    except psutil.NoSuchProcess:
        return None
    except psutil.Error:
        return _UNKNOWN
