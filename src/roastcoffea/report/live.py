"""A run's live line in terminals and notebooks: progress, rates, bottleneck."""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar, Final, NamedTuple, TextIO

from rich.console import Console
from rich.text import Text

from roastcoffea.errors import reported
from roastcoffea.interrupts import interrupts_held
from roastcoffea.metrics.phases import FAILED, TIME_CLASSES
from roastcoffea.metrics.statistics import OF_90_PERCENT
from roastcoffea.sheets.terminal import printable
from roastcoffea.units import GIGABIT_PER_SECOND, KILOHERTZ, SECOND, counted, number

NAME: Final = "roastcoffea"
BETWEEN: Final = ", "

IDLE: Final = "idle"
WORDS: Final = {one.name: one.word for one in TIME_CLASSES}
"""Maps each class of thread time to the findings' name for its cause."""


class Progress(NamedTuple):
    """Progress of a run. None means unknown."""

    chunks: int = 0
    chunks_asked: int = 0
    files: int = 0
    files_asked: int = 0
    failed: int = 0
    events: int = 0
    bytes: int | None = 0
    workers: int | None = None
    threads: tuple[int, int] | None = None
    """Current number of worker threads, and the number that are executing tasks."""
    wall_seconds: float = 0.0
    """Total wall time of finished chunk attempts, which are assumed to be typical."""
    wall_squares: float = 0.0
    """Sum of the squares of these wall times, from which their spread is estimated."""
    failed_seconds: float = 0.0
    cpu_seconds: float = 0.0
    seconds: Mapping[str, float] = MappingProxyType({})


NOTHING: Final = Progress()


class Rates:
    """A run's rates, over the last minute or since the run began."""

    def __init__(self, began: float | None = None) -> None:
        self.began = time.monotonic() if began is None else began
        self._points: deque[tuple[float, Progress]] = deque([(self.began, NOTHING)])
        self._asked: float | None = None

    def add(self, moment: float, progress: Progress) -> None:
        if self._asked is None and progress.chunks_asked:
            self._asked = self._points[-1][0]
        self._points.append((moment, progress))
        while (
            len(self._points) > 2 and self._points[1][0] <= moment - 60
        ):  # rates are averaged over a minute, because records arrive chunk by chunk
            self._points.popleft()

    @property
    def elapsed(self) -> float:
        """Seconds since the run began."""
        return self._points[-1][0] - self.began

    def _window(self, whole: bool) -> tuple[Progress, Progress, float]:
        """Progress a minute ago (at the start if `whole`), progress now, and the time in between in seconds."""
        (first, before), (last, now) = (self.began, NOTHING) if whole else self._points[0], self._points[-1]
        return before, now, max(last - first, 1e-9)

    def in_a_second(self, *, whole: bool = False) -> tuple[float, float | None]:
        """Events and bytes per second, since the run began if `whole`. None means unknown."""
        before, now, seconds = self._window(whole)
        size = None if now.bytes is None else (now.bytes - (before.bytes or 0)) / seconds
        return (now.events - before.events) / seconds, size

    def _done(self) -> tuple[int, float]:
        """Number of chunks finished and seconds taken, in the last minute (or the whole run, if those are too few)."""
        (first, before), (last, now) = self._points[0], self._points[-1]
        asked = last if self._asked is None else self._asked
        few = now.chunks - before.chunks < 10
        return now.chunks - (0 if few else before.chunks), last - (asked if few else max(first, asked))

    @property
    def left(self) -> float | None:
        """Estimated seconds until all requested chunks are done; None until enough chunks are done."""
        now, (done, seconds) = self._points[-1][1], self._done()
        at_once = now.threads[0] if now.threads else now.workers or 1
        if now.chunks >= now.chunks_asked or done < at_once or seconds <= 0:
            return None
        return seconds * (now.chunks_asked - now.chunks) / done

    @property
    def left_between(self) -> tuple[float, float] | None:
        """90 % prediction interval for the remaining time in seconds; None if unknown.

        The number of chunks that finish in a given time varies with their durations, and the run waits for the longest
        of the last chunks. Later changes, such as slower storage, are not anticipated.
        """
        left, now, (done, _) = self.left, self._points[-1][1], self._done()
        if left is None:
            return None
        attempts = max(now.chunks + now.failed, 1)
        mean = now.wall_seconds / attempts
        deviation = math.sqrt(max(now.wall_squares / attempts - mean**2, 0.0))
        scatter = deviation / mean if deviation else 1.0  # if unknown, chunks finish at random times
        at_once = now.threads[0] if now.threads else 1
        waves = at_once**2 / 12 / done**2  # chunks that start together also finish together
        error = OF_90_PERCENT * math.sqrt(scatter**2 * (1 / done + 1 / (now.chunks_asked - now.chunks)) + waves)
        longest = deviation * (math.log(max(at_once, 1)) + 1.5)
        # at most ten times longer than estimated, while few chunks have finished
        shorter, longer = left * error / (1 + error), left * (1 / max(1 - error, 0.1) - 1)
        return max(left - math.hypot(shorter, mean), 0.0), left + math.hypot(longer, longest)

    def busy(self, *, whole: bool = False) -> dict[str, float]:
        """Share of thread time by cause, for finished chunks and idle threads.

        The result is empty if no chunk has finished. Idle threads are included if the workers report what they are
        executing.
        """
        before, now, _ = self._window(whole)
        wall, working = now.wall_seconds - before.wall_seconds, self._working()
        if wall <= 0:
            return {}
        shares = {} if working is None else {IDLE: 1 - working}
        seconds = {FAILED: now.failed_seconds - before.failed_seconds}
        seconds |= {name: each - before.seconds.get(name, 0.0) for name, each in now.seconds.items()}
        for name, each in seconds.items():
            word = WORDS.get(name) or name
            shares[word] = shares.get(word, 0.0) + each / wall * (1.0 if working is None else working)
        return shares

    def efficiency(self, *, whole: bool = False) -> float | None:
        """CPU time of finished chunks divided by thread time; None if no chunk has finished."""
        before, now, _ = self._window(whole)
        wall, working = now.wall_seconds - before.wall_seconds, self._working()
        return (
            (now.cpu_seconds - before.cpu_seconds) / wall * (1.0 if working is None else working) if wall > 0 else None
        )

    def _working(self) -> float | None:
        """Share of worker threads that were executing tasks in the last minute; None if unknown."""
        known = [point.threads for _, point in self._points if point.threads is not None and point.threads[0]]
        return sum(busy for _, busy in known) / sum(threads for threads, _ in known) if known else None


