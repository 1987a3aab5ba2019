"""Saved measurements and journals side by side: what ran, how fast, what limits it, and how it ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from textwrap import wrap
from typing import Any, Final, NamedTuple

from rich.cells import cell_len

import roastcoffea
from roastcoffea.diagnosis.completeness import BROKEN, COMPLETE, INCOMPLETE, INTERRUPT, INTERRUPTED
from roastcoffea.log.journal import Journal
from roastcoffea.records.run import FAILED, LOST
from roastcoffea.sheets.sheet import Column, Sheet
from roastcoffea.sheets.terminal import GAP
from roastcoffea.storage.reading import json_of
from roastcoffea.storage.store import METRICS_FILE, StoredRun
from roastcoffea.units import BYTE, KILOHERTZ, SECOND, Unit, counted, minute, scaled

UNREADABLE: Final = "unreadable"
NO_CALL: Final = "nothing run"
OUTCOMES: Final = (COMPLETE, INCOMPLETE, BROKEN, INTERRUPTED, LOST, NO_CALL, UNREADABLE)

LARGE_COUNT: Final = Unit("count", lambda value: scaled("", smallest="")(value).strip())

STALE: Final = " *"
"""Mark of a bottleneck that another version found."""

WHY_STALE: Final = "* found by another version of roastcoffea; `roastcoffea show` computes it anew"


class Entry(NamedTuple):
    """A measurement in a list; None is not known."""

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
"""Of columns with numbers: the largest one is first where runs are sorted by it."""

COLUMNS: Final = {name: Column(name, UNITS.get(name)) for name in Entry._fields}
WIDEST: Final = {"processor": 20, "bottleneck": 13, "outcome": 11}
"""Letters of columns of words at most; more goes into a second line."""
LEAST: Final = {"name": 11, "processor": 8}
"""Letters that are left of columns where there is no room for more."""
DISPENSABLE: Final = ("started", "elapsed", "workers", "processor")
"""Columns that are left out, in this order, where there is no room; the last two where all then fits in a line each."""
SAID_ONCE: Final[Mapping[str, Callable[[Any], str]]] = {
    "processor": lambda value: f"processor {value}",
    "workers": lambda value: counted(value, "worker"),
    "outcome": lambda value: f"outcome {value}",
}
"""Columns that become words where all rows have the same there."""


def entry_of(stored: StoredRun) -> Entry:
    """What a list tells of a measurement."""
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
    """Values of its `metrics.json`, and whether another version computed them.

    Nothing where that is not there, or damaged: other programs may write it.
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
    # another program may have written a number that no run has
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
    """Entries in the order of a column, what is not known last; the largest number first, the oldest run first."""
    known = [entry for entry in entries if getattr(entry, by) is not None]
    unknown = [entry for entry in entries if getattr(entry, by) is None]
    return sorted(known, key=attrgetter(by), reverse=by in UNITS) + unknown


def sheet_of_runs(entries: Sequence[Entry], width: int) -> Sheet:
    """Measurements as a table that fits a width; what is the same for all is said once."""
    said = {
        name: say(values.pop())
        for name, say in SAID_ONCE.items()
        if len(entries) > 1 and len(values := {getattr(entry, name) for entry in entries}) == 1 and all(values)
    }
    known = {name for name in COLUMNS if any(getattr(entry, name) not in {None, ""} for entry in entries)}
    columns = {name: column for name, column in COLUMNS.items() if name in known - said.keys()}
    rows = [[getattr(entry, name) for name in columns] for entry in entries]
    shown = zip(*Sheet(columns=list(columns.values()), rows=rows).cells(), strict=True)
    longest = {
        name: max(len(name), *(cell_len(cell.text) for cell in cells))
        for name, cells in zip(columns, shown, strict=True)
    }
    widest = {name: min(size, WIDEST.get(name, size)) + GAP for name, size in longest.items()}
    without = [DISPENSABLE[:place] for place in range(len(DISPENSABLE) + 1)]
    fitting = [gone for gone in without if sum(widest.values()) - sum(widest.get(name, 0) for name in gone) <= width]
    for name in fitting[0] if fitting else DISPENSABLE[:2]:
        if columns.pop(name, None):
            del longest[name]
    excess, widths = sum(size + GAP for size in longest.values()) - width, longest
    for name, least in (*WIDEST.items(), *LEAST.items()):
        if excess > 0 and name in widths:
            given = max(min(excess, widths[name] - least), 0)
            widths[name], excess = widths[name] - given, excess - given
    heads = [column if column.unit else replace(column, width=widths[name]) for name, column in columns.items()]
    folded = [entry._replace(name="\n".join(wrap(entry.name, widths["name"]))) for entry in entries]
    rows = [[getattr(entry, name) for name in columns] for entry in folded]
    lead = [f"{counted(len(entries), 'run')}, each with {', '.join(said.values())}"] if said else []
    stale = any(entry.bottleneck is not None and entry.bottleneck.endswith(STALE) for entry in entries)
    return Sheet(lead=lead, columns=heads, rows=rows, notes=[WHY_STALE] if stale else [])


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
