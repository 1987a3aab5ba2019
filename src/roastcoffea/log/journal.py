"""A journal: entries that go to disk at once, without secrets, so that they survive the process."""

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
from roastcoffea.log.batches import LATEST
from roastcoffea.log.kinds import HEADER, HEADER_SIZE, PROBLEM, TASK_CHUNK, TASK_ERROR
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
    """Entries with the same meaning, as the client's tables have them: complete entries, in order."""
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
    """The chunk of a failed task; one that is damaged has no text, so that it is skipped as it would be."""
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
"""Kinds with texts of the user's, which the scheduler redacts without the user's own patterns, or not at all."""


SCHEMA: Final = 1
"""Number of this form of journals."""

HEADER_KEY: Final = b"roastcoffea"
ENDING: Final = ".arrows"
CLAIM: Final = ".roastcoffea-claim"
"""File that claims a journal where files cannot be locked."""
COLUMNS: Final = pa.schema(
    [("time", pa.float64()), ("kind", pa.string()), ("data", pa.binary()), ("check", pa.uint32())]
)
"""Of each entry: Unix time, kind, data, and checksum."""

CLIENT: Final = "client"
"""Kind of entries with steps of the client, as JSON."""
LOG: Final = "log"
"""Kind of what a scheduler's plugin gave: entries of `log.kinds`, for `ClusterLog.feed`."""

RECORDS: Final = "records"
"""Kind of packed records of attempts, for `ReceivedRecords.take`."""

TICK: Final = 1.0
"""Seconds between looks for what is to be written."""

MOST_PENDING: Final = 64_000_000
"""Most bytes that wait for a disk that does not answer; with more the journal ends."""

FILE_BYTES: Final = 16_000_000
"""Bytes after which a file ends and the next one begins."""

LONGEST_HEADER: Final = 1_000_000
"""Most bytes with a header."""

MOST_BYTES: Final = 1_000_000_000
"""Size at which a journal ends."""

LEAST_FREE: Final = 256_000_000
"""Free space of the disk, in bytes, with less of which no file is begun: it is the analysis's."""

CLOSE_SECONDS: Final = 1.0
"""Longest wait for the disk at the end."""

SLOW: Final = (
    "the journal's disk is slow: {:g} s after the end of the run it did not have all of it, and what is still to be "
    "written is lost if this process is killed"
)

CLOSED: Final = -1
"""In place of the number of an open file."""

WrittenEntry = tuple[float, str, bytes]


class JournalWriter:
    """Writes a journal from a thread of its own: `write` neither waits nor fails.

    What is written is on disk within about a second. Without permission, room or disk the journal ends early, and
    `note` gets one line.

    Parameters
    ----------
    folder : Path
        Its folder, which the thread makes.
    header : mapping
        Facts in values of JSON, without secrets. The schema, the version of roastcoffea and the process are added.
    note : callable
        Receives a problem.
    look : callable, optional
        Called about once a second, to fetch what is to be written.
    most_bytes : int
        Size at which the journal ends.
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
        """Its folder, which is another one after the first was removed."""
        return self._files.folder

    def write(self, kind: str, data: bytes) -> None:
        """Take an entry."""
        with self._lock:
            room = self._waiting + len(data) <= MOST_PENDING
            if self._works and room:
                self._pending.append((time.time(), kind, data))
                self._waiting += len(data)
        if not room:  # entries of a log build on earlier ones, so that none may be left out
            self._give_up("its disk does not keep up")
        self._wake.set()

    def close(self) -> None:
        """Write what waits, and end the thread; it is waited for about a second, and goes on if the disk is slow."""
        self._ended.set()
        self._wake.set()
        self._thread.join(CLOSE_SECONDS)
        if self._thread.is_alive() and self._works:
            self._note(SLOW.format(CLOSE_SECONDS))

    def remove(self) -> None:
        """Remove the journal; nothing is written any more."""
        self._works = False
        self.close()
        self._files.unlock()
        remove_journal(self.folder)

    def flush(self, *, last: bool = False) -> bool:
        """Write what waits, in this thread; whether all is written, the last time."""
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
        """Fetch what is to be written."""
        with reported(self._give_up, "what is to be written cannot be fetched", Exception):
            if self._look is not None:
                self._look()

    def forget(self) -> None:
        """Give up all that a forked process has of it, including locks that another thread held."""
        self._works = False
        self._lock, self._writing = threading.Lock(), threading.Lock()
        self._files.forget()

    def _give_up(self, reason: str) -> None:
        """End the journal early; what is there is kept."""
        if self._works:
            self._works = False
            self._note(f"the journal ended early, so that a client that is killed loses what came later: {reason}")


def files_in(folder: Path) -> list[Path]:
    """Files with names of a journal, in order."""
    return sorted(path for path in folder.glob(f"*{ENDING}") if re.fullmatch(r"\d{6}", path.stem))


def remove_journal(folder: Path) -> None:
    """Remove the files of a journal as far as possible, the first one last, and its folder if nothing else is in it.

    They begin alike, with a message that has the journal's header; the last one may have a part of it.
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
    """The first message of a stream: its mark, its length and itself."""
    with path.open("rb") as file:
        mark = file.read(8)
        return mark + file.read(min(int.from_bytes(mark[4:], "little"), LONGEST_HEADER))


