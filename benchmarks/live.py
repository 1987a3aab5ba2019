"""What the live view costs a scheduler of many workers: CPU of its callbacks in a simulated minute.

Stand-ins for workers have one chunk after the other on each thread; every callback that distributed makes, and every
sample of the workers, is timed by the thread's CPU clock. With a viewer, a document of Bokeh is refreshed as often as
a browser asks for it, and its changes are packed as they are sent.
"""

from __future__ import annotations

import argparse
import heapq
import sys
import time
import tracemalloc
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any, Final

from bokeh.document import Document

from roastcoffea.log.marks import ANNOTATION, METADATA_KEY
from roastcoffea.recording.facility import observer as observers
from roastcoffea.recording.facility.observer import Observer
from roastcoffea.recording.facility.page import REFRESH, View

sys.path.append(str(Path(__file__).parents[1] / "tests"))
sys.path.append(str(Path(__file__).parent))
from scheduler import BEGINNING, Clock, chunk_record
from stand_ins import Scheduler, Task

MOST_ALONE: Final = 0.6
MOST_WITH_VIEWER: Final = 3.0
"""Seconds of CPU that a simulated minute may take."""

MARK: Final = {ANNOTATION: {"collectors": ["c"], "step": "processing", "prefix": "DijetProcessor", "call": "1"}}


class Minute:
    """A scheduler whose threads are all busy, and an observer of it; the clock is the run's."""

    def __init__(self, workers: int, chunk_seconds: float) -> None:
        self.clock = observers.time = Clock()
        self.scheduler: Any = Scheduler(workers)
        self.scheduler.queued = self.scheduler.unrunnable = ()
        self.observer = Observer(self.scheduler, lambda: None)
        self.cpu = 0.0
        self.ended = 0
        self._second = 0
        self._chunk_seconds = chunk_seconds
        self._numbers = count()
        self._ends: list[tuple[float, int, Any]] = []
        for worker in self.scheduler.workers.values():
            for thread in range(worker.nthreads):
                self._begin(worker, -chunk_seconds * (thread + 1) / (worker.nthreads + 1))

    def run(self, seconds: int, look: Callable[[], None] = lambda: None) -> None:
        """Let so much time pass."""
        for second in range(self._second, self._second + seconds):
            while self._ends[0][0] < second + 1:
                moment, _, task = heapq.heappop(self._ends)
                self._end(moment, task)
                self._begin(task.worker, moment)
            self.clock.now = BEGINNING + second + 1
            self._timed(lambda: self.observer.tick(self.clock.now))
            if second % (REFRESH // 1000) == 0:
                self._timed(look)
        self._second += seconds

    def _begin(self, worker: Any, moment: float) -> None:
        number = next(self._numbers)
        length = self._chunk_seconds * (0.5 + (number * 0.618) % 1)
        task = Task(key=f"DijetProcessor-{number:032x}", worker=worker, run_id=number, annotations=MARK, client="c-1")
        task.start, task.stop = BEGINNING + moment, BEGINNING + moment + length
        record = chunk_record(number, moment, moment + length, worker.address)
        task.metadata = {METADATA_KEY: record}
        self.clock.now = BEGINNING + moment
        self.scheduler.tasks[task.key] = task
        self._timed(lambda: self.observer.transition(task.key, "released", "waiting", stimulus_id="update-graph-1"))
        self._timed(lambda: self.observer.transition(task.key, "waiting", "processing", stimulus_id="update-graph-1"))
        worker.processing[task.key] = None
        heapq.heappush(self._ends, (moment + length, number, task))

    def _end(self, moment: float, task: Any) -> None:
        self.clock.now = BEGINNING + moment
        reasons = {"stimulus_id": "task-finished-1", **task.told()}
        self._timed(lambda: self.observer.transition(task.key, "processing", "memory", **reasons))
        self._timed(lambda: self.observer.transition(task.key, "memory", "released", stimulus_id="client-releases-1"))
        self._timed(lambda: self.observer.transition(task.key, "released", "forgotten", stimulus_id="client-1"))
        del task.worker.processing[task.key], self.scheduler.tasks[task.key]
        self.ended += 1

    def _timed(self, work: Callable[[], None]) -> None:
        began = time.thread_time()
        work()
        self.cpu += time.thread_time() - began


class Receiver:
    """What takes the changes of a document, as a session of a browser does."""

    def __init__(self, events: list[Any]) -> None:
        self._events = events

    def _document_patched(self, event: Any) -> None:
        self._events.append(event)


def viewer(minute: Minute) -> Callable[[], None]:
    """A document that shows the observer, as for a browser: its changes are packed."""
    from bokeh.protocol import Protocol

    document, view = Document(), View(minute.observer)
    for root in view.roots:
        document.add_root(root)
    events: list[Any] = []
    document.on_change_dispatch_to(Receiver(events))

    def look() -> None:
        events.clear()
        view.refresh()
        if events:
            message = Protocol().create("PATCH-DOC", events)
            assert message.content_json

    return look


def main() -> None:
    """Print what a minute takes, with and without a viewer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=1000, help="with four threads each (default 1000)")
    parser.add_argument("--chunk-seconds", type=float, default=30.0, help="of a chunk in the mean (default 30)")
    parser.add_argument("--seconds", type=int, default=60, help="simulated (default 60)")
    options = parser.parse_args()
    missed = False
    for name, most, viewed in (("without a viewer", MOST_ALONE, False), ("with a viewer", MOST_WITH_VIEWER, True)):
        minute = Minute(options.workers, options.chunk_seconds)
        minute.cpu = 0.0
        minute.run(options.seconds, viewer(minute) if viewed else lambda: None)
        assert (minute.observer.failures, minute.observer.counters.chunks["ok"]) == (0, minute.ended)
        kept = minute.cpu < most * options.seconds / 60
        missed |= not kept
        print(
            f"{name}: {minute.cpu:.2f} s CPU in {options.seconds} s with {options.workers} workers, {minute.ended:,} "
            f"chunks, {1e6 * minute.cpu / minute.ended:.0f} us each (below {most:g} s: {'kept' if kept else 'MISSED'})"
        )
    tracemalloc.start()
    minute = Minute(options.workers, options.chunk_seconds)
    minute.run(options.seconds)
    before = tracemalloc.get_traced_memory()[0]
    minute.run(options.seconds)
    grown = tracemalloc.get_traced_memory()[0] - before
    print(f"memory after another {options.seconds} s: {grown / 1e3:+.0f} kB")
    sys.exit(missed)


if __name__ == "__main__":
    main()
