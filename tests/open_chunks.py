"""Chunks that are open, a clock that stands still, and what their sections found."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

from roastcoffea import track_time
from roastcoffea.instrument.track import OpenChunk


class Clock:
    """Stands for `time`: wall and CPU time go on when they are told to."""

    def __init__(self) -> None:
        self.wall = self.cpu = 0.0

    def perf_counter(self) -> float:
        return self.wall

    def thread_time(self) -> float:
        return self.cpu

    def go(self, wall: float, cpu: float = 0.0) -> None:
        self.wall += wall
        self.cpu += cpu


def by_name(chunk: OpenChunk) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in chunk.sections.rows()}


def column(chunk: OpenChunk, name: str) -> dict[str, Any]:
    """One column of the rows, by section."""
    return {row["name"]: row[name] for row in chunk.sections.rows()}


def in_thread(function: Callable[[], Any]) -> None:
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


def read_on() -> Iterator[int]:
    """A generator with a section in it."""
    with track_time("generator"):
        yield 1
        yield 2
