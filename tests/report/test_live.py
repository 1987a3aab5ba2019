"""The live line: what a terminal shows meanwhile and afterwards, and what a notebook gets."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import select
import struct
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import coffea.util
import pyte
import pytest
from analyses import Gated
from coffea.nanoevents import NanoAODSchema
from coffea.processor import DaskExecutor, FuturesExecutor, Runner
from coffea.util import rich_bar
from conftest import ServedPool, wait_until
from processes import PATIENCE

from roastcoffea.collector import MetricsCollector
from roastcoffea.report import live
from roastcoffea.report import live as progress
from roastcoffea.report.live import NOTHING, LiveLine, Progress, fitted

ROWS, WIDTH = 12, 90


class Terminal:
    """A terminal behind a pseudo-terminal, and what its screen shows."""

    def __init__(self) -> None:
        self.screen = pyte.HistoryScreen(WIDTH, ROWS, history=1000)
        self._stream = pyte.ByteStream(self.screen)
        self._master, self._slave = pty.openpty()
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, WIDTH, 0, 0))
        self.file = os.fdopen(self._slave, "w", buffering=1)
        self.moments: list[list[str]] = []
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    attach: Callable[[], None]

    def _read(self) -> None:
        while not self._closed.is_set():
            if select.select([self._master], [], [], 0.05)[0]:
                self._stream.feed(os.read(self._master, 65536))
                self.moments.append(self.rows())

    def rows(self) -> list[str]:
        return [row.rstrip() for row in self.screen.display]

    def scrolled(self) -> list[str]:
        """All rows that there were, those that left the screen first."""
        above = ["".join(row[x].data for x in range(WIDTH)).rstrip() for row in self.screen.history.top]
        return above + self.rows()

    def close(self) -> None:
        self._closed.set()
        self._thread.join(PATIENCE)
        self.file.close()
        os.close(self._master)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    """A terminal behind stdout, stderr and coffea's console."""
    terminal = Terminal()
    for variable in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "COLUMNS", "LINES"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    terminal.attach = partial(attached, terminal, monkeypatch)
    monkeypatch.setattr(live, "INTERVAL", 0.02)
    console = getattr(coffea.util, "coffea_console", None)  # since 2025.10
    for name, value in (("_file", terminal.file), ("_width", WIDTH), ("_height", ROWS)) if console else ():
        monkeypatch.setattr(console, name, value)
    yield terminal
    monkeypatch.undo()
    terminal.close()


