"""Scaling as sheets: points, laws, and what eats the loss."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from roastcoffea.report.sheets import Amount, Cell, Column, Sheet
from roastcoffea.studies.scaling.laws import Between, Law
from roastcoffea.studies.scaling.points import Point
from roastcoffea.units import COUNT, FRACTION, SECOND, number, three_digits

MOST_LOSSES: Final = 6
SMALL_LOSS: Final = 0.01
SMALLEST_REST: Final = 0.0005
OTHERS: Final = "others"
"""The rest, with all that an event takes less: with it the shares make up 100 %."""
WITHOUT_END: Final = "no end"


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """A class of the time ledger: thread seconds that an event takes more with most workers than with fewest.

    `share` is its part of all that is lost; classes that take less have a negative one.
    """

    name: str
    seconds: float
    share: float


def sheets_of(  # noqa: PLR0917
    title: str,
    unit: str,
    points: Sequence[Point],
    laws: Mapping[str, Law],
    missing: Mapping[str, str],
    losses: Sequence[Loss],
    doubts: Sequence[str],
) -> list[Sheet]:
    """What more workers gave, what that follows, and what eats the loss."""
    columns = [Column(name=unit), Column(name="runs", unit=COUNT), Column(name="wall", unit=SECOND)]
    columns += [Column(name=name, unit=COUNT) for name in ("events/s", "speed-up", "efficiency")]
    largest = points[-1].workers
    sentences = [f"{name}: {_of_law(law, unit, largest)}" for name, law in laws.items()]
    reasons = [f"{name}: none, {reason}." for name, reason in missing.items()]
    grown = f"what an event takes more on {number(largest)} {unit} than on {number(points[0].workers)}"
    return [
        Sheet(title=title, columns=columns, rows=[_row(point) for point in points]),
        Sheet(title="laws", notes=[*sentences, *reasons]),
        _losses(grown, losses, [f"Note that {doubt}." for doubt in doubts]),
    ]


def _row(point: Point) -> list[Cell]:
    between = (Amount(each.value, text=_between(each)) for each in (point.rate, point.speedup, point.efficiency))
    return [number(point.workers), point.runs, point.seconds, *between]


def _between(found: Between) -> str:
    text = number(three_digits(found.value))
    if found.low is None or found.high is None:
        return text
    return f"{text} [{number(three_digits(found.low))}, {number(three_digits(found.high))}]"


def _of_law(law: Law, unit: str, largest: int) -> str:
    """What a law says, in a sentence."""
    parts = [f"{_between(law.contention)} of the work goes one after the other"]
    if law.coherency.value > 0:
        parts.append(f"coherency {_between(law.coherency)}")
    parts.append(f"points lie within {FRACTION.text(law.deviation)}")
    parts.append(f"another of the {unit} is worth it up to {_workers(law.worth)}")
    if (law.worth_low, law.worth_high) != (law.worth, law.worth):
        parts[-1] += f" [{_workers(law.worth_low)}, {_workers(law.worth_high)}]"
    if law.worth is None or law.worth > largest:
        parts[-1] += f" (beyond the {number(largest)} that were tried)"
    if law.peak is not None:
        parts.append(f"more than {number(round(law.peak))} slow it down")
    return f"{'; '.join(parts)}."


def _workers(worth: int | None) -> str:
    return WITHOUT_END if worth is None else number(worth)


def _losses(title: str, losses: Sequence[Loss], doubts: list[str]) -> Sheet:
    """Classes of thread time that grew."""
    if sum(loss.seconds for loss in losses) <= 0:
        return Sheet(title=title, notes=["Nothing is lost.", *doubts])
    columns = [Column(name="thread time"), Column(name="for each event", unit=SECOND)]
    columns.append(Column(name="share of the loss", unit=FRACTION))
    return Sheet(title=title, columns=columns, rows=list(_loss_rows(losses)), notes=doubts)


def _loss_rows(losses: Sequence[Loss]) -> Iterator[tuple[str, float, float]]:
    shown = [loss for loss in losses[:MOST_LOSSES] if loss.share >= SMALL_LOSS]
    yield from ((loss.name, loss.seconds, loss.share) for loss in shown)
    others = [loss for loss in losses if loss not in shown]
    share = sum(loss.share for loss in others)
    if abs(share) >= SMALLEST_REST:
        yield OTHERS, sum(loss.seconds for loss in others), share
