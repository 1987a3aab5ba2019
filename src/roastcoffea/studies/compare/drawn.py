"""What a comparison shows where it can be drawn: thread time and bytes of each side, and causes as cards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from roastcoffea.metrics.ledger import LABELS_OF, bar_of
from roastcoffea.metrics.phases import BYTE_CLASSES, FAMILY_OF, PARTS_OF_WAIT, TIME_CLASSES, WAIT
from roastcoffea.report.cards import Card, Drawn
from roastcoffea.studies.compare.explanation import Part
from roastcoffea.studies.compare.gate import signed
from roastcoffea.studies.compare.repeats import Spread
from roastcoffea.studies.compare.side_by_side import BYTE_LEDGER, THREAD_TIME, THREAD_TOTAL, Row
from roastcoffea.studies.compare.sides import Side
from roastcoffea.units import BYTE, SECOND, Unit

MOST_CARDS: Final = 6
"""Causes of a difference that are cards; tables have all."""

TOTALS: Final[Mapping[str, tuple[str, Unit]]] = {
    THREAD_TIME: (THREAD_TOTAL, SECOND),
    BYTE_LEDGER: ("bytes_requested", BYTE),
}
"""Metric with the total of each ledger, and its unit."""

CLASSES: Final = {one.metric_name: one.name for one in (*TIME_CLASSES, *BYTE_CLASSES)}


def bars_of(sides: Sequence[Side], rows: Sequence[Row]) -> Iterator[Drawn]:
    """Ledgers of all sides on one scale, the medians of repeats; none of a ledger that a side lacks."""
    for section, (total, unit) in TOTALS.items():
        known = {row.metric.name: row.spreads for row in rows if row.section == section}
        totals = [spread.median for spread in known.get(total, ()) if spread is not None]
        if len(totals) < len(sides) or not all(totals):
            continue
        for place, (side, amount) in enumerate(zip(sides, totals, strict=True)):
            title = f"{side.letter}: {section}, {unit.text(amount)}"
            yield bar_of(_classes(known, place), unit, title, amount, max(totals))


def _classes(known: Mapping[str, Sequence[Spread | None]], place: int) -> dict[str, float]:
    """Amounts of a side by class."""
    spreads = {CLASSES[name]: of[place] for name, of in known.items() if name in CLASSES}
    classes = {name: spread.median for name, spread in spreads.items() if spread is not None}
    if not classes.keys().isdisjoint(PARTS_OF_WAIT):
        classes.pop(WAIT, None)  # their sum, by its older name
    return classes


def label_of(part: Part) -> str:
    """Cause of a difference, as tables and cards call it."""
    return LABELS_OF.get(part.cause, part.cause)


def card_of(part: Part) -> Card:
    """A cause of a difference, in the colour of the class with most of it."""
    rows = {name: abs(seconds) for name, seconds in part.rows.items() if name in FAMILY_OF}
    family = FAMILY_OF[max(rows, key=lambda name: rows[name])] if rows else None
    label = label_of(part)
    load = f"; with it {signed(SECOND, part.load_seconds)} of waiting for cores" if part.load_seconds else ""
    return Card(
        f"{label[:1].upper()}{label[1:]}",
        f"{signed(SECOND, part.wall_seconds)} of wall time",
        f"{part.text}{load}",
        family=family,
    )
