"""The reading side of journals: whole entries and no others, and what is missing is told."""

from __future__ import annotations

import os
import random
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from processes import wait_until

from roastcoffea.cli import main
from roastcoffea.log.journal import RECORDS, SCHEMA, JournalWriter
from roastcoffea.log.journals import Entry, JournalError, claimed, journal_in, journals_in
from roastcoffea.recording.assembly import remove_old

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


@pytest.mark.slow
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
    assert read(folder) == (
        ENTRIES[:1],
        ["the journal ends before 000003.arrows, because the file before it is missing"],
    )
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
    with monkeypatch.context() as newer:
        newer.setattr("roastcoffea.log.journal.SCHEMA", SCHEMA + 1)
        folder = made(tmp_path / "newer")
    with pytest.raises(JournalError, match="in format 2, but this version reads format 1"):
        journal_in(folder)


def test_journals_come_in_order_of_their_start(tmp_path: Path) -> None:
    for name, start in {"a": 3e9, "b": 1e9, "c": 2e9}.items():
        made(tmp_path / name, start=start)
    found, _ = journals_in(tmp_path)
    assert [journal.folder.name for journal in found] == ["b", "c", "a"]
    assert not any(journal.is_written for journal in found)


# who writes: processes here, and in containers and on hosts of their own

WRITER = """
import os, sys
from pathlib import Path
from roastcoffea.log.journal import JournalWriter
writer = JournalWriter(Path(sys.argv[1]), {"start": 1e9}, lambda note: print(note, flush=True))
writer.write("records", b"before")
writer.flush()
if sys.argv[2:] == ["closed"]:
    writer.close()
if sys.argv[2:] == ["forked"] and os.fork() == 0:
    sys.stdin.read()  # until the test closes it
    os._exit(0)
print("written", flush=True)
sys.stdin.readline()
writer.write("records", b"after")
writer.flush(last=True)
print("ended", flush=True)
"""

