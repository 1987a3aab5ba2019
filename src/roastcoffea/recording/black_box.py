"""The journal of a collector: what it learns goes to disk at once, so that it survives the client."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from roastcoffea.backends.recorder import Recorder
from roastcoffea.errors import reported
from roastcoffea.instrument.hook import take_new_records
from roastcoffea.interrupts import interrupts_held
from roastcoffea.log.journal import RECORDS, JournalWriter, claimed, remove_journal
from roastcoffea.log.journals import Journal, JournalError, hold, journal_in, journal_of
from roastcoffea.log.processes import remove_files
from roastcoffea.recording.assembly import RunRecords
from roastcoffea.records.arrow import packed_parts
from roastcoffea.records.run import Run
from roastcoffea.redaction import redacted
from roastcoffea.storage.document import RUN_FILE, body_of
from roastcoffea.storage.document import SCHEMA as RUN_SCHEMA
from roastcoffea.storage.store import OWN_FILES, is_replaceable
from roastcoffea.storage.tables import SPAN_FORMS, tables_of
from roastcoffea.units import SECONDS_PER_DAY

if TYPE_CHECKING:
    from roastcoffea.measurement import Measurement

END: Final = "end"
"""Kind of the last entry of a run that ended, with all but its tables."""

SPANS: Final = "spans "
"""Kinds of the entries before it, with the metrics of spans, begin like this."""

DAYS_KEPT: Final = 30.0
GIGABYTES_KEPT: Final = 2.0
"""What the state folder keeps of lost runs: older journals, and the oldest of more, are removed."""

Place = str | os.PathLike[str] | bool | None


def state_folder() -> Path:
    """Folder of journals in the state folder of the user (XDG)."""
    given = Path(os.environ.get("XDG_STATE_HOME", ""))
    base = given if given.is_absolute() else Path.home() / ".local" / "state"
    return base / "roastcoffea" / "journals"


def checked_place(place: Place) -> Place:
    """What is given as the folder for journals: a path, True for the state folder, None or False for none."""
    if isinstance(place, bool) or place is None:
        return place
    if isinstance(place, str | os.PathLike) and os.fspath(place):
        return Path(place)
    raise TypeError(f"journal is a folder, True for the state folder, or None, not {place!r}")


class BlackBox:
    """The journal of one collector.

    Parameters
    ----------
    records, backend
        What the collector has of the run.
    place
        As for `checked_place`.
    """

    def __init__(self, records: RunRecords, backend: Recorder, place: Place) -> None:
        self._records, self._backend = records, backend
        self._place = place
        self._writer: JournalWriter | None = None

    def open(self) -> None:
        """Begin the journal."""
        if not self._place:
            return
        folder = state_folder() if self._place is True else Path(self._place)
        records, now = self._records, time.time()
        name = f"{datetime.fromtimestamp(now, UTC):%Y-%m-%dT%H%M%SZ}-{records.id[:8]}"
        header = {
            "id": records.id,
            "name": records.name and redacted(records.name),
            "start": now,
            "backend": self._backend.kind,
            "interval": records.interval,
            "profile": records.profile,
            "peak_memory": records.peak_memory,
            "outside": records.outside,
            "environment": asdict(records.environment),
        }
        if self._place is True:
            with reported(records.note, "journals of earlier runs could not be removed", OSError):
                remove_old(folder)
        with interrupts_held():  # its thread must have somebody who ends it
            self._writer = JournalWriter(folder / name, header, records.note, look=self._look)
        records.keep = self._backend.keep = self._writer.write

    def records(self, packed: bytes) -> None:
        """Take packed records that did not pass through a scheduler."""
        if self._writer is not None:
            self._writer.write(RECORDS, packed)

    def end(self, owner: object, run: Run, *, has_tables: bool) -> None:
        """End the journal with what is known at the end; it stays until its owner is saved or dropped."""
        if self._writer is not None:
            self._write_news()
            for kind, data in (*entries_of_spans(run), entry_of_end(run, has_tables=has_tables)):
                self._writer.write(kind, data)
            self._writer.close()
            hold(owner, self._writer)

    def complete(self, before: object, measurement: Measurement) -> None:
        """Add what the tables tell to a journal that ended before they were made."""
        if self._writer is not None and journal_of(before) is not None:
            self._writer.write(*entry_of_end(measurement.run))
            self.hand_on(before, measurement)

    def hand_on(self, before: object, after: object) -> None:
        """Let the journal of one owner be that of another one, with what was learned since."""
        if self._writer is not None and journal_of(before) is not None:
            hold(after, self._writer)
            self._writer.settle()

    def give_up(self) -> None:
        """Remove the journal of a run that never began."""
        if self._writer is not None:
            self._writer.remove()

    def _look(self) -> None:
        with reported(self._records.note, "records could not be fetched for the journal", Exception):
            take_new_records()
            self._write_news()

    def _write_news(self) -> None:
        if self._writer is not None:
            for kind, data in self._backend.news():
                self._writer.write(kind, data)


def entries_of_spans(run: Run) -> Iterator[tuple[str, bytes]]:
    """Entries with the metrics of spans."""
    for name, table in tables_of(run).items():
        if name in SPAN_FORMS:
            yield from ((f"{SPANS}{name}", part) for part in packed_parts(table))


def entry_of_end(run: Run, *, has_tables: bool = True) -> tuple[str, bytes]:
    """Entry with all of a run that is not in others; rows of its tables are None before they are made."""
    rows = {name: table.num_rows for name, table in tables_of(run).items()} if has_tables else None
    return END, json.dumps({"schema": RUN_SCHEMA, "rows": rows, "run": body_of(run)}, allow_nan=False).encode()


class _Kept(NamedTuple):
    """A journal or a measurement on disk."""

    path: Path
    last: float
    size: int
    journal: Journal | None = None

    def remove(self) -> bool:
        """Remove it, unless somebody has the journal, or may have it."""
        journal = self.journal
        if journal is None:
            remove_files(self.path, [self.path / name for name in OWN_FILES])
            return True
        # a scheduler that lives has ended most of its journals
        ended = journal.is_locked is None and "facility" in journal.header
        if journal.is_recent if ended else journal.is_written:
            return False
        with claimed(self.path) as ours:
            if ours:
                remove_journal(self.path)
            return ours


def _kept_in(folder: Path) -> Iterator[_Kept]:
    """Journals and measurements in a folder, known by their content."""
    for path in folder.iterdir() if folder.is_dir() else ():
        with suppress(OSError):  # somebody else may remove, or write, it meanwhile
            if path.is_symlink():
                continue
            try:
                journal = journal_in(path)
                yield _Kept(path, journal.last, journal.size, journal)
            except JournalError:
                if (path / RUN_FILE).is_file() and is_replaceable(path):
                    states = [file.stat() for file in path.iterdir()]
                    last = max(state.st_mtime for state in states)
                    yield _Kept(path, last, sum(state.st_size for state in states))


def remove_old(folder: Path, days: float | None = DAYS_KEPT, gigabytes: float | None = GIGABYTES_KEPT) -> list[Path]:
    """Remove older journals and measurements in a folder, and the oldest if all take more space; return which.

    Nothing else in the folder is removed, and nothing that somebody writes or recovers.
    """
    size, removed = 0, []
    for each in sorted(_kept_in(folder), key=lambda each: each.last, reverse=True):
        size += each.size
        is_old = days is not None and time.time() - each.last > days * SECONDS_PER_DAY
        is_much = gigabytes is not None and size > 1e9 * gigabytes
        if (is_old or is_much) and each.remove():
            removed.append(each.path)
    return removed
