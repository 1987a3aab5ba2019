"""Folders and files that appear whole or not at all, and reading of files that may be damaged.

What is being written lies in a hidden folder or file beside its place. The hidden name tells the process that writes,
so that what a killed one leaves is found: see `tidy` and `left_overs`.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import socket
import stat
import sys
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeVar

import pyarrow as pa

from roastcoffea.errors import MeasurementError

T = TypeVar("T")

_SIGNS_OF_DAMAGE: Final = (
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    OSError,
    RecursionError,
    SyntaxError,
    TypeError,
    ValueError,
    pa.ArrowException,
)

OR_OVERWRITE: Final = "choose another name, or say to overwrite it"

OWN_FOLDER: Final = 0o700
OWN_FILE: Final = 0o600
"""Modes of what is written: records tell of paths, hosts and errors, which are nobody else's business."""

LARGEST_FILE: Final = 2**30
"""Bytes of a file that is read as a whole; the largest `run.json` seen had some tens of MB."""

PREFIX: Final = ".roastcoffea-"
UNFINISHED: Final = "unfinished"
COMPLETE: Final = "complete"
REPLACED: Final = "replaced"
"""Folders in a hidden folder: what is being written, what waits for its place, and what stepped aside for it."""

LONGEST_SAVE: Final = 7 * 86_400
"""Seconds after which a writer on another machine is gone; whether it lives cannot be seen from here."""

MOST_READS: Final = 10
"""Times that a folder is read again because it was replaced meanwhile."""

_BY_PROCESS: Final = re.compile(r"\.roastcoffea-(?P<machine>[0-9a-f]{8})-(?P<process>\d+)-(?P<began>\d+)-[0-9a-f]{8}")
_OLDER: Final = re.compile(r"\.roastcoffea-[0-9a-f]{16}")
"""Hidden names of versions that did not tell the process."""


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn whatever a missing or damaged file causes into an error that names it."""
    way_out = "restore it from a copy, or measure again"
    try:
        yield
    except FileNotFoundError:
        raise MeasurementError(f"{path} is missing; {way_out}") from None
    except _SIGNS_OF_DAMAGE as error:
        raise MeasurementError(f"{path} cannot be read ({type(error).__name__}: {error}); {way_out}") from error


def opened(path: Path) -> BinaryIO:
    """File for reading; OSError for anything but a regular file, as to open a pipe would wait for its writer."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file")
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def content_of(path: Path) -> bytes:
    """Content of a regular file; ValueError where it is too large to be one of ours."""
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > LARGEST_FILE:
            raise ValueError(f"it has {size} bytes; at most {LARGEST_FILE} are read")
        return file.read()


def file_name(name: str) -> str:
    """Name, checked to stay in its folder and to be seen there."""
    if not isinstance(name, str):
        raise MeasurementError(f"a measurement's name is text, not {type(name).__name__}: {name!r}")
    if not name.strip() or name.startswith(".") or any(character in name for character in "/\\\0"):
        raise MeasurementError(
            f"{name!r} cannot name a measurement or file: take one without slashes, not beginning with a dot"
        )
    try:
        os.fsencode(name)
    except UnicodeEncodeError as error:
        raise MeasurementError(f"{name!r} cannot name a measurement or file: {error.reason}; take another") from None
    return name


def holds_only(folder: Path, names: Collection[str]) -> bool:
    """Whether a folder holds some of these files, and nothing else."""
    try:
        with os.scandir(folder) as entries:
            ours = [entry.name in names and entry.is_file(follow_symlinks=False) for entry in entries]
    except OSError:
        return False
    return bool(ours) and all(ours) and not folder.is_symlink()


def has_format(file: Path, mark: str) -> bool:
    """Whether a file is JSON of a format; of a damaged one the beginning tells, where our writers put it."""
    try:
        content = content_of(file)
    except (OSError, ValueError):
        return False
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return re.match(rb'\s*\{\s*"format":\s*"%s"' % re.escape(mark.encode()), content) is not None
    return isinstance(found, dict) and found.get("format") == mark


# Writing


