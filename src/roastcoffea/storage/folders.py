"""Atomic creation of folders and files, and cleanup after killed processes.

Output is written to a hidden folder or file next to its destination. The hidden name identifies the writing process.
If a folder is replaced, it is moved into the hidden folder before the new folder takes its name. If the process is
killed in between, readers find the new folder inside the hidden folder, or the old folder if the new folder is
incomplete.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final, TypeVar
from unicodedata import category

from roastcoffea.errors import MeasurementError, UnreadableMeasurementError
from roastcoffea.storage.processes import OWN_FILE, OWN_FOLDER, UNKNOWN, began, is_alive, machine, remove_files

T = TypeVar("T")

OVERWRITE: Final = "overwrite=True"
OR_OVERWRITE: Final = f"choose another name, or {OVERWRITE} to replace it"

LONGEST_NAME: Final = 255
"""Maximum number of bytes in a file name on all common file systems."""

UNFINISHED: Final = "unfinished"
COMPLETE: Final = "complete"
REPLACED: Final = "replaced"
KEPT: Final = "kept"
"""Subfolders of a hidden folder, by the state of their content.

A folder is unfinished while it is being written, complete while it is waiting to be moved to its destination, and
replaced after it has been moved aside. It is kept, and never removed, if another process took the name to which it
should be moved back.
"""

_HIDDEN: Final = re.compile(r"\.roastcoffea-(?P<machine>[0-9a-f]{8})-(?P<process>\d+)-(?P<began>\d+)-[0-9a-f]{8}")


def file_name(name: str) -> str:
    """Check that a file name is visible and stays within its folder, and return the name."""
    if not isinstance(name, str):
        raise MeasurementError(f"a measurement's name must be a string, not {type(name).__name__}: {name!r}")
    why, shown = None, name
    try:
        length = len(os.fsencode(name))
    except UnicodeEncodeError as error:
        why, length = f"{error.reason}; choose another", 0
    if unseen := next((each for each in name if category(each) in ("Cc", "Zl", "Zp")), None):
        why = f"it contains the control character {unseen!r}; choose a name without it"
    elif not name.strip() or name.startswith(".") or any(character in name for character in "/\\"):
        why = "choose a name without slashes that does not begin with a dot"
    elif length > LONGEST_NAME:
        why, shown = f"it is {length} bytes long; choose one of at most {LONGEST_NAME}", f"{name[:40]}..."
    if why is not None:
        raise MeasurementError(f"{shown!r} cannot name a measurement or file: {why}")
    return name


def name_from(text: str) -> str:
    """Make a folder name from any string.

    The name is short enough for a number to be appended. It is empty if no part of the string is usable.
    """
    kept = "".join(letter if letter.isalnum() or letter in "._-+" else " " for letter in text)
    name = "-".join(kept.split()).strip("._-+")
    return os.fsencode(name)[: LONGEST_NAME // 2].decode(errors="ignore")


def holds_only(folder: Path, names: Collection[str]) -> bool:
    try:
        with os.scandir(folder) as entries:
            ours = [entry.name in names and entry.is_file(follow_symlinks=False) for entry in entries]
    except OSError:
        return False
    return bool(ours) and all(ours) and not folder.is_symlink()


@contextmanager
def synced_file(path: Path) -> Iterator[BinaryIO]:
    """Create a private file that is synced to disk when it is closed, and removed if writing fails."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), OWN_FILE)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def check_free(path: Path, *, overwrite: bool) -> None:
    if path.is_dir():
        raise MeasurementError(f"{path} is a folder; specify a file name")
    if path.exists() and not overwrite:
        raise MeasurementError(f"{path} exists; {OR_OVERWRITE}")


@contextmanager
def whole_file(path: Path, *, overwrite: bool = False) -> Iterator[BinaryIO]:
    """Create a file that appears at its path only when complete.

    An existing file is replaced only with `overwrite`.
    """
    check_free(path, overwrite=overwrite)
    if not path.parent.is_dir():
        raise MeasurementError(f"{path.parent} is not a folder; create it, or choose another")
    tidy(path.parent)
    hidden = hidden_path(path.parent)
    try:
        with synced_file(hidden) as file:
            yield file
        if overwrite:
            hidden.replace(path)
        else:
            try:
                path.hardlink_to(hidden)  # another process may have taken the name during writing
            except FileExistsError:
                raise MeasurementError(f"{path} exists; {OR_OVERWRITE}") from None
            except OSError:  # the file system does not support hard links
                hidden.rename(path)
    finally:
        hidden.unlink(missing_ok=True)
    sync_folder(path.parent)


