"""Journals on disk: which there are, whether they are still written, and who has them until they are saved."""

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
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa

from roastcoffea.errors import RoastcoffeaError, error_text
from roastcoffea.log.batches import LATEST
from roastcoffea.log.journal import (
    COLUMNS,
    ENDING,
    FILE_BYTES,
    HEADER_KEY,
    LONGEST_HEADER,
    MOST_PENDING,
    SCHEMA,
    JournalWriter,
    checksum,
    files_in,
    remove_journal,
)
from roastcoffea.storage.folders import is_alive, kernel, locked

LONGEST_QUIET: Final = 12 * 3600.0
"""Seconds without a sign of life after which a process of which nothing else is known counts as dead."""

LARGEST_FILE: Final = FILE_BYTES + 2 * MOST_PENDING
"""More bytes than a file can have."""

HEADER: Final = {
    "schema": int,
    "version": str,
    "start": int | float,
    "host": str,
    "machine": str,
    "process": int,
    "began": int,
}
"""What the header of every journal has."""

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
    """A journal cannot be read; the text names it, and a way out."""


class Entry(NamedTuple):
    """An entry of a journal."""

    time: float
    kind: str
    data: bytes


@dataclass(eq=False)
class Journal:
    """A journal in a folder.

    Attributes
    ----------
    header : mapping
        What its writer knew at the beginning; see `JournalWriter`.
    last : float
        Unix time of its last change.
    size : int
        Bytes on disk.
    problems : list of str
        What could not be read, once `entries` has been read.
    """

    folder: Path
    header: Mapping[str, Any]
    last: float
    size: int
    problems: list[str] = field(default_factory=list)

    @property
    def is_written(self) -> bool:
        """Whether its writer has it locked.

        Where files cannot be locked, whether the writer's process lives, or had a sign of life within some hours: it
        also counts as one that writes if it did on another host, where some file systems keep its lock to themselves.
        """
        if self.is_locked is not None:
            elsewhere = self.header.get("kernel") != kernel() and self.header["host"] != socket.gethostname()
            return self.is_locked or (elsewhere and self.is_recent)
        alive = is_alive(self.header["machine"], self.header["process"], self.header["began"])
        return self.is_recent if alive is None else alive

    @property
    def is_locked(self) -> bool | None:
        """Whether its writer has it locked; None where files cannot be locked."""
        if self.header.get("locked") is True:
            with suppress(OSError, IndexError), files_in(self.folder)[0].open("rb") as first:
                got = locked(first.fileno(), shared=True)
                return None if got is None else not got
        return None

    @property
    def is_recent(self) -> bool:
        """Whether the last sign of life is some hours ago at most."""
        return time.time() - self.last < LONGEST_QUIET

    def entries(self) -> Iterator[Entry]:
        """Entries in the order of writing, up to the first that is damaged, which `problems` then tells."""
        self.problems.clear()
        files = files_in(self.folder)
        last = float(self.header["start"])
        for number, file in enumerate(files, 1):
            if file.name != f"{number:06}{ENDING}":
                self.problems.append(f"the journal ends before {file.name}: the file before it is missing")
                return
            try:
                for entry in _entries_in(file):
                    last = entry.time if 0 <= entry.time < LATEST else last
                    yield entry._replace(time=last)
            except DAMAGED as error:
                what = "cut off, as its process was killed while it wrote" if file == files[-1] else "damaged"
                self.problems.append(f"the journal ends in {file.name}, which is {what}: {error_text(error)}")
                return


def journal_in(folder: Path) -> Journal:
    """The journal in a folder.

    Raises
    ------
    JournalError
        There is none, or a newer version wrote it.
    """
    try:
        files = files_in(folder)
        states = [file.stat() for file in files]
        header = _header_in(files[0])
    except DAMAGED as error:
        raise JournalError(f"{folder} is not a journal that can be read: {error_text(error)}") from error
    if header["schema"] != SCHEMA:
        wrote = f"roastcoffea {header['version']} wrote it in form {header['schema']}"
        raise JournalError(f"{folder}: {wrote}, and this version reads form {SCHEMA}; use that version")
    last = max(state.st_mtime for state in states)
    return Journal(folder, header, last, sum(state.st_size for state in states))


