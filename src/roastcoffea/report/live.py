"""Lines that tell how a run goes on, in terminals and notebooks.

In a terminal they have the lowest rows to themselves: all else scrolls in the rows above, as it does when `apt`
installs. So they share nothing with what the analysis or coffea prints; several of ours stand below each other. Two
displays of rich that know of each other stand twice where one ends, older versions raise an error at the second, and
two that do not know of each other write on one row.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, TextIO

from rich.console import Console
from rich.text import Text

from roastcoffea.errors import reported
from roastcoffea.interrupts import interrupts_held
from roastcoffea.report.progress import BETWEEN, NAME, Progress, Rates, line_of
from roastcoffea.report.terminal import printable

INTERVAL: Final = 0.5
"""Seconds between two looks."""

SHARE: Final = 20.0
"""How many times longer than it takes to make the lines they stay as they are."""

PATIENCE: Final = 2.0
"""Seconds to wait for a terminal that takes no more; the run goes on without."""

FEWEST_ROWS: Final = 4
"""In a terminal with fewer rows nothing is drawn; so many less one are left to all else."""


class LiveText:
    """Shows lines that change, until it is stopped; it draws nothing where there is no terminal and no notebook.

    Parameters
    ----------
    text
        Gives the lines; it is called on a thread of the display's own, with `whole=True` for the last time.
    note
        Takes note of why there are none any more.
    """

    def __init__(self, text: Callable[..., str], note: Callable[[str], None]) -> None:
        self._text = text
        self._note = note
        self._display: NotebookLine | BottomRow | None = None
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to show the lines."""
        with interrupts_held(), reported(self._note, "there is no live line", Exception):
            display = self._display = display_for(sys.stderr)
            if display is not None:
                thread = threading.Thread(target=self._keep_showing, args=(display,), name=f"{NAME}-live", daemon=True)
                thread.start()
                self._thread = thread

    def stop(self) -> None:
        """Take the lines away; in a notebook their last state stays."""
        self._stopped.set()
        if self._thread is not None and self._display is not None:
            self._thread.join(PATIENCE)
            if self._thread.is_alive():  # the terminal takes nothing, nor would it now
                self._display.abandon()
                return
            last = None
            with reported(self._note, "the last state of the run is not shown", Exception):
                last = self._text(whole=True)
            with reported(self._note, "the live line could not be taken away", Exception):
                self._display.end(last)

    def _keep_showing(self, display: NotebookLine | BottomRow) -> None:
        with reported(self._note, "the live line ended before the run", Exception):
            pause = 0.0
            while not self._stopped.wait(pause):
                began = time.monotonic()
                display.show(self._text())
                pause = max(INTERVAL, SHARE * (time.monotonic() - began))


class LiveLine(LiveText):
    """Shows the progress of a run until it is stopped; in a notebook the last state has the rates of the whole run.

    Parameters
    ----------
    progress
        Tells how far the run has come; it is called on a thread of the line's own.
    note
        Takes note of why there is no line any more.
    """

    def __init__(self, progress: Callable[[], Progress], note: Callable[[str], None]) -> None:
        super().__init__(self._line, note)
        self._progress = progress
        self._rates = Rates()

    def start(self) -> None:
        """Begin to show the line."""
        self._rates = Rates()
        super().start()

    def _line(self, *, whole: bool = False) -> str:
        progress = self._progress()
        self._rates.add(time.monotonic(), progress)
        return line_of(progress, self._rates, whole=whole)


def fitted(line: str, width: int) -> str:
    """As many whole parts of the line as fit a width: a number that is cut off would be another number."""
    if len(line) <= width or not line.startswith(NAME):
        return line[:width]
    return line[: width + len(BETWEEN)].rpartition(BETWEEN)[0][:width] or line[:width]


def display_for(stream: TextIO) -> NotebookLine | BottomRow | None:
    """Notebook, or terminal behind the stream; None where there is neither."""
    ipython = sys.modules.get("IPython")
    if ipython is not None and getattr(ipython.get_ipython(), "kernel", None) is not None:
        return NotebookLine()
    console = Console(file=stream, highlight=False, markup=False, emoji=False)
    is_terminal = os.name == "posix" and stream.isatty() and not console.is_dumb_terminal
    return BottomRow(stream.fileno(), console) if is_terminal else None


class NotebookLine:
    """A display of its own in the cell that began the run."""

    def __init__(self) -> None:
        from IPython.display import display

        self._handle: Any = display({"text/plain": NAME}, raw=True, display_id=True)  # type: ignore[no-untyped-call]

    def show(self, line: str) -> None:
        self._handle.update({"text/plain": line}, raw=True)

    def end(self, line: str | None) -> None:
        """Leave this as the last state; None keeps the present one."""
        if line is not None:
            self.show(line)

    def abandon(self) -> None:
        """Leave the display as it is."""


@dataclass(slots=True)
class Area:
    """The lowest rows of a terminal: lines of each display, the first one on top, and what was drawn last."""

    lines: dict[BottomRow, list[str]] = field(default_factory=dict)
    size: os.terminal_size | None = None
    rows: int = 0
    lock: Any = field(default_factory=threading.Lock)


class BottomRow:
    """The lowest rows of a terminal, which displays of one terminal share.

    They are written past Python's buffers: no lock of theirs is held when the analysis forks. A process that is killed
    leaves the rows behind, until the terminal is reset.
    """

    _areas: ClassVar[dict[int, Area]] = {}
    """What the displays of each terminal share."""

    def __init__(self, terminal: int, console: Console) -> None:
        self._terminal = terminal
        self._console = console

    def show(self, text: str) -> None:
        area = self._areas.setdefault(self._terminal, Area())
        with area.lock:
            new = text.splitlines()
            # rows that are no longer needed stay empty: text would jump with every task that comes or goes
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
        """Leave the terminal as it is, as it takes nothing."""
        area = self._areas.get(self._terminal, Area())
        area.lines.pop(self, None)
        if not area.lines:
            self._areas.pop(self._terminal, None)

    def _draw(self, area: Area) -> None:
        """Write the lowest rows anew, and have all others scroll."""
        lines = [line for own in area.lines.values() for line in own]
        size = os.get_terminal_size(self._terminal)
        room = size.lines - FEWEST_ROWS + 1
        drawn = [self._styled(fitted(printable(line), size.columns - 1)) for line in lines[: max(room, 0)]]
        before, held = area.size, area.rows
        first = size.lines - len(drawn)
        top = min(first, size.lines - held) if before == size else first
        reserve = ""
        if (size, len(drawn)) != (before, held):
            # where the cursor is in one of these rows, it moves up with the text
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
