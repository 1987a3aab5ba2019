"""Journals as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from roastcoffea.log.journals import Journal
from roastcoffea.report.sheets import Column, Sheet
from roastcoffea.units import BYTE, minute

LOST: Final = "lost"
RUNNING: Final = "running"


def sheet_of_journals(journals: Sequence[Journal]) -> Sheet:
    """Journals, with the runs that they are of, and whether these go on."""
    columns = [Column("started"), Column("run"), Column("host"), Column("size", BYTE), Column("state")]
    return Sheet(columns=columns, rows=[_row(journal) for journal in journals])


def _row(journal: Journal) -> list[str | float]:
    header = journal.header
    state = f"{RUNNING}, process {header['process']}" if journal.is_written else LOST
    name = header.get("name") or str(header.get("id", journal.folder.name))[:8]
    return [minute(header["start"]), str(name), header["host"], float(journal.size), state]
