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
_on_disk: Final[dict[Path, int]] = {}
"""Folders that are to be removed, with the process that made them."""


def hold(owner: object, journal: JournalWriter) -> None:
    """Keep a journal until its last owner is saved or dropped, or the process ends.

    If an exception ends the process, the journal stays: nobody could save what is in it.
    """
    if journal not in _held:
        # takes 8 ms, and nobody needs it to load a measurement
        from multiprocessing import parent_process

        _held.add(journal)
        _on_disk[journal.folder] = journal.process
        # a process of multiprocessing ends without waiting for threads, and without functions at exit
        in_thread = parent_process() is None
        weakref.finalize(journal, _drop, journal.folder, in_thread).atexit = False
    _journals[owner] = journal


def journal_of(owner: object) -> JournalWriter | None:
    """The journal of something that has not been saved."""
    return _journals.get(owner)


def saved(owner: object) -> None:
    """Remove the journal of something that was saved, if it has one."""
    journal = _journals.pop(owner, None)
    if journal is not None:
        journal.remove()
        _on_disk.pop(journal.folder, None)


def _drop(folder: Path, in_thread: bool) -> None:
    """Remove a dropped journal, in a new thread if possible.

    Garbage is collected in any thread: the main one loses a Ctrl-C that comes meanwhile, and an event loop would wait
    for the disk. A thread of `threading` takes locks, which the interrupted code may hold.
    """
    if _on_disk.get(folder) == os.getpid():
        if in_thread:
            with suppress(RuntimeError):  # no more threads: it is removed at exit
                _thread.start_new_thread(_remove, (folder,))
        else:
            _remove(folder)


def _remove(folder: Path) -> None:
    remove_journal(folder)
    _on_disk.pop(folder, None)


@atexit.register
def _remove_all() -> None:
    """Remove unsaved journals at exit; after an exception, those in use stay."""
    interactive = hasattr(sys, "ps1") or sys.flags.interactive
    failed = not interactive and getattr(sys, "last_value", None) is not None
    spared = {journal.folder for journal in list(_held)} if failed else set()
    ours = [folder for folder, process in list(_on_disk.items()) if process == os.getpid() and folder not in spared]
    _on_disk.clear()
    for folder in ours:
        remove_journal(folder)
