"""The scheduler plugin behind the live page and Prometheus: totals, and thread time by class over the last minutes."""

from __future__ import annotations

import logging
import re
import time
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from distributed.diagnostics.plugin import SchedulerPlugin

from roastcoffea.backends.attempts import CoffeaTasks, kind_of
from roastcoffea.log.completeness import CLASS_OF_COLUMN, Tally
from roastcoffea.log.marks import ANNOTATION, METADATA_KEY, is_measured
from roastcoffea.log.packing import unpacked_values
from roastcoffea.metrics.endpoints import endpoint
from roastcoffea.metrics.phases import (
    CLASS_OF_KIND,
    CLIENT,
    FAILED,
    IDLE,
    METADATA,
    OVERHEAD,
    PAUSED,
    QUEUED,
    RESIDUAL,
    TAIL,
    TIME_CLASSES,
)
from roastcoffea.metrics.phases import PREPROCESSING as PREPROCESSING_CLASS
from roastcoffea.records.chunks import OK, SKIPPED
from roastcoffea.records.workers import CANCELLED, ERROR, KINDS, LOST, OTHER, PREPROCESSING, PROCESSOR
from roastcoffea.redaction import redacted
from roastcoffea.report.live import Progress, Rates

QUIET: Final = 30.0
"""Seconds without any task after which the next one of the same client begins another run."""

BETWEEN_STEPS: Final = 600.0
"""The same between preprocessing and the first chunk of a Runner call that a collector measures."""

MOST_RUNS: Final = 20
"""Most runs kept, as the page shows no more; those that ended first are forgotten first."""

LONGEST_NAME: Final = 60


@dataclass(eq=False)
class ObservedRun:
    """A run so far: a Runner call of a client with roastcoffea, or what a client without it does between two pauses.

    Attributes
    ----------
    collectors : tuple
        Collectors that measure it; none for a client without roastcoffea.
    asked, files : int
        Chunks and files that the client submitted so far.
    pending : int
        Its tasks without an end.
    metered : bool
        Whether any chunk left a record.
    """

    name: str
    client: str
    start: float
    collectors: tuple[str, ...]
    rates: Rates
    tally: Tally = field(default_factory=Tally)
    asked: int = 0
    files: int = 0
    pending: int = 0
    last: float = 0.0
    stop: float | None = None
    metered: bool = False
    processor: str | None = None
    progress: Progress = field(default_factory=Progress)

    @property
    def ended(self) -> bool:
        """Whether nothing more of it is expected."""
        return self.stop is not None

    @property
    def longest_pause(self) -> float:
        """Seconds without any task after which it has ended."""
        return BETWEEN_STEPS if self.collectors and not self.asked else QUIET

    def proceed(self, now: float, threads: tuple[int, int]) -> None:
        """Note how far it has come."""
        known = {**asdict(self.tally), "chunks_asked": self.asked, "files_asked": self.files}
        self.progress = Progress(**known, threads=threads)
        self.rates.add(now, self.progress)


class Part(NamedTuple):
    """What a task does for a run; none for tasks of no run."""

    run: ObservedRun | None
    kind: str
    events: int | None = None


NO_PART: Final = Part(None, OTHER)


