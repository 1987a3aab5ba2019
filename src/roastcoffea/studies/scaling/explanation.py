"""Why more workers give less: limits with the thread time they take, from how many workers on, and at what rate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from roastcoffea.metrics.statistics import Numbers
from roastcoffea.studies.scaling import costs as limits
from roastcoffea.studies.scaling import sentences, turning
from roastcoffea.studies.scaling.laws import Between
from roastcoffea.studies.scaling.sentences import Evidence, Rate
from roastcoffea.studies.scaling.shares import Judged, Shares, named_storage, shares_of
from roastcoffea.units import number

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
        level = PRESENT if name in FROM_THE_START else turning.HALF
        return np.array([turning.present_from(shares.workers, column, level) for column in shares.share(name).T])
    useful = shares.useful_but_for(name)
    return np.array([turning.turning_of(shares.workers, column) for column in useful.T])


def _falls(name: str, shares: Shares) -> int | None:
    """Number of workers with the most useful ones, if it is less with more."""
    peak = turning.peak_of(shares.workers, shares.useful_but_for(name))
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
