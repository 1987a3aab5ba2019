"""A comparison in words: sheets for people, and a document for programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from roastcoffea.studies.compare.explanation import Explanation, Part
from roastcoffea.studies.compare.gate import change_of, signed
from roastcoffea.studies.compare.repeats import CHUNKS, RUNS, Judgement, spread
from roastcoffea.studies.sheets import Amount, Sheet
from roastcoffea.units import FRACTION, SECOND, number

if TYPE_CHECKING:
    from roastcoffea.studies.compare.comparison import Comparison, Row
    from roastcoffea.studies.compare.sides import Side

WALL: Final = "elapsed_time_seconds"
METRICS: Final = "metrics"
THREAD_TIME: Final = "thread time"
BYTE_LEDGER: Final = "bytes requested"
"""Sections of what stands side by side."""

NOT_KNOWN: Final = "-"
LEAST_PART: Final = 0.02
"""Share of the largest part below which parts of an explanation are shown together."""

OF_REPEATS: Final = ("processor", "executor", "fileset", "chunksize", "threads of workers")
"""What repeats of a run have in common."""

DOCUMENT: Final = "roastcoffea comparison 1"


def sheets_of(comparison: Comparison, *, everything: bool) -> list[Sheet]:
    """Verdict, explanation, and what differs (or everything) of the environment, metrics and ledgers."""
    sheets = [_verdict(comparison)]
    if comparison.outcomes:
        sheets.append(Sheet(title="conditions", lines=[f"{o.label}: {o.text}" for o in comparison.outcomes]))
    for side, explanation in zip(comparison.sides[1:], comparison.explanations, strict=True):
        sheets.append(_explanation(explanation, comparison.sides[0].letter, side.letter, everything))
    side_by_side = (*_facts(comparison, everything), *_sections(comparison, everything))
    return [*sheets, *side_by_side, *_hidden(comparison, everything)]


def _verdict(comparison: Comparison) -> Sheet:
    return Sheet(
        title="verdict",
        lines=[
            *(f"{side.heading}{_wall_of(side, comparison.confidence)}" for side in comparison.sides),
            *_shared(comparison),
            *(f"{side.letter} has left out {reason}" for side in comparison.sides for reason in side.left_out),
            *(
                f"{side.letter} is {speed.text}" if speed.judgement.side else f"{side.letter}: {speed.text}"
                for side, speed in zip(comparison.sides[1:], comparison.speeds, strict=True)
            ),
        ],
    )


def _shared(comparison: Comparison) -> Iterator[str]:
    """Runs that were given for two sides: each makes the other look like it."""
    first = {run.id for run in comparison.sides[0].runs}
    for side in comparison.sides[1:]:
        same = [run.name for run in side.runs if run.id in first]
        if same:
            yield f"{side.letter} has runs of {comparison.sides[0].letter} in it: {', '.join(same)}"


def _wall_of(side: Side, confidence: float) -> str:
    """Median of the wall time, with its interval."""
    if any(WALL not in run.metrics for run in side.runs):
        return ""
    found = spread(side.runs, WALL, confidence)
    middle = f", wall time {SECOND.text(found.median)}"
    if found.low is None or found.high is None:
        return middle
    over = ", over its chunks" if found.over == CHUNKS else ""
    return f"{middle} ({SECOND.text(found.low)} to {SECOND.text(found.high)}{over})"


# The explanation


def _explanation(explanation: Explanation, first: str, other: str, everything: bool) -> Sheet:
    title = f"why {other} differs from {first}"
    if explanation.absent is not None:
        return Sheet(title=title, lines=[f"not explained: {explanation.absent}"])
    shown, rest = _split(explanation.parts, everything)
    rows = [(part.cause, _seconds(part.wall_seconds), _seconds(part.thread_seconds), part.text) for part in shown]
    if rest:
        sums = (sum(part.wall_seconds for part in rest), sum(part.thread_seconds for part in rest))
        names = ", ".join(part.cause for part in rest)
        rows.append((f"{len(rest)} smaller ones", _seconds(sums[0]), _seconds(sums[1]), names))
    rows.append(("difference", _seconds(explanation.wall_seconds), _seconds(explanation.thread_seconds), ""))
    return Sheet(title=title, headers=("cause", "wall", "thread time", ""), rows=rows, lines=explanation.remarks)


def _split(parts: Sequence[Part], everything: bool) -> tuple[list[Part], list[Part]]:
    """Parts that are shown, and those that are too small to be."""
    least = 0.0 if everything else LEAST_PART * max((abs(part.wall_seconds) for part in parts), default=0.0)
    small = [part for part in parts if abs(part.wall_seconds) < least]
    return [part for part in parts if part not in small], small if len(small) > 1 else []


def _seconds(value: float) -> Amount:
    return Amount(signed(SECOND, value), value)


# Side by side


def _facts(comparison: Comparison, everything: bool) -> Iterator[Sheet]:
    shown = [fact for fact in comparison.facts if fact.differs or everything]
    letters = [side.letter for side in comparison.sides]
    if shown:
        yield Sheet(
            title="what they ran on", headers=("", *letters), rows=[(fact.name, *fact.values) for fact in shown]
        )


def _sections(comparison: Comparison, everything: bool) -> Iterator[Sheet]:
    """Metrics and ledgers, of each side beside the first."""
    for place in range(1, len(comparison.sides)):
        shown = [row for row in comparison.rows if row.is_known(place) and (everything or row.differs_at[place])]
        for section in (METRICS, THREAD_TIME, BYTE_LEDGER):
            rows = [row for row in shown if row.section == section]
            if rows:
                yield _section(comparison, section, rows, place)


def _section(comparison: Comparison, section: str, rows: list[Row], place: int) -> Sheet:
    first, other = comparison.sides[0].letter, comparison.sides[place].letter
    labels = Counter(_label(row) for row in comparison.rows if row.section == section)
    named = [_label(row) if labels[_label(row)] == 1 else f"{row.metric.group}: {_label(row)}" for row in rows]
    return Sheet(
        title=section if len(comparison.sides) == 2 else f"{section}, {other} beside {first}",
        headers=["", first, other, "change", "relative"],
        rows=[(name, *_cells(row, place)) for name, row in zip(named, rows, strict=True)],
    )


def _label(row: Row) -> str:
    metric = row.metric
    return f"{metric.label} ({metric.statistic})" if metric.statistic else metric.label


def _cells(row: Row, place: int) -> list[Amount]:
    """Both medians, and their difference, absolute and relative."""
    unit, change, relative = row.metric.unit, row.change(place), row.relative_change(place)
    medians = [None if found is None else found.median for found in (row.spreads[0], row.spreads[place])]
    within = "" if relative is None else signed(FRACTION, relative) + _within(row.judgements[place])
    return [
        *(Amount(NOT_KNOWN if middle is None else unit.text(middle), middle) for middle in medians),
        Amount("" if change is None else change_of(unit, change), change),
        Amount(within, relative),
    ]


def _within(judgement: Judgement | None) -> str:
    """Interval of a relative change, briefly."""
    if judgement is None or judgement.low is None or judgement.high is None or judgement.low == judgement.high:
        return ""
    low, high = (f"{100 * bound:+.3g}" for bound in (judgement.low, judgement.high))
    return f" ({low}, {high})"


def _no_repeats(sides: Iterable[Side]) -> Iterator[str]:
    """Sides whose runs are not of one kind."""
    for side in sides:
        names = [name for name in OF_REPEATS if len({run.facts.get(name) for run in side.runs}) > 1]
        if names:
            yield f"{side.letter} has runs that are no repeats of each other: they differ in {', '.join(names)}"


def _hidden(comparison: Comparison, everything: bool) -> Iterator[Sheet]:
    """How much is not shown, and what intervals are."""
    known = [row for row in comparison.rows if any(row.spreads)]
    alike = sum(not row.differs for row in known) + sum(not fact.differs for fact in comparison.facts)
    lines = list(_no_repeats(comparison.sides))
    if not everything:
        lines.append(f"{number(alike)} rows do not differ, or no more than repeats do: see --all")
    if any(judgement.over == RUNS for row in comparison.rows for judgement in row.judgements if judgement is not None):
        lines.append(f"In brackets: {comparison.confidence:.0%} interval of the change, from repeats.")
    if lines:
        yield Sheet(title="notes", lines=lines)


# For programs


def document_of(comparison: Comparison) -> dict[str, Any]:
    """All of a comparison in types of standard JSON."""
    return {
        "format": DOCUMENT,
        "confidence": comparison.confidence,
        "sides": [
            {
                "letter": side.letter,
                "label": side.label,
                "runs": [run.name for run in side.runs],
                "left_out": list(side.left_out),
            }
            for side in comparison.sides
        ],
        "comparisons": [_pair(comparison, place) for place in range(1, len(comparison.sides))],
        "facts": {fact.name: list(fact.values) for fact in comparison.facts},
        "metrics": {row.metric.name: _metric(row) for row in comparison.rows if any(row.spreads)},
        "conditions": [
            {
                "condition": outcome.condition.text,
                "side": outcome.label,
                "outcome": outcome.word,
                "text": outcome.text,
                "judgement": outcome.judgement._asdict(),
            }
            for outcome in comparison.outcomes
        ],
        "status": comparison.status,
    }


def _pair(comparison: Comparison, place: int) -> dict[str, Any]:
    speed, explanation = comparison.speeds[place - 1], comparison.explanations[place - 1]
    return {
        "before": comparison.sides[0].letter,
        "after": comparison.sides[place].letter,
        "verdict": speed.word,
        "metric": speed.metric,
        "text": speed.text,
        "judgement": speed.judgement._asdict(),
        "explanation": {
            "absent": explanation.absent,
            "wall_seconds": explanation.wall_seconds,
            "thread_seconds": explanation.thread_seconds,
            "rest_seconds": explanation.rest,
            "parts": [asdict(part) for part in explanation.parts],
            "remarks": list(explanation.remarks),
        },
    }


def _metric(row: Row) -> dict[str, Any]:
    return {
        "unit": str(row.metric.unit),
        "section": row.section,
        "differs": row.differs,
        "values": [None if found is None else found._asdict() for found in row.spreads],
        "changes": [
            None
            if judgement is None
            else {
                "absolute": row.change(place),
                "relative": row.relative_change(place),
                **judgement._asdict(),
            }
            for place, judgement in enumerate(row.judgements)
            if place
        ],
    }