def line_of(progress: Progress, rates: Rates, *, whole: bool = False) -> str:
    """Live line: progress, time left, efficiency, bottleneck, rates, workers, time.

    The least important parts come last, because narrow terminals cut them off.

    Parameters
    ----------
    whole
        Whether the run has ended. If it has, rates cover the whole run.
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
    """Largest share of thread time, as text; empty if unknown."""
    most, share = max(shares.items(), key=lambda item: item[1], default=("", 0.0))
    return "" if not share else f"threads idle {100 * share:.0f} %" if most == IDLE else f"limited by {most}"


def clock(seconds: float) -> str:
    """Format remaining time as a clock.

    Examples
    --------
    >>> clock(130), clock(7505)
    ('2:10', '2:05:05')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _done(progress: Progress) -> str:
    """Number of chunks done or, before any chunks are requested, number of files opened."""
    if progress.chunks_asked:  # a lost result was computed twice
        done, asked, things = progress.chunks, progress.chunks_asked, "chunks"
    else:
        done, asked, things = progress.files, progress.files_asked, "files opened"
    return f"{number(min(done, asked))} of {number(asked)} {things}" if asked else "no chunks yet"


INTERVAL: Final = 0.5
"""Time between updates, in seconds."""

SHARE: Final = 20.0
"""Minimum ratio of the time between updates to the duration of an update."""

PATIENCE: Final = 2.0
"""Time to wait for a terminal that does not accept output, in seconds. The run then continues without the terminal."""


class LiveText:
    """Shows changing lines until it is stopped. Draws only in a terminal or notebook.

    Parameters
    ----------
    text
        Returns the lines. It is called on the display's own thread; the last call has `whole=True`.
    note
        Receives the reason if the display fails.
    """

    def __init__(self, text: Callable[..., str], note: Callable[[str], None]) -> None:
        self._text = text
        self._note = note
        self._display: NotebookLine | BottomRow | None = None
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        with interrupts_held(), reported(self._note, "there is no live line", Exception):
            display = self._display = display_for(sys.stderr)
            if display is not None:
                thread = threading.Thread(target=self._keep_showing, args=(display,), name=f"{NAME}-live", daemon=True)
                thread.start()
                self._thread = thread

    def stop(self) -> None:
        """Remove the lines. In a notebook, leave the final state."""
        self._stopped.set()
        if self._thread is not None and self._display is not None:
            self._thread.join(PATIENCE)
            if self._thread.is_alive():  # the terminal still does not accept output
                self._display.abandon()
                return
            last = None
            with reported(self._note, "the final state of the run is not shown", Exception):
                last = self._text(whole=True)
            with reported(self._note, "the live line could not be removed", Exception):
                self._display.end(last)

    def _keep_showing(self, display: NotebookLine | BottomRow) -> None:
        with reported(self._note, "the live line ended before the run", Exception):
            pause = 0.0
            while not self._stopped.wait(pause):
                began = time.monotonic()
                display.show(self._text())
                pause = max(INTERVAL, SHARE * (time.monotonic() - began))


