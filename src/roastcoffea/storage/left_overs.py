"""What killed processes left, and reading of folders that others replace meanwhile."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, TypeVar

from roastcoffea.errors import MeasurementError
from roastcoffea.storage.hidden import COMPLETE, REPLACED, UNFINISHED, entries, hidden_in, writer_lives

T = TypeVar("T")

MOST_READS: Final = 10
"""Times that a folder is read again because it was replaced meanwhile."""


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
    raise MeasurementError(f"{folder} was replaced again and again while it was read; try it again")


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
