from __future__ import annotations

import gc
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from command_line import PATIENCE, collected_until
from conftest import wait_until

from roastcoffea.log import unsaved
from roastcoffea.log.journal import JournalWriter, remove_journal
from roastcoffea.log.unsaved import hold, journal_of, saved


class Owner:
    pass


@pytest.mark.slow
def test_a_journal_goes_with_its_last_owner(tmp_path: Path) -> None:
    one, other = Owner(), Owner()
    journal = JournalWriter(tmp_path / "one", {"start": 0.0}, pytest.fail)
    journal.write("kind", b"")
    journal.close()
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
    journal = JournalWriter(tmp_path / "one", {"start": 0.0}, pytest.fail)
    journal.write("kind", b"")
    journal.close()
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

    monkeypatch.setattr(unsaved, "remove_journal", remove_slowly)
    owner = Owner()
    journal = JournalWriter(tmp_path / "one", {"start": 0.0}, pytest.fail)
    journal.write("kind", b"")
    journal.close()
    hold(owner, journal)
    folder = journal.folder
    del journal, owner
    assert collected_until(lambda: bool(removing))
    assert threading.get_ident() not in removing
    assert folder.exists()
    answers.set()
    assert wait_until(lambda: not folder.exists())


UNFINISHED = """
import gc, sys, threading
from pathlib import Path
from roastcoffea.log import unsaved
from roastcoffea.log.journal import JournalWriter, remove_journal

class Owner: pass

def remove(folder):
    if threading.current_thread() is not threading.main_thread():
        begun.set()
        threading.Event().wait()
    remove_journal(folder)

begun, owner = threading.Event(), Owner()
unsaved.remove_journal = remove
journal = JournalWriter(Path(sys.argv[1]), {"start": 0.0}, print)
journal.write("kind", b"")
journal.close()
unsaved.hold(owner, journal)
del journal, owner
while not begun.wait(0.02):
    gc.collect()
assert Path(sys.argv[1]).exists()
if sys.argv[2:]:
    raise KeyError("mine")
"""


@pytest.mark.parametrize("error", [[], ["error"]])
def test_what_is_not_removed_yet_is_removed_as_the_process_ends(tmp_path: Path, error: list[str]) -> None:
    folder = tmp_path / "one"
    script = [sys.executable, "-c", UNFINISHED, str(folder), *error]
    done = subprocess.run(script, check=False, capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stdout, "KeyError" in done.stderr) == (len(error), "", bool(error)), done.stderr
    assert not folder.exists()
