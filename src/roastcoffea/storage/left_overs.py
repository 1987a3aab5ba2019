"""Unfinished output and left-overs of killed processes; reading of folders that others replace.

Hidden names contain the writing process, so that its left-overs are found.
"""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, TypeVar

from roastcoffea.errors import MeasurementError, UnreadableMeasurementError
from roastcoffea.log.processes import UNKNOWN, began, is_alive, machine, remove_files

T = TypeVar("T")

PREFIX: Final = ".roastcoffea-"
UNFINISHED: Final = "unfinished"
COMPLETE: Final = "complete"
REPLACED: Final = "replaced"
"""Folders in a hidden folder: being written, waiting for their destination, and moved aside for it."""

WRITTEN: Final = (".parquet", ".json", ".csv", ".html", "start_end_time.txt")
"""Endings of the files in them."""

LONGEST_SAVE: Final = 7 * 86_400
"""Seconds after which a writer on another machine is assumed dead, because that cannot be checked from here."""

_BY_PROCESS: Final = re.compile(r"\.roastcoffea-(?P<machine>[0-9a-f]{8})-(?P<process>\d+)-(?P<began>\d+)-[0-9a-f]{8}")
_OLDER: Final = re.compile(r"\.roastcoffea-[0-9a-f]{16}")
"""Hidden names of versions that did not record the process."""

MOST_READS: Final = 10
"""Times that a folder is read again because it was replaced in the meantime."""


def hidden_in(parent: Path) -> list[Path]:
    """Hidden output in a folder, newest first."""
    found = [path for path in entries(parent) if _BY_PROCESS.fullmatch(path.name) or _OLDER.fullmatch(path.name)]
    return sorted(found, key=changed, reverse=True)


def entries(folder: Path) -> list[Path]:
    """Entries of a folder; none if it cannot be read."""
    with suppress(OSError):
        return list(folder.iterdir())
    return []


def changed(path: Path) -> float:
    """Unix time of the last change in a folder, or of a file; now if it is gone."""
    with suppress(OSError):
        return path.lstat().st_mtime
    return time.time()


def hidden_path(parent: Path) -> Path:
    """New path for output of this process."""
    process = os.getpid()
    return parent / f"{PREFIX}{machine()}-{process}-{began(process) or UNKNOWN}-{secrets.token_hex(4)}"


def writer_lives(hidden: Path) -> bool | None:
    """Whether the writing process is alive; None if unknown."""
    by = _BY_PROCESS.fullmatch(hidden.name)
    if by is None and hidden.is_dir():
        return None  # it may be the only copy of a measurement, and does not record its name
    alive = None if by is None else is_alive(by["machine"], int(by["process"]), int(by["began"]))
    return False if alive is None and time.time() - changed(hidden) > LONGEST_SAVE else alive


def older_left_overs(parent: Path) -> list[Path]:
    """Hidden folders of versions that did not record their destination."""
    return [hidden for hidden in hidden_in(parent) if _OLDER.fullmatch(hidden.name) and hidden.is_dir()]


def tidy(parent: Path) -> None:
    """Restore or remove what killed processes left in a folder.

    Complete folders, and those moved aside, get their name if it is free. Output of living processes, recent output of
    other machines, and anything that cannot be removed is kept.
    """
    with suppress(OSError):
        for hidden in hidden_in(parent):
            if writer_lives(hidden) is False:
                dissolve(hidden, (COMPLETE, REPLACED))


def left_overs(parent: Path) -> dict[str, Path]:
    """Complete folders without their name, by the names they belong to."""
    found: dict[str, Path] = {}
    for hidden in hidden_in(parent):
        states = (REPLACED,) if writer_lives(hidden) else (COMPLETE, REPLACED)
        for folder in (folder for state in states for folder in entries(hidden / state)):
            found.setdefault(folder.name, folder)
    return {name: folder for name, folder in found.items() if not os.path.lexists(parent / name)}


def names_in(parent: Path) -> list[str]:
    """Names in a folder that are not hidden, or hidden only for a moment."""
    names = os.listdir(parent)  # noqa: PTH208  (names are wanted, not paths)
    # a second look finds folders that got their name after the first one
    names += [*left_overs(parent), *os.listdir(parent)]  # noqa: PTH208
    return [name for name in dict.fromkeys(names) if not name.startswith(".")]


def read_whole(folder: Path, read: Callable[[Path], T]) -> T:
    """Content of a folder, or of the left-over that belongs to its name, all from the same one.

    It is read again if the folder is replaced in the meantime.
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
    raise UnreadableMeasurementError(f"{folder} was replaced repeatedly while it was read; try again")


@contextmanager
def _held(folder: Path) -> Iterator[int | None]:
    """Inode of a folder, which no other one gets while the block runs."""
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
    """Inode of a file or folder, or of a link's target."""
    with suppress(OSError, ValueError):
        return path.stat().st_ino
    return None


def dissolve(hidden: Path, states: tuple[str, ...]) -> None:
    """Remove a hidden folder, after its folders in these states got their name if it is free."""
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
    removed = [UNFINISHED]
    for state in (COMPLETE, REPLACED):  # a half-removed folder must not look complete
        removed.append(f"{UNFINISHED}-{state}")
        with suppress(OSError):
            (hidden / state).rename(hidden / removed[-1])
    for state in removed:
        for output in entries(hidden / state):
            remove_files(output, written_in(output))
        remove_files(hidden / state, written_in(hidden / state))
    remove_files(hidden, ())


def written_in(folder: Path) -> list[Path]:
    """Files in a folder that may be unfinished output."""
    return [path for path in entries(folder) if path.name.endswith(WRITTEN) and (path.is_symlink() or path.is_file())]
