"""What has a journal until it is saved or dropped."""

from __future__ import annotations

import _thread
import atexit
import os
import sys
import weakref
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Final

from roastcoffea.log.journal import JournalWriter, remove_journal

_owned: Final[dict[weakref.ref[object], JournalWriter]] = {}
"""Journals by their owners."""
_on_disk: Final[dict[Path, int]] = {}
"""Folders that are to be removed, with the process that made them."""


def hold(owner: object, journal: JournalWriter) -> None:
    """Keep a journal until its last owner is saved or dropped, or the process ends.

    If an exception ends the process, the journal stays: nobody could save what is in it.
    """
    if journal not in list(_owned.values()):
        # takes 8 ms, and nobody needs it to load a measurement
        from multiprocessing import parent_process

        _on_disk[journal.folder] = journal.process
        if parent_process() is not None:  # such a process ends without functions at exit
            from multiprocessing.util import Finalize

            Finalize(None, _remove_all, exitpriority=0)
    _owned[weakref.ref(owner, _dropped)] = journal


def journal_of(owner: object) -> JournalWriter | None:
    """The journal of something that has not been saved."""
    return _owned.get(weakref.ref(owner))


def saved(owner: object) -> None:
    """Remove the journal of something that was saved, if it has one."""
    journal = _owned.pop(weakref.ref(owner), None)
    if journal is not None:
        journal.remove()
        _on_disk.pop(journal.folder, None)


def _remove_dropped() -> None:
    """Remove journals without an owner."""
    for owner in [owner for owner in list(_owned) if owner() is None]:
        journal = _owned.pop(owner, None)
        if journal is not None and journal not in list(_owned.values()) and _on_disk.get(journal.folder) == os.getpid():
            journal.remove()
            _on_disk.pop(journal.folder, None)


_dropped: Final = partial(next, map(_thread.start_new_thread, repeat(_remove_dropped), repeat(())))
"""Starts a thread that removes them, as an owner is dropped: an event loop that does that would wait for the disk.

It is in C, because Python code would be where signals are handled, and Python loses what their handlers raise here. A
thread of `threading` takes locks, which the interrupted code may hold.
"""


@atexit.register
def _remove_all() -> None:
    """Remove unsaved journals at exit; after an exception, those in use stay."""
    interactive = hasattr(sys, "ps1") or sys.flags.interactive
    failed = not interactive and (getattr(sys, "last_value", None) or sys.exc_info()[1]) is not None
    spared = {journal.folder for owner, journal in list(_owned.items()) if owner() is not None} if failed else set()
    ours = [folder for folder, process in list(_on_disk.items()) if process == os.getpid() and folder not in spared]
    _on_disk.clear()
    _owned.clear()
    for folder in ours:
        remove_journal(folder)
