"""How far a run has come, how fast it is, and what limits it: the text of the live line."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from roastcoffea.metrics.phases import FAILED, TIME_CLASSES
from roastcoffea.metrics.statistics import OF_90_PERCENT
from roastcoffea.units import GIGABIT_PER_SECOND, KILOHERTZ, SECOND, counted, number

NAME: Final = "roastcoffea"
BETWEEN: Final = ", "

SPAN: Final = 60.0
"""Seconds over which rates are averaged: records come chunk by chunk."""

ENOUGH_CHUNKS: Final = 10
"""Chunks that must end in the last minute to estimate the time left from it; else all chunks so far serve."""

MOST_WRONG: Final = 10.0
"""How many times longer than estimated a run may take at most, where too few chunks have ended to say more."""

IDLE: Final = "idle"
WORDS: Final = {one.name: one.word for one in TIME_CLASSES}
"""Causes as findings name them, by class of thread time."""


class Progress(NamedTuple):
    """How far a run has come; None is not known."""

    chunks: int = 0
    chunks_asked: int = 0
    files: int = 0
    files_asked: int = 0
    failed: int = 0
    events: int = 0
    bytes: int | None = 0
    workers: int | None = None
    threads: tuple[int, int] | None = None
    """Threads of all workers now, and how many execute a task."""
    wall_seconds: float = 0.0
    """Of attempts of chunks that ended, as are the next ones."""
    wall_squares: float = 0.0
    """Sum of the squares of these times: tells how they scatter."""
    failed_seconds: float = 0.0
    cpu_seconds: float = 0.0
    seconds: Mapping[str, float] = MappingProxyType({})
    """Thread time by class."""


NOTHING: Final = Progress()


class Rates:
    """What the run does in a second, over the last minute or from the beginning."""

    def __init__(self, began: float | None = None) -> None:
        self.began = time.monotonic() if began is None else began
        self._points: deque[tuple[float, Progress]] = deque([(self.began, NOTHING)])
        self._asked: float | None = None

    def add(self, moment: float, progress: Progress) -> None:
        """Take how far the run had come at a moment."""
        if self._asked is None and progress.chunks_asked:
            self._asked = self._points[-1][0]
        self._points.append((moment, progress))
        while len(self._points) > 2 and self._points[1][0] <= moment - SPAN:
            self._points.popleft()

    @property
    def elapsed(self) -> float:
        """Seconds since the beginning."""
        return self._points[-1][0] - self.began

    def in_a_second(self, *, whole: bool = False) -> tuple[float, float | None]:
        """Events and bytes in a second, from the beginning where `whole`; None is not known."""
        first, before = (self.began, NOTHING) if whole else self._points[0]
        last, now = self._points[-1]
        seconds = max(last - first, 1e-9)
        size = None if now.bytes is None else (now.bytes - (before.bytes or 0)) / seconds
        return (now.events - before.events) / seconds, size

    @property
    def left(self) -> float | None:
        """Seconds until all chunks that were asked for are done; None before enough of them are."""
        last, now = self._points[-1]
        if self._asked is None or now.chunks >= now.chunks_asked:
            return None
        first, before = self._points[0]
        done, seconds = now.chunks - before.chunks, last - max(first, self._asked)
        if done < ENOUGH_CHUNKS:
            done, seconds = now.chunks, last - self._asked
        at_once = now.threads[0] if now.threads else now.workers or 1
        return seconds * (now.chunks_asked - now.chunks) / done if done >= at_once and seconds > 0 else None

    @property
    def left_between(self) -> tuple[float, float] | None:
        """Between how many seconds at least 90 % of runs like this one end; None where that is not known.

        The number of chunks that end in a time scatters as their durations do, and the run waits for the longest of the
        last ones. What changes later, such as storage that becomes slow, is not foreseen.
        """
        left = self.left
        if left is None or self._asked is None:
            return None
        now = self._points[-1][1]
        done = now.chunks - self._points[0][1].chunks
        if done < ENOUGH_CHUNKS:
            done = now.chunks
        mean, deviation = self._chunk_seconds()
        scatter = deviation / mean if deviation else 1.0  # chunks that end at random, where nothing is known of them
        at_once = now.threads[0] if now.threads else 1
        waves = at_once**2 / 12 / done**2  # chunks that began together end together: up to one of each thread is amiss
        error = OF_90_PERCENT * math.sqrt(scatter**2 * (1 / done + 1 / (now.chunks_asked - now.chunks)) + waves)
        longest = deviation * (math.log(max(at_once, 1)) + 1.5)
        return max(left - mean, 0.0) / (1 + error), left / max(1 - error, 1 / MOST_WRONG) + longest

    def _chunk_seconds(self) -> tuple[float, float]:
        """Mean and standard deviation of the time of an attempt; zeros where nothing is known of it."""
        now = self._points[-1][1]
        attempts = now.chunks + now.failed
        mean = now.wall_seconds / attempts if attempts else 0.0
        return mean, math.sqrt(max(now.wall_squares / attempts - mean**2, 0.0)) if mean else 0.0

    def busy(self, *, whole: bool = False) -> dict[str, float]:
        """Share of thread time by cause, of chunks that ended in that time and of idle threads; empty without chunks.

        Idle threads count where the workers report what they execute.
        """
        before, now = NOTHING if whole else self._points[0][1], self._points[-1][1]
        wall = now.wall_seconds - before.wall_seconds
        if wall <= 0:
            return {}
        seconds = {FAILED: now.failed_seconds - before.failed_seconds}
        seconds |= {name: each - before.seconds.get(name, 0.0) for name, each in now.seconds.items()}
        working = self._working()
        shares: dict[str, float] = {} if working is None else {IDLE: 1 - working}
        for name, each in seconds.items():
            word = WORDS.get(name) or name
            shares[word] = shares.get(word, 0.0) + each / wall * (1.0 if working is None else working)
        return shares

    def efficiency(self, *, whole: bool = False) -> float | None:
        """CPU time of chunks that ended in that time over thread time; None without chunks."""
        before, now = NOTHING if whole else self._points[0][1], self._points[-1][1]
        wall, working = now.wall_seconds - before.wall_seconds, self._working()
        if wall <= 0:
            return None
        return (now.cpu_seconds - before.cpu_seconds) / wall * (1.0 if working is None else working)

    def _working(self) -> float | None:
        """Share of the workers' threads that executed tasks in the last minute; None where that is not known."""
        known = [point.threads for _, point in self._points if point.threads is not None and point.threads[0]]
        return sum(busy for _, busy in known) / sum(threads for threads, _ in known) if known else None


