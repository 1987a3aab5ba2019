"""Write and read a run's journal: redacted entries on disk that outlive the process."""

from __future__ import annotations

import _thread
import atexit
import errno
import io
import json
import mmap
import os
import re
import shutil
import socket
import struct
import sys
import threading
import time
import weakref
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa

import roastcoffea
from roastcoffea.errors import RoastcoffeaError, error_text, reported
from roastcoffea.interrupts import interrupts_held
from roastcoffea.log.kinds import HEADER, HEADER_SIZE, LATEST, PROBLEM, TASK_CHUNK, TASK_ERROR
from roastcoffea.redaction import redacted
from roastcoffea.storage.folders import (
    OWN_FILE,
    OWN_FOLDER,
    UNKNOWN,
    began,
    is_alive,
    kernel,
    locked,
    machine,
    remove_files,
)


def without_secrets(data: bytes) -> bytes:
    """Mask the secrets in a block of complete log entries."""
    parts, at, kept = [], 0, 0
    while at + HEADER_SIZE <= len(data):
        code, length = struct.unpack_from(HEADER, data, at)
        start, end = at + HEADER_SIZE, at + HEADER_SIZE + length
        if code in _CLEANED:
            payload = _CLEANED[code](data[start:end])
            parts += [data[kept:at], struct.pack(HEADER, code, len(payload)), payload]
            kept = end
        at = end
    return b"".join([*parts, data[kept:]]) if parts else data


def _text(payload: bytes) -> bytes:
    return redacted(payload.decode("utf-8", "surrogatepass")).encode("utf-8", "surrogatepass")


def _chunk(payload: bytes) -> bytes:
    """Mask the secrets in a failed task's chunk. A damaged entry becomes empty, so that readers skip it."""
    try:
        dataset, file, tree, *entries = json.loads(payload)
    except ValueError:
        return b""
    return json.dumps([redacted(str(dataset)), redacted(str(file)), redacted(str(tree)), *entries]).encode()


_CLEANED: Final[dict[bytes, Callable[[bytes], bytes]]] = {
    TASK_ERROR.code: _text,
    PROBLEM.code: _text,
    TASK_CHUNK.code: _chunk,
}
"""Entry kinds that contain user strings. The scheduler leaves their secrets unmasked or masks them without the user's
patterns.
"""


SCHEMA: Final = 1

HEADER_KEY: Final = b"roastcoffea"
ENDING: Final = ".arrows"
CLAIM: Final = ".roastcoffea-claim"
"""Marker file for a claimed journal on file systems without locks."""
COLUMNS: Final = pa.schema(
    [("time", pa.float64()), ("kind", pa.string()), ("data", pa.binary()), ("check", pa.uint32())]
)

CLIENT: Final = "client"
"""Entry kind for client steps, as JSON."""

REQUESTED: Final = "requested"
"""Entry kind for rows of `REQUEST_COLUMNS`, as JSON."""

LOG: Final = "log"
"""Entry kind for a scheduler plugin's log (see `log.kinds`), which is passed to `ClusterLog.feed`."""

RECORDS: Final = "records"
"""Entry kind for packed attempt records, which are passed to `ReceivedRecords.take`."""

TICK: Final = 1.0
"""Interval between checks for new data, in seconds."""

MOST_PENDING: Final = 64_000_000
"""Maximum number of bytes in the queue. The journal ends if a slow disk lets the queue exceed this size."""

FILE_BYTES: Final = 16_000_000
"""File size in bytes at which a new file is started."""

LONGEST_HEADER: Final = 1_000_000
"""Maximum header size in bytes."""

MOST_BYTES: Final = 1_000_000_000
"""Journal size, in bytes, at which writing stops."""

LEAST_FREE: Final = 256_000_000
"""Minimum free disk space, in bytes, required to start a new file; leaves room for the analysis."""

CLOSE_SECONDS: Final = 1.0
"""Maximum time in seconds to wait for the disk when closing a journal."""

SLOW: Final = (
    "the journal's disk is slow: {:g} s after the end of the run, the journal is still incomplete; if this "
    "process is killed, the rest is lost"
)

CLOSED: Final = -1