@contextmanager
def claimed(folder: Path) -> Iterator[bool]:
    """Whether a journal is there, and this process's own while the block runs.

    Where files cannot be locked, a file in the folder keeps others out who claim it, but not its writer.
    """
    first, claim = next(iter(files_in(folder)), folder / CLAIM), None
    try:
        file = os.open(first, os.O_RDWR if os.access(first, os.W_OK) else os.O_RDONLY)
    except FileNotFoundError:  # another process removed it
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
    """Whether an open file is the one at a path."""
    with suppress(OSError):
        return os.path.samestat(os.fstat(file), path.stat())
    return False


def _writer() -> dict[str, Any]:
    """What writes a journal: form, version and process."""
    process = os.getpid()
    known = {"machine": machine(), "kernel": kernel(), "process": process, "began": began(process) or UNKNOWN}
    return {"schema": SCHEMA, "version": roastcoffea.__version__, "host": socket.gethostname(), **known}


def _checked(entry: WrittenEntry) -> tuple[float, str, bytes, int]:
    """An entry without secrets, with its checksum."""
    at, kind, data = entry
    clean = without_secrets(data) if kind == LOG else data
    return at, kind, clean, checksum(at, kind, clean)


def checksum(at: float, kind: str, data: bytes) -> int:
    """Checksum of an entry."""
    return zlib.crc32(data, zlib.crc32(struct.pack("<d", at) + kind.encode()))


def _keep_writing(journal: weakref.ref[JournalWriter], wake: threading.Event, ended: threading.Event) -> None:
    """Write until the journal is closed, or nobody holds it. It imports nothing, as the analysis may fork meanwhile."""
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
"""Writers, but in no `WeakSet`: Python loses what the handler of a signal raises as a set forgets one."""


def _forget() -> None:
    """Give up the journals of the process that was forked, as the locks of their files would outlive it."""
    for reference in list(_written):
        if (writer := reference()) is not None:
            writer.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


class _Files:
    """The files of a journal; the last one grows.

    All are open until the journal ends, to be written again if they are removed. The first one is
    locked as long as its writer exists.
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
        """Write entries, all or none; without any, give a sign of life now and then."""
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
        """End the last file; what comes then begins a new one."""
        try:
            if self._file != CLOSED:
                self._stream.close()
                self._put()
        finally:
            self._before, self._file, self._size = self._before + self._size, CLOSED, 0
            if last and self._open:
                with suppress(OSError, ValueError):  # a map keeps the lock, until its last reference is gone
                    self._lock = self._lock or mmap.mmap(self._open[0], 1, mmap.MAP_PRIVATE, mmap.PROT_READ)
                self._close()

    def unlock(self) -> None:
        """Give up the lock of a journal that has ended."""
        if self._lock is not None:
            self._lock.close()

    def forget(self) -> None:
        """Close them in a forked process."""
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
        # without Arrow's threads, of which a fork would have none
        options = pa.ipc.IpcWriteOptions(compression="zstd", use_threads=False)
        self._stream = pa.ipc.new_stream(self._buffer, self._schema, options=options)

    def _opened(self, number: int) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        self._open.append(os.open(self._path(number), flags, OWN_FILE))
        return self._open[-1]

    def _begin_again(self) -> None:
        """Write what was removed into another folder, and go on there."""
        removed, files, goes_on = self.folder, self._open, self._file != CLOSED
        again = removed.with_name(f"{removed.name}-again")
        self._open, self._file = [], CLOSED  # if this fails, their numbers are soon those of other files
        try:
            again.mkdir(OWN_FOLDER, parents=True)
            self.folder = again  # only now: a folder of that name may belong to another process
            for number, file in enumerate(files, 1):
                _write(self._opened(number), os.pread(file, os.fstat(file).st_size, 0))
            locked(self._open[0])
        finally:
            for file in files:
                os.close(file)
        self._file = self._open[-1] if goes_on else CLOSED
        self._note(f"the journal {removed} was removed while the run went on; a new one has all of it: {self.folder}")
        remove_journal(removed)

    def _put(self) -> None:
        """Write the buffer to disk; after an error, the file ends where it did before."""
        data = self._buffer.getvalue()
        self._buffer.seek(0)
        self._buffer.truncate()
        if self._before + self._size + len(data) > self._most_bytes:
            raise OSError(
                errno.EFBIG, f"it has {self._before + self._size} bytes, the most that it may", str(self.folder)
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
    """Write data to disk."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(file, rest) :]
    os.fsync(file)


LARGEST_FILE: Final = FILE_BYTES + 2 * MOST_PENDING
"""More bytes than a file can have."""

KNOWN: Final = {
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
        """Whether the last sign of life is some hours ago at most: otherwise its process counts as dead."""
        return time.time() - self.last < 12 * 3600

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
    for name, kind in KNOWN.items():
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