class Runs:
    """Runs of all clients of a scheduler, and the part that each active task has in one."""

    def __init__(self) -> None:
        self.all: OrderedDict[str, ObservedRun] = OrderedDict()
        self.begun = 0
        self._coffea = CoffeaTasks()
        self._parts: dict[Any, Part] = {}
        self._of_client: dict[str, ObservedRun] = {}

    @property
    def going(self) -> list[ObservedRun]:
        """Runs that have not ended."""
        return [run for run in self.all.values() if not run.ended]

    def part(self, task: Any, now: float) -> Part:
        """The part of a task; it becomes known when it is first asked for."""
        part = self._parts.get(task.key)
        if part is None:
            part = self._parts[task.key] = self._described(task, now)
            run, kind = part.run, part.kind
            if run is not None:
                run.pending += 1
                run.last = now
                run.asked += kind == PROCESSOR
                run.files += kind == PREPROCESSING and not task.dependencies  # a merge opens no file
        return part

    def known(self, key: Any) -> Part:
        """The part of an active task, if it was asked for before."""
        return self._parts.get(key, NO_PART)

    def ended(self, key: Any, now: float) -> None:
        """Note that a task has a result, or an error."""
        part = self._parts.pop(key, NO_PART)
        if part.run is not None:
            part.run.pending -= 1
            part.run.last = now

    def forgotten(self, key: Any, now: float) -> None:
        """Note that a task was dropped by its client; one without an end will never have any."""
        self._coffea.forget(key)
        part = self._parts.get(key)
        if part is not None and part.run is not None:
            part.run.asked -= part.kind == PROCESSOR
        self.ended(key, now)

    def collector_left(self, name: str, now: float) -> None:
        """End the runs that only this collector measured; one with tasks goes on, as its client may be stopped."""
        for run in self.all.values():
            if name in run.collectors:
                run.collectors = tuple(other for other in run.collectors if other != name)
                if not run.collectors and not run.ended and run.pending <= 0:
                    run.stop = now

    def client_left(self, client: str, now: float) -> None:
        """End the runs of a client."""
        self._of_client.pop(client, None)
        for run in self.all.values():
            if run.client == client and not run.ended:
                run.stop = now

    def proceed(self, now: float, threads: tuple[int, int]) -> list[ObservedRun]:
        """Note how far all have come; those that ended now are returned."""
        over = []
        for run in self.going:
            run.proceed(now, threads)
            if run.pending <= 0 and now - run.last > run.longest_pause:
                run.stop = run.last
                over.append(run)
        ended = [identity for identity, run in self.all.items() if run.ended]
        for identity in ended[: max(len(self.all) - MOST_RUNS, 0)]:
            del self.all[identity]
        return over

    def _described(self, task: Any, now: float) -> Part:
        mark = (task.annotations or {}).get(ANNOTATION)
        if isinstance(mark, Mapping) and mark.get("collectors"):
            kind = kind_of(task, mark)
            if kind == OTHER and is_measured(task):
                kind = PROCESSOR
            return Part(self._marked(task, mark, kind, now), kind)
        code, *of_chunk = self._coffea.described(task) or (None,)
        if code is None:
            return NO_PART
        kind = KINDS[code]
        run = self._unmarked(task, kind, now)
        return Part(run, kind, of_chunk[4] - of_chunk[3] if of_chunk else None)

    def _marked(self, task: Any, mark: Mapping[str, Any], kind: str, now: float) -> ObservedRun:
        """The Runner call of a client with roastcoffea, or all that its collector measures without a Runner."""
        collectors = tuple(map(str, mark["collectors"]))
        identity = str(mark.get("call") or collectors[-1])
        run = self.all.get(identity)
        if run is None or run.ended:  # one that ended is not recorded any more
            self.all.pop(identity, None)
            run = self._begin(identity, client_of(task), collectors, now)
        self._name(run, mark.get("prefix") or (task.prefix.name if kind == PROCESSOR else None))
        return run

    def _unmarked(self, task: Any, kind: str, now: float) -> ObservedRun:
        """The run of a client without roastcoffea: another one begins after a pause, or with another processor."""
        client = client_of(task)
        run = self._of_client.get(client)
        processor = task.prefix.name if kind == PROCESSOR else None
        paused = run is not None and run.pending <= 0 and now - run.last > QUIET
        another = run is not None and None not in {processor, run.processor} and processor != run.processor
        if run is None or run.ended or paused or another:
            if run is not None and not run.ended and run.pending <= 0:  # else it ends with its tasks
                run.stop = run.last
            run = self._of_client[client] = self._begin(f"{client} {self.begun + 1}", client, (), now)
        self._name(run, processor)
        return run

    def _begin(self, identity: str, client: str, collectors: tuple[str, ...], now: float) -> ObservedRun:
        self.begun += 1
        run = ObservedRun("preprocessing", client, now, collectors, Rates(now), last=now)
        self.all[identity] = run
        return run

    def _name(self, run: ObservedRun, processor: str | None) -> None:
        if processor is not None and run.processor is None:
            run.processor = processor
            run.name = redacted(str(processor))[:LONGEST_NAME]


def client_of(task: Any) -> str:
    """Identity of the client that submitted a task; of one that nobody wants itself, of the tasks that need it."""
    wanting = task.who_wants or next((other.who_wants for other in task.dependents if other.who_wants), ())
    return min((str(client.client_key) for client in wanting), default="a client that left")


def short(client: str) -> str:
    """Identity of a client without the end of its UUID.

    Examples
    --------
    >>> short("Client-ttbar-5ae17017-e80c-11f1-93cd-02fc00000001")
    'Client-ttbar-5ae17017'
    """
    return re.sub(r"(-[0-9a-f]{8})(-[0-9a-f]{4,12})+$", r"\1", redacted(client))[:40]


BIN: Final = 5.0
BINS: Final = 120
"""Seconds in a bin, and bins that are kept: ten minutes."""

UNMETERED: Final = "chunks, not metered"
"""Time of chunks of which only the scheduler knows."""

RUNNING: Final = "not reported yet"
"""Time of slots with a task, less what tasks that ended have reported: they run, or are in transit."""

SHOWN: Final = (*(one.name for one in TIME_CLASSES if one.name not in {*IDLE, "residual"}), UNMETERED, RUNNING, *IDLE)
ASSIGNED: Final = "assigned"
"""Row of the time of slots with a task, as sampled."""

