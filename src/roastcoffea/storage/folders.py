"""Folders and files that appear complete or not at all, and what killed processes leave of them.

Output is written to a hidden folder or file next to its destination, whose name has the writing process. A folder that
is replaced is renamed into the hidden folder before the new one gets its name. Whoever looks for a name that a killed
process left free finds the new folder in there, or the old one if the new one was not complete.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import socket
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import BinaryIO, Final, TypeVar
from unicodedata import category

from roastcoffea.errors import MeasurementError, UnreadableMeasurementError

if sys.platform != "win32":
    import fcntl

T = TypeVar("T")

UNKNOWN: Final = 0
"""Start of a process that the system does not tell."""

OVERWRITE: Final = "overwrite=True"
OR_OVERWRITE: Final = f"choose another name, or {OVERWRITE} to replace it"

OWN_FOLDER: Final = 0o700
OWN_FILE: Final = 0o600
"""Permissions of output: records contain private paths, hosts and errors."""

LONGEST_NAME: Final = 255
"""Most bytes in the name of a file, on all common file systems."""

UNFINISHED: Final = "unfinished"
COMPLETE: Final = "complete"
REPLACED: Final = "replaced"
KEPT: Final = "kept"
"""State of folders of others that could not get their name back: nothing in it is removed."""
"""Folders in a hidden folder: being written, waiting for their destination, and moved aside for it."""

_HIDDEN: Final = re.compile(r"\.roastcoffea-(?P<machine>[0-9a-f]{8})-(?P<process>\d+)-(?P<began>\d+)-[0-9a-f]{8}")


def file_name(name: str) -> str:
    """The name, checked to stay in its folder and to be visible there."""
    if not isinstance(name, str):
        raise MeasurementError(f"a measurement's name is text, not {type(name).__name__}: {name!r}")
    why, shown = None, name
    try:
        length = len(os.fsencode(name))
    except UnicodeEncodeError as error:
        why, length = f"{error.reason}; choose another", 0
    if unseen := next((each for each in name if category(each) in ("Cc", "Zl", "Zp")), None):
        why = f"it contains the control character {unseen!r}; choose a name without"
    elif not name.strip() or name.startswith(".") or any(character in name for character in "/\\"):
        why = "choose a name without slashes that does not begin with a dot"
    elif length > LONGEST_NAME:
        why, shown = f"it has {length} bytes; choose one of at most {LONGEST_NAME}", f"{name[:40]}..."
    if why is not None:
        raise MeasurementError(f"{shown!r} cannot name a measurement or file: {why}")
    return name


def name_from(text: str) -> str:
    """Name of a folder made from any text, short enough for a number behind it; empty if nothing of it can be used."""
    kept = "".join(letter if letter.isalnum() or letter in "._-+" else " " for letter in text)
    name = "-".join(kept.split()).strip("._-+")
    return os.fsencode(name)[: LONGEST_NAME // 2].decode(errors="ignore")


def holds_only(folder: Path, names: Collection[str]) -> bool:
    """Whether a folder holds only files of these names."""
    try:
        with os.scandir(folder) as entries:
            ours = [entry.name in names and entry.is_file(follow_symlinks=False) for entry in entries]
    except OSError:
        return False
    return bool(ours) and all(ours) and not folder.is_symlink()


@contextmanager
def synced_file(path: Path) -> Iterator[BinaryIO]:
    """New private file that is synced to disk when it is closed; removed if writing fails."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), OWN_FILE)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        path.unlink(missing_ok=True)
        raise


@contextmanager
def whole_file(path: Path, *, overwrite: bool = False) -> Iterator[BinaryIO]:
    """New file that appears at its path when it is complete, or not at all; it replaces another one only with
    `overwrite`."""
    if path.is_dir():
        raise MeasurementError(f"{path} is a folder; choose the name of a file")
    if path.exists() and not overwrite:
        raise MeasurementError(f"{path} exists; {OR_OVERWRITE}")
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
                path.hardlink_to(hidden)  # another process may have taken the name in the meantime
            except FileExistsError:
                raise MeasurementError(f"{path} exists; {OR_OVERWRITE}") from None
            except OSError:  # a file system without links
                hidden.rename(path)
    finally:
        hidden.unlink(missing_ok=True)
    sync_folder(path.parent)


