"""The reading side of journals: whole entries and no others, and what is missing is told."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from roastcoffea.log import journals
from roastcoffea.log.journal import RECORDS, JournalWriter
from roastcoffea.log.journals import Entry, JournalError, journal_in, journals_in

ENTRIES = [(RECORDS, b"first"), (RECORDS, random.Random(1).randbytes(60)), ("own", b"third")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A journal of three batches in one file."""
    return made(tmp_path / "one")


def made(folder: Path, **header: Any) -> Path:
    writer = JournalWriter(folder, {"start": 1e9, **header}, pytest.fail)
    for entry in ENTRIES:
        writer.write(*entry)
        writer.flush()
    writer.close()
    return folder


def read(folder: Path) -> tuple[list[tuple[str, bytes]], list[str]]:
    journal = journal_in(folder)
    return [(entry.kind, entry.data) for entry in journal.entries()], journal.problems


def test_entries_and_times(folder: Path) -> None:
    assert read(folder) == (ENTRIES, [])
    entries = list(journal_in(folder).entries())
    assert isinstance(entries[0], Entry)
    assert entries[0].time <= entries[1].time <= entries[2].time <= journal_in(folder).last + 1


def test_cut_off_anywhere_it_has_the_whole_batches_before(folder: Path) -> None:
    (file,) = folder.iterdir()
    data = file.read_bytes()
    seen = set()
    for length in range(0, len(data), 7):  # batches end at multiples of eight
        file.write_bytes(data[:length])
        try:
            entries, problems = read(folder)
        except JournalError:
            assert not seen  # not even its header is whole
            continue
        assert entries == ENTRIES[: len(entries)]
        assert problems or length % 8 == 0
        assert all("cut off" in problem for problem in problems)
        seen.add(len(entries))
    assert seen == set(range(len(ENTRIES) + 1))


def test_a_changed_byte_never_changes_an_entry(folder: Path) -> None:
    (file,) = folder.iterdir()
    data = file.read_bytes()
    for place in range(0, len(data), 5):
        file.write_bytes(data[:place] + bytes([data[place] ^ 0x41]) + data[place + 1 :])
        try:
            entries, problems = read(folder)
        except JournalError:
            continue
        assert entries == ENTRIES[: len(entries)]
        assert problems or entries == ENTRIES


def test_nothing_is_read_behind_a_missing_or_damaged_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roastcoffea.log.journal.FILE_BYTES", 100)
    folder = made(tmp_path / "one")
    first, second, *_ = sorted(folder.iterdir())
    data = second.read_bytes()
    second.write_bytes(data[: len(data) // 2])
    entries, problems = read(folder)
    assert entries == ENTRIES[:1]
    assert "damaged" in problems[0]
    second.unlink()
    assert read(folder) == (ENTRIES[:1], ["the journal ends before 000003.arrows: the file before it is missing"])
    first.unlink()
    assert read(folder)[0] == []


def test_what_is_no_journal_is_named(tmp_path: Path) -> None:
    made(tmp_path / "good")
    for name, content in {"empty": b"", "other": b"not arrow" * 100}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "000001.arrows").write_bytes(content)
    (tmp_path / "none").mkdir()
    found, unreadable = journals_in(tmp_path)
    assert [journal.folder.name for journal in found] == ["good"]
    assert len(unreadable) == 2
    assert all(str(tmp_path / name) in text for name, text in zip(["empty", "other"], unreadable, strict=True))
    assert journals_in(tmp_path / "nowhere") == ([], [])


def test_a_newer_form_says_what_wrote_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roastcoffea.log.journal.SCHEMA", journals.SCHEMA + 1)
    folder = made(tmp_path / "newer")
    with pytest.raises(JournalError, match="in form 2, and this version reads form 1"):
        journal_in(folder)


def test_journals_come_in_order_of_their_start(tmp_path: Path) -> None:
    for name, start in {"a": 3e9, "b": 1e9, "c": 2e9}.items():
        made(tmp_path / name, start=start)
    found, _ = journals_in(tmp_path)
    assert [journal.folder.name for journal in found] == ["b", "c", "a"]
    assert all(journal.is_written for journal in found)


KILLED = """
import os, signal, sys, time
from pathlib import Path
from roastcoffea.log.journal import JournalWriter
writer = JournalWriter(Path(sys.argv[1]), {"start": 1e9}, print)
writer.write("records", b"before")
writer.flush()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_it_survives_a_process_that_is_killed(tmp_path: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED, tmp_path / "one"], check=False, env=os.environ)
    assert killed.returncode == -signal.SIGKILL
    journal = journal_in(tmp_path / "one")
    assert [entry.data for entry in journal.entries()] == [b"before"]
    assert not journal.is_written


def test_a_writer_elsewhere_is_judged_by_its_last_sign(folder: Path) -> None:
    journal = journal_in(folder)
    elsewhere = journals.Journal(folder, {**journal.header, "machine": "elsewhere"}, journal.last, journal.size)
    assert elsewhere.is_written
    elsewhere.last -= 2 * journals.LONGEST_QUIET
    assert not elsewhere.is_written
