"""Saved measurements side by side: what ran, how fast, what limits it, and how it ended."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from roastcoffea.diagnosis.completeness import INTERRUPT
from roastcoffea.records.run import FAILED
from roastcoffea.report.digest import BROKEN, COMPLETE, INCOMPLETE, INTERRUPTED
from roastcoffea.report.sheets import Cell, Column, Sheet
from roastcoffea.storage.store import METRICS_FILE, StoredRun
from roastcoffea.units import KILOHERTZ, SECOND, Unit, counted, scaled

UNREADABLE: Final = "unreadable"
NO_CALL: Final = "no Runner call"
OUTCOMES: Final = (COMPLETE, INCOMPLETE, BROKEN, INTERRUPTED, NO_CALL, UNREADABLE)

LARGE_COUNT: Final = Unit("count", lambda value: scaled("", smallest="")(value).strip())
MISSING: Final = ("num_missing_chunks", "num_missing_files")


class Entry(NamedTuple):
    """A measurement in a list; None is not known."""

    name: str
    started: float | None
    processor: str
    events: float | None
    workers: float | None
    elapsed: float | None
    rate: float | None
    bottleneck: str | None
    outcome: str


LARGEST_FIRST: Final = frozenset(("events", "workers", "elapsed", "rate"))

COLUMNS: Final = {
    "name": Column("name"),
    "processor": Column("processor"),
    "events": Column("events", LARGE_COUNT),
    "workers": Column("workers", LARGE_COUNT),
    "elapsed": Column("elapsed", SECOND, dispensable=1),
    "rate": Column("rate", KILOHERTZ),
    "bottleneck": Column("bottleneck"),
    "outcome": Column("outcome", width=max(map(len, OUTCOMES[:-2])) + 1),
}
SAID_ONCE: Final[Mapping[str, Callable[[Any], str]]] = {
    "processor": lambda value: f"processor {value}",
    "workers": lambda value: counted(value, "worker"),
}
"""Columns that become words where all rows have the same there."""


def entry_of(stored: StoredRun) -> Entry:
    """What a list tells of a measurement."""
    known = stored.reported if stored.reported is not None else _metrics(stored)
    return Entry(
        name=stored.name,
        started=stored.start,
        processor=", ".join(stored.processors),
        events=_number(known.get("total_events")),
        workers=_number(known.get("peak_workers", known.get("avg_workers"))),
        elapsed=stored.elapsed,
        rate=_number(known.get("event_rate_elapsed_khz")),
        bottleneck=word if isinstance(word := known.get("bound"), str) else None,
        outcome=_outcome(stored, known),
    )


def _metrics(stored: StoredRun) -> Mapping[str, Any]:
    """Values of its `metrics.json`; nothing where that is not there, or damaged: other programs may write it."""
    try:
        found = json.loads((stored.path / METRICS_FILE).read_bytes())["metrics"]
        return {name: metric["value"] for name, metric in found.items()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return {}


def _number(value: Any) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _outcome(stored: StoredRun, known: Mapping[str, Any]) -> str:
    if stored.error is not None:
        return UNREADABLE
    if stored.outcome == FAILED:
        return INTERRUPTED if (stored.run_error or "").partition(":")[0].strip() == INTERRUPT else BROKEN
    if stored.reported is None and not stored.processors:
        return NO_CALL
    return INCOMPLETE if any(known.get(name) for name in MISSING) else COMPLETE


def in_order(entries: Sequence[Entry], by: str) -> list[Entry]:
    """Entries in the order of a column, what is not known last; the largest number first, the oldest run first."""
    sign = -1 if by in LARGEST_FIRST else 1

    def place(entry: Entry) -> tuple[bool, Any]:
        value = getattr(entry, by)
        return value is None, (sign * value if isinstance(value, int | float) else value or "")

    known = [entry for entry in entries if getattr(entry, by) is not None]
    return [*sorted(known, key=place), *(entry for entry in entries if getattr(entry, by) is None)]


def sheet_of_runs(entries: Sequence[Entry]) -> Sheet:
    """Measurements as a table; what is the same for all is said once."""
    said = {
        name: say(values.pop())
        for name, say in SAID_ONCE.items()
        if len(entries) > 1 and len(values := {getattr(entry, name) for entry in entries}) == 1 and all(values)
    }
    columns = {name: column for name, column in COLUMNS.items() if name not in said}
    rows: list[list[Cell]] = [[getattr(entry, name) for name in columns] for entry in entries]
    lead = [f"{counted(len(entries), 'run')}, each with {' and '.join(said.values())}"] if said else []
    return Sheet(lead=lead, columns=list(columns.values()), rows=rows)
