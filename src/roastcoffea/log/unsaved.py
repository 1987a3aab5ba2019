"""What has a journal until it is saved or dropped."""

from __future__ import annotations

import atexit
import os
import sys
import weakref
from pathlib import Path
from typing import Final

from roastcoffea.log.journal import JournalWriter, remove_journal

_journals: Final[weakref.WeakKeyDictionary[object, JournalWriter]] = weakref.WeakKeyDictionary()
_held: Final[weakref.WeakSet[JournalWriter]] = weakref.WeakSet()
"""Journals that have, or had, an owner."""


def hold(owner: object, journal: JournalWriter) -> None:
    """Keep a journal until its last owner is saved or dropped, or the process ends.

    If an exception ends the process, the journal stays: nobody could save what is in it.
    """
    if journal not in _held:
        _held.add(journal)
        weakref.finalize(journal, _remove, journal.folder, journal.process).atexit = False
    _journals[owner] = journal


def journal_of(owner: object) -> JournalWriter | None:
    """The journal of something that has not been saved."""
    return _journals.get(owner)


def saved(owner: object) -> None:
    """Remove the journal of something that was saved, if it has one."""
    journal = _journals.pop(owner, None)
    if journal is not None:
        journal.remove()


def _remove(folder: Path, process: int) -> None:
    """Remove the journal of a process, unless this one is a fork of it."""
    if process == os.getpid():
        remove_journal(folder)


@atexit.register
def _remove_all() -> None:
    """Remove the journals of what was not saved as the process ends, unless an exception ends it."""
    interactive = hasattr(sys, "ps1") or sys.flags.interactive
    if interactive or getattr(sys, "last_value", None) is None:
        for journal in list(_held):
            _remove(journal.folder, journal.process)