def attached(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the terminal behind stdout and stderr; pytest gives each phase of a test its own, so it is not for setup."""
    monkeypatch.setattr(sys, "stderr", terminal.file)
    monkeypatch.setattr(sys, "stdout", terminal.file)


def going_on() -> Iterator[Progress]:
    for number in range(1_000_000):
        yield NOTHING._replace(chunks=number, chunks_asked=1_000_000, events=100 * number, workers=3)


def line(problems: list[str]) -> LiveLine:
    steps = going_on()
    return LiveLine(lambda: next(steps), problems.append)


# What it says at the end


def test_at_the_end_rates_are_those_of_the_whole_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """All comes in the first second of a hundred: the last ones have no rate."""
    now, a_minute = [0.0], threading.Event()

    class Kept:
        def show(self, line: str) -> None:
            if now[0] < 60:
                now[0] += 1
            else:
                a_minute.set()

        def end(self, line: str) -> None:
            self.line = line

    display, done = Kept(), NOTHING._replace(chunks=4, chunks_asked=4, events=60_000, bytes=10**10)
    monkeypatch.setattr(live, "INTERVAL", 0.001)
    monkeypatch.setattr(live, "SHARE", 0.0)  # seconds of this clock are no seconds to wait
    monkeypatch.setattr(live, "display_for", lambda stream: display)
    for module in (live, progress):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    shown = LiveLine(lambda: done, print)
    shown.start()
    assert a_minute.wait(PATIENCE)
    now[0] = 100
    shown.stop()
    assert "4 of 4 chunks, 600 Hz, 800 Mbit/s, " in display.line


# Terminals


def test_the_line_has_the_lowest_row_and_leaves_the_others_alone(terminal: Terminal) -> None:
    terminal.attach()
    for number in range(20):
        print("before", number)
    print("a line that is not", end="", flush=True)
    problems: list[str] = []
    shown = line(problems)
    shown.start()
    assert wait_until(lambda: terminal.rows()[-1].startswith("roastcoffea"))
    print(" finished")
    for number in range(20):
        print("during", number)
        time.sleep(0.01)
    assert wait_until(lambda: terminal.rows()[-3:-1] == ["during 19", ""])
    assert "of 1,000,000 chunks" in terminal.rows()[-1]
    shown.stop()
    print("after")
    expected = [*(f"before {number}" for number in range(20)), "a line that is not finished"]
    expected += [*(f"during {number}" for number in range(20)), "after"]
    assert wait_until(lambda: [row for row in terminal.scrolled() if row] == expected), terminal.scrolled()
    assert problems == []
    assert terminal.screen.margins is None


def test_two_displays_stand_below_each_other(terminal: Terminal) -> None:
    terminal.attach()
    problems: list[str] = []
    several = live.LiveText(lambda *, whole=False: "roastcoffea  tasks\n  one\n  two", problems.append)
    shown = line(problems)
    several.start()
    assert wait_until(lambda: terminal.rows()[-3:] == ["roastcoffea  tasks", "  one", "  two"])
    shown.start()
    assert wait_until(lambda: "of 1,000,000 chunks" in terminal.rows()[-1])
    for number in range(20):
        print("during", number)
    assert wait_until(lambda: terminal.rows()[-5] == "during 19" or terminal.rows()[-6] == "during 19")
    assert terminal.rows()[-4:-1] == ["roastcoffea  tasks", "  one", "  two"]
    several.stop()
    assert wait_until(lambda: not any("tasks" in row for row in terminal.rows()))
    assert "of 1,000,000 chunks" in terminal.rows()[-1]
    shown.stop()
    print("after")
    expected = [*(f"during {number}" for number in range(20)), "after"]
    assert wait_until(lambda: [row for row in terminal.scrolled() if row] == expected), terminal.scrolled()
    assert problems == []
    assert terminal.screen.margins is None


def test_a_line_at_the_top_of_the_screen_stays_there(terminal: Terminal) -> None:
    terminal.attach()
    shown = line([])
    shown.start()
    assert wait_until(lambda: terminal.rows()[-1].startswith("roastcoffea"))
    print("first")
    assert wait_until(lambda: terminal.rows()[0] == "first")
    shown.stop()
    assert wait_until(lambda: terminal.rows() == ["first", *[""] * (ROWS - 1)])


def test_a_bar_of_coffea_is_as_it_is_without(terminal: Terminal) -> None:
    """The bar moves in its row, also where the screen is full, and its rows are all that is left."""
    terminal.attach()
    for number in range(ROWS):
        print("before", number)
    problems: list[str] = []
    shown = line(problems)
    shown.start()
    with rich_bar() as bar:
        task = bar.add_task("Processing", total=20, unit="chunk")
        for number in range(20):
            bar.update(task, advance=1, refresh=True)
            if number % 5 == 0:
                bar.console.print("told", number)
            time.sleep(0.01)
    shown.stop()
    print("after")
    assert wait_until(lambda: "after" in terminal.rows())
    rows = [row for row in terminal.scrolled() if row]
    told = [f"told {number}" for number in (0, 5, 10, 15)]
    assert rows[:-2] == [*(f"before {number}" for number in range(ROWS)), *told]
    assert "20/20" in rows[-2]
    assert [moment for moment in terminal.moments if sum("Processing" in row for row in moment) > 1] == []
    assert problems == []


def test_nothing_is_drawn_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    threads = threading.active_count()
    shown = line([])
    shown.start()
    assert threading.active_count() == threads
    shown.stop()
    assert stream.getvalue() == ""


def test_nothing_is_drawn_on_a_terminal_that_knows_no_rows(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal.attach()
    monkeypatch.setenv("TERM", "dumb")
    assert live.display_for(terminal.file) is None


def test_an_error_ends_the_line_and_is_noted(terminal: Terminal) -> None:
    terminal.attach()
    problems: list[str] = []
    numbers = iter([NOTHING])
    shown = LiveLine(lambda: next(numbers), problems.append)
    shown.start()
    assert wait_until(lambda: bool(problems))
    shown.stop()
    assert problems[0].startswith("the live line ended before the run")
    assert wait_until(lambda: not any("roastcoffea" in row for row in terminal.rows()))
    assert terminal.screen.margins is None


def test_a_terminal_that_takes_nothing_holds_nobody_up(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal.attach()
    release = threading.Event()

    def stuck(terminal: int, data: bytes) -> int:
        release.wait(PATIENCE)
        return len(data)

    monkeypatch.setattr(live, "os", SimpleNamespace(**{**vars(os), "write": stuck}))
    monkeypatch.setattr(live, "PATIENCE", 0.1)
    shown = line([])
    shown.start()
    began = time.monotonic()
    shown.stop()
    assert time.monotonic() - began < PATIENCE / 2  # half of what the terminal takes
    release.set()


def test_a_line_that_is_too_long_loses_whole_parts() -> None:
    line = "roastcoffea  1 of 4 chunks, 1,250 Hz, 3 workers"
    assert fitted(line, len(line)) == line
    assert fitted(line, len(line) - 1) == fitted(line, 36) == "roastcoffea  1 of 4 chunks, 1,250 Hz"
    assert fitted(line, 35) == "roastcoffea  1 of 4 chunks"
    assert fitted("  a table, of something", 8) == "  a tabl"


# Runs


@contextmanager
def gated(sample: Any, gate: Path, shown: Callable[[], bool]) -> Iterator[Gated]:
    """Processor whose last chunks wait until this was shown."""
    (*_, dataset) = sample.values()
    watching = threading.Thread(target=lambda: (wait_until(shown), gate.touch()))
    watching.start()
    yield Gated(list(dataset["files"])[-1], gate)
    watching.join()


@pytest.mark.slow
def test_a_run_on_a_cluster_with_its_bar(terminal: Terminal, client: Any, sample: Any, tmp_path: Path) -> None:
    terminal.attach()

    def told() -> list[str]:
        return [moment[-1] for moment in list(terminal.moments) if moment[-1].startswith("roastcoffea")]

    def shown() -> bool:
        estimated = any(
            "ETA " in row and "efficiency" in row and ("limited by" in row or "threads idle" in row) for row in told()
        )
        return estimated and any(" of 16 chunks" in row and "2 workers" in row for row in told())

    with MetricsCollector(client, live=True) as collector:
        executor = DaskExecutor(client=client, status=True, retries=0)
        # the cache that Runners share would make preprocessing a matter of what ran before
        runner = Runner(executor=executor, schema=NanoAODSchema, chunksize=1000, savemetrics=True, metadata_cache={})
        with gated(sample, tmp_path / "gate", shown) as processor:
            runner(sample, processor_instance=processor)
    print("after")
    assert wait_until(lambda: "after" in terminal.rows())
    assert shown(), told()
    rows = [row for row in terminal.rows() if row]
    assert [row.split()[0] for row in rows] == ["Preprocessing", "Processing", "after"]
    assert collector.measurement.problems == []
    assert collector.metrics["total_events"] == 16000


@pytest.mark.slow
def test_a_run_without_a_cluster(terminal: Terminal, sample: Any, tmp_path: Path) -> None:
    """Attempts are counted while the executor works: they come home by the folder of those that may fail.

    The last chunks wait until the terminal has shown that others are done.
    """
    terminal.attach()

    def told() -> set[int]:
        rows = [moment[-1] for moment in list(terminal.moments)]
        return {number for row in rows if " of 8 chunks" in row and 0 < (number := int(row.split()[1])) < 8}

    # the pool outlives the collector, which sees its processes however late it looks
    with ServedPool(2) as pool, MetricsCollector(live=True) as collector:
        executor = FuturesExecutor(pool=pool, status=False)
        runner = Runner(executor=executor, schema=NanoAODSchema, chunksize=2000)
        with gated(sample, tmp_path / "gate", lambda: bool(told())) as processor:
            output = runner(sample, processor_instance=processor)
    assert wait_until(lambda: not any(row.startswith("roastcoffea") for row in terminal.rows()))
    assert told()
    assert output["events"] == 16000
    assert collector.measurement.problems == []
    chunks = collector.measurement.chunks
    assert len(chunks) == 8
    assert chunks["id"].is_unique


def test_a_run_that_fails_takes_its_line_away(terminal: Terminal) -> None:
    terminal.attach()
    collector = MetricsCollector(live=True)
    with pytest.raises(ValueError, match="boom"), collector:
        assert wait_until(lambda: terminal.rows()[-1].startswith("roastcoffea"))
        raise ValueError("boom")
    assert wait_until(lambda: terminal.rows() == [""] * ROWS)
    assert terminal.screen.margins is None
    assert collector.measurement.outcome == "failed"


# Notebooks


@pytest.mark.slow
def test_a_notebook_updates_one_display(monkeypatch: pytest.MonkeyPatch) -> None:
    shell_module = pytest.importorskip("IPython.core.interactiveshell")
    # IPython warns where another environment than that of the interpreter is active
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    shell = shell_module.InteractiveShell.instance()
    try:
        published: list[dict[str, Any]] = []
        monkeypatch.setattr(shell, "kernel", SimpleNamespace(), raising=False)
        monkeypatch.setattr(shell, "display_pub", SimpleNamespace(publish=lambda **message: published.append(message)))
        monkeypatch.setattr(live, "INTERVAL", 0.02)
        with MetricsCollector(live=True) as collector:
            assert wait_until(lambda: len(published) > 3)
    finally:
        shell_module.InteractiveShell.clear_instance()
    first, *others = published
    assert not first.get("update")
    assert all(message["update"] for message in others)
    assert len({message["transient"]["display_id"] for message in published}) == 1
    assert all(message["data"]["text/plain"].startswith("roastcoffea") for message in published)
    assert collector.measurement.problems == []
