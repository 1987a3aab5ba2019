"""Why more workers give less: limits with their thread time and turning points, as tables, bars and cards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from roastcoffea.metrics import phases
from roastcoffea.metrics.statistics import Numbers
from roastcoffea.sheets.sheet import Amount, Card, Cell, Column, Drawn, Sheet, columns, drawn, segment
from roastcoffea.studies.scaling import sentences
from roastcoffea.studies.scaling import shares as limits
from roastcoffea.studies.scaling.laws import INTERVAL, Between, Point
from roastcoffea.studies.scaling.sentences import Evidence, Rate
from roastcoffea.studies.scaling.shares import Judged, Shares, named_storage, shares_of
from roastcoffea.units import COUNT, FRACTION, number, three_digits

HALF: Final = 0.5

FALL: Final = 0.95
"""Useful workers of the largest size, relative to the best, below which more of them make a run slower."""


def turning_of(workers: Numbers, useful: Numbers) -> float:
    """Number of workers above which a limit takes what more of them would give.

    It is where the line without any loss meets the most that all workers together reached: as many workers would do, if
    nothing limited them. If the rate falls, it is the number with the highest one.
    """
    best = int(np.argmax(useful))
    return float(workers[best] if useful[-1] < FALL * useful[best] else useful[best])


def peak_of(workers: Numbers, useful: Numbers) -> float | None:
    """Number of workers beyond which fewer are useful; None if that cannot be said for certain.

    `useful` has a row for each number of workers: as measured, and as resampled.
    """
    best = int(np.argmax(useful[:, 0]))
    fall = useful[-1] / useful[best]
    return float(workers[best]) if fall[0] < FALL and np.quantile(fall[1:], INTERVAL[1]) < 1 else None


def present_from(workers: Numbers, shares: Numbers, level: float) -> float:
    """Fewest workers with at least this part of the largest loss."""
    return float(workers[int(np.argmax(shares >= level * shares.max()))])


SMALL: Final = 0.005
"""Share of thread time below which a limit is not listed."""

MATTERS: Final = 0.1
"""Share of thread time from which a limit is named as the reason."""

MOSTLY: Final = 0.5
"""Share of useful time from which waiting for requests is a limit, although it does not grow."""

FROM_THE_START: Final = (limits.NODES,)
STEPS: Final = (limits.LATE, limits.FAILURES, limits.COLD)
"""Limits that are present or absent; others grow with the workers."""

PRESENT: Final = 0.1
"""Share of the largest loss from which slow hosts take part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """A limit.

    `share` is the part of all thread time that it takes with `at` workers, where that is most; `shares` are those of
    all sizes. `turning` is the number of workers above which it limits; `falls` the number beyond which more make
    the run slower. `rate` is the limit in its own unit, if it has one.
    """

    name: str
    share: Between
    at: int
    shares: list[float]
    turning: Between
    falls: int | None
    rate: Rate | None
    text: str
    advice: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Limits, largest first; `useful` workers of each size; thread seconds per event of a run without any limit.

    `main` is the reason why more workers give less, None if nothing takes much.
    """

    causes: list[Cause]
    main: Cause | None
    useful: list[Between]
    ideal: float
    doubts: list[str]


def explained(groups: Sequence[Sequence[Judged]], unit: str) -> Explanation:
    """Explain runs, given by size, ascending; `unit` is what is counted."""
    shares, of_requests = named_storage(shares_of(groups), groups)
    causes = [_cause(name, shares, groups, unit) for name in shares.lost if shares.share(name)[:, 0].max() >= SMALL]
    constant = _constant_latency(shares, groups, unit)
    causes = sorted([*causes, *constant], key=lambda cause: -cause.share.value)
    known = [cause for cause in causes if cause.name != limits.UNACCOUNTED and cause.share.value >= MATTERS]
    main = known[0] if known else None
    useful = [Between.of(row) for row in shares.useful()]
    doubts = _doubts(main, of_requests, groups)
    return Explanation(causes=causes, main=main, useful=useful, ideal=float(shares.ideal[0]), doubts=doubts)


def _cause(name: str, shares: Shares, groups: Sequence[Sequence[Judged]], unit: str) -> Cause:
    """A limit with everything about it."""
    share = shares.share(name)
    at = int(np.argmax(share[:, 0]))
    found = _turning(name, shares)
    turned = Between.of(found)
    evidence = Evidence(shares, groups, at, turned.value, unit)
    rate = sentences.rate_of(name, evidence)
    falls = _falls(name, shares) if rate is not None and share[at, 0] >= MATTERS else None
    text, advice = sentences.words_of(name, evidence, rate)
    if falls is not None:
        text += f" Beyond {number(falls)} {unit} the total rate falls, and more of them make the run slower."
    return Cause(
        name=name,
        share=Between.of(share[at]),
        at=round(shares.workers[at]),
        shares=[float(value) for value in share[:, 0]],
        turning=turned,
        falls=falls,
        rate=rate,
        text=text,
        advice=advice,
    )


def _turning(name: str, shares: Shares) -> Numbers:
    """Turning point as measured, and as of resampled workers."""
    if name in STEPS or name in FROM_THE_START:
        level = PRESENT if name in FROM_THE_START else HALF
        return np.array([present_from(shares.workers, column, level) for column in shares.share(name).T])
    useful = shares.useful_but_for(name)
    return np.array([turning_of(shares.workers, column) for column in useful.T])


def _falls(name: str, shares: Shares) -> int | None:
    """Number of workers with the most useful ones, if it is less with more."""
    peak = peak_of(shares.workers, shares.useful_but_for(name))
    return None if peak is None else round(peak)


def _constant_latency(shares: Shares, groups: Sequence[Sequence[Judged]], unit: str) -> list[Cause]:
    """Requests that take most of the time however many workers there are."""
    run = groups[shares.least][0]
    if limits.LATENCY in shares.lost or run.reading is None:
        return []
    per_event = run.reading.of_requests * run.reading.chunks / run.scaled.events
    share = Between.of(per_event / shares.ideal[0])
    if (share.value if share.low is None else share.low) < MOSTLY:
        return []
    fewest = round(shares.workers[0])
    evidence = Evidence(shares, groups, shares.least, fewest, unit)
    rate = sentences.rate_of(limits.LATENCY, evidence)
    text, advice = sentences.words_of(limits.LATENCY, evidence, rate)
    every = [share.value * float(useful) for useful in shares.useful()[:, 0] / shares.workers]
    return [
        Cause(
            name=limits.LATENCY,
            share=share,
            at=fewest,
            shares=every,
            turning=Between(float(fewest)),
            falls=None,
            rate=None,
            text=text,
            advice=advice,
        )
    ]


def _doubts(main: Cause | None, of_requests: Numbers | None, groups: Sequence[Sequence[Judged]]) -> list[str]:
    """What the runs cannot tell of the main limit."""
    if main is None or main.name not in {limits.BANDWIDTH, limits.LATENCY}:
        return []
    if of_requests is None:
        return ["without bytes and waiting of chunks, bandwidth and latency of the storage cannot be told apart"]
    low, high = np.quantile(of_requests[1:], (0.025, 0.975))
    if low < MOSTLY < high:
        return ["chunks and requests are too much alike to tell bandwidth and latency of the storage apart"]
    first = min((run for group in groups for run in group), key=lambda run: run.start)
    if main.falls is not None and first.scaled.workers == main.at:
        return ["the run with most workers was the first one: if files were not cached yet, repeat it"]
    return []


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
