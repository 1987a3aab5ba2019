"""A journal: entries that go to disk at once, without secrets, so that they survive the process."""

from __future__ import annotations

import errno
import io
import json
import mmap
import os
import re
import shutil
import socket
import struct
import threading
import time
import weakref
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

import roastcoffea
from roastcoffea.errors import reported
from roastcoffea.interrupts import interrupts_held
from roastcoffea.log.kinds import HEADER, HEADER_SIZE, PROBLEM, TASK_CHUNK, TASK_ERROR
from roastcoffea.redaction import redacted
from roastcoffea.storage.folders import OWN_FILE, OWN_FOLDER, UNKNOWN, began, kernel, locked, machine, remove_files


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
NUMBERED: Final = re.compile(rf"\d{{6}}{re.escape(ENDING)}")
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

LEAST_PAUSE: Final = 0.2
"""Least seconds between two writes."""

SIGN_OF_LIFE: Final = 10.0
"""Seconds after which a journal without news is touched."""

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

Entry = tuple[float, str, bytes]


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
        self._pending: list[Entry] = []
        self._waiting = 0
        self._is_settled = False
        """Whether the thread has written everything, and ends."""
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

    def settle(self) -> None:
        """Write what was taken after the end, unless the thread is still there, which does."""
        with self._lock:
            is_settled = self._is_settled
        if is_settled:
            self.flush(last=True)

    def flush(self, *, last: bool = False) -> bool:
        """Write what waits, in this thread; after the last time, if nothing waits any more, a new file begins."""
        with self._writing, reported(self._give_up, "it cannot be written", Exception):
            with self._lock:
                entries, self._pending, self._waiting = self._pending, [], 0
            if self._works:
                self._files.append([*map(_checked, entries)])
            with self._lock:
                self._is_settled = last and not (self._works and self._pending)
            if self._is_settled:
                self._files.end(last=True)
        return self._is_settled

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
    return sorted(path for path in folder.glob(f"*{ENDING}") if NUMBERED.fullmatch(path.name))


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


def _checked(entry: Entry) -> tuple[float, str, bytes, int]:
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
        ended.wait(LEAST_PAUSE)


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
            self._touch()
            return
        if self._file == CLOSED:
            self._begin()
        columns = zip(COLUMNS.types, zip(*entries, strict=True), strict=True)
        arrays = [pa.array(values, kind) for kind, values in columns]
        self._stream.write_batch(pa.RecordBatch.from_arrays(arrays, schema=self._schema))
        self._put()
        if self._size >= FILE_BYTES:
            self.end()

    def _touch(self) -> None:
        if self._file != CLOSED and time.monotonic() - self._touched > SIGN_OF_LIFE:
            os.utime(self._file)
            self._touched = time.monotonic()

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
