"""Folders that appear whole or not at all, and reading of files that may be damaged."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final

import pyarrow as pa

from roastcoffea.errors import MeasurementError

_SIGNS_OF_DAMAGE: Final = (
    ArithmeticError,
    AttributeError,
    LookupError,
    OSError,
    RecursionError,
    SyntaxError,
    TypeError,
    ValueError,
    pa.ArrowException,
)

OR_OVERWRITE: Final = "choose another name, or say to overwrite it"


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


@contextmanager
def new_folder(parent: Path) -> Iterator[Path]:
    """Hidden folder to be filled and moved into place; it is removed where that did not happen."""
    folder = _hidden(parent)
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def synced_file(path: Path) -> Iterator[BinaryIO]:
    """New file that is on disk, not only in memory, when it is closed."""
    with path.open("xb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def whole_file(path: Path, *, overwrite: bool = False) -> Iterator[BinaryIO]:
    """New file that appears at its path when all is in it, or not at all; another is replaced with `overwrite` only."""
    if path.is_dir():
        raise MeasurementError(f"{path} is a folder; choose the name of a file")
    if path.exists() and not overwrite:
        raise MeasurementError(f"{path} exists; {OR_OVERWRITE}")
    if not path.parent.is_dir():
        raise MeasurementError(f"{path.parent} is no folder; make it, or choose another")
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


def put_in_place(folder: Path, target: Path, replaces: Callable[[Path], bool] | None = None) -> bool:
    """Move a folder to its place; False where something is and nothing may be replaced.

    What `replaces` allows to be replaced steps aside, and is removed when the new folder is in its place. An
    empty folder counts as nothing.
    """
    aside: list[Path] = []
    try:
        while not _moved(folder, target):  # another process may fill the place again meanwhile
            if replaces is None:
                return False
            found = _inode(target)
            if replaces(target):
                aside.append(_hidden(target.parent))
                with suppress(FileNotFoundError):
                    target.rename(aside[-1])
            elif found is not None and found == _inode(target):
                raise MeasurementError(f"{target} is no measurement and is not overwritten; choose another name")
    except BaseException:
        with suppress(OSError, IndexError):
            aside[-1].rename(target)
        raise
    sync_folder(target.parent)
    for replaced in aside:
        shutil.rmtree(replaced, ignore_errors=True)  # NFS keeps a file that is open elsewhere
    return True


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


def _hidden(parent: Path) -> Path:
    return parent / f".roastcoffea-{secrets.token_hex(8)}"