_ROWS: Final = {name: row for row, name in enumerate((*SHOWN, ASSIGNED))}
_IDLE: Final = [_ROWS[name] for name in IDLE]


class Timeline:
    """Thread seconds by class and bin.

    A task's seconds are spread over the time between its start and stop, so that past bins become more exact as tasks
    end. Memory does not grow.
    """

    def __init__(self) -> None:
        self._seconds = np.zeros((len(_ROWS), BINS))
        self._times: list[tuple[float, float]] = []
        self._amounts: list[list[float]] = []
        self._last = 0
        """Number of the latest bin, in bins since 1970."""

    def advance(self, now: float) -> None:
        """Make room for bins until now, and put what was added into the bins."""
        last = int(now // BIN)
        shift = min(last - self._last, BINS)
        if shift > 0:
            self._seconds[:, :-shift] = self._seconds[:, shift:].copy()
            self._seconds[:, -shift:] = 0.0
            self._last = last
        self._spread()

    def add(self, start: float, stop: float, seconds: Mapping[str, float]) -> None:
        """Spread the seconds of an attempt over its time."""
        self._times.append((start, stop))
        self._amounts.append([seconds.get(name, 0.0) for name in _ROWS])
        if len(self._times) >= 1000:
            self._spread()

    def sample(self, start: float, stop: float, assigned: float, idle: Mapping[str, float]) -> None:
        """Spread the seconds of slots with a task, and of free ones by reason, over the time since the last sample."""
        self.add(start, stop, {**idle, ASSIGNED: assigned})

    def _spread(self) -> None:
        """Put the waiting amounts into bins, all at once: in parts by how long each time is within each bin."""
        if not self._times:
            return
        start, stop = np.array(self._times).T[:, :, np.newaxis]
        edges = (self._last - BINS + 1 + np.arange(BINS + 1)) * BIN
        stop = np.minimum(stop, edges[-1])
        within = np.minimum(stop, edges[1:]) - np.maximum(start, edges[:-1])
        lengths = np.maximum(stop - start, 1e-9)
        self._seconds += np.array(self._amounts).T @ (np.maximum(within, 0.0) / lengths)
        self._times.clear()
        self._amounts.clear()

    def threads(self) -> tuple[npt.NDArray[np.float64], dict[str, npt.NDArray[np.float64]]]:
        """Beginnings of the bins that are over (Unix seconds), and the mean number of threads in each class."""
        seconds = self._seconds.copy()
        assigned = seconds[_ROWS[ASSIGNED]]
        idle = seconds[_IDLE].sum(axis=0)
        reported = seconds[: len(SHOWN)].sum(axis=0) - idle
        seconds[_ROWS[RUNNING]] = np.maximum(assigned - reported, 0.0)
        # tasks report what they took; a late sample took their threads for free ones
        left = np.maximum(idle - np.maximum(reported - assigned, 0.0), 0.0)
        seconds[_IDLE] *= np.divide(left, idle, out=np.zeros_like(idle), where=idle > 0)
        times = (self._last - BINS + 1 + np.arange(BINS, dtype=np.float64)) * BIN
        return times[:-1], {name: seconds[row, :-1] / BIN for name in SHOWN if seconds[row := _ROWS[name]].any()}


MOST_ENDPOINTS: Final = 20
OTHERS: Final = "others"
"""Endpoint of the bytes from all endpoints beyond the first ones."""

PAYLOAD: Final = "payload or re-read"
"""The scheduler does not know which basket has been read before: that is for the measurement to tell."""


class Counters:
    """Totals of all runs, which only grow.

    Attributes
    ----------
    chunks : Counter
        Chunks by outcome, each counted once its result is there.
    attempts : Counter
        Failed attempts of tasks, by outcome and kind of task.
    bytes : Counter
        Requested bytes by class and endpoint.
    seconds : dict
        Thread time by class, in seconds.
    capacity : float
        Threads of all workers x time, in seconds.
    """

    def __init__(self) -> None:
        self.chunks: Counter[str] = Counter()
        self.events = 0
        self.attempts: Counter[tuple[str, str]] = Counter()
        self.bytes: Counter[tuple[str, str]] = Counter()
        self.seconds: dict[str, float] = defaultdict(float)
        self.capacity = 0.0
        self._endpoints: set[str] = set()

    def add_bytes(self, record: Mapping[str, Any], *, failed: bool, preprocessing: bool) -> None:
        """Count the requested bytes of an attempt, where it has measured them."""
        requested = record.get("bytes_requested")
        if requested is None:
            return
        where = self._known(record.get("endpoint") or _endpoint(record.get("file")) or OTHERS)
        if failed or preprocessing:
            self.bytes[FAILED if failed else PREPROCESSING_CLASS, where] += requested
            return
        payload, metadata = record.get("bytes_payload") or 0, record.get("bytes_metadata") or 0
        for name, size in ((PAYLOAD, payload), (METADATA, metadata), (RESIDUAL, requested - payload - metadata)):
            if size > 0:
                self.bytes[name, where] += size

    def _known(self, name: str) -> str:
        """The endpoint, or "others" once there are too many."""
        if name not in self._endpoints:
            if len(self._endpoints) >= MOST_ENDPOINTS:
                return OTHERS
            self._endpoints.add(name)
        return name


@lru_cache(256)
def _endpoint(file: str | None) -> str | None:
    """Endpoint of a file, remembered because a file usually has many chunks."""
    return endpoint(file)


NAME: Final = "roastcoffea-observer"
TICK: Final = 1.0
"""Seconds between samples of the workers."""

READ: Final = (
    *("id", "outcome", "events", "file", "endpoint", "bytes_requested", "bytes_payload", "bytes_metadata"),
    *("wall_seconds", "cpu_seconds", "helper_cpu_seconds", *(column for column, _ in CLASS_OF_COLUMN)),
)
"""Columns of chunks that are counted."""


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
        self._scheduler = scheduler
        self._failing: dict[tuple[Any, int], Mapping[str, Any]] = {}
        self._counted: dict[Any, None] = {}
        self._sampled: float | None = None

    # events from the scheduler

    def transition(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        """Handle a task's transition."""
        try:
            self.moved(key, start, finish, kwargs, time.time())
            if start == "processing":
                task = self._scheduler.tasks[key]
                self._attempt_ended(task, finish, kwargs, time.time())
            elif start == "released" and finish in ("waiting", "queued", "no-worker", "processing"):
                self.runs.part(self._scheduler.tasks[key], time.time())
            elif finish == "forgotten":
                self.runs.forgotten(key, time.time())
        except Exception as problem:  # noqa: BLE001  (distributed would swallow it: count it)
            self._failed(problem)

    def moved(self, key: Any, start: str, finish: str, reasons: Mapping[str, Any], now: float) -> None:
        """Handle a transition while the task's part in its run is known, in addition to counting."""

    def log_event(self, topic: str, message: Any) -> None:
        """Handle a message of a collector's plugin on a worker: a failed attempt, or its record."""
        try:
            if topic in self.tokens and isinstance(message, dict) and message.get("token") == self.tokens[topic]:
                if "failed" in message:
                    self._failing[message["failed"], message["run_id"]] = message
                    _bound(self._failing)
                # each collector's plugin receives the record of a failed attempt
                for record in unpacked_values(message["chunk"], READ) if "chunk" in message else ():
                    if record.get("id") not in self._counted:
                        self._counted[record.get("id")] = None
                        _bound(self._counted)
                        self.counters.add_bytes(record, failed=True, preprocessing=False)
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
                part.run.tally.add({"outcome": outcome, "wall_seconds": seconds}, preprocessing=False)
        if state in {"memory", "erred"}:
            self.runs.ended(task.key, now)

    def _succeeded(self, part: Part, ending: Mapping[str, Any], time_of: tuple[float, float, float]) -> None:
        start, stop, seconds = time_of
        packed = (ending.get("metadata") or {}).get(METADATA_KEY)
        records = unpacked_values(packed, READ) if isinstance(packed, bytes) else []
        if part.run is not None and part.kind != PREPROCESSING:
            part.run.metered |= bool(records)
        if not records and part.kind in {PROCESSOR, PREPROCESSING}:  # its item tells its events
            self._record(part, {"outcome": OK, "events": part.events, "wall_seconds": seconds})
        for record in records:
            self._record(part, record)
        if part.kind == PROCESSOR and records:
            self._spread(start, stop, _by_phase(records, seconds))
            return
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
            part.run.tally.add(record, preprocessing=preprocessing)

    def _spread(self, start: float, stop: float, seconds: Mapping[str, float]) -> None:
        for name, amount in seconds.items():
            self.counters.seconds[name] += amount
        if seconds and stop > start:
            self.timeline.add(start, stop, seconds)

    def _outcome(self, state: str, ending: Mapping[str, Any], failed: Mapping[str, Any] | None) -> str:
        if failed is not None or state == "erred" or str(ending.get("stimulus_id")).startswith("task-erred"):
            return ERROR
        # beginnings of distributed's reasons for tasks that a worker took along
        return (
            LOST
            if str(ending.get("stimulus_id")).startswith(
                (
                    "handle-worker-cleanup",
                    "worker-send-comm-fail",
                    "send-all-comm-fail",
                    "check-worker-ttl",
                    "remove-worker",
                )
            )
            else CANCELLED
        )

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
    # most failed attempts remembered until their task's end arrives, and most records remembered as counted
    if len(entries) > 1000:
        del entries[next(iter(entries))]
