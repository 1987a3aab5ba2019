"""What is being written, or was left by killed processes, beside its place; reading of folders that others replace.

Hidden names tell the process that writes, so that what it leaves is found.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Final, TypeVar

from roastcoffea.errors import MeasurementError, UnreadableMeasurementError

T = TypeVar("T")

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

MOST_READS: Final = 10
"""Times that a folder is read again because it was replaced meanwhile."""


def hidden_in(parent: Path) -> list[Path]:
    """What was or is being written in a folder, the newest first."""
    found = [path for path in entries(parent) if _BY_PROCESS.fullmatch(path.name) or _OLDER.fullmatch(path.name)]
    return sorted(found, key=changed, reverse=True)


def entries(folder: Path) -> list[Path]:
    """What lies in a folder; nothing where it cannot be read."""
    with suppress(OSError):
        return list(folder.iterdir())
    return []


def changed(path: Path) -> float:
    """Unix time of the last change of something in a folder, or of a file; now where it is gone."""
    with suppress(OSError):
        return path.lstat().st_mtime
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
        import psutil

        try:
            return int(psutil.Process(process).create_time())
        except psutil.Error as error:
            return None if isinstance(error, psutil.NoSuchProcess) else _UNKNOWN
    try:
        state, *numbers = Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None if Path("/proc/self/stat").exists() else _UNKNOWN
    return None if state in (b"Z", b"X") else int(numbers[18])


def tidy(parent: Path) -> None:
    """Use or remove what killed processes left in a folder.

    What was complete, or had stepped aside, gets its place if that is vacant. What a living process writes stays, as
    does what another machine wrote lately, and what cannot be removed.
    """
    with suppress(OSError):
        for hidden in hidden_in(parent):
            if writer_lives(hidden) is False:
                dissolve(hidden, (COMPLETE, REPLACED))


def left_overs(parent: Path) -> dict[str, Path]:
    """Whole folders without a place of their own, by the names that they belong to."""
    found: dict[str, Path] = {}
    for hidden in hidden_in(parent):
        states = (REPLACED,) if writer_lives(hidden) else (COMPLETE, REPLACED)
        for folder in (folder for state in states for folder in entries(hidden / state)):
            found.setdefault(folder.name, folder)
    return {name: folder for name, folder in found.items() if not os.path.lexists(parent / name)}


def names_in(parent: Path) -> list[str]:
    """Names of what lies in a folder and is not hidden, or lies there for a moment under a hidden name only."""
    names = os.listdir(parent)  # noqa: PTH208  (names are wanted, not paths)
    # a second look finds what got its place after the first one, and before left-overs were looked for
    names += [*left_overs(parent), *os.listdir(parent)]  # noqa: PTH208
    return [name for name in dict.fromkeys(names) if not name.startswith(".")]


def read_whole(folder: Path, read: Callable[[Path], T]) -> T:
    """What is read of a folder, or of the left-over that belongs to its name, all of it from the same one.

    It is read again where the folder was replaced meanwhile.
    """
    for _ in range(MOST_READS):
        place = folder if os.path.lexists(folder) else left_overs(folder.parent).get(folder.name, folder)
        with _held(place) as inode:
            try:
                result = read(place)
            except MeasurementError:
                if inode == _inode_behind(place):
                    raise
                continue
            if inode == _inode_behind(place):
                return result
    raise UnreadableMeasurementError(f"{folder} was replaced again and again while it was read; try it again")


@contextmanager
def _held(folder: Path) -> Iterator[int | None]:
    """Number of a folder, which no other one gets while the block runs."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NONBLOCK", 0))
    except (OSError, ValueError):
        yield _inode_behind(folder)
        return
    try:
        yield os.fstat(descriptor).st_ino
    finally:
        os.close(descriptor)


def _inode_behind(path: Path) -> int | None:
    """Number of a file or folder, or of that which a link leads to."""
    with suppress(OSError, ValueError):
        return path.stat().st_ino
    return None


def dissolve(hidden: Path, states: tuple[str, ...]) -> None:
    """Remove something hidden, after what is in these states got its place where that is vacant."""
    if not hidden.is_dir():
        hidden.unlink(missing_ok=True)
        return
    for folder in (folder for state in states for folder in entries(hidden / state)):
        place = hidden.parent / folder.name
        if not os.path.lexists(place):
            with suppress(OSError):
                folder.rename(place)
        if not os.path.lexists(place):
            return  # it is the only one of its name
    for state in (COMPLETE, REPLACED):  # half removed it would be no whole folder
        with suppress(OSError):
            (hidden / state).rename(hidden / f"{UNFINISHED}-{state}")
    shutil.rmtree(hidden, ignore_errors=True)  # NFS keeps a file that is open elsewhere
