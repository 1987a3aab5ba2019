"""A comparison for programs: all of it in types of standard JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

from roastcoffea.studies.compare.findings import Findings
from roastcoffea.studies.compare.side_by_side import Row

FORMAT: Final = "roastcoffea comparison 1"

Document = dict[str, Any]


def document_of(found: Findings) -> Document:
    """All of a comparison."""
    return {
        "format": FORMAT,
        "confidence": found.confidence,
        "sides": [
            {
                "letter": side.letter,
                "label": side.label,
                "runs": [run.name for run in side.runs],
                "left_out": list(side.left_out),
            }
            for side in found.sides
        ],
        "comparisons": [_pair(found, place) for place in range(1, len(found.sides))],
        "facts": {fact.name: list(fact.values) for fact in found.facts},
        "metrics": {row.metric.name: _metric(row) for row in found.rows if any(row.spreads)},
        "conditions": [
            {
                "condition": outcome.condition.text,
                "side": outcome.label,
                "outcome": outcome.word,
                "text": outcome.text,
                "judgement": outcome.judgement._asdict(),
            }
            for outcome in found.outcomes
        ],
        "status": found.status,
    }


def _pair(found: Findings, place: int) -> Document:
    speed, explanation = found.speeds[place - 1], found.explanations[place - 1]
    return {
        "before": found.sides[0].letter,
        "after": found.sides[place].letter,
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


def _metric(row: Row) -> Document:
    return {
        "unit": str(row.metric.unit),
        "section": row.section,
        "differs": row.differs,
        "values": [None if found is None else found._asdict() for found in row.spreads],
        "changes": [_change(row, place) for place in range(1, len(row.judgements))],
    }


def _change(row: Row, place: int) -> Document | None:
    judgement = row.judgements[place]
    if judgement is None:
        return None
    return {"absolute": row.change(place), "relative": row.relative_change(place), **judgement._asdict()}
