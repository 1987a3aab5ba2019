"""An attempt's writes: files, bytes and time, for output written by uproot, awkward or Arrow."""

from __future__ import annotations

import os
from operator import add, sub
from threading import get_ident
from time import perf_counter
from typing import Any, Final
from weakref import WeakKeyDictionary

from roastcoffea.instrument.gauges import BytesRead
from roastcoffea.instrument.meter.tally import Tally
from roastcoffea.instrument.shared import Row
from roastcoffea.records.chunks import WRITTEN_COLUMNS
from roastcoffea.redaction import Added, redacted

WRITTEN: Final = tuple(column.name for column in WRITTEN_COLUMNS)
AMOUNTS: Final = WRITTEN[:3]
WRITE_TIMES: Final = ("write_cpu_seconds", "write_wait_seconds")

MAGIC: Final = 4
"""Bytes that a Parquet writer writes as soon as it is created."""


class WrittenFile:
    """An output of an attempt: a file or an Arrow dataset. The name is None if it is only in memory."""

    end = written = 0
    """Current size of the file, and bytes written to it, including bytes that replaced earlier ones."""
    seconds = 0.0

    def __init__(self, name: str | None, kind: str, before: int) -> None:
        self.name, self.kind, self.before = name, kind, before
        self.local = kind != "dataset" and name and "://" not in name
        """Whether the system counts its bytes for the thread that writes it. Other threads write Arrow datasets."""


class Writes:
    """What an attempt writes, in all of its threads."""

    def __init__(self, meter: Tally) -> None:
        self.meter = meter
        self.files: dict[tuple[str | None, str], WrittenFile] = {}
        self.cpu = self.wait = 0.0
        """The chunk thread's CPU time and waits while it was writing, excluding reads and waits for a core."""
        self.in_thread = 0
        """Bytes that the chunk's thread wrote to local files."""
        self._outputs: WeakKeyDictionary[Any, WrittenFile] = WeakKeyDictionary()
        """Files by uproot sink or Parquet writer."""
        self._calls: dict[int, WrittenFile | None] = {}
        """The file written by the current call in each thread."""

    def _times(self) -> list[float]:
        """The times of the chunk's thread, as in `Tally.times`; for other threads, only the wall time."""
        if get_ident() != self.meter.places.own:
            return [0.0, perf_counter(), 0.0, 0.0, 0.0, 0.0]
        meter, others = self.meter, self.meter.others
        times = [*(others or meter).times()]
        if others is not None:
            times[3:] = map(add, times[3:], meter.seconds())
        return times

    def begin(self) -> list[float] | None:
        """Begin a call that writes. Return None if it is part of another one."""
        if get_ident() in self._calls:
            return None
        self._calls[get_ident()] = None
        return self._times()

    def end(self, began: list[float]) -> None:
        file = self._calls.pop(get_ident())
        delay, wall, cpu, read, *decoding = map(sub, self._times(), began)
        if get_ident() == self.meter.places.own:
            self.cpu += max(cpu - sum(decoding), 0.0)
            self.wait += max(wall - cpu - read - delay, 0.0)
        if file is not None:
            file.seconds += wall - read - sum(decoding)

    def open(self, name: str | None, kind: str, size: int | None = None) -> WrittenFile:
        """Return the output with this name. `size` is the size of a newly opened file."""
        file = self.files.setdefault((name, kind), WrittenFile(name, kind, size or 0))
        file.end = file.end if size is None else size
        return file

    def add(self, file: WrittenFile, written: int, growth: int) -> None:
        """Count bytes written to a file and its growth, and attribute the time of the current call to it."""
        with self.meter.lock:
            file.written += written
            file.end += growth
            if file.local and get_ident() == self.meter.places.own:
                self.in_thread += written
        if get_ident() in self._calls:
            self._calls[get_ident()] = file

    # uproot

    def before(self, sink: Any) -> tuple[WrittenFile, BytesRead, tuple[int, int] | None] | None:
        """The file of a sink and the system's count, before a call. Return None if it is part of another one."""
        if get_ident() in self._calls:
            return None
        file = self._outputs.get(sink)
        if file is None:
            name = name_of(getattr(sink, "_open_file", None) or sink.file_path or sink._file)
            file = self._outputs[sink] = self.open(name, "ROOT", size_of(sink))
        gauge = self.meter.reads if get_ident() == self.meter.places.own else BytesRead()
        return file, gauge, gauge.both()

    def after(self, sink: Any, file: WrittenFile, gauge: BytesRead, before: tuple[int, int] | None) -> None:
        """Count what a call has written. Only the system knows how much of that replaced earlier bytes."""
        growth = 0 if sink.closed else max(size_of(sink) - file.end, 0)
        now = gauge.both() if file.local else None
        self.add(file, growth if before is None or now is None else now[1] - before[1], growth)

    # Parquet

    def of_writer(self, writer: Any, where: Any, schema: Any, filesystem: Any = None, *_: Any, **__: Any) -> None:  # noqa: ARG002
        """Note the file of a new Parquet writer."""
        start = where.tell() - MAGIC if writer.file_handle is None else 0
        self._outputs[writer] = self.open(name_of(where, filesystem), "Parquet", start)
        self.reach(writer)

    def reach(self, writer: Any, *_: Any, **__: Any) -> None:
        """Count the bytes that a Parquet writer has written since the last time."""
        file = self._outputs.get(writer)
        if file is not None:
            growth = (writer.file_handle or writer.where).tell() - file.end
            self.add(file, growth, growth)

    def dataset(self, folder: Any, filesystem: Any) -> WrittenFile:
        return self.open(f"{name_of(folder, filesystem)}/", "dataset")


def written_columns(writes: Writes | None, by_thread: int | None, added: Added | None) -> Row:
    """Record columns for an attempt's writes, given the system's count of bytes written by its thread."""
    if writes is None:
        return dict(zip(AMOUNTS, (0, 0, by_thread), strict=True))
    files = [file for file in writes.files.values() if file.name]
    written = [file.written for file in files]
    values = (
        *(len(files), sum(written), None if by_thread is None else by_thread - writes.in_thread),
        *([redacted(str(file.name), added) for file in files], [file.kind for file in files]),
        *([max(file.end - file.before, 0) for file in files], written),
        [round(1e6 * file.seconds) for file in files],
    )
    return dict(zip(WRITTEN, values, strict=True))


def size_of(sink: Any) -> int:
    """Size of a sink's file, found out in the same way as in uproot."""
    sink._ensure()
    sink._file.seek(0, os.SEEK_END)
    return int(sink._file.tell())


def name_of(where: Any, filesystem: Any = None) -> str | None:
    """Path or URL of an output, or None for a file in memory."""
    if not isinstance(where, (str, os.PathLike)):
        where = getattr(where, "full_name", getattr(where, "name", None))
    if not isinstance(where, (str, os.PathLike)):
        return None
    name = str(where)
    if "://" not in name and filesystem is not None:
        unstrip = getattr(filesystem, "unstrip_protocol", lambda path: f"{filesystem.type_name}://{path}")
        name = unstrip(name).removeprefix("local://")
    name = name.removeprefix("file://")
    return name if "://" in name else os.path.abspath(name)  # noqa: PTH100
