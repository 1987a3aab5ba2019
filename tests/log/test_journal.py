"""The writing side of a journal: quickly on disk, in order, bounded, and never an error of the user's."""

from __future__ import annotations

import errno
import os
import resource
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from processes import wait_until

from roastcoffea.log import journal, journals
from roastcoffea.log.journal import LOG, RECORDS, JournalWriter
from roastcoffea.log.journals import JournalError, journal_in

HEADER = {"id": "abc", "name": "ttbar", "start": 1e9}


@pytest.fixture
def notes() -> list[str]:
    return []


@pytest.fixture
def writer(tmp_path: Path, notes: list[str]) -> Iterator[JournalWriter]:
    writer = JournalWriter(tmp_path / "state" / "one", HEADER, notes.append)
    yield writer
    writer.remove()


def written(writer: JournalWriter) -> list[tuple[str, bytes]]:
    try:
        return [(entry.kind, entry.data) for entry in journal_in(writer.folder).entries()]
    except JournalError:
        return []


def test_what_is_written_is_on_disk_in_order_while_it_is_open(writer: JournalWriter, notes: list[str]) -> None:
    entries = [(LOG, b""), (RECORDS, b"\x00\xff"), ("own", os.urandom(100_000)), (RECORDS, b"\x00\xff")]
    for entry in entries:
        writer.write(*entry)
    assert wait_until(lambda: written(writer) == entries)
    (file,) = writer.folder.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(writer.folder.stat().st_mode) == 0o700
    found = journal_in(writer.folder)
    assert found.header.items() >= HEADER.items()
    assert found.is_written
    assert notes == []


ENTRIES = [[("log", b"x" * 5000), ("r\u00e9cords", b""), ("", bytes(range(256)))], [("own", b"\xff")] * 1000]


@pytest.mark.parametrize("entries", ENTRIES)
def test_its_files_are_streams_of_arrow(entries: list[tuple[str, bytes]], writer: JournalWriter) -> None:
    """As pyarrow reads them: the writer itself has only the standard library and LZ4."""
    for entry in entries:
        writer.write(*entry)
    writer.close()
    (file,) = writer.folder.iterdir()
    with pa.ipc.open_stream(file.read_bytes()) as stream:
        table = stream.read_all()
    table.validate(full=True)
    assert table.schema == journals.COLUMNS
    assert list(zip(table["kind"].to_pylist(), table["data"].to_pylist(), strict=True)) == entries
    assert [field.nullable for field in table.schema] == [True] * 4
    assert list(table.schema.metadata) == [journal.HEADER_KEY]