def write_page(path: Path, text: Callable[[], str], *, overwrite: bool = False) -> Path:
    """Write a page to a file atomically, and return its path.

    The page is generated only if it can be written.

    Raises
    ------
    MeasurementError
        If the file exists or cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path, overwrite=overwrite) as file:
            file.write(text().encode("utf-8", "backslashreplace"))
    except OSError as error:
        raise MeasurementError(f"the page was not written to {path}: {error}") from error
    return path


def sync_folder(folder: Path) -> None:
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


class NewFolder:
    """A folder that is filled at the hidden `path`, and then moved to its destination in one step."""

    def __init__(self, hidden: Path, name: str) -> None:
        self._hidden = hidden
        self.path = hidden / UNFINISHED / name
        self.path.parent.mkdir(OWN_FOLDER)
        self.path.mkdir(OWN_FOLDER)

    @contextmanager
    def late_file(self, name: str) -> Iterator[BinaryIO]:
        """Create a file that appears in the folder only when complete."""
        unfinished = self._hidden / UNFINISHED / name
        with synced_file(unfinished) as file:
            yield file
        unfinished.rename(self.path / name)

    def complete(self) -> None:
        """Make the folder available under its name from now on, even if this process is killed."""
        sync_folder(self.path)
        place = self._hidden / COMPLETE / self.path.name
        place.parent.mkdir(OWN_FOLDER)
        self.path.rename(place)
        self.path = place

    def put_in_place(self, target: Path, replaces: Callable[[Path], bool] | None = None) -> bool:
        """Move the folder to its destination, and return whether it was moved.

        An existing destination is replaced only if it is an empty folder or `replaces` accepts it.
        """
        while True:  # another process may create or remove the destination at any time
            try:
                self.path.rename(target)
                break
            except OSError as error:
                if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                    raise
            if replaces is None:
                return False
            found = _state(target)
            if replaces(target):
                self._move_aside(target, replaces)
            elif found is not None and found == _state(target):
                raise _stays(target)
        sync_folder(target.parent)
        return True

    def _move_aside(self, target: Path, replaces: Callable[[Path], bool]) -> None:
        """Move an existing folder into the hidden folder, from which `dissolve` restores it if necessary."""
        aside = self._hidden / REPLACED / target.name
        aside.parent.mkdir(OWN_FOLDER, exist_ok=True)
        remove_files(aside, written_in(aside))  # left over if another process took the name after an earlier move
        try:
            target.rename(aside)
        except FileNotFoundError:  # the folder disappeared after the check
            return
        if not replaces(aside):  # the folder changed after the check
            try:
                aside.rename(target)
            except OSError as error:  # another process took the name
                aside.parent.rename(kept := self._hidden / KEPT)
                raise MeasurementError(
                    f"{target} changed before it was overwritten, and another process took its name; its old content "
                    f"stays in {kept / target.name}"
                ) from error
            raise _stays(target)


def _stays(target: Path) -> MeasurementError:
    why = "it is not a measurement or export, or contains other files"
    return MeasurementError(f"{target} is not overwritten: {why}; choose another name")


@contextmanager
def new_folder(parent: Path, name: str) -> Iterator[NewFolder]:
    """Create a folder to be filled and moved to its destination. If it is not moved, it is removed."""
    tidy(parent)
    hidden = hidden_path(parent)
    hidden.mkdir(OWN_FOLDER)
    try:
        yield NewFolder(hidden, name)
    finally:
        dissolve(hidden, (REPLACED,))


def _state(path: Path, *, follow: bool = False) -> tuple[int, int] | None:
    """Return the inode and change time that identify a file or folder or, with `follow`, a link's target."""
    with suppress(OSError, ValueError):
        found = path.stat(follow_symlinks=follow)
        return found.st_ino, found.st_ctime_ns
    return None


