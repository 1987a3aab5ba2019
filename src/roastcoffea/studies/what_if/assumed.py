"""What a prediction assumes where the runs leave something open, and how far apart its results then are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, hypot, inf, log
from typing import Final, NamedTuple

from roastcoffea.replay.changes import Scenario
from roastcoffea.replay.recorded import Recorded

STORAGE, INTERPRETER, OTHERS, CROWDING = "storage", "interpreter", "others", "crowding"
BRACKET, SIZE, MISFIT = "fixed cost of a chunk", "chunk size", "misfit"
"""What runs may leave open."""

MOST_CROWDED: Final = 0.2
"""Largest increase of CPU time for each doubling of the jobs on a core that is assumed where no run shows it."""


class Sharing(NamedTuple):
    """Numbers of what shares something: threads of a process, and processes per core."""

    threads: int
    processes: float


def sharing_of(run: Recorded) -> Sharing:
    """Those of a recorded run."""
    return Sharing(run.threads, run.workers_of_host / (run.cores or inf))


class Lock(NamedTuple):
    """What threads of a process cost each other: a change of their chunks, or all computing serially."""

    change: Scenario
    serial: bool = False


class Assumed(NamedTuple):
    """One set of assumptions: streams that storage serves, the interpreter lock, and cores for other programs.

    Without `others`, each run has those that were fitted to it. With `crowded`, CPU time grows by MOST_CROWDED for each
    doubling of the jobs on a core, otherwise as the runs show it.
    """

    streams: float
    lock: Lock
    others: float | None = None
    crowded: bool = False


Assumptions = tuple[Assumed, Mapping[str, Sequence[Assumed]]]
"""The likeliest assumptions, and others that differ in one of them."""


@dataclass(frozen=True, slots=True)
class LeftOpen:
    """Range of a prediction that the runs leave open.

    `middle` is its centre in logarithms, `factor` the ratio of its ends to that, `widest` what opens it the most.
    """

    middle: float
    factor: float
    widest: str | None


def left_open(seconds: float, others: Mapping[str, Sequence[float]]) -> LeftOpen:
    """Range from the seconds of the likeliest assumptions, and those of others that differ in one of them.

    Assumptions are independent: each moves the centre, and their widths add up in quadrature.
    """
    middle, widths = log(seconds), {}
    for name, some in others.items():
        ends = [log(each / seconds) for each in (seconds, *some)]
        middle += (min(ends) + max(ends)) / 2
        widths[name] = (max(ends) - min(ends)) / 2
    widest = max(widths, key=lambda name: widths[name]) if any(widths.values()) else None
    return LeftOpen(exp(middle), exp(hypot(*widths.values())), widest)
