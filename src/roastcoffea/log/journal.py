"""Write a run's journal: redacted entries on disk that outlive the process."""

from __future__ import annotations

import errno
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
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate, chain
from pathlib import Path
from typing import Any, Final, NamedTuple

import lz4.frame

import roastcoffea
from roastcoffea.errors import reported
from roastcoffea.interrupts import interrupts_held
from roastcoffea.log.kinds import HEADER, HEADER_SIZE, PROBLEM, TASK_CHUNK, TASK_ERROR
from roastcoffea.redaction import redacted
from roastcoffea.storage.processes import OWN_FILE, OWN_FOLDER, UNKNOWN, began, kernel, locked, machine, remove_files


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


def is_at(file: int, path: Path) -> bool:
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
        self._schema = b""
        self._file = CLOSED
        self._open: list[int] = []
        self._lock: mmap.mmap | None = None
        self._number = self._size = self._before = 0
        self._touched = time.monotonic()

    def append(self, entries: list[tuple[float, str, bytes, int]]) -> None:
        """Write either all entries or none.

        If there are no entries, the file is touched from time to time to show that the writer is alive.
        """
        if self._open and not is_at(self._open[-1], self._path(self._number)):
            self._begin_again()
        if not entries:
            if self._file != CLOSED and time.monotonic() - self._touched > 10.0:
                os.utime(self._file)
                self._touched = time.monotonic()
            return
        is_new = self._file == CLOSED
        if is_new:
            self._begin()
        self._put(self._schema * is_new + _batch(entries))
        if self._size >= FILE_BYTES:
            self.end()

    def end(self, *, last: bool = False) -> None:
        """Close the current file. The next entry starts a new file."""
        try:
            if self._file != CLOSED and self._size:
                self._put(END)
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
        if not self._schema:
            header = {**self._header, "locked": locked(self._file) is True}
            self._schema = _schema(HEADER_KEY, json.dumps(header).encode())

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

    def _put(self, data: bytes) -> None:
        """Write data to disk. After an error, truncate the file to its previous length."""
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


# Arrow's stream format, written here so that the recorder does not need pyarrow. The number of a type, a header or a
# version is its position in https://github.com/apache/arrow/tree/main/format.

CONTINUES: Final = 0xFFFFFFFF
"""Marker that begins each message."""

END: Final = struct.pack("<2I", CONTINUES, 0)


class _Flat(NamedTuple):
    """An object in the FlatBuffers format. Its references are relative, so the bytes can be placed anywhere."""

    data: bytes
    start: int = 0
    """Position in `data` at which the object starts."""


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 8)


def _table(*slots: int | _Flat) -> _Flat:
    """Table of numbers and references. Each takes eight bytes; readers of a shorter type use the first of them."""
    size = 8 + 8 * len(slots)
    layout = struct.pack(f"<{2 + len(slots)}H", 4 + 2 * len(slots), size, *range(8, size, 8))
    values, others = [], b""
    for place, slot in zip(range(8, size, 8), slots, strict=True):
        values.append(size - place + len(others) + slot.start if isinstance(slot, _Flat) else slot)
        others += slot.data if isinstance(slot, _Flat) else b""
    before = bytes(-len(layout) % 8) + layout
    return _Flat(before + struct.pack(f"<i4x{len(slots)}q", len(layout), *values) + others, len(before))


def _references(objects: Sequence[_Flat]) -> _Flat:
    size = 4 + 4 * len(objects)
    ends = accumulate((len(one.data) for one in objects), initial=size + -size % 8)
    places = [end + one.start - at for at, end, one in zip(range(4, size, 4), ends, objects, strict=False)]
    heads = _padded(struct.pack(f"<{1 + len(objects)}I", len(objects), *places))
    return _Flat(heads + b"".join(one.data for one in objects))


def _pairs(pairs: Sequence[tuple[int, int]]) -> _Flat:
    return _Flat(struct.pack(f"<4xI{2 * len(pairs)}q", len(pairs), *chain.from_iterable(pairs)), 4)


def _string(text: bytes) -> _Flat:
    return _Flat(_padded(struct.pack("<I", len(text)) + text + b"\0"))


def _message(kind: int, header: _Flat, body: bytes = b"") -> bytes:
    version = 4
    data, start = _table(version, kind, header, len(body))
    return struct.pack("<2IQ", CONTINUES, 8 + len(data), 8 + start) + data + body


def _schema(key: bytes, value: bytes) -> bytes:
    """Message with the columns `time`, `kind`, `data` and `check`, and one value of metadata."""
    double, string, binary, unsigned = (3, _table(2)), (5, _table()), (4, _table()), (2, _table(32, 0))
    types = {b"time": double, b"kind": string, b"data": binary, b"check": unsigned}
    fields = [_table(_string(name), True, number, parameters) for name, (number, parameters) in types.items()]
    return _message(1, _table(0, _references(fields), _references([_table(_string(key), _string(value))])))


def _batch(entries: Sequence[tuple[float, str, bytes, int]]) -> bytes:
    """Message with entries, compressed with LZ4. No value is null, so the buffers that mark nulls are empty."""
    times, kinds, contents, checks = zip(*entries, strict=True)
    columns = [b"", struct.pack(f"<{len(entries)}d", *times)]
    for texts in ([kind.encode() for kind in kinds], contents):
        ends = accumulate(map(len, texts), initial=0)
        columns += [b"", struct.pack(f"<{1 + len(entries)}i", *ends), b"".join(texts)]
    columns += [b"", struct.pack(f"<{len(entries)}I", *checks)]
    buffers, body = [], b""
    for data in columns:
        packed = struct.pack("<q", len(data)) + lz4.frame.compress(data) if data else b""
        buffers.append((len(body), len(packed)))
        body += _padded(packed)
    lz4_of_each_buffer = _table()
    nodes = _pairs([(len(entries), 0)] * 4)
    return _message(3, _table(len(entries), nodes, _pairs(buffers), lz4_of_each_buffer), body)