def hidden_in(parent: Path) -> list[Path]:
    return sorted((path for path in entries(parent) if _HIDDEN.fullmatch(path.name)), key=changed, reverse=True)


def entries(folder: Path) -> list[Path]:
    with suppress(OSError):
        return list(folder.iterdir())
    return []


def changed(path: Path) -> float:
    with suppress(OSError):
        return path.lstat().st_mtime
    return time.time()


def hidden_path(parent: Path) -> Path:
    process = os.getpid()
    return parent / f".roastcoffea-{machine()}-{process}-{began(process) or UNKNOWN}-{secrets.token_hex(4)}"


def writer_lives(hidden: Path) -> bool | None:
    by = _HIDDEN.fullmatch(hidden.name)
    alive = by and is_alive(by["machine"], int(by["process"]), int(by["began"]))
    # processes on other machines cannot be checked, but no save takes a week
    return False if alive is None and time.time() - changed(hidden) > 7 * 86_400 else alive


def tidy(parent: Path) -> None:
    """Restore or remove output left behind in a folder by killed processes.

    Complete folders, and folders that were moved aside, are moved to their destinations if the names are free. Output
    of live processes, recent output from other machines, and anything that cannot be removed are kept.
    """
    with suppress(OSError):
        for hidden in hidden_in(parent):
            if writer_lives(hidden) is False:
                dissolve(hidden, (COMPLETE, REPLACED))


def left_overs(parent: Path) -> dict[str, Path]:
    """Return the complete folders that were not moved to their destination, by destination name."""
    found: dict[str, Path] = {}
    for hidden in hidden_in(parent):
        states = (REPLACED,) if writer_lives(hidden) else (COMPLETE, REPLACED)
        for folder in (folder for state in states for folder in entries(hidden / state)):
            found.setdefault(folder.name, folder)
    return {name: folder for name, folder in found.items() if not os.path.lexists(parent / name)}


def names_in(parent: Path) -> list[str]:
    """Return the visible names in a folder, and the names of folders that are only briefly hidden."""
    names = os.listdir(parent)  # noqa: PTH208  (only names are needed)
    # the second listing finds folders that received their name after the first listing
    names += [*left_overs(parent), *os.listdir(parent)]  # noqa: PTH208
    return [name for name in dict.fromkeys(names) if not name.startswith(".")]


def read_whole(folder: Path, read: Callable[[Path], T]) -> T:
    """Read a folder, or the folder that a killed process left for this name, without mixing the two.

    The folder is read again if it is replaced during reading.
    """
    for _ in range(10):
        place = folder if os.path.lexists(folder) else left_overs(folder.parent).get(folder.name, folder)
        state = _state(place, follow=True)
        try:
            result = read(place)
        except MeasurementError:
            if state == _state(place, follow=True):
                raise
            continue
        if state == _state(place, follow=True):
            return result
    raise UnreadableMeasurementError(f"{folder} was replaced repeatedly while it was being read; try again")


def dissolve(hidden: Path, states: tuple[str, ...]) -> None:
    """Move a hidden folder's subfolders in these states to destinations that do not exist, and remove the rest."""
    if not hidden.is_dir():
        hidden.unlink(missing_ok=True)
        return
    for folder in (folder for state in states for folder in entries(hidden / state)):
        place = hidden.parent / folder.name
        if not os.path.lexists(place):
            with suppress(OSError):
                folder.rename(place)
        if not os.path.lexists(place):
            return  # the only folder with this name
    removed = [UNFINISHED]
    for state in (COMPLETE, REPLACED):  # a half-removed folder must not look complete
        removed.append(f"{UNFINISHED}-{state}")
        with suppress(OSError):
            (hidden / state).rename(hidden / removed[-1])
        remove_files(hidden / state, ())  # an empty one, if it could not be renamed
    for state in removed:
        for output in entries(hidden / state):
            remove_files(output, written_in(output))
        remove_files(hidden / state, written_in(hidden / state))
    remove_files(hidden, ())


def written_in(folder: Path) -> list[Path]:
    """Return the files in a folder that may be unfinished output."""
    ours = (".parquet", ".json", ".csv", ".html", "start_end_time.txt")
    return [path for path in entries(folder) if path.name.endswith(ours) and (path.is_symlink() or path.is_file())]