def journals_in(folder: Path) -> tuple[list[Journal], list[str]]:
    """Journals in a folder, oldest first, and what cannot be read there; no folder is like an empty one.

    The folder may be a journal itself.
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
    """Entries of a file; raises one of `DAMAGED` at the first that is."""
    size = file.stat().st_size
    if size > LARGEST_FILE:
        raise ValueError(f"it has {size} bytes, more than a file of a journal may have")
    for batch in _stream_of(file.read_bytes()):
        batch.validate(full=True)
        for at, kind, data, check in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            if checksum(at, kind, data) != check:
                raise ValueError("an entry does not have its checksum")
            yield Entry(at, kind, data)


def _stream_of(data: bytes) -> Any:
    """Stream in bytes in memory, so that no size in it is taken for granted."""
    stream = pa.ipc.open_stream(pa.py_buffer(data))
    if not stream.schema.equals(COLUMNS):
        raise ValueError(f"it has the columns {', '.join(stream.schema.names)}")
    return stream


def _header_in(file: Path) -> dict[str, Any]:
    """Header of a file, with all that every journal has."""
    with file.open("rb") as opened:
        stream = _stream_of(opened.read(LONGEST_HEADER))
    header = json.loads((stream.schema.metadata or {})[HEADER_KEY])
    for name, kind in HEADER.items():
        if not isinstance(header[name], kind) or isinstance(header[name], bool):
            raise TypeError(f"{name} is {type(header[name]).__name__}")
    if not 0 <= header["start"] < LATEST:
        raise ValueError(f"its start is {header['start']:g} s")
    return dict(header)


_owned: Final[dict[weakref.ref[object], JournalWriter]] = {}
"""Journals by their owners."""
_on_disk: Final[dict[Path, int]] = {}
"""Folders that are to be removed, with the process that made them."""


def hold(owner: object, journal: JournalWriter) -> None:
    """Keep a journal until its last owner is saved or dropped, or the process ends.

    If an exception ends the process, the journal stays, as its content was not saved.
    """
    if journal not in list(_owned.values()):
        # takes 8 ms, and loading a measurement does not need it
        from multiprocessing import parent_process

        _on_disk[journal.folder] = journal.process
        if parent_process() is not None:  # such a process ends without functions at exit
            from multiprocessing.util import Finalize

            Finalize(None, _remove_all, exitpriority=0)
    _owned[weakref.ref(owner, _dropped)] = journal


def journal_of(owner: object) -> JournalWriter | None:
    """The journal of something that has not been saved."""
    return _owned.get(weakref.ref(owner))


def saved(owner: object) -> None:
    """Remove the journal of something that was saved, if it has one."""
    journal = _owned.pop(weakref.ref(owner), None)
    if journal is not None:
        journal.remove()
        _on_disk.pop(journal.folder, None)


def _remove_dropped() -> None:
    """Remove journals without an owner."""
    for owner in [owner for owner in list(_owned) if owner() is None]:
        journal = _owned.pop(owner, None)
        if journal is not None and journal not in list(_owned.values()) and _on_disk.get(journal.folder) == os.getpid():
            journal.remove()
            _on_disk.pop(journal.folder, None)


_dropped: Final = partial(next, map(_thread.start_new_thread, repeat(_remove_dropped), repeat(())))
"""Starts a thread that removes them, as an owner is dropped: an event loop that does that would wait for the disk.

It is in C, because Python code would be where signals are handled, and Python loses what their handlers raise here. A
thread of `threading` takes locks, which the interrupted code may hold.
"""


@atexit.register
def _remove_all() -> None:
    """Remove unsaved journals at exit; after an exception, those in use stay."""
    interactive = hasattr(sys, "ps1") or sys.flags.interactive
    failed = not interactive and (getattr(sys, "last_value", None) or sys.exc_info()[1]) is not None
    spared = {journal.folder for owner, journal in list(_owned.items()) if owner() is not None} if failed else set()
    ours = [folder for folder, process in list(_on_disk.items()) if process == os.getpid() and folder not in spared]
    _on_disk.clear()
    _owned.clear()
    for folder in ours:
        remove_journal(folder)