@contextmanager
def synced_file(path: Path) -> Iterator[BinaryIO]:
    """New file of the user's own, on disk and not only in memory when it is closed; removed where writing fails."""
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
    """New file that appears at its path when all is in it, or not at all; another is replaced with `overwrite` only."""
    if path.is_dir():
        raise MeasurementError(f"{path} is a folder; choose the name of a file")
    if path.exists() and not overwrite:
        raise MeasurementError(f"{path} exists; {OR_OVERWRITE}")
    if not path.parent.is_dir():
        raise MeasurementError(f"{path.parent} is no folder; make it, or choose another")
    tidy(path.parent)
    hidden = _hidden(path.parent)
    try:
        with synced_file(hidden) as file:
            yield file
        if overwrite:
            hidden.replace(path)
        else:
            _rename_to_new(hidden, path)
    finally:
        hidden.unlink(missing_ok=True)
    sync_folder(path.parent)


def _rename_to_new(file: Path, path: Path) -> None:
    """Give a file its name, unless another has taken it meanwhile."""
    try:
        path.hardlink_to(file)
    except FileExistsError:
        raise MeasurementError(f"{path} exists; {OR_OVERWRITE}") from None
    except OSError:  # a file system without links
        file.rename(path)


def sync_folder(folder: Path) -> None:
    """Bring the names in a folder to disk, on the systems and file systems that can."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


class NewFolder:
    """A folder that is filled out of sight, in `path`, and then moved to its place in one step."""

    def __init__(self, hidden: Path, name: str) -> None:
        self._hidden = hidden
        self.path = hidden / UNFINISHED / name
        self.path.parent.mkdir(OWN_FOLDER)
        self.path.mkdir(OWN_FOLDER)

    @contextmanager
    def late_file(self, name: str) -> Iterator[BinaryIO]:
        """File that appears in the folder when all is in it, or not at all."""
        unfinished = self._hidden / UNFINISHED / name
        with synced_file(unfinished) as file:
            yield file
        unfinished.rename(self.path / name)

    def complete(self) -> None:
        """Let it be found under its name from now on, also where this process is killed."""
        sync_folder(self.path)
        place = self._hidden / COMPLETE / self.path.name
        place.parent.mkdir(OWN_FOLDER)
        self.path.rename(place)
        self.path = place

    def put_in_place(self, target: Path, replaces: Callable[[Path], bool] | None = None) -> bool:
        """Move it to its place; False where something is and nothing may be replaced.

        What `replaces` allows to be replaced is there until the new folder is. An empty folder counts as nothing.
        """
        while not _moved(self.path, target):  # another process may fill or leave the place meanwhile
            if replaces is None:
                return False
            found = _inode(target)
            if replaces(target):
                if self._took_place_of(target, replaces):
                    break
            elif found is not None and found == _inode(target):
                raise _not_replaced(target)
        sync_folder(target.parent)
        return True

    def _took_place_of(self, target: Path, replaces: Callable[[Path], bool]) -> bool:
        """Whether it is where the other was; False where the place was left meanwhile."""
        try:
            if not exchange(self.path, target):
                return self._replaced(target, replaces)
        except FileNotFoundError:
            return False
        if not replaces(self.path):  # it was changed between the look at it and the exchange
            exchange(self.path, target)
            raise _not_replaced(target)
        return True

    def _replaced(self, target: Path, replaces: Callable[[Path], bool]) -> bool:
        """The same in two steps, where the file system cannot exchange folders; `left_overs` finds it in between."""
        aside = self._hidden / REPLACED / target.name
        aside.parent.mkdir(OWN_FOLDER, exist_ok=True)
        try:
            try:
                target.rename(aside)
            except FileNotFoundError:
                return False
            if not replaces(aside):
                raise _not_replaced(target)
            if _moved(self.path, target):
                return True
        except BaseException:
            with suppress(OSError):
                aside.rename(target)
            raise
        shutil.rmtree(aside, ignore_errors=True)  # who took the place has replaced it
        return False


def _not_replaced(target: Path) -> MeasurementError:
    return MeasurementError(
        f"{target} is not overwritten, as it is no measurement or export, or holds other files; choose another name"
    )


@contextmanager
def new_folder(parent: Path, name: str) -> Iterator[NewFolder]:
    """Folder of this name to be filled and put in place; it is removed where that did not happen."""
    tidy(parent)
    hidden = _hidden(parent)
    hidden.mkdir(OWN_FOLDER)
    try:
        yield NewFolder(hidden, name)
    finally:
        _dissolve(hidden, (REPLACED,))


def _moved(folder: Path, target: Path) -> bool:
    try:
        folder.rename(target)
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
            return False
        raise
    return True


def _inode(path: Path) -> int | None:
    with suppress(FileNotFoundError):
        return path.lstat().st_ino
    return None


# Exchange of two folders, which Python has no function for

_AT_FDCWD: Final = -100
_EXCHANGE: Final = 2
"""RENAME_EXCHANGE of Linux, and RENAME_SWAP of macOS."""

_REFUSALS: Final = frozenset(
    (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EPERM, errno.EXDEV, errno.ENOTTY)
)
"""What systems and file systems say that cannot exchange: NFS, FUSE, overlays, containers with a filter."""


def exchange(one: Path, other: Path) -> bool:
    """Let two folders exchange their names in one step; False where the system or file system cannot."""
    function = _exchange_function()
    if function is None:
        return False
    if function(os.fsencode(one), os.fsencode(other)) == 0:
        return True
    number = ctypes.get_errno()
    if number in _REFUSALS:
        return False
    raise OSError(number, os.strerror(number), str(one), None, str(other))


@cache
def _exchange_function() -> Callable[[bytes, bytes], int] | None:
    try:
        library = ctypes.CDLL(None, use_errno=True)
        if sys.platform == "darwin":
            swap = library.renamex_np
            return lambda one, other: int(swap(one, other, ctypes.c_uint(_EXCHANGE)))
        rename: Any = library.renameat2
    except (AttributeError, OSError, TypeError):
        return None
    return lambda one, other: int(rename(_AT_FDCWD, one, _AT_FDCWD, other, ctypes.c_uint(_EXCHANGE)))


# Left-overs


def tidy(parent: Path) -> None:
    """Use or remove what killed processes left in a folder.

    What was complete, or had stepped aside, gets its place if that is vacant. What a living process writes stays, as
    does what another machine wrote lately, and what cannot be removed.
    """
    with suppress(OSError):
        for hidden in _hidden_in(parent):
            if _writer_lives(hidden) is False:
                _dissolve(hidden, (COMPLETE, REPLACED))


def left_overs(parent: Path) -> dict[str, Path]:
    """Whole folders without a place of their own, by the names that they belong to."""
    found: dict[str, Path] = {}
    for hidden in _hidden_in(parent):
        states = (REPLACED,) if _writer_lives(hidden) else (COMPLETE, REPLACED)
        for folder in (folder for state in states for folder in _entries(hidden / state)):
            found.setdefault(folder.name, folder)
    return {name: folder for name, folder in found.items() if not os.path.lexists(parent / name)}


def older_left_overs(parent: Path) -> list[Path]:
    """Hidden folders of versions that did not tell to which name they belong."""
    return [hidden for hidden in _hidden_in(parent) if _OLDER.fullmatch(hidden.name) and hidden.is_dir()]


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


def _dissolve(hidden: Path, states: tuple[str, ...]) -> None:
    """Remove something hidden, after what is in these states got its place where that is vacant."""
    if not hidden.is_dir():
        hidden.unlink(missing_ok=True)
        return
    for folder in (folder for state in states for folder in _entries(hidden / state)):
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


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _hidden_in(parent: Path) -> list[Path]:
    """What was or is being written in a folder, the newest first."""
    found = [path for path in _entries(parent) if path.name.startswith(PREFIX)]
    known = [path for path in found if _BY_PROCESS.fullmatch(path.name) or _OLDER.fullmatch(path.name)]
    return sorted(known, key=_changed, reverse=True)


def _changed(path: Path) -> float:
    """Unix time of the last change of something in a folder, or of a file; now where it is gone."""
    try:
        return path.lstat().st_mtime
    except OSError:
        return time.time()


def _hidden(parent: Path) -> Path:
    process = os.getpid()
    return parent / f"{PREFIX}{_machine()}-{process}-{_began(process) or _UNKNOWN}-{secrets.token_hex(4)}"


def _writer_lives(hidden: Path) -> bool | None:
    """Whether the process that writes it is there; None where that cannot be told."""
    by = _BY_PROCESS.fullmatch(hidden.name)
    if by is None and hidden.is_dir():
        return None  # it may be the only copy of a measurement, and does not tell its name
    if by is not None and by["machine"] == _machine():
        began = _began(int(by["process"]))
        if began is None or _UNKNOWN not in (began, int(by["began"])):
            return began == int(by["began"])
    return False if time.time() - _changed(hidden) > LONGEST_SAVE else None


@cache
def _machine() -> str:
    """What is equal for processes that see each other's numbers, and for no others."""
    parts = [socket.gethostname()]
    for read, path in ((Path.read_text, "/proc/sys/kernel/random/boot_id"), (os.readlink, "/proc/self/ns/pid")):
        with suppress(OSError):
            parts.append(str(read(Path(path))))
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()[:8]


_UNKNOWN: Final = 0


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
