"""What has a journal until it is saved or dropped."""

from __future__ import annotations

import _thread
import atexit
import os
import sys
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Final

from roastcoffea.log.journal import JournalWriter, remove_journal

_journals: Final[weakref.WeakKeyDictionary[object, JournalWriter]] = weakref.WeakKeyDictionary()
_held: Final[weakref.WeakSet[JournalWriter]] = weakref.WeakSet()
"""Journals that have, or had, an owner."""
_dropped: Final[set[Path]] = set()
"""Folders of journals that nobody holds any more, while a thread removes them."""


def hold(owner: object, journal: JournalWriter) -> None:
    """Keep a journal until its last owner is saved or dropped, or the process ends.

    If an exception ends the process, the journal stays: nobody could save what is in it.
    """
    if journal not in _held:
        _held.add(journal)
        weakref.finalize(journal, _drop, journal.folder, journal.process).atexit = False
    _journals[owner] = journal


def journal_of(owner: object) -> JournalWriter | None:
    """The journal of something that has not been saved."""
    return _journals.get(owner)


def saved(owner: object) -> None:
    """Remove the journal of something that was saved, if it has one."""
    journal = _journals.pop(owner, None)
    if journal is not None:
        journal.remove()


def _drop(folder: Path, process: int) -> None:
    """Remove the journal of a process, unless this one is a fork of it, in a thread of its own.

    Garbage is collected in any thread: the main one would lose a Ctrl-C that comes meanwhile, and an event loop would
    wait for the disk.
    """
    if process == os.getpid():
        _dropped.add(folder)
        with suppress(RuntimeError):  # no more threads: it is removed when the process ends
            _thread.start_new_thread(_remove_dropped, (folder,))


def _remove_dropped(folder: Path) -> None:
    remove_journal(folder)
    _dropped.discard(folder)


@atexit.register
def _remove_all() -> None:
    """Remove the journals of what was not saved as the process ends; an exception that ends it spares those in use."""
    folders = set(_dropped)
    interactive = hasattr(sys, "ps1") or sys.flags.interactive
    if interactive or getattr(sys, "last_value", None) is None:
        folders.update(journal.folder for journal in _held if journal.process == os.getpid())
    for folder in folders:
        remove_journal(folder)