def write_page(path: Path, text: Callable[[], str], *, overwrite: bool = False) -> Path:
    """Write a page to a file, whole or not at all; give its path. Its text is only made if it can be there.

    Raises
    ------
    MeasurementError
        If something is there already, or it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path, overwrite=overwrite) as file:
            file.write(text().encode("utf-8", "backslashreplace"))
    except OSError as error:
        raise MeasurementError(f"the page was not written to {path}: {error}") from error
    return path


def sync_folder(folder: Path) -> None:
    """Sync the names in a folder to disk, if the system and file system can."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


class NewFolder:
    """A folder that is filled invisibly in `path`, and then moved to its destination in one step."""

    def __init__(self, hidden: Path, name: str) -> None:
        self._hidden = hidden
        self.path = hidden / UNFINISHED / name
        self.path.parent.mkdir(OWN_FOLDER)
        self.path.mkdir(OWN_FOLDER)

    @contextmanager
    def late_file(self, name: str) -> Iterator[BinaryIO]:
        """File that appears in the folder when it is complete, or not at all."""
        unfinished = self._hidden / UNFINISHED / name
        with synced_file(unfinished) as file:
            yield file
        unfinished.rename(self.path / name)

    def complete(self) -> None:
        """Let it be found under its name from now on, even if this process is killed."""
        sync_folder(self.path)
        place = self._hidden / COMPLETE / self.path.name
        place.parent.mkdir(OWN_FOLDER)
        self.path.rename(place)
        self.path = place

    def put_in_place(self, target: Path, replaces: Callable[[Path], bool] | None = None) -> bool:
        """Move it to its destination; False if that exists and may not be replaced.

        Empty folders are always replaced.
        """
        while True:  # another process may create or remove the destination in the meantime
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
        """Move what is to be replaced into the hidden folder, from which `dissolve` brings it back if need be."""
        aside = self._hidden / REPLACED / target.name
        aside.parent.mkdir(OWN_FOLDER, exist_ok=True)
        remove_files(aside, written_in(aside))  # another process took the name after an earlier one was moved
        try:
            target.rename(aside)
        except FileNotFoundError:  # it is gone in the meantime
            return
        if not replaces(aside):  # it changed after it was looked at
            try:
                aside.rename(target)
            except OSError as error:  # another process took the name
                aside.parent.rename(kept := self._hidden / KEPT)
                raise MeasurementError(
                    f"{target} changed as it was to be overwritten, and another process took its name; what it held is "
                    f"in {kept / target.name}, and stays there"
                ) from error
            raise _stays(target)


def _stays(target: Path) -> MeasurementError:
    why = "it is not a measurement or export, or holds other files"
    return MeasurementError(f"{target} is not overwritten: {why}; choose another name")


@contextmanager
def new_folder(parent: Path, name: str) -> Iterator[NewFolder]:
    """Folder of this name to fill and move to its destination; removed if that does not happen."""
    tidy(parent)
    hidden = hidden_path(parent)
    hidden.mkdir(OWN_FOLDER)
    try:
        yield NewFolder(hidden, name)
    finally:
        dissolve(hidden, (REPLACED,))


def _state(path: Path, *, follow: bool = False) -> tuple[int, int] | None:
    """Inode and last change of a file or folder, which no other one has; of a link, or of its target."""
    with suppress(OSError, ValueError):
        found = path.stat(follow_symlinks=follow)
        return found.st_ino, found.st_ctime_ns
    return None


def hidden_in(parent: Path) -> list[Path]:
    """Hidden output in a folder, newest first."""
    return sorted((path for path in entries(parent) if _HIDDEN.fullmatch(path.name)), key=changed, reverse=True)


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
    return parent / f".roastcoffea-{machine()}-{process}-{began(process) or UNKNOWN}-{secrets.token_hex(4)}"


def writer_lives(hidden: Path) -> bool | None:
    """Whether the writing process is alive; None if unknown."""
    by = _HIDDEN.fullmatch(hidden.name)
    alive = by and is_alive(by["machine"], int(by["process"]), int(by["began"]))
    # on another machine, that cannot be checked: no save takes a week
    return False if alive is None and time.time() - changed(hidden) > 7 * 86_400 else alive


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
    raise UnreadableMeasurementError(f"{folder} was replaced repeatedly while it was read; try again")


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
    ours = (".parquet", ".json", ".csv", ".html", "start_end_time.txt")
    return [path for path in entries(folder) if path.name.endswith(ours) and (path.is_symlink() or path.is_file())]


# processes that write: where they are, whether they are alive, what they lock


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
