"""What was measured, next to what it may be: wall time with the CPU time of the process, and its memory."""

from __future__ import annotations

import cProfile
import pstats
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from typing import Any, Final, NamedTuple

from benchmarks.page import forgotten, memory

TRIES: Final = 2
"""Tries of what misses its goal: other programs on the machine can make it slow once."""
MOST_FUNCTIONS: Final = 6
"""Functions that the profile of a missed goal lists."""


@dataclass(frozen=True)
class Figure:
    """A figure, with what it has to stay below; None for no goal."""

    what: str
    amount: float
    unit: str
    goal: float | None = None
    note: str = ""
    cpu: float | None = None
    """CPU seconds of the process, where the amount is wall time."""
    profile: tuple[str, ...] = ()
    """Functions with most time of their own, where the goal was missed."""

    @property
    def is_missed(self) -> bool:
        """Whether the goal is missed."""
        return self.goal is not None and self.amount > self.goal

    @property
    def verdict(self) -> str:
        """Whether the goal is kept; empty without one."""
        return "" if self.goal is None else "MISSED" if self.is_missed else "kept"


ROW: Final = "{:<44} {:>10} {:<3} {:>7}  {:>9}  {:<6}  {}"
HEADINGS: Final = ROW.format("what", "measured", "", "CPU s", "goal", "", "note")


def row_of(figure: Figure) -> str:
    """A figure as a row of the table, with its profile below."""
    goal = "" if figure.goal is None else f"{figure.goal:.4g}"
    cpu = "" if figure.cpu is None else f"{figure.cpu:.2f}"
    row = ROW.format(figure.what, f"{figure.amount:.3f}", figure.unit, cpu, goal, figure.verdict, figure.note).rstrip()
    return "\n".join([row, *(f"      {line}" for line in figure.profile)])


def table_of(title: str, figures: Iterable[Figure]) -> str:
    """Figures of a part under its title."""
    return "\n".join([f"-- {title}", *map(row_of, figures)])


class Watched(NamedTuple):
    """Seconds, CPU seconds, peak memory and growth (GB) of some work."""

    seconds: float
    cpu: float
    peak: float
    grown: float

    def figure(self, what: str, goal: float | None = None, note: str = "") -> Figure:
        """Its wall time."""
        peak = f"peak {self.peak:.2f} GB"
        return Figure(what, self.seconds, "s", goal, f"{peak}, {note}" if note else peak, self.cpu)


class Timed(NamedTuple):
    """Seconds and CPU seconds of some work."""

    seconds: float
    cpu: float


def timed(work: Callable[[], Any]) -> Timed:
    """Time some work of this process."""
    began, cpu = time.perf_counter(), time.process_time()
    work()
    return Timed(time.perf_counter() - began, time.process_time() - cpu)


def watched(work: Callable[[], Any]) -> Watched:
    """Measure some work of this process, and its memory."""
    before = forgotten()
    seconds, cpu = timed(work)
    peak = memory("VmHWM")
    return Watched(seconds, cpu, peak, peak - before)


def tried(what: str, goal: float | None, work: Callable[[], Any], note: Callable[[], str] = str) -> Figure:
    """Wall time of work that may be repeated: if it misses its goal twice, with its scatter and its profile."""
    found = [watched(work)]
    while goal is not None and found[-1].seconds > goal and len(found) < TRIES:
        found.append(watched(work))
    best = min(found)
    figure = best.figure(what, goal, note())
    if len(found) == 1:
        return figure
    tries = ", ".join(f"{one.seconds:.3g} s (CPU {one.cpu:.3g})" for one in found)
    figure = replace(figure, note=f"{figure.note}; tries: {tries}")
    return replace(figure, profile=profile_of(work)) if figure.is_missed else figure


def profile_of(work: Callable[[], Any]) -> tuple[str, ...]:
    """Functions with most time of their own in some work."""
    profile = cProfile.Profile()
    profile.runcall(work)
    found: Any = pstats.Stats(profile)
    functions = sorted(found.stats.items(), key=lambda entry: -entry[1][2])[:MOST_FUNCTIONS]
    return tuple(
        f"{own:8.2f} s  {calls:>9,} calls  {name} ({'/'.join(file.split('/')[-2:])}:{line})"
        for (file, line, name), (_, calls, own, *_) in functions
    )


def apart(function: Callable[..., list[Figure]], *arguments: Any) -> list[Figure]:
    """What a function gives in a process of its own."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()