class LiveLine(LiveText):
    """Shows the progress of a run until it is stopped.

    In a notebook, the final state shows the rates for the whole run.

    Parameters
    ----------
    progress
        Returns the progress. It is called on the line's own thread.
    note
        Receives the reason if the line fails.
    """

    def __init__(self, progress: Callable[[], Progress], note: Callable[[str], None]) -> None:
        super().__init__(self._line, note)
        self._progress = progress
        self._rates = Rates()

    def start(self) -> None:
        self._rates = Rates()
        super().start()

    def _line(self, *, whole: bool = False) -> str:
        progress = self._progress()
        self._rates.add(time.monotonic(), progress)
        return line_of(progress, self._rates, whole=whole)


def fitted(line: str, width: int) -> str:
    """As many whole parts of the line as fit, because a truncated number would be wrong."""
    if len(line) <= width or not line.startswith(NAME):
        return line[:width]
    return line[: width + len(BETWEEN)].rpartition(BETWEEN)[0][:width] or line[:width]


def display_for(stream: TextIO) -> NotebookLine | BottomRow | None:
    """Display for the notebook or terminal behind the stream; None if there is neither."""
    ipython = sys.modules.get("IPython")
    if ipython is not None and getattr(ipython.get_ipython(), "kernel", None) is not None:
        return NotebookLine()
    console = Console(file=stream, highlight=False, markup=False, emoji=False)
    is_terminal = os.name == "posix" and stream.isatty() and not console.is_dumb_terminal
    return BottomRow(stream.fileno(), console) if is_terminal else None


class NotebookLine:
    """Display in the notebook cell that is running the analysis."""

    def __init__(self) -> None:
        from IPython.display import display

        self._handle: Any = display({"text/plain": NAME}, raw=True, display_id=True)  # type: ignore[no-untyped-call]

    def show(self, line: str) -> None:
        self._handle.update({"text/plain": line}, raw=True)

    def end(self, line: str | None) -> None:
        """Show the final state; if `line` is None, keep the current state."""
        if line is not None:
            self.show(line)

    def abandon(self) -> None:
        """Leave the display as it is."""


@dataclass(slots=True)
class Area:
    """Bottom rows of a terminal: the lines of each display, with the first display on top."""

    lines: dict[BottomRow, list[str]] = field(default_factory=dict)
    size: os.terminal_size | None = None
    rows: int = 0
    lock: Any = field(default_factory=threading.Lock)


class BottomRow:
    """Bottom rows of a terminal, shared by its displays.

    Output bypasses Python's buffers, so the analysis never forks while their locks are held. A killed process leaves
    the rows behind until the terminal is reset.
    """

    _areas: ClassVar[dict[int, Area]] = {}
    """Maps each terminal's file descriptor to the state shared by its displays."""

    def __init__(self, terminal: int, console: Console) -> None:
        self._terminal = terminal
        self._console = console

    def show(self, text: str) -> None:
        area = self._areas.setdefault(self._terminal, Area())
        with area.lock:
            new = text.splitlines()
            # keep unused rows empty: otherwise, text would jump with every task
            area.lines[self] = new + [""] * (len(area.lines.get(self, ())) - len(new))
            self._draw(area)

    def end(self, text: str | None) -> None:  # noqa: ARG002  (nothing stays)
        area = self._areas.get(self._terminal, Area())
        try:
            with area.lock:
                if area.lines.pop(self, None) is not None:
                    self._draw(area)
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Leave the terminal as it is, because it does not accept output."""
        area = self._areas.get(self._terminal, Area())
        area.lines.pop(self, None)
        if not area.lines:
            self._areas.pop(self._terminal, None)

    def _draw(self, area: Area) -> None:
        """Redraw the bottom rows, and let all rows above them scroll."""
        lines = [line for own in area.lines.values() for line in own]
        size = os.get_terminal_size(self._terminal)
        room = size.lines - 3  # the rows left for other output
        drawn = [self._styled(fitted(printable(line), size.columns - 1)) for line in lines[: max(room, 0)]]
        before, held = area.size, area.rows
        first = size.lines - len(drawn)
        top = min(first, size.lines - held) if before == size else first
        reserve = ""
        if (size, len(drawn)) != (before, held):
            # if the cursor is in one of these rows, it moves up with the text
            more = max(0, len(drawn) - (held if before == size else 0))
            reserve = "\x1bD" * more + (f"\x1b[{more}A" if more else "")
            reserve += f"\x1b7\x1b[{f'1;{first}' if drawn else ''}r\x1b8"
        blank = [""] * (first - top)
        rows = "".join(f"\x1b[{top + 1 + place};1H\x1b[2K{row}" for place, row in enumerate(blank + drawn))
        if drawn or held:
            self._write(f"{reserve}\x1b7{rows}\x1b8")
        area.size, area.rows = size, len(drawn)

    def _styled(self, line: str) -> str:
        text = Text(line)
        if line.startswith(NAME):
            text.stylize("bold", 0, len(NAME))
        with self._console.capture() as styled:
            self._console.print(text, end="", soft_wrap=True)
        return styled.get()

    def _write(self, text: str) -> None:
        data = text.encode("ascii", "replace")
        while data:
            data = data[os.write(self._terminal, data) :]
