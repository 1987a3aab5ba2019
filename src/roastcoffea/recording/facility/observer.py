"""The scheduler plugin behind the live page and the Prometheus metrics.

There is one on a scheduler, however many collectors are open: a task counts once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from distributed.diagnostics.plugin import SchedulerPlugin

from roastcoffea.log.marks import METADATA_KEY
from roastcoffea.log.packing import unpacked_values
from roastcoffea.log.tally import CLASS_OF_COLUMN
from roastcoffea.metrics.phases import (
    CLASS_OF_KIND,
    CLIENT,
    FAILED,
    OVERHEAD,
    PAUSED,
    QUEUED,
    TAIL,
)
from roastcoffea.recording.facility.counters import Counters
from roastcoffea.recording.facility.runs import Part, Runs
from roastcoffea.recording.facility.timeline import UNMETERED, Timeline
from roastcoffea.records.chunks import OK, SKIPPED
from roastcoffea.records.tasks import CANCELLED, ERROR, LOST, PREPROCESSING, PROCESSOR

NAME: Final = "roastcoffea-observer"
TICK: Final = 1.0
"""Seconds between samples of the workers."""

READ: Final = (
    *("id", "outcome", "events", "file", "endpoint", "bytes_requested", "bytes_payload", "bytes_metadata"),
    *("wall_seconds", "cpu_seconds", "helper_cpu_seconds", *(column for column, _ in CLASS_OF_COLUMN)),
)
"""Columns of chunks that are counted."""

MOST_MESSAGES: Final = 1000
"""Most failed attempts remembered until their task's end arrives, and most records remembered as counted."""

LEFT: Final = (
    "handle-worker-cleanup",
    "worker-send-comm-fail",
    "send-all-comm-fail",
    "check-worker-ttl",
    "remove-worker",
)
"""Beginnings of distributed's reasons for tasks that a worker took along."""

SUBMITTED: Final = ("waiting", "queued", "no-worker", "processing")


