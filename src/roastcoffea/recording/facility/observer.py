"""Scheduler plugin for the live page and the metrics: totals, recent thread time."""

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
from roastcoffea.log.batches import unpacked_values
from roastcoffea.log.completeness import CLASS_OF_COLUMN, Tally
from roastcoffea.log.marks import ANNOTATION, METADATA_KEY, is_measured
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
"""Seconds of inactivity after which a client's next task starts a new run."""

BETWEEN_STEPS: Final = 600.0
"""Like `QUIET`, but between preprocessing and the first chunk of a measured Runner call."""

MOST_RUNS: Final = 20
"""Maximum number of runs to keep. Beyond this number, the oldest ended runs are dropped."""

LONGEST_NAME: Final = 60


@dataclass(eq=False)
class ObservedRun:
    """A Runner call or, if the client lacks roastcoffea, a period of activity between pauses.

    Attributes
    ----------
    collectors : tuple
        Collectors that are measuring the run; empty if the client lacks roastcoffea.
    asked, files : int
        Numbers of chunks and files that the client has submitted so far.
    pending : int
        Number of unfinished tasks.
    metered : bool
        Whether any chunk produced a record.
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
        return self.stop is not None

    @property
    def longest_pause(self) -> float:
        return BETWEEN_STEPS if self.collectors and not self.asked else QUIET

    def proceed(self, now: float, threads: tuple[int, int]) -> None:
        known = {**asdict(self.tally), "chunks_asked": self.asked, "files_asked": self.files}
        self.progress = Progress(**known, threads=threads)
        self.rates.add(now, self.progress)


class Part(NamedTuple):
    """A task's role in a run; `run` is None if the task does not belong to a run."""

    run: ObservedRun | None
    kind: str
    events: int | None = None


NO_PART: Final = Part(None, OTHER)


class Runs:
    def __init__(self) -> None:
        self.all: OrderedDict[str, ObservedRun] = OrderedDict()
        self.begun = 0
        self._coffea = CoffeaTasks()
        self._parts: dict[Any, Part] = {}
        self._of_client: dict[str, ObservedRun] = {}

    @property
    def going(self) -> list[ObservedRun]:
        return [run for run in self.all.values() if not run.ended]

    def part(self, task: Any, now: float) -> Part:
        """Return a task's role, which is determined on the first request."""
        part = self._parts.get(task.key)
        if part is None:
            part = self._parts[task.key] = self._described(task, now)
            run, kind = part.run, part.kind
            if run is not None:
                run.pending += 1
                run.last = now
                run.asked += kind == PROCESSOR
                run.files += kind == PREPROCESSING and not task.dependencies  # a merge opens no files
        return part

    def known(self, key: Any) -> Part:
        """Return an active task's role if it has already been determined."""
        return self._parts.get(key, NO_PART)

    def ended(self, key: Any, now: float) -> None:
        """Record that a task has a result or an error."""
        part = self._parts.pop(key, NO_PART)
        if part.run is not None:
            part.run.pending -= 1
            part.run.last = now

    def forgotten(self, key: Any, now: float) -> None:
        """Record that a client dropped a task. If the task is unfinished, it will never finish."""
        self._coffea.forget(key)
        part = self._parts.get(key)
        if part is not None and part.run is not None:
            part.run.asked -= part.kind == PROCESSOR
        self.ended(key, now)

    def collector_left(self, name: str, now: float) -> None:
        """End runs that only this collector was measuring, unless they have unfinished tasks."""
        for run in self.all.values():
            if name in run.collectors:
                run.collectors = tuple(other for other in run.collectors if other != name)
                if not run.collectors and not run.ended and run.pending <= 0:
                    run.stop = now

    def client_left(self, client: str, now: float) -> None:
        self._of_client.pop(client, None)
        for run in self.all.values():
            if run.client == client and not run.ended:
                run.stop = now

    def proceed(self, now: float, threads: tuple[int, int]) -> list[ObservedRun]:
        """Record the progress of all runs, and return the runs that have just ended."""
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
        """Return or create the run for a marked task: a Runner call, or a collector's work without a Runner."""
        collectors = tuple(map(str, mark["collectors"]))
        identity = str(mark.get("call") or collectors[-1])
        run = self.all.get(identity)
        if run is None or run.ended:  # an ended run is no longer recorded
            self.all.pop(identity, None)
            run = self._begin(identity, client_of(task), collectors, now)
        self._name(run, mark.get("prefix") or (task.prefix.name if kind == PROCESSOR else None))
        return run

    def _unmarked(self, task: Any, kind: str, now: float) -> ObservedRun:
        """Return or create the run for an unmarked task. A pause or a new processor starts another run."""
        client = client_of(task)
        run = self._of_client.get(client)
        processor = task.prefix.name if kind == PROCESSOR else None
        paused = run is not None and run.pending <= 0 and now - run.last > QUIET
        another = run is not None and None not in {processor, run.processor} and processor != run.processor
        if run is None or run.ended or paused or another:
            if run is not None and not run.ended and run.pending <= 0:  # an active run ends with its last task
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
    """ID of the client that wants a task or, if there is none, of the client that wants the task's dependents."""
    wanting = task.who_wants or next((other.who_wants for other in task.dependents if other.who_wants), ())
    return min((str(client.client_key) for client in wanting), default="a client that left")


