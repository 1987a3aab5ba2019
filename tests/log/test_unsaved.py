from __future__ import annotations

import gc
from pathlib import Path

import pytest
from command_line import collected_until

from roastcoffea.log.journal import JournalWriter
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
