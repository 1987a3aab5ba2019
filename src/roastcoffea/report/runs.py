"""Lists of saved measurements and journals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from textwrap import wrap
from typing import Any, Final, NamedTuple

from rich.cells import cell_len

import roastcoffea
from roastcoffea.diagnosis.completeness import BROKEN, COMPLETE, INCOMPLETE, INTERRUPT, INTERRUPTED
from roastcoffea.log.journals import Journal
from roastcoffea.records.run import FAILED, LOST
from roastcoffea.sheets.sheet import Column, Sheet
from roastcoffea.storage.reading import json_of
from roastcoffea.storage.store import METRICS_FILE, StoredRun
from roastcoffea.units import BYTE, KILOHERTZ, SECOND, Unit, counted, minute, scaled

UNREADABLE: Final = "unreadable"
NO_CALL: Final = "nothing run"
OUTCOMES: Final = (COMPLETE, INCOMPLETE, BROKEN, INTERRUPTED, LOST, NO_CALL, UNREADABLE)

LARGE_COUNT: Final = Unit("count", lambda value: scaled("", smallest="")(value).strip())

STALE: Final = " *"
"""Marker for a bottleneck found by another version."""


class Entry(NamedTuple):
    """A measurement's entry in a list. None means unknown."""

    name: str
    started: str | None
    processor: str
    events: float | None
    workers: float | None
    elapsed: float | None
    rate: float | None
    bottleneck: str | None
    outcome: str


UNITS: Final = {"events": LARGE_COUNT, "workers": LARGE_COUNT, "elapsed": SECOND, "rate": KILOHERTZ}
"""Units of numeric columns. Lists are sorted by these columns in descending order."""

WIDEST: Final = {"name": 32, "processor": 20, "bottleneck": 13, "outcome": 11}
"""Maximum width of text columns in a narrow terminal. Longer text wraps."""
DISPENSABLE: Final = ("started", "elapsed", "workers", "processor")
SAID_ONCE: Final = {
    "processor": "processor {}".format,
    "workers": lambda count: counted(count, "worker"),
    "outcome": "outcome {}".format,
}
"""Columns to summarise in a sentence if all rows have the same value."""


def entry_of(stored: StoredRun) -> Entry:
    known, stale = _metrics(stored) if stored.reported is None else (stored.reported, False)
    ran = stored.reported is not None or bool(stored.processors)
    return Entry(
        name=stored.name,
        started=None if stored.start is None else minute(stored.start),
        processor=", ".join(stored.processors),
        events=_number(known.get("total_events")),
        workers=_number(known.get("peak_workers", known.get("avg_workers"))) or None,
        elapsed=_number(known.get("elapsed_time_seconds")) or stored.elapsed,
        rate=_number(known.get("event_rate_elapsed_khz")) or None,
        bottleneck=f"{word}{STALE * stale}" if ran and isinstance(word := known.get("bound"), str) else None,
        outcome=_outcome(stored, known),
    )


def _metrics(stored: StoredRun) -> tuple[Mapping[str, Any], bool]:
    """Values in `metrics.json`, and whether another version computed them.

    The values are empty if the file is missing or damaged, because other programs may have written it.
    """
    if stored.error is not None:
        return {}, False
    try:
        document = json_of(stored.path / METRICS_FILE)
        found = {name: metric["value"] for name, metric in document["metrics"].items()}
        return found, document.get("version") != roastcoffea.__version__
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError, MemoryError):
        return {}, False


def _number(value: Any) -> float | None:
    # another program may have written an impossible number
    return value if type(value) in (int, float) and abs(value) < 1e30 else None


def _outcome(stored: StoredRun, known: Mapping[str, Any]) -> str:
    if stored.error is not None:
        return UNREADABLE
    if stored.outcome == LOST:
        return LOST
    if stored.outcome == FAILED:
        return INTERRUPTED if (stored.run_error or "").partition(":")[0].strip() == INTERRUPT else BROKEN
    if stored.reported is None and not stored.processors:
        return NO_CALL
    return INCOMPLETE if known.get("num_missing_chunks") or known.get("num_missing_files") else COMPLETE


def in_order(entries: Sequence[Entry], by: str) -> list[Entry]:
    """Sort entries by a column: largest numbers or oldest runs first, unknown values last."""
    known = [entry for entry in entries if getattr(entry, by) is not None]
    unknown = [entry for entry in entries if getattr(entry, by) is None]
    return sorted(known, key=attrgetter(by), reverse=by in UNITS) + unknown


def sheet_of_runs(entries: Sequence[Entry], spare: int = 0) -> Sheet:
    """Table of measurements. Values that all measurements share are stated once.

    Long text wraps. `spare` is the extra width compared with a narrow terminal.
    """
    columns, cells, said = [], [], []
    for name, values in zip(Entry._fields, zip(*entries, strict=True), strict=True):
        if len(entries) > 1 and name in SAID_ONCE and len({*values}) == 1 and values[0]:
            said.append(SAID_ONCE[name](values[0]))
        elif any(value not in {None, ""} for value in values):
            place = DISPENSABLE.index(name) + 1 if name in DISPENSABLE else 0
            longest = max(map(cell_len, (name, *map(str, filter(None, values)))))
            width = None if name in UNITS else min(longest, WIDEST.get(name, longest) + spare)
            columns.append(Column(name, UNITS.get(name), dispensable=place, width=width))
            cells.append(["\n".join(wrap(value, width)) if value and width else value for value in values])
    return Sheet(
        lead=[f"{counted(len(entries), 'run')}, each with {', '.join(said)}"] if said else [],
        columns=columns,
        rows=list(zip(*cells, strict=True)),
        notes=["* found by another version of roastcoffea; `roastcoffea show` recomputes it"]
        if any((entry.bottleneck or "").endswith(STALE) for entry in entries)
        else [],
    )


RUNNING: Final = "running"


def sheet_of_journals(journals: Sequence[Journal]) -> Sheet:
    """Table of journals and their runs, including whether each run is still in progress."""
    columns = [Column("started"), Column("run"), Column("host"), Column("size", BYTE), Column("state")]
    return Sheet(columns=columns, rows=[_row(journal) for journal in journals])


def _row(journal: Journal) -> list[str | float]:
    header = journal.header
    state = f"{RUNNING}, process {header['process']}" if journal.is_written else LOST
    name = header.get("name") or str(header.get("id", journal.folder.name))[:8]
    return [minute(header["start"]), str(name), header["host"], float(journal.size), state]
