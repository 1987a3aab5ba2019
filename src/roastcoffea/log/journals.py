"""Journals on disk: reading and claiming them, and keeping them until their run is saved."""

from __future__ import annotations

import _thread
import atexit
import json
import os
import socket
import sys
import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa

from roastcoffea.errors import RoastcoffeaError, error_text
from roastcoffea.log.journal import (
    ENDING,
    FILE_BYTES,
    HEADER_KEY,
    LONGEST_HEADER,
    MOST_PENDING,
    SCHEMA,
    JournalWriter,
    checksum,
    files_in,
    is_at,
    remove_journal,
)
from roastcoffea.log.kinds import LATEST
from roastcoffea.storage.processes import OWN_FILE, is_alive, kernel, locked, remove_files

CLAIM: Final = ".roastcoffea-claim"
"""Marker file for a claimed journal on file systems without locks."""
COLUMNS: Final = pa.schema(
    [("time", pa.float64()), ("kind", pa.string()), ("data", pa.binary()), ("check", pa.uint32())]
)

LARGEST_FILE: Final = FILE_BYTES + 2 * MOST_PENDING
"""Upper limit on the size of a file, in bytes."""

KNOWN: Final = {
    "schema": int,
    "version": str,
    "start": int | float,
    "host": str,
    "machine": str,
    "process": int,
    "began": int,
}

DAMAGED: Final = (
    pa.ArrowException,
    ArithmeticError,
    AttributeError,
    LookupError,
    OSError,
    RecursionError,
    TypeError,
    ValueError,
)


class JournalError(RoastcoffeaError):
    """Raised if a journal cannot be read. The message names the journal and a remedy."""


class Entry(NamedTuple):
    time: float
    kind: str
    data: bytes


@dataclass(eq=False)
class Journal:
    """A journal in a folder.

    Attributes
    ----------
    header : mapping
        Fields recorded at the start; see `JournalWriter`.
    last : float
        Unix time of the last change.
    size : int
        Size on disk in bytes.
    problems : list of str
        Messages about unreadable parts, added by `entries`.
    """

    folder: Path
    header: Mapping[str, Any]
    last: float
    size: int
    problems: list[str] = field(default_factory=list)

    @property
    def is_written(self) -> bool:
        """Whether the journal is still being written, i.e. whether its writer has locked it.

        Where files cannot be locked, the writer's process must be alive. If the state of the process is unknown, the
        file must have been touched within the last 12 hours. A recent touch also suffices if the writer is on another
        host, because some file systems do not show locks held by other hosts.
        """
        if self.is_locked is not None:
            elsewhere = self.header.get("kernel") != kernel() and self.header["host"] != socket.gethostname()
            return self.is_locked or (elsewhere and self.is_recent)
        alive = is_alive(self.header["machine"], self.header["process"], self.header["began"])
        return self.is_recent if alive is None else alive

    @property
    def is_locked(self) -> bool | None:
        """Whether the writer holds a lock on the journal; None if files cannot be locked."""
        if self.header.get("locked") is True:
            with suppress(OSError, IndexError), files_in(self.folder)[0].open("rb") as first:
                got = locked(first.fileno(), shared=True)
                return None if got is None else not got
        return None

    @property
    def is_recent(self) -> bool:
        return time.time() - self.last < 12 * 3600

    def entries(self) -> Iterator[Entry]:
        """Yield the entries in order. Reading stops at a damaged entry, which is reported in `problems`."""
        self.problems.clear()
        files = files_in(self.folder)
        last = float(self.header["start"])
        for number, file in enumerate(files, 1):
            if file.name != f"{number:06}{ENDING}":
                self.problems.append(f"the journal ends before {file.name}, because the file before it is missing")
                return
            try:
                for entry in _entries_in(file):
                    last = entry.time if 0 <= entry.time < LATEST else last
                    yield entry._replace(time=last)
            except DAMAGED as error:
                what = "cut off because its process was killed while writing" if file == files[-1] else "damaged"
                self.problems.append(f"the journal ends in {file.name}, which is {what}: {error_text(error)}")
                return


def journal_in(folder: Path) -> Journal:
    """Open the journal in a folder.

    Raises
    ------
    JournalError
        If there is no readable journal, or its format is not supported.
    """
    try:
        files = files_in(folder)
        states = [file.stat() for file in files]
        header = _header_in(files[0])
    except DAMAGED as error:
        raise JournalError(f"{folder} is not a readable journal: {error_text(error)}") from error
    if header["schema"] != SCHEMA:
        wrote = f"was written by roastcoffea {header['version']} in format {header['schema']}"
        raise JournalError(f"{folder} {wrote}, but this version reads format {SCHEMA}; use that version")
    last = max(state.st_mtime for state in states)
    return Journal(folder, header, last, sum(state.st_size for state in states))


def journals_in(folder: Path) -> tuple[list[Journal], list[str]]:
    """Journals in a folder, oldest first, and errors for unreadable journals.

    The folder itself may be a journal. A missing folder is treated as empty.
    """
    found, unreadable = [], []
    for path in [folder, *sorted(folder.iterdir())] if folder.is_dir() else ():
        if path.is_dir() and files_in(path):
            try:
                found.append(journal_in(path))
            except JournalError as error:
                unreadable.append(str(error))
    return sorted(found, key=lambda journal: float(journal.header["start"])), unreadable