WrittenEntry = tuple[float, str, bytes]


class JournalWriter:
    """Writes a journal in its own thread, so that `write` never blocks or fails.

    Entries reach the disk within about a second. If the journal cannot be written (e.g. because the disk is full), it
    ends early and `note` is called with a one-line message.

    Parameters
    ----------
    folder : Path
        The journal's folder, created by the thread.
    header : mapping
        Header fields as JSON values, without secrets. The schema, roastcoffea's version and process details are added.
    note : callable
        Called with each problem.
    look : callable, optional
        Called about once a second to fetch new data.
    most_bytes : int
        Size, in bytes, at which writing stops.
    """

    def __init__(
        self,
        folder: Path,
        header: Mapping[str, Any],
        note: Callable[[str], None],
        *,
        look: Callable[[], None] | None = None,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self.process = os.getpid()
        self._note = note
        self._look = look
        self._lock, self._writing = threading.Lock(), threading.Lock()
        self._pending: list[WrittenEntry] = []
        self._waiting = 0
        self._files = _Files(folder, {**header, **_writer()}, most_bytes, note)
        self._works = True
        _written[:] = [*(writer for writer in _written if writer() is not None), weakref.ref(self)]
        self._wake, self._ended = threading.Event(), threading.Event()
        with interrupts_held():
            arguments = (weakref.ref(self), self._wake, self._ended)
            self._thread = threading.Thread(target=_keep_writing, args=arguments, name="roastcoffea-journal")
            self._thread.daemon = True
            self._thread.start()

    @property
    def folder(self) -> Path:
        """The journal's folder, which changes if it is removed during the run."""
        return self._files.folder

    def write(self, kind: str, data: bytes) -> None:
        with self._lock:
            room = self._waiting + len(data) <= MOST_PENDING
            if self._works and room:
                self._pending.append((time.time(), kind, data))
                self._waiting += len(data)
        if not room:  # log entries refer to earlier entries, so none may be skipped
            self._give_up("the disk cannot keep up")
        self._wake.set()

    def close(self) -> None:
        """Write the queue and stop the thread.

        This method waits for up to a second. If the disk is slower, the thread continues in the background.
        """
        self._ended.set()
        self._wake.set()
        self._thread.join(CLOSE_SECONDS)
        if self._thread.is_alive() and self._works:
            self._note(SLOW.format(CLOSE_SECONDS))

    def remove(self) -> None:
        self._works = False
        self.close()
        self._files.unlock()
        remove_journal(self.folder)

    def flush(self, *, last: bool = False) -> bool:
        """Write the queue in the calling thread; if `last`, return whether the queue is now empty."""
        with self._writing, reported(self._give_up, "it cannot be written", Exception):
            with self._lock:
                entries, self._pending, self._waiting = self._pending, [], 0
            if self._works:
                self._files.append([*map(_checked, entries)])
            with self._lock:
                is_all = last and not (self._works and self._pending)
            if is_all:
                self._files.end(last=True)
            return is_all
        return False

    def look(self) -> None:
        with reported(self._give_up, "new data cannot be fetched", Exception):
            if self._look is not None:
                self._look()

    def forget(self) -> None:
        """Discard the state in a forked process, including locks that another thread held."""
        self._works = False
        self._lock, self._writing = threading.Lock(), threading.Lock()
        self._files.forget()

    def _give_up(self, reason: str) -> None:
        if self._works:
            self._works = False
            self._note(f"the journal ended early; if the client is killed, later records are lost: {reason}")


def files_in(folder: Path) -> list[Path]:
    """Files with journal file names, in order."""
    return sorted(path for path in folder.glob(f"*{ENDING}") if re.fullmatch(r"\d{6}", path.stem))


def remove_journal(folder: Path) -> None:
    """Remove a journal's files and, if possible, its folder. The first file is removed last.

    A journal's files all begin with the same message, which contains the header. The last file may be incomplete.
    """
    with suppress(OSError):
        files = [path for path in files_in(folder) if path.is_file() and not path.is_symlink()]
        beginnings = [*map(_beginning, files)]
        first = next(iter(beginnings), b"")
        ours = [
            path
            for path, beginning in zip(files, beginnings, strict=True)
            if not beginning or (HEADER_KEY in first and first.startswith(beginning))
        ]
        remove_files(folder, reversed(ours))


def _beginning(path: Path) -> bytes:
    """First message of a stream, including the marker and the length."""
    with path.open("rb") as file:
        mark = file.read(8)
        return mark + file.read(min(int.from_bytes(mark[4:], "little"), LONGEST_HEADER))


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
        yield bool(ours) and _is_at(file, first)
    finally:
        if claim is not None:
            remove_files(folder, [claim])
        os.close(file)


def _is_at(file: int, path: Path) -> bool:
    with suppress(OSError):
        return os.path.samestat(os.fstat(file), path.stat())
    return False


def _writer() -> dict[str, Any]:
    process = os.getpid()
    known = {"machine": machine(), "kernel": kernel(), "process": process, "began": began(process) or UNKNOWN}
    return {"schema": SCHEMA, "version": roastcoffea.__version__, "host": socket.gethostname(), **known}


def _checked(entry: WrittenEntry) -> tuple[float, str, bytes, int]:
    at, kind, data = entry
    clean = without_secrets(data) if kind == LOG else data
    return at, kind, clean, checksum(at, kind, clean)


def checksum(at: float, kind: str, data: bytes) -> int:
    return zlib.crc32(data, zlib.crc32(struct.pack("<d", at) + kind.encode()))


def _keep_writing(journal: weakref.ref[JournalWriter], wake: threading.Event, ended: threading.Event) -> None:
    """Write until the journal is closed or garbage-collected.

    This function must not import anything, because the analysis may fork while this function runs.
    """
    looked = 0.0
    while True:
        wake.wait(TICK)
        wake.clear()
        writer, last = journal(), ended.is_set()
        if writer is None:
            return
        if last or time.monotonic() - looked >= TICK:
            looked = time.monotonic()
            writer.look()
        settled = writer.flush(last=last)
        del writer
        if settled:
            return
        ended.wait(0.2)


_written: Final[list[weakref.ref[JournalWriter]]] = []
"""Weak references to all writers. This is not a `WeakSet`, because a signal handler could interrupt the removal of a
reference, and Python would discard the handler's exception.
"""


def _forget() -> None:
    """Close the parent's journals in a forked process to release their locks."""
    for reference in list(_written):
        if (writer := reference()) is not None:
            writer.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


class _Files:
    """A journal's files. Only the last file grows.

    All files stay open until the journal ends, so that they can be rewritten if they are removed. The first file stays
    locked for as long as the writer exists.
    """

    def __init__(self, folder: Path, header: Mapping[str, Any], most_bytes: int, note: Callable[[str], None]) -> None:
        self.folder, self._header = folder, header
        self._most_bytes, self._note = most_bytes, note
        self._buffer = io.BytesIO()
        self._schema: Any = None
        self._stream: Any = None
        self._file = CLOSED
        self._open: list[int] = []
        self._lock: mmap.mmap | None = None
        self._number = self._size = self._before = 0
        self._touched = time.monotonic()

    def append(self, entries: list[tuple[float, str, bytes, int]]) -> None:
        """Write either all entries or none.

        If there are no entries, the file is touched from time to time to show that the writer is alive.
        """
        if self._open and not _is_at(self._open[-1], self._path(self._number)):
            self._begin_again()
        if not entries:
            if self._file != CLOSED and time.monotonic() - self._touched > 10.0:
                os.utime(self._file)
                self._touched = time.monotonic()
            return
        if self._file == CLOSED:
            self._begin()
        columns = zip(COLUMNS.types, zip(*entries, strict=True), strict=True)
        arrays = [pa.array(values, kind) for kind, values in columns]
        self._stream.write_batch(pa.RecordBatch.from_arrays(arrays, schema=self._schema))
        self._put()
        if self._size >= FILE_BYTES:
            self.end()

    def end(self, *, last: bool = False) -> None:
        """Close the current file. The next entry starts a new file."""
        try:
            if self._file != CLOSED:
                self._stream.close()
                self._put()
        finally:
            self._before, self._file, self._size = self._before + self._size, CLOSED, 0
            if last and self._open:
                with suppress(OSError, ValueError):  # a memory map keeps the lock until its last reference is gone
                    self._lock = self._lock or mmap.mmap(self._open[0], 1, mmap.MAP_PRIVATE, mmap.PROT_READ)
                self._close()

    def unlock(self) -> None:
        if self._lock is not None:
            self._lock.close()

    def forget(self) -> None:
        self._file = CLOSED
        self._close()
        self.unlock()

    def _close(self) -> None:
        while self._open:
            os.close(self._open.pop())

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:06}{ENDING}"

    def _begin(self) -> None:
        if not self._number:
            self.folder.mkdir(OWN_FOLDER, parents=True)
        free = shutil.disk_usage(self.folder).free
        if free < LEAST_FREE:
            raise OSError(errno.ENOSPC, f"its disk has {free} bytes left, less than {LEAST_FREE}", str(self.folder))
        self._number += 1
        self._file = self._opened(self._number)
        if self._schema is None:
            header = {**self._header, "locked": locked(self._file) is True}
            self._schema = COLUMNS.with_metadata({HEADER_KEY: json.dumps(header)})
        # no threads, because Arrow's threads do not survive a fork
        options = pa.ipc.IpcWriteOptions(compression="zstd", use_threads=False)
        self._stream = pa.ipc.new_stream(self._buffer, self._schema, options=options)

    def _opened(self, number: int) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        self._open.append(os.open(self._path(number), flags, OWN_FILE))
        return self._open[-1]

    def _begin_again(self) -> None:
        """Rewrite the removed files in another folder, and continue there."""
        removed, files, goes_on = self.folder, self._open, self._file != CLOSED
        again = removed.with_name(f"{removed.name}-again")
        # cleared first: even if the copy fails, other files may soon reuse the descriptors
        self._open, self._file = [], CLOSED
        try:
            again.mkdir(OWN_FOLDER, parents=True)
            self.folder = again  # set only now, because an existing folder may belong to another process
            for number, file in enumerate(files, 1):
                _write(self._opened(number), os.pread(file, os.fstat(file).st_size, 0))
            locked(self._open[0])
        finally:
            for file in files:
                os.close(file)
        self._file = self._open[-1] if goes_on else CLOSED
        self._note(f"the journal {removed} was removed during the run; a complete copy is in {self.folder}")
        remove_journal(removed)

    def _put(self) -> None:
        """Write the buffer to disk. After an error, truncate the file to its previous length."""
        data = self._buffer.getvalue()
        self._buffer.seek(0)
        self._buffer.truncate()
        if self._before + self._size + len(data) > self._most_bytes:
            raise OSError(
                errno.EFBIG,
                f"it has {self._before + self._size} bytes and would exceed its maximum size",
                str(self.folder),
            )
        try:
            _write(self._file, data)
        except OSError:
            with suppress(OSError):
                os.ftruncate(self._file, self._size)
            raise
        self._size += len(data)
        self._touched = time.monotonic()


def _write(file: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(file, rest) :]
    os.fsync(file)


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
    for batch in _stream_of(file.read_bytes()):
        batch.validate(full=True)
        for at, kind, data, check in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            if checksum(at, kind, data) != check:
                raise ValueError("an entry does not match its checksum")
            yield Entry(at, kind, data)


def _stream_of(data: bytes) -> Any:
    """Open an in-memory stream without trusting the sizes stated in it."""
    stream = pa.ipc.open_stream(pa.py_buffer(data))
    if not stream.schema.equals(COLUMNS):
        raise ValueError(f"it has the columns {', '.join(stream.schema.names)}")
    return stream


def _header_in(file: Path) -> dict[str, Any]:
    with file.open("rb") as opened:
        stream = _stream_of(opened.read(LONGEST_HEADER))
    header = json.loads((stream.schema.metadata or {})[HEADER_KEY])
    for name, kind in KNOWN.items():
        if not isinstance(header[name], kind) or isinstance(header[name], bool):
            raise TypeError(f"{name} is {type(header[name]).__name__}")
    if not 0 <= header["start"] < LATEST:
        raise ValueError(f"its start is {header['start']:g} s")
    return dict(header)


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