def short(client: str) -> str:
    """Shorten the UUID in a client ID.

    Examples
    --------
    >>> short("Client-ttbar-5ae17017-e80c-11f1-93cd-02fc00000001")
    'Client-ttbar-5ae17017'
    """
    return re.sub(r"(-[0-9a-f]{8})(-[0-9a-f]{4,12})+$", r"\1", redacted(client))[:40]


BIN: Final = 5.0
BINS: Final = 120
"""Number of seconds in each bin, and number of bins. Together, the bins cover ten minutes."""

UNMETERED: Final = "chunks, not metered"
"""Time spent in unmetered chunks, which only the scheduler knows."""

RUNNING: Final = "not reported yet"
"""Occupied slot time not reported yet, because tasks are running or reports are in transit."""

SHOWN: Final = (*(one.name for one in TIME_CLASSES if one.name not in {*IDLE, "residual"}), UNMETERED, RUNNING, *IDLE)
ASSIGNED: Final = "assigned"
"""Row for the sampled occupied slot time."""

_ROWS: Final = {name: row for row, name in enumerate((*SHOWN, ASSIGNED))}
_IDLE: Final = [_ROWS[name] for name in IDLE]


class Timeline:
    """Thread time in seconds, by class and time bin.

    A task's thread time is spread evenly between the task's start and stop, so past bins become more accurate as tasks
    finish. Memory use is constant.
    """

    def __init__(self) -> None:
        self._seconds = np.zeros((len(_ROWS), BINS))
        self._times: list[tuple[float, float]] = []
        self._amounts: list[list[float]] = []
        self._last = 0
        """Number of the latest bin, counted from the Unix epoch."""

    def advance(self, now: float) -> None:
        """Add bins up to the current time, and then distribute pending amounts over the bins."""
        last = int(now // BIN)
        shift = min(last - self._last, BINS)
        if shift > 0:
            self._seconds[:, :-shift] = self._seconds[:, shift:].copy()
            self._seconds[:, -shift:] = 0.0
            self._last = last
        self._spread()

    def add(self, start: float, stop: float, seconds: Mapping[str, float]) -> None:
        self._times.append((start, stop))
        self._amounts.append([seconds.get(name, 0.0) for name in _ROWS])
        if len(self._times) >= 1000:
            self._spread()

    def sample(self, start: float, stop: float, assigned: float, idle: Mapping[str, float]) -> None:
        self.add(start, stop, {**idle, ASSIGNED: assigned})

    def _spread(self) -> None:
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
        """Start times of completed bins (Unix times), and the mean number of threads in each class."""
        seconds = self._seconds.copy()
        assigned = seconds[_ROWS[ASSIGNED]]
        idle = seconds[_IDLE].sum(axis=0)
        reported = seconds[: len(SHOWN)].sum(axis=0) - idle
        seconds[_ROWS[RUNNING]] = np.maximum(assigned - reported, 0.0)
        # tasks have reported this time, but a late sample counted their threads as free
        left = np.maximum(idle - np.maximum(reported - assigned, 0.0), 0.0)
        seconds[_IDLE] *= np.divide(left, idle, out=np.zeros_like(idle), where=idle > 0)
        times = (self._last - BINS + 1 + np.arange(BINS, dtype=np.float64)) * BIN
        return times[:-1], {name: seconds[row, :-1] / BIN for name in SHOWN if seconds[row := _ROWS[name]].any()}


MOST_ENDPOINTS: Final = 20
OTHERS: Final = "others"

PAYLOAD: Final = "payload or re-read"
"""Class of all payload bytes: the scheduler, unlike a measurement, cannot recognise baskets that are read again."""


class Counters:
    """Totals over all runs since the observer started.

    Attributes
    ----------
    chunks : Counter
        Number of chunks by outcome. Each chunk is counted when its result arrives.
    attempts : Counter
        Number of failed task attempts, by outcome and task kind.
    bytes : Counter
        Bytes requested, by class and endpoint.
    seconds : dict
        Thread time in seconds by class.
    capacity : float
        Available worker thread time, in seconds.
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
        """Return the endpoint's name, or "others" if there are too many endpoints."""
        if name not in self._endpoints:
            if len(self._endpoints) >= MOST_ENDPOINTS:
                return OTHERS
            self._endpoints.add(name)
        return name


@lru_cache(256)
def _endpoint(file: str | None) -> str | None:
    """A file's endpoint, cached because most files have many chunks."""
    return endpoint(file)


NAME: Final = "roastcoffea-observer"
TICK: Final = 1.0
"""Seconds between worker samples."""

READ: Final = (
    *("id", "outcome", "events", "file", "endpoint", "bytes_requested", "bytes_payload", "bytes_metadata"),
    *("wall_seconds", "cpu_seconds", "helper_cpu_seconds", *(column for column, _ in CLASS_OF_COLUMN)),
)


class Observer(SchedulerPlugin):  # type: ignore[misc]
    """Scheduler plugin that counts events and samples the workers every second.

    `when_closed` is called when the scheduler closes.

    Attributes
    ----------
    counters : Counters
        Totals since the observer started.
    runs : Runs
        Runs in progress, and the latest ended runs.
    timeline : Timeline
        Thread time in the last ten minutes.
    threads : tuple of int
        Number of worker threads, and number of those with a task.
    failures : int
        Number of errors inside the plugin.
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
        """Tokens in messages from the collectors' plugins, by plugin name."""
        self._scheduler = scheduler
        self._failing: dict[tuple[Any, int], Mapping[str, Any]] = {}
        self._counted: dict[Any, None] = {}
        self._sampled: float | None = None

    # events from the scheduler

    def transition(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
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
        """Hook for subclasses, called for each transition while the task's role is known."""

    def log_event(self, topic: str, message: Any) -> None:
        """Handle a message from a collector's worker plugin: a failed attempt or its record."""
        try:
            if topic in self.tokens and isinstance(message, dict) and message.get("token") == self.tokens[topic]:
                if "failed" in message:
                    self._failing[message["failed"], message["run_id"]] = message
                    _bound(self._failing)
                # a failed attempt's record arrives once from each collector's plugin
                for record in unpacked_values(message["chunk"], READ) if "chunk" in message else ():
                    if record.get("id") not in self._counted:
                        self._counted[record.get("id")] = None
                        _bound(self._counted)
                        self.counters.add_bytes(record, failed=True, preprocessing=False)
        except Exception as problem:  # noqa: BLE001  (distributed would swallow it: count it)
            self._failed(problem)

    def remove_client(self, scheduler: Any, client: str) -> None:
        self.runs.client_left(client, time.time())

    async def close(self) -> None:
        self.when_closed()

    # samples

    def tick(self, now: float) -> None:
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
        if not records and part.kind in {PROCESSOR, PREPROCESSING}:  # the work item contains the number of events
            self._record(part, {"outcome": OK, "events": part.events, "wall_seconds": seconds})
        for record in records:
            self._record(part, record)
        if part.kind == PROCESSOR and records:
            self._spread(start, stop, _by_phase(records, seconds))
            return
        self._spread(start, stop, {CLASS_OF_KIND.get(part.kind, UNMETERED): seconds} if seconds else {})

    def _record(self, part: Part, record: Mapping[str, Any]) -> None:
        """Count an attempt recorded by a successful task, which may have repeated failed attempts."""
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
        # prefixes of the reasons that distributed gives for tasks lost when their worker died
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
        """Count one of our own errors without raising it, and log the first error."""
        self.failures += 1
        if self.failures == 1:
            logging.getLogger(__name__).debug("roastcoffea failed to count an event", exc_info=problem)


def _computed(ending: Mapping[str, Any]) -> tuple[float, float, float]:
    """An attempt's thread time, start time and stop time; zeros if unknown."""
    for span in ending.get("startstops") or ():
        if span["action"] == "compute":
            return span["stop"] - span["start"], span["start"], span["stop"]
    return 0.0, 0.0, 0.0


def _by_phase(records: Iterable[Mapping[str, Any]], seconds: float) -> dict[str, float]:
    """Thread time by class in a chunk's task. The remaining time is overhead."""
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
    # entries are failed attempts whose task has not ended yet, or records that have been counted
    if len(entries) > 1000:
        del entries[next(iter(entries))]