def _entries_in(file: Path) -> Iterator[Entry]:
    """Yield a file's entries; raise one of the `DAMAGED` exceptions at a damaged entry."""
    size = file.stat().st_size
    if size > LARGEST_FILE:
        raise ValueError(f"it is {size} bytes long, longer than any journal file")
    source = pa.BufferReader(file.read_bytes())
    for batch in _stream_of(source):
        batch.validate(full=True)
        if not len(batch):  # writers write none, but a damaged length may read as 0
            raise ValueError("it has a message without entries")
        for at, kind, data, check in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            if checksum(at, kind, data) != check:
                raise ValueError("an entry does not match its checksum")
            yield Entry(at, kind, data)
    if source.tell() < size:
        raise ValueError(f"{size - source.tell()} bytes follow its end")


def _stream_of(source: pa.BufferReader) -> Any:
    """Open an in-memory stream without trusting the sizes stated in it."""
    stream = pa.ipc.open_stream(source)
    if not stream.schema.equals(COLUMNS):
        raise ValueError(f"it has the columns {', '.join(stream.schema.names)}")
    return stream


def _header_in(file: Path) -> dict[str, Any]:
    with file.open("rb") as opened:
        stream = _stream_of(pa.BufferReader(opened.read(LONGEST_HEADER)))
    header = json.loads((stream.schema.metadata or {})[HEADER_KEY])
    for name, kind in KNOWN.items():
        if not isinstance(header[name], kind) or isinstance(header[name], bool):
            raise TypeError(f"{name} is {type(header[name]).__name__}")
    if not 0 <= header["start"] < LATEST:
        raise ValueError(f"its start is {header['start']:g} s")
    return dict(header)


@contextmanager
def claimed(folder: Path) -> Iterator[bool]:
    """Lock a journal during the block; yield whether it could be locked.

    Where files cannot be locked, a marker file keeps other processes from claiming the journal, but does not stop the
    journal's writer.
    """
    first, claim = next(iter(files_in(folder)), folder / CLAIM), None
    try:
        file = os.open(first, os.O_RDWR if os.access(first, os.W_OK) else os.O_RDONLY)
    except FileNotFoundError:  # another process removed the file
        yield False
        return
    try:
        ours = locked(file)
        if ours is None:
            with suppress(FileExistsError):
                os.close(os.open(folder / CLAIM, os.O_WRONLY | os.O_CREAT | os.O_EXCL, OWN_FILE))
                ours, claim = True, folder / CLAIM
        yield bool(ours) and is_at(file, first)
    finally:
        if claim is not None:
            remove_files(folder, [claim])
        os.close(file)


_owned: Final[dict[weakref.ref[object], JournalWriter]] = {}
_on_disk: Final[dict[Path, int]] = {}
"""Folders to remove, with the ID of the process that created each folder."""


def hold(owner: object, journal: JournalWriter) -> None:
    """Keep a journal until its last owner is saved or garbage-collected, or the process ends.

    If an exception terminates the process, the journal stays on disk, because its content was not saved.
    """
    if journal not in list(_owned.values()):
        # imported here, because the import takes 8 ms and is not needed to load a measurement
        from multiprocessing import parent_process

        _on_disk[journal.folder] = journal.process
        if parent_process() is not None:  # multiprocessing's child processes skip exit handlers
            from multiprocessing.util import Finalize

            Finalize(None, _remove_all, exitpriority=0)
    _owned[weakref.ref(owner, _dropped)] = journal


def journal_of(owner: object) -> JournalWriter | None:
    return _owned.get(weakref.ref(owner))


def saved(owner: object) -> None:
    """Remove an object's journal, because the object has been saved."""
    journal = _owned.pop(weakref.ref(owner), None)
    if journal is not None:
        journal.remove()
        _on_disk.pop(journal.folder, None)


def _remove_dropped() -> None:
    for owner in [owner for owner in list(_owned) if owner() is None]:
        journal = _owned.pop(owner, None)
        if journal is not None and journal not in list(_owned.values()) and _on_disk.get(journal.folder) == os.getpid():
            journal.remove()
            _on_disk.pop(journal.folder, None)


_dropped: Final = partial(next, map(_thread.start_new_thread, repeat(_remove_dropped), repeat(())))
"""Callback that starts a thread to remove a journal when its owner is garbage-collected, so that no event loop waits
for the disk.

The callback is implemented in C, because a signal handler could interrupt Python code here, and Python would discard
the handler's exception. `threading` is not used, because it takes locks that the interrupted code may hold.
"""


@atexit.register
def _remove_all() -> None:
    """Remove unsaved journals at exit. After an exception, keep the journals of objects that still exist."""
    interactive = hasattr(sys, "ps1") or sys.flags.interactive
    failed = not interactive and (getattr(sys, "last_value", None) or sys.exc_info()[1]) is not None
    spared = {journal.folder for owner, journal in list(_owned.items()) if owner() is not None} if failed else set()
    ours = [folder for folder, process in list(_on_disk.items()) if process == os.getpid() and folder not in spared]
    _on_disk.clear()
    _owned.clear()
    for folder in ours:
        remove_journal(folder)
