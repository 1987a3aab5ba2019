"""Folders and files that appear complete or not at all.

Unfinished output is in a hidden folder or file next to its destination, see `left_overs`.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Final
from unicodedata import category

from roastcoffea.errors import MeasurementError
from roastcoffea.log.processes import remove_files
from roastcoffea.storage.left_overs import COMPLETE, REPLACED, UNFINISHED, dissolve, hidden_path, tidy, written_in

OVERWRITE: Final = "overwrite=True"
OR_OVERWRITE: Final = f"choose another name, or {OVERWRITE} to replace it"

_STAYS: Final = "is not overwritten: it is not a measurement or export, or holds other files; choose another name"

OWN_FOLDER: Final = 0o700
OWN_FILE: Final = 0o600
"""Permissions of output: records contain private paths, hosts and errors."""


_AT_FDCWD: Final = -100
_EXCHANGE: Final = 2
"""RENAME_EXCHANGE of Linux, and RENAME_SWAP of macOS."""

_REFUSALS: Final = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EPERM, errno.EXDEV, errno.ENOTTY)
"""Errors of systems and file systems that cannot exchange: NFS, FUSE, overlays, containers with a filter."""


LONGEST_NAME: Final = 255
"""Most bytes in the name of a file, on all common file systems."""

UNSEEN: Final = ("Cc", "Zl", "Zp")
"""Categories of control characters and line separators, which would break a name in a list."""


def file_name(name: str) -> str:
    """The name, checked to stay in its folder and to be visible there."""
    if not isinstance(name, str):
        raise MeasurementError(f"a measurement's name is text, not {type(name).__name__}: {name!r}")
    if unseen := next((each for each in name if category(each) in UNSEEN), None):
        take = f"it contains the control character {unseen!r}; choose a name without"
        raise MeasurementError(f"{name!r} cannot name a measurement or file: {take}")
    if not name.strip() or name.startswith(".") or any(character in name for character in "/\\"):
        take = "choose a name without slashes that does not begin with a dot"
        raise MeasurementError(f"{name!r} cannot name a measurement or file: {take}")
    try:
        length = len(os.fsencode(name))
    except UnicodeEncodeError as error:
        raise MeasurementError(f"{name!r} cannot name a measurement or file: {error.reason}; choose another") from None
    if length > LONGEST_NAME:
        take = f"it has {length} bytes; choose one of at most {LONGEST_NAME}"
        raise MeasurementError(f"{name[:40] + '...'!r} cannot name a measurement or file: {take}")
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

        A folder that `replaces` allows to be replaced exists until the new one does. Empty folders are always replaced.
        """
        while not _moved(self.path, target):  # another process may create or remove the destination in the meantime
            if replaces is None:
                return False
            found = _inode(target)
            if replaces(target):
                if self._took_place_of(target, replaces):
                    break
            elif found is not None and found == _inode(target):
                raise MeasurementError(f"{target} {_STAYS}")
        sync_folder(target.parent)
        return True

    def _took_place_of(self, target: Path, replaces: Callable[[Path], bool]) -> bool:
        """Whether it replaced the other folder; False if that disappeared in the meantime."""
        try:
            if not exchange(self.path, target):
                return self._replaced(target, replaces)
        except FileNotFoundError:
            return False
        if not replaces(self.path):  # it changed between the check and the exchange
            exchange(self.path, target)
            raise MeasurementError(f"{target} {_STAYS}")
        return True

    def _replaced(self, target: Path, replaces: Callable[[Path], bool]) -> bool:
        """The same in two steps, if the file system cannot exchange folders; `left_overs` handles the state in
        between."""
        aside = self._hidden / REPLACED / target.name
        aside.parent.mkdir(OWN_FOLDER, exist_ok=True)
        try:
            try:
                target.rename(aside)
            except FileNotFoundError:
                return False
            if not replaces(aside):
                raise MeasurementError(f"{target} {_STAYS}")
            if _moved(self.path, target):
                return True
        except BaseException:
            with suppress(OSError):
                aside.rename(target)
            raise
        remove_files(aside, written_in(aside))  # another process took the name and replaced it
        return False


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


def exchange(one: Path, other: Path) -> bool:
    """Let two folders exchange their names in one step; False if the system or file system cannot."""
    names = os.fsencode(one), os.fsencode(other)
    try:
        library: Any = ctypes.CDLL(None, use_errno=True)
        if sys.platform == "darwin":
            failed = library.renamex_np(*names, ctypes.c_uint(_EXCHANGE))
        else:
            failed = library.renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], ctypes.c_uint(_EXCHANGE))
    except (AttributeError, OSError, TypeError):
        return False
    number = ctypes.get_errno()
    if failed and number not in _REFUSALS:
        raise OSError(number, os.strerror(number), str(one), None, str(other))
    return not failed