@pytest.mark.parametrize("entries", ENTRIES)
def test_streams_of_arrow_that_earlier_releases_wrote_are_read(
    entries: list[tuple[str, bytes]], writer: JournalWriter
) -> None:
    """They were written by pyarrow, and compressed with Zstandard."""
    for entry in entries:
        writer.write(*entry)
    writer.close()
    (file,) = writer.folder.iterdir()
    with pa.ipc.open_stream(file.read_bytes()) as stream:
        table = stream.read_all()
    with pa.ipc.new_stream(file, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as again:
        again.write_table(table)
    assert written(writer) == entries


def test_closing_writes_the_rest_and_removing_leaves_nothing(writer: JournalWriter) -> None:
    writer.write(RECORDS, b"last")
    writer.close()
    assert written(writer) == [(RECORDS, b"last")]
    writer.remove()
    assert list(writer.folder.parent.iterdir()) == []


def test_files_are_of_bounded_size(writer: JournalWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "FILE_BYTES", 3000)
    entries = [(RECORDS, os.urandom(1000)) for _ in range(10)]
    for number, entry in enumerate(entries):
        writer.write(*entry)
        writer.flush()
        assert len(written(writer)) == number + 1
    sizes = [file.stat().st_size for file in writer.folder.iterdir()]
    assert len(sizes) > 3
    assert max(sizes) < 6000
    assert written(writer) == entries


def test_it_is_fetched_what_is_to_be_written(tmp_path: Path, notes: list[str]) -> None:
    waiting: list[bytes] = []

    def look() -> None:
        while waiting:
            writer.write(RECORDS, waiting.pop())

    writer = JournalWriter(tmp_path / "looking", HEADER, notes.append, look=look)
    waiting.append(b"one")
    assert wait_until(lambda: written(writer) == [(RECORDS, b"one")])
    waiting.append(b"two")
    writer.close()
    assert written(writer) == [(RECORDS, b"one"), (RECORDS, b"two")]


def test_a_full_disk_ends_it_with_one_line(
    writer: JournalWriter, notes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.write(RECORDS, b"before")
    assert wait_until(lambda: written(writer) == [(RECORDS, b"before")])
    write = os.write

    def half(file: int, data: bytes) -> int:
        if len(data) < 1000:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(file, bytes(data[:500]))

    monkeypatch.setattr(os, "write", half)
    for _ in range(3):
        writer.write(RECORDS, os.urandom(2000))
        assert wait_until(lambda: len(notes) == 1)
    monkeypatch.undo()
    writer.write(RECORDS, b"after")
    writer.close()
    assert written(writer) == [(RECORDS, b"before")]
    assert notes == [notes[0]]
    assert os.strerror(errno.ENOSPC) in notes[0]


@pytest.mark.parametrize("name", ["write", "fsync"])
def test_nothing_is_left_of_a_journal_whose_first_write_fails(
    name: str, writer: JournalWriter, notes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, name, full)
    writer.write(RECORDS, b"x")
    assert wait_until(lambda: len(notes) == 1)
    monkeypatch.undo()
    assert writer.folder.exists()
    writer.close()
    writer.remove()
    assert not writer.folder.exists()


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path, notes: list[str]) -> None:
    (tmp_path / "file").touch()
    writer = JournalWriter(tmp_path / "file" / "one", HEADER, notes.append)
    writer.write(RECORDS, b"x")
    writer.close()
    writer.remove()
    assert len(notes) == 1
    assert "Not a directory" in notes[0]


def test_it_ends_at_its_largest_size(tmp_path: Path, notes: list[str]) -> None:
    writer = JournalWriter(tmp_path / "one", HEADER, notes.append, most_bytes=10_000)
    entries = [(RECORDS, os.urandom(1000)) for _ in range(20)]
    for entry in entries:
        writer.write(*entry)
        writer.flush()
    writer.close()
    found = written(writer)
    assert found == entries[: len(found)]
    assert 3 < len(found) < 10
    assert journal_in(writer.folder).size <= 10_000
    assert len(notes) == 1


def test_a_disk_that_hangs_ends_it_and_holds_nobody_up(
    writer: JournalWriter, notes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "MOST_PENDING", 5000)
    monkeypatch.setattr(JournalWriter, "flush", lambda self, **_: None)
    for _ in range(10):
        writer.write(RECORDS, b"x" * 1000)
    assert len(notes) == 1
    assert "cannot keep up" in notes[0]


@contextmanager
def others_files(folder: Path) -> Iterator[dict[Path, bytes]]:
    """Many files that somebody has open and has written: they get every number that is free."""
    folder.mkdir()
    data = {folder / str(number): os.urandom(1000) for number in range(64)}
    with ExitStack() as files:
        for path, content in data.items():
            files.enter_context(path.open("wb", buffering=0)).write(content)
        yield data


@pytest.mark.parametrize("reason", ["File exists", "Too many open files", "File too large"])
def test_a_removed_journal_that_cannot_be_written_again_ends_and_touches_nothing_of_others(
    reason: str, tmp_path: Path, notes: list[str]
) -> None:
    folder = tmp_path / "state" / "one"
    writer = JournalWriter(folder, HEADER, notes.append)
    writer.write(RECORDS, b"before")
    writer.flush()
    somebody = folder.with_name("one-again")
    if reason == "File exists":
        journal_of_another = JournalWriter(somebody, HEADER, notes.append)
        journal_of_another.write(RECORDS, b"another")
        journal_of_another.close()
    limit = {"Too many open files": resource.RLIMIT_NOFILE, "File too large": resource.RLIMIT_FSIZE}.get(reason)
    before = None if limit is None else resource.getrlimit(limit)
    if limit is not None and before is not None:
        resource.setrlimit(limit, (0, before[1]))
    try:
        folder.rename(tmp_path / "removed")
        writer.write(RECORDS, b"after")
        writer.flush()
    finally:
        if limit is not None and before is not None:
            resource.setrlimit(limit, before)
    with others_files(tmp_path / "others") as others:
        writer.write(RECORDS, b"later")
        writer.close()
    assert {path: path.read_bytes() for path in others} == others
    assert len(notes) == 1
    assert reason in notes[0]
    writer.remove()
    assert somebody.exists() == (reason == "File exists")


FORKED = """
import os, sys
from pathlib import Path
from roastcoffea.log.journal import JournalWriter
folder, others = Path(sys.argv[1]), Path(sys.argv[2])
writer = JournalWriter(folder, {"start": 1e9}, print)
writer.write("records", b"before")
writer.flush()
child = os.fork()
if child == 0:
    for number in range(64):
        os.write(os.open(others / str(number), os.O_RDWR | os.O_CREAT), b"x" * 1000)
    writer.write("records", b"of the child")
    writer.flush()
    writer.flush(last=True)
    os._exit(0)
os.waitpid(child, 0)
writer.write("records", b"after")
writer.close()
"""


@pytest.mark.slow
def test_a_forked_process_writes_neither_the_journal_nor_into_its_own_files(tmp_path: Path) -> None:
    others = tmp_path / "others"
    others.mkdir()
    words = [sys.executable, "-c", FORKED, tmp_path / "one", others]
    assert subprocess.run(words, check=True, capture_output=True, text=True).stdout == ""
    assert [path.read_bytes() for path in others.iterdir()] == [b"x" * 1000] * 64
    assert [entry.data for entry in journal_in(tmp_path / "one").entries()] == [b"before", b"after"]
    assert len(list((tmp_path / "one").iterdir())) == 1
