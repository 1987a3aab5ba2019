"""Metrics and facts of all sides, each side against the first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from roastcoffea.metrics import CATALOGUE, Metric
from roastcoffea.metrics.catalogue import RAW, TIME
from roastcoffea.report.summary import LEDGERS
from roastcoffea.studies.compare.repeats import EXACT, FEWEST, Judgement, Spread, judged, spread
from roastcoffea.studies.compare.sides import Side
from roastcoffea.studies.compare.speed import all_have, median_of
from roastcoffea.units import STRUCTURE, WORD

METRICS: Final = "metrics"
THREAD_TIME: Final = "thread time"
BYTE_LEDGER: Final = "bytes requested"
"""Sections of what stands side by side."""

THREAD_TOTAL: Final = "time_total_seconds"

SMALL: Final = 0.01
"""Relative change, or share of a ledger, from which on a difference of few runs is shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """Something that runs were made on or with, for each side."""

    name: str
    values: tuple[str, ...]

    @property
    def differs(self) -> bool:
        """Whether it is not the same everywhere."""
        return len(set(self.values)) > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A metric of all sides, and its change from the first to each of the others; None where a side lacks it."""

    metric: Metric
    section: str
    spreads: tuple[Spread | None, ...]
    judgements: tuple[Judgement | None, ...]
    differs_at: tuple[bool, ...]
    """Of each side whether its difference from the first is worth to be shown."""

    @property
    def differs(self) -> bool:
        """Whether any side differs from the first."""
        return any(self.differs_at)

    def is_known(self, place: int) -> bool:
        """Whether the first side has it, or this one."""
        return self.spreads[0] is not None or self.spreads[place] is not None

    def change(self, place: int) -> float | None:
        """Difference of the medians, of a side less the first."""
        first, other = self.spreads[0], self.spreads[place]
        return None if first is None or other is None else other.median - first.median

    def relative_change(self, place: int) -> float | None:
        """Difference of the medians beside the first; None where that is 0."""
        first, change = self.spreads[0], self.change(place)
        return None if change is None or first is None or not first.median else change / abs(first.median)


def facts_of(sides: Sequence[Side]) -> tuple[Fact, ...]:
    """All that runs were made on and with; different values of repeats are separated, "-" is not known."""
    names = dict.fromkeys(name for side in sides for run in side.runs for name in run.facts)
    return tuple(
        Fact(
            name=name,
            values=tuple(" / ".join(dict.fromkeys(run.facts.get(name, "-") for run in side.runs)) for side in sides),
        )
        for name in names
    )


def rows_of(sides: Sequence[Side], confidence: float) -> tuple[Row, ...]:
    """All metrics that are numbers."""
    shown = (metric for metric in CATALOGUE.metrics() if metric.group != RAW)
    return tuple(_row(metric, sides, confidence) for metric in shown if metric.unit not in (STRUCTURE, WORD))


def _row(metric: Metric, sides: Sequence[Side], confidence: float) -> Row:
    first, *others = [
        spread(side.runs, metric.name, confidence) if all_have(side.runs, metric.name) else None for side in sides
    ]
    judgements = [
        None
        if first is None or other is None
        else judged(first.values, other.values, exact=metric.name in EXACT, confidence=confidence)
        for other in others
    ]
    section = _section(metric)
    least = SMALL * _total(section, sides[0])
    differ = [_differs(first, *pair, least) for pair in zip(others, judgements, strict=True)]
    return Row(
        metric=metric,
        section=section,
        spreads=(first, *others),
        judgements=(None, *judgements),
        differs_at=(False, *differ),
    )


def _section(metric: Metric) -> str:
    if metric.group not in LEDGERS or metric.label not in LEDGERS[metric.group].labels:
        return METRICS
    return THREAD_TIME if metric.group == TIME else BYTE_LEDGER


def _total(section: str, side: Side) -> float:
    """Total of a ledger, beside which small differences of its classes are not shown; 0 of other sections."""
    known = section == THREAD_TIME and all_have(side.runs, THREAD_TOTAL)
    return median_of(side.runs, THREAD_TOTAL) if known else 0.0


def _differs(first: Spread | None, other: Spread | None, judgement: Judgement | None, least: float) -> bool:
    """Whether a difference is worth to be shown: it is told apart from noise, or cannot be and is not small."""
    if first is None or other is None or judgement is None:
        return first is not other
    change = abs(other.median - first.median)
    if change == 0 or change < least:
        return False
    if judgement.side is not None:
        return True
    few = judgement.over is None or min(len(first.values), len(other.values)) < FEWEST
    return few and change >= SMALL * abs(first.median)
