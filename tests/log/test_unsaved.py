from __future__ import annotations

import gc
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from conftest import wait_until
from processes import PATIENCE, collected_until

from roastcoffea.log.journal import JournalWriter, remove_journal
from roastcoffea.log.journals import hold, journal_of, journals_in, saved


class Owner:
    pass


def written(folder: Path) -> JournalWriter:
    """A journal of one entry that has ended, however slow the disk is."""
    journal = JournalWriter(folder, {"start": 0.0}, pytest.fail)
    journal.write("kind", b"")
    journal.flush(last=True)
    journal.close()
    return journal


@pytest.mark.slow
def test_a_journal_goes_with_its_last_owner(tmp_path: Path) -> None:
    one, other = Owner(), Owner()
    journal = written(tmp_path / "one")
    hold(one, journal)
    hold(other, journal)
    assert journal_of(one) is journal_of(other) is journal
    folder = journal.folder
    del journal, one
    gc.collect()
    assert folder.exists()
    del other
    assert collected_until(lambda: not folder.exists())


def test_a_journal_goes_when_its_owner_is_saved(tmp_path: Path) -> None:
    owner = Owner()
    journal = written(tmp_path / "one")
    hold(owner, journal)
    saved(owner)
    saved(owner)
    assert journal_of(owner) is None
    assert not journal.folder.exists()


def test_no_thread_that_collects_garbage_waits_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    removing: list[int] = []
    answers = threading.Event()

    def remove_slowly(folder: Path) -> None:
        removing.append(threading.get_ident())
        answers.wait(PATIENCE)
        remove_journal(folder)

    monkeypatch.setattr("roastcoffea.log.journal.remove_journal", remove_slowly)
    owner = Owner()
    journal = written(tmp_path / "one")
    hold(owner, journal)
    folder = journal.folder
    del journal, owner
    assert collected_until(lambda: bool(removing))
    assert threading.get_ident() not in removing
    assert folder.exists()
    answers.set()
    assert wait_until(lambda: not folder.exists())


# as a process ends

HELD = """
import gc, multiprocessing, os, signal, sys, threading
from pathlib import Path
from roastcoffea.log import journal as writing, journals
from roastcoffea.log.journal import JournalWriter, remove_journal

class Owner: pass

def held(folder):
    owner, journal = Owner(), JournalWriter(folder, {"start": 0.0}, str)
    journal.write("kind", b"")
    journal.flush(last=True)
    journal.close()
    journals.hold(owner, journal)
    assert folder.exists()
    return owner

folder = Path(sys.argv[1])
"""

UNFINISHED = """
def remove(folder):
    if threading.current_thread() is not threading.main_thread():
        begun.set()
        threading.Event().wait()
    remove_journal(folder)

begun = threading.Event()
journals.remove_journal = writing.remove_journal = remove
held(folder / "dropped")
while not begun.wait(0.02):
    gc.collect()
assert [*folder.iterdir()]
"""

NOTHING_IN_PYTHON = """
entered, owner = [], held(folder / "one")
sys.settrace(lambda frame, *_: entered.append(frame.f_code.co_name))
del owner
sys.settrace(None)
assert entered == [], entered
"""
"""Signals are handled in Python code, and what their handlers raise as something is dropped is lost."""

CHILD = """
def dropped():
    held(folder / "dropped")
    gc.collect()

child = multiprocessing.get_context("fork").Process(target=dropped)
child.start()
child.join()
assert child.exitcode == 0
"""


@pytest.mark.parametrize("error", ["", "raise KeyError('mine')"])
@pytest.mark.parametrize("how", [UNFINISHED, NOTHING_IN_PYTHON, CHILD], ids=["unfinished", "in C", "child"])
def test_what_was_dropped_is_gone_when_its_process_has_ended(tmp_path: Path, how: str, error: str) -> None:
    assert journals_left_by(how + error, tmp_path, fails=bool(error)) == []


LET_GO_LATE = """
import atexit, time

def let_go():
    owners.clear()
    time.sleep(0.3)

owners = [held(folder / "one")]
atexit.unregister(journals._remove_all)
atexit.register(let_go)
atexit.register(journals._remove_all)
raise KeyError("mine")
"""


def test_what_is_in_use_when_an_exception_ends_its_process_stays_whole(tmp_path: Path) -> None:
    assert journals_left_by(LET_GO_LATE, tmp_path, fails=True) == ["one"]
    (journal,), _ = journals_in(tmp_path)
    assert [entry.kind for entry in journal.entries()] == ["kind"]


def journals_left_by(code: str, folder: Path, *, fails: bool) -> list[str]:
    """Names of the journals in a folder after a process."""
    script = [sys.executable, "-c", HELD + code, str(folder)]
    done = subprocess.run(script, check=False, capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stdout, "KeyError" in done.stderr) == (fails, "", fails), done.stderr
    return [path.name for path in folder.iterdir()]