class Observer(SchedulerPlugin):  # type: ignore[misc]
    """Counts what ends on a scheduler, and samples its workers each second.

    Parameters
    ----------
    scheduler : distributed.Scheduler
        The scheduler.
    when_closed : callable
        Called when the scheduler closes.

    Attributes
    ----------
    counters : Counters
        Totals since it began.
    runs : Runs
        Runs that go on, and the last ones that ended.
    timeline : Timeline
        Thread time of the last minutes.
    threads : tuple of int
        Threads of all workers, and how many of them have a task.
    failures : int
        Errors of its own.
    """

    name = NAME

    def __init__(self, scheduler: Any, when_closed: Callable[[], None]) -> None:
        self.began = time.time()
        self.when_closed = when_closed
        self.counters = Counters()
        self.timeline = Timeline()
        self.runs = Runs()
        self.threads = (0, 0)
        self.workers = 0
        self.paused = 0
        self.failures = 0
        self.tokens: dict[str, str] = {}
        """Mark of the messages of each collector's plugins, by their name."""
        self.listeners: list[Callable[[Any, str, str, Mapping[str, Any], float], None]] = []
        """Called with each transition, while the task's part in its run is known."""
        self._scheduler = scheduler
        self._failing: dict[tuple[Any, int], Mapping[str, Any]] = {}
        self._counted: dict[Any, None] = {}
        self._sampled: float | None = None

    # events from the scheduler

    def transition(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        """Handle a task's transition."""
        try:
            for listener in self.listeners:
                listener(key, start, finish, kwargs, time.time())
            if start == "processing":
                task = self._scheduler.tasks[key]
                self._attempt_ended(task, finish, kwargs, time.time())
            elif start == "released" and finish in SUBMITTED:
                self.runs.part(self._scheduler.tasks[key], time.time())
            elif finish == "forgotten":
                self.runs.forgotten(key, time.time())
        except Exception as problem:  # noqa: BLE001  (distributed would swallow it: count it)
            self._failed(problem)

    def log_event(self, topic: str, message: Any) -> None:
        """Handle a message of a collector's plugin on a worker: a failed attempt, or its record."""
        try:
            if topic in self.tokens and isinstance(message, dict) and message.get("token") == self.tokens[topic]:
                if "failed" in message:
                    self._failing[message["failed"], message["run_id"]] = message
                    _bound(self._failing)
                if "chunk" in message:
                    self._record_of_failed(message["chunk"])
        except Exception as problem:  # noqa: BLE001  (distributed would swallow it: count it)
            self._failed(problem)

    def remove_client(self, scheduler: Any, client: str) -> None:
        """Handle a client that left."""
        self.runs.client_left(client, time.time())

    async def close(self) -> None:
        """Leave a scheduler that closes."""
        self.when_closed()

    # samples

    def tick(self, now: float) -> None:
        """Sample the workers, and note how far the runs have come."""
        try:
            self._sample(now)
        except Exception as problem:  # noqa: BLE001  (the ticker must go on)
            self._failed(problem)

    # implementation

    def _sample(self, now: float) -> None:
        free, assigned, total, paused, self.paused = 0, 0, 0, 0, 0
        for worker in self._scheduler.workers.values():
            threads, tasks = worker.nthreads, len(worker.processing)
            total += threads
            taken = min(threads, tasks)
            assigned += taken
            if worker.status.name == "paused":
                self.paused += 1
                paused += threads - taken
            else:
                free += threads - taken
        self.workers, self.threads = len(self._scheduler.workers), (total, assigned)
        since = now if self._sampled is None else min(self._sampled, now)
        self._sampled = now
        waiting = len(self._scheduler.queued) + len(self._scheduler.unrunnable)
        queued = min(free, waiting)
        idle = {PAUSED: paused, QUEUED: queued, TAIL if assigned else CLIENT: free - queued}
        seconds = {name: (now - since) * number for name, number in idle.items() if number}
        self.timeline.advance(now)
        self.timeline.sample(since, now, (now - since) * assigned, seconds)
        for name, amount in seconds.items():
            self.counters.seconds[name] += amount
        self.counters.capacity += (now - since) * total
        self.runs.proceed(now, self.threads)

    def _attempt_ended(self, task: Any, state: str, ending: Mapping[str, Any], now: float) -> None:
        part = self.runs.part(task, now)
        failed = self._failing.pop((task.key, task.run_id), None)
        outcome = OK if state == "memory" and failed is None else self._outcome(state, ending, failed)
        seconds, start, stop = _computed(failed or ending)
        if outcome == OK:
            self._succeeded(part, ending, (start, stop, seconds))
        else:
            self.counters.attempts[outcome, part.kind] += 1
            self._spread(start, stop, {FAILED: seconds} if seconds else {})
            if part.run is not None and part.kind == PROCESSOR:
                part.run.tally.failed += 1
                part.run.tally.failed_seconds += seconds
                part.run.tally.wall_seconds += seconds
                part.run.tally.wall_squares += seconds * seconds
        if state in {"memory", "erred"}:
            self.runs.ended(task.key, now)

    def _succeeded(self, part: Part, ending: Mapping[str, Any], time_of: tuple[float, float, float]) -> None:
        start, stop, seconds = time_of
        packed = (ending.get("metadata") or {}).get(METADATA_KEY)
        records = unpacked_values(packed, READ) if isinstance(packed, bytes) else []
        for record in records:
            self._record(part, record)
        if part.kind == PROCESSOR and records:
            self._spread(start, stop, _by_phase(records, seconds))
            return
        if part.kind == PROCESSOR:
            self._unmetered(part, seconds)
        elif part.kind == PREPROCESSING and part.run is not None and not records:
            part.run.tally.files += 1
        self._spread(start, stop, {CLASS_OF_KIND.get(part.kind, UNMETERED): seconds} if seconds else {})

    def _record(self, part: Part, record: Mapping[str, Any]) -> None:
        """Count the record of an attempt inside a task with a result: one that failed was repeated."""
        gave = record.get("outcome") not in {ERROR, SKIPPED}
        preprocessing = part.kind == PREPROCESSING
        self.counters.add_bytes(record, failed=not gave, preprocessing=preprocessing)
        if not gave:
            self.counters.attempts[ERROR, part.kind] += 1
        if not preprocessing and record.get("outcome") != ERROR:
            self.counters.chunks[str(record.get("outcome"))] += 1
            self.counters.events += (record.get("events") or 0) if gave else 0
        if part.run is not None:
            part.run.metered |= not preprocessing
            part.run.tally.add(record, preprocessing=preprocessing)

    def _unmetered(self, part: Part, seconds: float) -> None:
        """Count a chunk that left no record; its item tells its events."""
        self.counters.chunks[OK] += 1
        self.counters.events += part.events or 0
        if part.run is not None:
            tally = part.run.tally
            tally.chunks += 1
            tally.events += part.events or 0
            tally.wall_seconds += seconds
            tally.wall_squares += seconds * seconds

    def _record_of_failed(self, packed: bytes) -> None:
        """Count the bytes of a failed attempt; each collector's plugin receives its record."""
        for record in unpacked_values(packed, READ):
            if record.get("id") not in self._counted:
                self._counted[record.get("id")] = None
                _bound(self._counted)
                self.counters.add_bytes(record, failed=True, preprocessing=False)

    def _spread(self, start: float, stop: float, seconds: Mapping[str, float]) -> None:
        for name, amount in seconds.items():
            self.counters.seconds[name] += amount
        if seconds and stop > start:
            self.timeline.add(start, stop, seconds)

    def _outcome(self, state: str, ending: Mapping[str, Any], failed: Mapping[str, Any] | None) -> str:
        if failed is not None or state == "erred" or str(ending.get("stimulus_id")).startswith("task-erred"):
            return ERROR
        return LOST if str(ending.get("stimulus_id")).startswith(LEFT) else CANCELLED

    def _failed(self, problem: Exception) -> None:
        """Count an error of our own, which must not reach the scheduler; the first one is logged."""
        self.failures += 1
        if self.failures == 1:
            logging.getLogger(__name__).debug("roastcoffea failed to count what ended", exc_info=problem)


def _computed(ending: Mapping[str, Any]) -> tuple[float, float, float]:
    """Seconds on its thread, start and stop of an attempt; zeros where nobody knows."""
    for span in ending.get("startstops") or ():
        if span["action"] == "compute":
            return span["stop"] - span["start"], span["start"], span["stop"]
    return 0.0, 0.0, 0.0


def _by_phase(records: Iterable[Mapping[str, Any]], seconds: float) -> dict[str, float]:
    """Thread time by class of a task that processed a chunk; what no phase has is the task's overhead."""
    found: dict[str, float] = {}
    for record in records:
        if record.get("outcome") in {ERROR, SKIPPED}:
            found[FAILED] = found.get(FAILED, 0.0) + (record.get("wall_seconds") or 0.0)
            continue
        for column, time_class in CLASS_OF_COLUMN:
            amount = record.get(column)
            if amount:
                found[time_class] = found.get(time_class, 0.0) + amount
    rest = seconds - sum(found.values())
    if rest > 0:
        found[OVERHEAD] = found.get(OVERHEAD, 0.0) + rest
    return found


def _bound(entries: dict[Any, Any]) -> None:
    """Forget the oldest entry where there are too many."""
    if len(entries) > MOST_MESSAGES:
        del entries[next(iter(entries))]
