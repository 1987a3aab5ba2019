"""The reasons as tables, bars and cards: what the first screen of a study of scaling says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from roastcoffea.metrics import phases
from roastcoffea.report.cards import Card, Drawn, drawn, segment
from roastcoffea.report.sheets import Amount, Cell, Column, Sheet, columns
from roastcoffea.studies.scaling import costs as limits
from roastcoffea.studies.scaling.explanation import MATTERS, Cause, Explanation
from roastcoffea.studies.scaling.laws import Point
from roastcoffea.studies.scaling.turning import FALL
from roastcoffea.units import COUNT, FRACTION, number, three_digits

TITLE: Final = "why more workers give less"
MOST_ROWS: Final = 6
MOST_CARDS: Final = 3
SHOWN: Final = 0.02
"""Share of thread time from which a limit is drawn."""

MOST_COLUMNS: Final = 3
USEFUL: Final = "useful"
OTHERS: Final = "others"
NOTHING: Final = "Nothing limits these runs: more workers give what they promise."


def headline(found: Explanation, points: Sequence[Point], unit: str) -> str:
    """The reason in a sentence, with its number of workers."""
    largest, useful = points[-1].workers, found.useful[-1].value
    of_all = f"{number(largest)} {unit} do the work of {number(three_digits(useful))}"
    best = max(range(len(points)), key=lambda place: found.useful[place].value)
    if best < len(points) - 1 and found.useful[best].value > useful / FALL:
        most = number(three_digits(found.useful[best].value))
        of_all += f", {number(points[best].workers)} that of {most}"
    main = found.main
    if main is None:
        return f"{NOTHING[:-1]} ({of_all})."
    name = f"{main.name[:1].upper()}{main.name[1:]}"
    if main.name == limits.COLD:
        return f"{name} in the run with {number(main.at)} {unit}; {of_all} compared with later runs."
    return f"{name} limits these runs from {_from(main, points)} {unit} on: {of_all}."


def _from(cause: Cause, points: Sequence[Point]) -> str:
    """Turning point with its interval, and the sizes around it."""
    value = number(round(cause.turning.value))
    sizes = [point.workers for point in points]
    if round(cause.turning.value) in sizes:
        return value
    low, high = cause.turning.low, cause.turning.high
    spread = "" if low is None or high is None else f" [{number(round(low))}, {number(round(high))}]"
    return f"about {value}{spread}"


def reasons(found: Explanation, points: Sequence[Point], unit: str, needs: Sequence[str]) -> Sheet:
    """The reason, what to change, and all limits in a table."""
    main = found.main
    lines = [headline(found, points, unit), *needs]
    lines += [f"Note: {doubt}." for doubt in found.doubts]
    heads = [
        Column("limit"),
        Column("thread time", FRACTION, "part of all thread time that it takes, where that is most"),
        Column(f"with {unit}", COUNT, "where it takes most"),
        Column(f"from {unit}", COUNT, "number above which it takes what more of them would give"),
        Column("at most", None, "the most that it allows"),
    ]
    rows = [_row(cause) for cause in found.causes[:MOST_ROWS]]
    cards = [card(cause, points, unit) for cause in found.causes[:MOST_CARDS] if cause.share.value >= SHOWN]
    items = [main.text, main.advice] if main else []
    return Sheet(
        title=TITLE, lead=lines, items=items, columns=heads, rows=rows, cards=cards, form="plain", things="limits"
    )


def _row(cause: Cause) -> list[Cell]:
    rate = "" if cause.rate is None or cause.share.value < MATTERS else cause.rate.text().partition(" [")[0]
    share = Amount(cause.share.value, FRACTION, _percent(cause))
    return [cause.name, share, cause.at, round(cause.turning.value), rate]


def _percent(cause: Cause) -> str:
    low, high = cause.share.low, cause.share.high
    spread = "" if low is None or high is None else f" [{100 * low:.0f}, {100 * high:.0f}]"
    return f"{100 * cause.share.value:.0f} %{spread}"


def card(cause: Cause, points: Sequence[Point], unit: str) -> Card:
    """A limit as a card."""
    share = f"{100 * cause.share.value:.0f} % of thread time with {number(cause.at)} {unit}"
    title = f"{cause.name[:1].upper()}{cause.name[1:]}"
    since = f" From {_from(cause, points)} {unit} on."
    return Card(title, share, f"{cause.text}{since}", cause.advice, family=limits.FAMILIES[cause.name])


# Useful workers, and what the others are lost to


def useful_workers(found: Explanation, points: Sequence[Point], unit: str) -> Sheet:
    """How many workers are useful at each size, and what the others are lost to."""
    shown = found.causes[:MOST_COLUMNS]
    heads = columns(None, unit) + columns(COUNT, USEFUL, *(cause.name for cause in shown), OTHERS)
    rows: list[list[Cell]] = []
    for place, point in enumerate(points):
        lost = [cause.shares[place] * point.workers for cause in shown if cause.shares[place]]
        amounts = [cause.shares[place] * point.workers for cause in shown]
        useful = found.useful[place].value
        rest = max(point.workers - useful - sum(lost), 0.0)
        rows.append([number(point.workers), *map(_workers, (useful, *amounts, rest))])
    title = f"useful {unit}, and what the others are lost to"
    return Sheet(title=title, columns=heads, rows=rows, bars=list(bars(found, points, unit)), things="sizes")


def _workers(amount: float) -> Amount:
    return Amount(amount, text=_amount(amount))


def _amount(workers: float) -> str:
    return number(float(f"{workers:.1f}")) if workers < 100 else number(round(workers))


def bars(found: Explanation, points: Sequence[Point], unit: str) -> Iterator[Drawn]:
    """A bar for each size: useful workers, and what the others are lost to."""
    for place, point in enumerate(points):
        useful = found.useful[place].value
        parts = [segment(phases.COMPUTING, useful / point.workers, USEFUL, _amount(useful))]
        for cause in found.causes:
            share = cause.shares[place]
            if share > 0:
                parts.append(segment(limits.FAMILIES[cause.name], share, cause.name, _amount(share * point.workers)))
        title = f"{number(point.workers)} {unit}: {_amount(useful)} useful"
        yield drawn(title, "", parts)