def line_of(progress: Progress, rates: Rates, *, whole: bool = False) -> str:
    """The line: what is done and left, how well threads are used, what limits them, rates, workers, and the time.

    What matters least comes last, where narrow terminals have no room.

    Parameters
    ----------
    whole
        Whether the run has ended, and rates are of all of it.
    """
    events, size = rates.in_a_second(whole=whole)
    left, efficiency, shares = None if whole else rates.left, rates.efficiency(whole=whole), rates.busy(whole=whole)
    parts = [
        _done(progress),
        f"{number(progress.failed)} failed" if progress.failed else "",
        f"ETA {clock(left)}" if left is not None else "",
        f"efficiency {100 * efficiency:.0f} %" if efficiency is not None else "",
        bottleneck(shares),
        KILOHERTZ.text(events / 1000) if progress.chunks else "",
        GIGABIT_PER_SECOND.text(8e-9 * size) if progress.chunks and size is not None else "",
        counted(progress.workers, "worker") if progress.workers is not None else "",
        SECOND.text(float(round(rates.elapsed))),
    ]
    return f"{NAME}  {BETWEEN.join(filter(None, parts))}"


def bottleneck(shares: Mapping[str, float]) -> str:
    """Words for what takes most of the thread time; empty where that is not known."""
    most, share = max(shares.items(), key=lambda item: item[1], default=("", 0.0))
    return "" if not share else f"threads idle {100 * share:.0f} %" if most == IDLE else f"limited by {most}"


def clock(seconds: float) -> str:
    """Time that is left, as clocks show it.

    Examples
    --------
    >>> clock(130), clock(7505)
    ('2:10', '2:05:05')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _done(progress: Progress) -> str:
    """Chunks that gave a result; before there are any, files that were opened."""
    if progress.chunks_asked:  # a result that was lost came twice
        done, asked, things = progress.chunks, progress.chunks_asked, "chunks"
    else:
        done, asked, things = progress.files, progress.files_asked, "files opened"
    return f"{number(min(done, asked))} of {number(asked)} {things}" if asked else "no chunks yet"