HERE: tuple[str, ...] = ()
ANOTHER_HOST = ("unshare", "--map-root-user", "--uts", "sh", "-c", 'hostname elsewhere; exec "$@"', "sh")
CONTAINER = ("unshare", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc")
WITHOUT_LOCKS = ("strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=flock", "-e", "inject=flock:error=ENOLCK")
LONG_AGO = 11 * 3600.0


def command(place: Sequence[str], *words: object) -> list[str]:
    """A command at a place; skips where the system does not let us make it."""
    if place and subprocess.run([*place, "true"], check=False, capture_output=True).returncode:
        pytest.skip(f"{place[0]} does not work here")
    return [*place, *map(str, words)]


@contextmanager
def writing(folder: Path, place: Sequence[str] = HERE, how: str = "") -> Iterator[subprocess.Popen[str]]:
    """A process that has written a journal, and waits for a line."""
    words = command(place, sys.executable, "-c", WRITER, folder, *how.split())
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "written\n"
            yield process
        finally:
            process.kill()


def aged(folder: Path, seconds: float) -> None:
    """Let the last sign of life be so long ago."""
    for file in folder.iterdir():
        then = file.stat().st_mtime - seconds
        os.utime(file, (then, then))


def places(how: str) -> pytest.MarkDecorator:
    """Places of writers, and what else they do; the latter is the same everywhere."""
    every = [(HERE, how), (HERE, ""), (ANOTHER_HOST, ""), (CONTAINER, "")]
    return pytest.mark.parametrize(("place", "how"), every, ids=[how, "here", "another host", "container"])


@pytest.mark.slow
@places("closed")
def test_what_lives_is_left_alone_wherever_and_however_long(
    place: Sequence[str], how: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with writing(tmp_path / "one", place, how):
        aged(tmp_path / "one", 100 * 86_400.0)
        assert journal_in(tmp_path / "one").is_written
        with claimed(tmp_path / "one") as ours:
            assert not ours
        assert remove_old(tmp_path, 1, 0) == []
        main(["recover", str(tmp_path), "-o", str(tmp_path / "out")])
        assert "running" in capsys.readouterr().out
        assert [entry.data for entry in journal_in(tmp_path / "one").entries()] == [b"before"]
        assert not (tmp_path / "out").exists()


@pytest.mark.slow
@places("forked")
def test_a_killed_writer_is_known_to_be_dead_wherever_it_was(place: Sequence[str], how: str, tmp_path: Path) -> None:
    with writing(tmp_path / "one", place, how) as process:
        process.kill()
        process.wait()
        assert wait_until(lambda: not journal_in(tmp_path / "one").is_written)  # a container takes a moment to end
    assert [entry.data for entry in journal_in(tmp_path / "one").entries()] == [b"before"]
    with claimed(tmp_path / "one") as ours:
        assert ours
        with claimed(tmp_path / "one") as again:
            assert not again
    assert remove_old(tmp_path, None, 0) == [tmp_path / "one"]


@pytest.mark.parametrize("host", ["another", socket.gethostname()])
def test_locks_that_another_host_may_keep_to_itself_need_hours_as_well(
    host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not those of this host before it was started again: nothing of that time lives."""
    with monkeypatch.context() as there:
        there.setattr("roastcoffea.log.journal.kernel", lambda: "another")
        there.setattr("socket.gethostname", lambda: host)
        made(tmp_path / "one")
    assert not journal_in(tmp_path / "one").is_locked
    for hours, is_recent in ((0, True), (LONG_AGO, True), (2 * 3600.0, False)):
        aged(tmp_path / "one", hours)
        assert journal_in(tmp_path / "one").is_written == (is_recent and host == "another")


def test_whether_a_journal_that_is_removed_meanwhile_is_locked_is_not_known(tmp_path: Path) -> None:
    journal = journal_in(made(tmp_path / "one"))
    shutil.rmtree(journal.folder)
    assert journal.is_locked is None


@pytest.mark.slow
def test_without_locks_hours_decide_of_another_host(tmp_path: Path) -> None:
    place = (*WITHOUT_LOCKS, *ANOTHER_HOST)
    with writing(tmp_path / "one", place):
        for hours, is_written in ((0, True), (LONG_AGO, True), (2 * 3600.0, False)):
            aged(tmp_path / "one", hours)
            assert journal_in(tmp_path / "one").is_written == is_written


@pytest.mark.slow
def test_without_locks_the_process_decides_here(tmp_path: Path) -> None:
    with writing(tmp_path / "one", WITHOUT_LOCKS):
        aged(tmp_path / "one", 100 * 86_400.0)
        assert journal_in(tmp_path / "one").is_written
        assert remove_old(tmp_path, 1, 0) == []
    assert wait_until(lambda: not journal_in(tmp_path / "one").is_written)


@pytest.mark.slow
@pytest.mark.parametrize("place", [HERE, WITHOUT_LOCKS], ids=["locks", "no locks"])
def test_one_claims_a_journal_at_a_time(place: Sequence[str], folder: Path) -> None:
    claim = """
import sys
from pathlib import Path
from roastcoffea.log.journals import claimed
with claimed(Path(sys.argv[1])) as ours:
    print(ours, flush=True)
    sys.stdin.readline()
"""
    words = command(place, sys.executable, "-c", claim, folder)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(words, text=True, **pipes) as first:  # type: ignore[call-overload]
        assert first.stdout.readline() == "True\n"
        assert subprocess.run(words, text=True, check=True, capture_output=True, input="\n").stdout == "False\n"
        first.communicate("\n")
    assert subprocess.run(words, text=True, check=True, capture_output=True, input="\n").stdout == "True\n"
    assert [file.name for file in folder.iterdir()] == ["000001.arrows"]


def test_a_writer_whose_journal_is_removed_says_so_and_has_all_of_it_in_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("roastcoffea.log.journal.FILE_BYTES", 3000)
    notes: list[str] = []
    writer = JournalWriter(tmp_path / "one", {"start": 1e9}, notes.append)
    entries = []
    for number in range(12):
        entries.append((RECORDS, random.Random(number).randbytes(1000)))
        writer.write(*entries[-1])
        writer.flush()
        if number in {2, 7}:
            shutil.rmtree(writer.folder)
    writer.close()
    assert read(writer.folder) == (entries, [])
    assert journal_in(writer.folder).is_written
    assert writer.folder == tmp_path / "one-again-again"
    assert len(notes) == 2
    assert str(tmp_path / "one") in notes[0]
    writer.remove()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_run_that_was_recovered_while_it_went_on_is_recovered_whole_later(tmp_path: Path) -> None:
    with writing(tmp_path / "one") as process:
        shutil.rmtree(tmp_path / "one")
        output, _ = process.communicate("\n")
        assert "was removed during the run" in output
    (journal,), _ = journals_in(tmp_path)
    assert [entry.data for entry in journal.entries()] == [b"before", b"after"]
