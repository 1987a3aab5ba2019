"""The scheduler's half of a collector: a plugin that writes what it sees into a bounded log, for the client to drain.

This module may be pickled by value. It uses the standard library, `records` and distributed, and no module of ours by
its name.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import math
import struct
import time
import zlib
from collections import deque
from collections.abc import Coroutine, Iterable, Mapping
from typing import Any, NamedTuple

from distributed.diagnostics.plugin import SchedulerPlugin

from roastcoffea.backends.worker import BEGUN, PUSH_SECONDS, clear_metadata, importable_package, unmark
from roastcoffea.log.wire import (
    ANNOTATION,
    ARRIVAL,
    ARRIVAL_FIELDS,
    CHUNK,
    COUNTED,
    COUNTED_FIELDS,
    DEPARTURE,
    DEPARTURE_FIELDS,
    HEADER,
    METADATA_KEY,
    NO_SIZE,
    NO_STRING,
    NO_TIME,
    PAUSE,
    PAUSE_FIELDS,
    PROBLEM,
    PROCESS_CPU,
    PROCESS_CPU_FIELDS,
    SAMPLE,
    SAMPLE_FIELDS,
    STATE,
    STRING,
    TASK,
    TASK_ERROR,
    TASK_FIELDS,
    VIEWS,
    packing,
)
from roastcoffea.records.tasks import (
    CANCELLED,
    ERROR,
    KINDS,
    LOST,
    MERGE,
    MERGE_PREFIX,
    OK,
    OTHER,
    OUTCOMES,
    PREPROCESSING,
    PROCESSOR,
    UNFINISHED,
)
from roastcoffea.redaction import redacted_beginning

LOG_CAP = 64_000_000
"""Bytes that the log may hold on the scheduler; beyond it rows are dropped and counted."""

BLOCK = 256_000
CLIENT_GRACE = 2.0
"""Seconds in which a client that lost its connection may come back."""

LONGEST_SILENCE = 120.0
"""Seconds without a drain after which the plugin believes that nobody will come."""

LAST_WORD = 2.0
"""Seconds that leaving waits for what a worker that was retired has still to tell."""

LOST_AFTER = 30.0
"""Seconds after its departure in which a worker that was retired may still send its last message."""

LATEST_EVENT = 2.0
"""Seconds after which no event of a worker comes whose plugin has gone."""

LONGEST_TEXT = 2000
MOST_STOLEN = 255
MOST_EXECUTING = 65_535
UNKNOWN_TIMES = (math.nan,) * 4
MOST_PROBLEMS = 20
"""Different problems that are listed; the rest is counted."""

MOST_TEXTS = 10_000
"""Texts whose number is kept; beyond that numbering begins afresh, and a text may get a second number."""

MOST_FAILURES = 1000
"""Failures of attempts that wait for the end of their task, which follows at once."""

SWEEP = 1000
"""Tasks that are cleared of our marks in one go: that holds the scheduler for less than a millisecond."""

# what else the log has is small, and rows need it
TABLE_OF = {
    TASK: "tasks",
    TASK_ERROR: "errors of tasks",
    CHUNK: "chunks",
    SAMPLE: "samples",
    STATE: "states of tasks",
    VIEWS: "batches of workers' views of tasks",
    COUNTED: "counts of workers that left",
}


PAUSED = "paused"
"""Status of a worker that has too little memory left to begin tasks, or to fetch their inputs."""

UNASSIGNED = ("queued", "no-worker")
"""States of a task that could run, and has no worker."""


class Assignment(NamedTuple):
    """A worker that got a task; since when the task could run, when it was given away (this clock), and its kind.

    `stolen` is how often it was moved from one worker to another since.
    """

    worker: str | None
    runnable: float
    time: float
    kind: str
    stolen: int = 0


class Log:
    """Entries of bytes in the order of writing, with a cap on what waits to be drained."""

    def __init__(self, cap: int = LOG_CAP) -> None:
        self.cap = cap
        self.size = 0
        self.dropped: dict[str, int] = {}
        self._header = struct.Struct(HEADER).pack
        self._blocks: deque[bytes] = deque()
        self._block = bytearray()
        self._numbers: dict[str, int] = {}
        self._next_number = 0

    def has_room(self, kind: bytes) -> bool:
        """Whether a row can be written now; where it cannot, it is counted as dropped."""
        if self.size <= self.cap:
            return True
        table = TABLE_OF[kind]
        self.dropped[table] = self.dropped.get(table, 0) + 1
        return False

    def write(self, kind: bytes, payload: bytes) -> bool:
        """Append an entry; False where it had to be dropped."""
        if kind in TABLE_OF and not self.has_room(kind):
            return False
        self.append(kind, payload)
        return True

    def append(self, kind: bytes, payload: bytes) -> None:
        """Append an entry for which there was room."""
        entry = self._header(kind, len(payload)) + payload  # what is no bytes fails here, before it is in the log
        self._block += entry
        self.size += len(entry)
        if len(self._block) >= BLOCK:
            self._blocks.append(bytes(self._block))
            self._block = bytearray()

    def number(self, text: str | None) -> int:
        """Number that stands for a text that recurs."""
        if text is None:
            return NO_STRING
        number = self._numbers.get(text)
        if number is None:
            number = self._new_number(text)
        return number

    def _new_number(self, text: str) -> int:
        if len(self._numbers) >= MOST_TEXTS:
            self._numbers.clear()
        self.write(STRING, text.encode("utf-8", "surrogatepass"))
        number = self._numbers[text] = self._next_number
        self._next_number += 1
        return number

    def take(self, limit: int) -> bytes:
        """Take about `limit` bytes of whole entries away, the oldest first."""
        taken = []
        size = 0
        while self._blocks and size < limit:
            taken.append(self._blocks.popleft())
            size += len(taken[-1])
        if not self._blocks and size < limit:
            taken.append(bytes(self._block))
            self._block = bytearray()
        data = b"".join(taken)
        self.size -= len(data)
        return data


class CollectorPlugin(SchedulerPlugin):  # type: ignore[misc]
    """Records tasks, workers and chunks for one collector, until the collector or its client is gone.

    Parameters
    ----------
    name : str
        Name of this plugin, of the worker plugin that belongs to it, and of the topic of worker events.
    client : str
        Identity of the client; when it is gone for good the plugin removes itself.
    interval : float or None
        Seconds between samples of the workers; None for no samples.
    span : str or None
        Identity of the span of the run.
    token : str
        What the collector's own messages carry: others may write to its topic, by accident or not.
    """

    idempotent = True

    def __init__(self, name: str, client: str, interval: float | None, span: str | None, token: str) -> None:
        self.name = name
        self.span = span
        self.client = client
        self.interval = interval
        self.token = token

    async def start(self, scheduler: Any) -> None:
        self.scheduler = scheduler
        self.log = Log()
        self.failures = 0
        self.refused = 0
        self.strangers = 0
        self._elsewhere: dict[str, dict[Any, float]] = {}
        self.alive = True
        self._task = struct.Struct(packing(TASK_FIELDS)).pack
        self._sample = struct.Struct(packing(SAMPLE_FIELDS)).pack
        self._kinds = {kind: code for code, kind in enumerate(KINDS)}
        self._outcomes = {outcome: code for code, outcome in enumerate(OUTCOMES)}
        self._runnable: dict[Any, float] = {}
        self._open: dict[Any, Assignment] = {}
        self._unfinished: set[Any] = set()
        self._attempts: dict[str, int] = dict.fromkeys(KINDS, 0)
        self._counted: dict[str, dict[Any, float]] = {}
        self._departed: dict[str, float] = {}
        self._retired: set[str] = set()
        self._finished: set[str] = set()
        self._paused: set[str] = set()
        self._failed_attempts: dict[tuple[Any, int], Mapping[str, Any]] = {}
        self._workers: dict[str, Any] = {}
        self._sampled: dict[str, float] = {}
        self._problems: set[str] = set()
        self._more_problems = 0
        self._drained = time.time()
        self._given = b""
        self._given_from = 0
        self._grace: Any = None
        self._closing: set[Any] = set()
        for address in list(scheduler.workers):
            self._arrival(address)
        self._ticker = asyncio.ensure_future(self._tick())

    # what the scheduler tells

    def transition(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        try:
            if finish == "processing":
                self._attempt_began(self.scheduler.tasks[key])
            elif start == "processing":
                self._attempt_ended(key, finish, kwargs)
            elif finish in UNASSIGNED:
                self._runnable.setdefault(key, time.time())
            elif start in UNASSIGNED:
                self._runnable.pop(key, None)
        except Exception as problem:  # noqa: BLE001  (distributed would swallow it: count it)
            self._failed(problem)

    def add_worker(self, scheduler: Any, worker: str) -> None:
        try:
            self._arrival(worker)
        except Exception as problem:  # noqa: BLE001  (as above)
            self._failed(problem)

    def remove_worker(self, scheduler: Any, worker: str, **kwargs: Any) -> None:
        try:
            self._departure(worker)
        except Exception as problem:  # noqa: BLE001  (as above)
            self._failed(problem)

    def restart(self, scheduler: Any) -> None:
        for assignment in self._open.values():
            self._attempts[assignment.kind] -= 1
        self._open.clear()

    def log_event(self, topic: str, msg: Any) -> None:
        try:
            if topic == self.name:
                self._take_message(msg)
            elif topic == "stealing":
                self._stolen(msg)
            elif topic in self._workers:
                self._worker_changed(topic, msg)
            elif topic == "all":
                self._worker_removed(msg)
        except Exception as problem:  # noqa: BLE001  (as above)
            self._failed(problem)

    def remove_client(self, scheduler: Any, client: str) -> None:
        if client == self.client and self.alive:
            self._grace = asyncio.get_running_loop().call_later(CLIENT_GRACE, self._stop_without_client)

    async def close(self) -> None:
        self._end()

    # what the client asks

    def drain(self, limit: int, received: int) -> dict[str, Any]:
        """Give the oldest entries of the log; they are kept until the client says that it has them.

        Parameters
        ----------
        limit : int
            About how many bytes.
        received : int
            Bytes that the client has so far. Where the last answer was lost it is given again.

        Returns
        -------
        dict
            `data` (bytes of whole entries) and `at` (bytes given before them), `more` (whether entries are left),
            `dropped` (rows lost so far, by table), `failures` (errors inside this plugin so far), `refused` (messages
            of others so far), `time` (this clock).
        """
        self._drained = time.time()
        if received == self.given:
            self._given_from, self._given = received, self.log.take(limit)
        return {
            "data": self._given,
            "at": self._given_from,
            "more": self.log.size > 0,
            "dropped": dict(self.log.dropped),
            "failures": self.failures,
            "refused": self.refused,
            "time": time.time(),
        }

    @property
    def given(self) -> int:
        """Bytes that were given so far."""
        return self._given_from + len(self._given)

    async def finish(self, flush: bytes, timeout: float, limit: int, received: int) -> dict[str, Any]:
        """Have every worker report now, and give the metrics of the span and the oldest entries of the log.

        Returns
        -------
        dict
            What `metrics_of_span` and `drain` give, `strangers`: attempts of tasks of others that Dask counted in
            the same spans; `attempts`: how many there were of each kind; `spans`: identities of the spans that have
            tasks of the run; and `counted`: for each worker that is here, the key and amount of all that it counted
            (that of the others is in the log).
        """
        answer = await metrics_of_span(flush, self.span, timeout, self.scheduler, self._elsewhere, self.name)
        self._write_unfinished(answer.pop("running"))
        for address, counts in answer.pop("counted").items():
            if address in self._workers:  # of one that left meanwhile they are in the log
                self._counted[address] = counts
        await self._last_words(min(timeout, LAST_WORD))
        for address in sorted(self._departed):
            self._note_lost(address)
        if self._more_problems:
            self._write_problem(f"{self._more_problems} further problem(s) on the scheduler are not listed")
        answer["counted"] = [(address, list(counts.items())) for address, counts in self._counted.items()]
        self.sample()
        return answer | self.drain(limit, received) | {"strangers": self.strangers, "attempts": self._told()}

    def _told(self) -> dict[str, int]:
        """Attempts by kind of which a row was written, or had to be dropped: those that have not begun have none."""
        told = dict(self._attempts)
        for key, assignment in self._open.items():
            if key not in self._unfinished:
                told[assignment.kind] -= 1
        return told

    async def ask(self, flush: bytes, timeout: float) -> dict[str, Any]:
        """What the workers are, as `described` gives it."""
        return described(*await ask_workers(self.scheduler, flush, {}, timeout))

    async def stop(self, wait: float = 0.0) -> None:
        """Leave the scheduler and the workers as they were; wait at most so many seconds for the workers."""
        if not self.alive:
            return
        self._end()
        self.scheduler.plugins.pop(self.name, None)
        self._forget_topic()
        removals = [self._in_background(self._clear_tasks())]
        if self.name in self.scheduler.worker_plugins:
            removals.append(self._in_background(self._leave_workers()))
        await asyncio.wait(removals, timeout=wait)

    # how it does that

    def _note_lost(self, address: str) -> None:
        self._problem(f"{address} was lost: its fine metrics lack what it did in its last {PUSH_SECONDS:g} s at most")

    async def _last_words(self, timeout: float) -> None:
        """Wait for workers that were retired: the scheduler removes them before they say what they have counted."""
        deadline = time.monotonic() + timeout
        while self._departed.keys() & self._retired and time.monotonic() < deadline:
            await asyncio.sleep(0.01)

    async def _leave_workers(self) -> None:
        try:
            await self.scheduler.unregister_worker_plugin(None, self.name)
        except (OSError, ValueError) as problem:
            logging.getLogger(__name__).info("a worker left while %s was removed: %s", self.name, problem)
        finally:
            # a chunk that ended as the plugin went may have sent its record: it comes by another way, and later
            asyncio.get_running_loop().call_later(LATEST_EVENT, self._forget_late)

    def _forget_late(self) -> None:
        """Forget what came after the plugin had gone."""
        self._forget_topic()
        for key in self._open:
            task = self.scheduler.tasks.get(key)
            if task is not None:
                clear_metadata(task, self.name)

    async def _clear_tasks(self) -> None:
        """Take our mark off the tasks that the user keeps, some at a time."""
        tasks = iter(list(self.scheduler.tasks.values()))
        while some := list(itertools.islice(tasks, SWEEP)):
            for task in some:
                unmark(task, self.name)
            await asyncio.sleep(0)

    def _forget_topic(self) -> None:
        """Forget the events of this name, which the scheduler would keep for good."""
        topics = getattr(getattr(self.scheduler, "_broker", None), "_topics", {})
        topics.pop(self.name, None)

    def _end(self) -> None:
        self.alive = False
        self._ticker.cancel()
        if self._grace is not None:
            self._grace.cancel()

    def _stop_without_client(self) -> None:
        if self.alive and self.client not in self.scheduler.clients:
            self._stop_soon()

    def _stop_soon(self) -> None:
        self._in_background(self.stop())

    def _in_background(self, work: Coroutine[Any, Any, None]) -> asyncio.Future[None]:
        """Have something done, and keep it from being collected as garbage before it is."""
        future = asyncio.ensure_future(work)
        self._closing.add(future)
        future.add_done_callback(self._closing.discard)
        return future

    async def _tick(self) -> None:
        while self.alive:
            await asyncio.sleep(self.interval or 1.0)
            if self.interval:
                self.sample()
            self._give_up_departed()
            if time.time() - self._drained > LONGEST_SILENCE:
                self._stop_soon()
                return

    def _failed(self, problem: Exception) -> None:
        self.failures += 1
        self._problem(f"the scheduler plugin failed: {type(problem).__name__}: {problem}")

    def _problem(self, text: str) -> None:
        text = redacted_beginning(text, LONGEST_TEXT)
        if text in self._problems:
            return
        if len(self._problems) == MOST_PROBLEMS:
            self._more_problems += 1
            return
        self._problems.add(text)
        self._write_problem(text)

    def _write_problem(self, text: str) -> None:
        self.log.write(PROBLEM, text.encode("utf-8", "surrogatepass"))

    def _arrival(self, address: str) -> None:
        state = self._workers[address] = self.scheduler.workers[address]
        for task in state.processing:
            self._assign(task, Assignment(address, NO_TIME, NO_TIME, self._kind(task, self._mark(task))))
        number = self.log.number
        worker, name, host = number(address), number(str(state.name)), number(state.host)
        self._pack(
            ARRIVAL,
            ARRIVAL_FIELDS,
            (worker, name, host, time.time(), state.nthreads, state.memory_limit or 0, state.pid),
        )
        self._note_pause(address, state.status.name)

    def _departure(self, address: str) -> None:
        now = time.time()
        self._sample_worker(address, self._workers.pop(address), now)
        self._sampled.pop(address, None)
        self._paused.discard(address)
        self._pack(DEPARTURE, DEPARTURE_FIELDS, (self.log.number(address), now))
        counts = self._counted.pop(address, None)
        if counts:
            self._write_counted(address, counts)
        if address in self._finished:
            self._settle(address)
        else:
            self._departed[address] = now

    def _settle(self, address: str) -> None:
        """Forget a worker that left and of which nothing more will come."""
        self._departed.pop(address, None)
        self._finished.discard(address)
        self._retired.discard(address)

    def _give_up_departed(self) -> None:
        """Forget workers that sent no last message for so long that none will come."""
        latest = time.time() - LOST_AFTER
        for address in [address for address, left in self._departed.items() if left < latest]:
            self._settle(address)
            self._note_lost(address)

    def _write_counted(self, address: str, counts: Mapping[Any, float]) -> None:
        """Write what Dask counted on a worker that left; a later entry of the same worker takes its place."""
        fixed = struct.pack(packing(COUNTED_FIELDS), self.log.number(address))
        self.log.write(COUNTED, fixed + zlib.compress(json.dumps(list(counts.items()), default=str).encode(), 1))

    def _worker_removed(self, message: Any) -> None:
        if isinstance(message, dict) and message.get("action") == "remove-worker" and message.get("expected"):
            address = message.get("worker")
            if address in self._workers or address in self._departed:
                self._retired.add(address)

    def _worker_changed(self, address: str, message: Any) -> None:
        if isinstance(message, dict) and message.get("action") == "worker-status-change":
            self._note_pause(address, message.get("status"))

    def _note_pause(self, address: str, status: str | None) -> None:
        paused = status == PAUSED
        if paused != (address in self._paused):
            (self._paused.add if paused else self._paused.discard)(address)
            self._pack(PAUSE, PAUSE_FIELDS, (self.log.number(address), time.time(), paused))

    def _pack(self, kind: bytes, fields: tuple[tuple[str, str], ...], values: tuple[Any, ...]) -> None:
        self.log.write(kind, struct.pack(packing(fields), *values))

    def _take_message(self, message: Any) -> None:
        """Take a message of our own worker plugins; what others send to this topic is refused."""
        token = message.get("token") if isinstance(message, dict) else None
        if type(token) is str and token == self.token:
            self._worker_reported(message)
        else:
            self.refused += 1

    def _worker_reported(self, message: Mapping[str, Any]) -> None:
        if "chunk" in message:
            self.log.write(CHUNK, message["chunk"])
        if "cpu_seconds" in message:
            values = (self.log.number(message["worker"]), message["cpu_seconds"])
            self._pack(PROCESS_CPU, PROCESS_CPU_FIELDS, values)
        if "digests" in message:
            self._take_counts(message["worker"], {tuple(key): value for key, value in message["digests"]})
        if "last" in message:
            self._take_last_message(message["worker"])
        if "failed" in message:
            self._failed_attempts[message["failed"], message["run_id"]] = message
            if len(self._failed_attempts) > MOST_FAILURES:
                del self._failed_attempts[next(iter(self._failed_attempts))]
        if "problem" in message:
            self._problem(message["problem"])

    def _take_counts(self, address: str, counts: dict[Any, float]) -> None:
        if address in self._workers:
            self._counted[address] = counts
        else:
            self._write_counted(address, counts)

    def _take_last_message(self, address: str) -> None:
        if address in self._workers:
            self._finished.add(address)
        else:
            self._settle(address)

    def _stolen(self, message: Any) -> None:
        match message:
            case ("confirm", str() | tuple() as key, _, _, str() as thief, *_) if key in self._open:
                before = self._open[key]
                stolen = min(before.stolen + 1, MOST_STOLEN)
                self._open[key] = before._replace(worker=thief, time=time.time(), stolen=stolen)

    def _attempt_ended(self, key: Any, finish: str, told: Mapping[str, Any]) -> None:
        task = self.scheduler.tasks[key]
        assignment = self._open.pop(key, None) or self._late(task)
        failed = self._failed_attempts.pop((key, task.run_id), None)
        outcome = ERROR if failed else self._outcome(finish, told, assignment.worker)
        metadata = told.get("metadata") or {}
        record, times = metadata.get(METADATA_KEY), metadata.get(self.name)
        if times is not None:
            task.metadata.pop(self.name, None)
        mark = self._mark(task)
        if mark is None and (task.group.span_id in self._elsewhere or self._in_our_span(task)):
            self.strangers += 1
        written = self.log.has_room(TASK)
        if written:
            of_user = self._is_of_user(task, mark)
            self._write_task(task, told, assignment, outcome, _attempt_times(told, times, failed), of_user)
            if of_user and told.get("exception_text"):
                error = redacted_beginning(told["exception_text"], LONGEST_TEXT)
                self.log.write(TASK_ERROR, error.encode("utf-8", "surrogatepass"))
        if isinstance(record, bytes) and mark is not None:
            self.log.write(CHUNK, record)
            task.metadata.pop(METADATA_KEY, None)

    def _late(self, task: Any) -> Assignment:
        """Assignment of an attempt whose beginning was not seen."""
        kind = self._kind(task, self._mark(task))
        self._attempts[kind] += 1
        return Assignment(None, NO_TIME, NO_TIME, kind)

    def _attempt_began(self, task: Any) -> None:
        now = time.time()
        runnable, mark = self._runnable.pop(task.key, now), self._mark(task)
        self._assign(task, Assignment(task.processing_on.address, runnable, now, self._kind(task, mark)))
        span = task.group.span_id
        if span not in self._elsewhere and mark is not None and not self._in_our_span(task):
            counted = self.scheduler.extensions["spans"].spans[span]._cumulative_worker_metrics
            self._elsewhere[span] = dict(counted)

    def _assign(self, task: Any, assignment: Assignment) -> None:
        self._open[task.key] = assignment
        self._attempts[assignment.kind] += 1

    def _in_our_span(self, task: Any) -> bool:
        """Whether Dask counts the task in the span of the run, or in one inside of it.

        Dask keeps all tasks of one name in one span as long as any of them is alive, whoever submitted them.
        """
        return self.span in ((task.annotations or {}).get("span") or {}).get("ids", ())

    def _is_of_user(self, task: Any, mark: Mapping[str, Any] | None) -> bool:
        """Whether the client of the run submitted the task; of the others only worker, thread and times are kept."""
        return mark is not None or any(client.client_key == self.client for client in task.who_wants or ())

    def _outcome(self, finish: str, told: Mapping[str, Any], assigned: str | None) -> str:
        if finish == "memory":
            return OK
        # what is released because another task failed has the stimulus of that failure
        if told.get("exception_text"):
            return ERROR
        return LOST if assigned not in self.scheduler.workers else CANCELLED

    def _write_task(  # noqa: PLR0917
        self,
        task: Any,
        told: Mapping[str, Any],
        assignment: Assignment,
        outcome: str,
        times: tuple[float, ...],
        of_user: bool,
    ) -> None:
        number = self.log.number
        start, stop, *others, thread = times
        fixed = self._task(
            number(told.get("worker") or assignment.worker),
            number(task.prefix.name if of_user else None),
            number(told.get("typename") if of_user else None),
            number(task.group.span_id if of_user else None),
            self._kinds[assignment.kind],
            self._outcomes[outcome],
            assignment.stolen,
            start,
            stop,
            time.time(),
            told.get("nbytes", NO_SIZE) if of_user else NO_SIZE,
            task.run_id if of_user else NO_SIZE,
            int(thread),
            assignment.runnable,
            assignment.time,
            *others,
        )
        key = str(task.key) if of_user else ""
        self.log.write(TASK, fixed + key.encode("utf-8", "surrogatepass"))

    def _write_unfinished(self, running: Mapping[str, Iterable[tuple[Any, list[float]]]]) -> None:
        """Write rows of attempts that go on: they have a start and no stop."""
        for address, tasks in running.items():
            for key, times in tasks:
                assignment = self._open.get(key)
                if (
                    assignment is not None
                    and assignment.worker == address
                    and key in self.scheduler.tasks
                    and self.log.has_room(TASK)
                ):
                    begun, shift = times[2:BEGUN]
                    seen = (begun + shift, NO_TIME, *_from_start(times, begun), 0)
                    task = self.scheduler.tasks[key]
                    of_user = self._is_of_user(task, self._mark(task))
                    self._write_task(task, {}, assignment, UNFINISHED, seen, of_user)
                    self._unfinished.add(key)

    def _mark(self, task: Any) -> Mapping[str, Any] | None:
        """Our annotation, where the task belongs to this collector."""
        mark = (task.annotations or {}).get(ANNOTATION)
        return mark if isinstance(mark, dict) and self.name in mark.get("collectors", ()) else None

    def _kind(self, task: Any, mark: Mapping[str, Any] | None) -> str:
        if mark is None or mark["step"] is None:
            return OTHER
        if mark["step"] == PREPROCESSING:
            return PREPROCESSING
        prefix = task.prefix.name
        if prefix == mark["prefix"]:
            return PROCESSOR
        return MERGE if prefix == MERGE_PREFIX else OTHER

    def sample(self) -> None:
        """Write a sample of each worker that has reported since its last one."""
        now = time.time()
        for address, state in self._workers.items():
            try:
                self._sample_worker(address, state, now)
            except Exception as problem:  # noqa: BLE001  (as above)
                self._failed(problem)

    def _sample_worker(self, address: str, state: Any, now: float) -> None:
        metrics = state.metrics
        measured = metrics.get("time")
        if measured is None or measured == self._sampled.get(address):
            return
        self._sampled[address] = measured
        network, disk = metrics.get("host_net_io") or {}, metrics.get("host_disk_io") or {}
        spilled = metrics.get("spilled_bytes") or {}
        self.log.write(
            SAMPLE,
            self._sample(
                self.log.number(address),
                measured,
                state.last_seen,
                now - state.last_seen,
                metrics.get("cpu", math.nan),
                metrics.get("memory", NO_SIZE),
                len(state.processing),
                min(len(state.executing), MOST_EXECUTING),
                state.nbytes,
                state.occupancy,
                spilled.get("memory", NO_SIZE),
                metrics.get(self.name, math.nan),
                metrics.get("event_loop_interval", math.nan),
                metrics.get("num_fds", NO_SIZE),
                network.get("read_bps", math.nan),
                network.get("write_bps", math.nan),
                disk.get("read_bps", math.nan),
                disk.get("write_bps", math.nan),
            ),
        )


def _attempt_times(
    told: Mapping[str, Any], times: list[float] | None, failed: Mapping[str, Any] | None
) -> tuple[float, ...]:
    """Start, stop, Dask's shift of them, arrival, readiness and secession from the start, and thread of an attempt."""
    if failed is not None:
        told, times = failed, failed["times"]
    start = stop = NO_TIME
    for span in told.get("startstops") or ():
        if span["action"] == "compute":
            start, stop = span["start"], span["stop"]
    thread = told.get("thread") or 0
    if times is None or len(times) < BEGUN or start == NO_TIME:
        return start, stop, *UNKNOWN_TIMES, thread
    return start, stop, *_from_start(times, start - times[3]), thread


def _from_start(times: list[float], start: float) -> tuple[float, float, float, float]:
    """Dask's shift; arrival, readiness and secession in seconds from the start, all on the worker's clock."""
    arrived, ready, _, shift, *seceded = times
    return shift, arrived - start, ready - start, seceded[0] - start if seceded else math.nan


async def ask_workers(
    scheduler: Any, function: bytes, arguments: Mapping[str, Any], timeout: float
) -> tuple[dict[str, Any], list[str]]:
    """Run a pickled function on each worker; give the answers, and the workers that gave none in time."""
    from distributed.protocol.pickle import dumps

    message = {"op": "run", "function": function, "args": dumps(()), "kwargs": dumps(dict(arguments))}
    asked = {
        asyncio.ensure_future(scheduler.broadcast(msg=message, workers=[address], on_error="return")): address
        for address in list(scheduler.workers)
    }
    if not asked:
        return {}, []
    done, pending = await asyncio.wait(asked, timeout=timeout)
    for question in pending:
        question.cancel()
    replies = {}
    for question in done:
        address = asked[question]
        reply = question.result()[address]
        if isinstance(reply, dict) and reply.get("status") == "OK":
            replies[address] = unwrapped(reply["result"])
    return replies, sorted(set(asked.values()) - set(replies))


def unwrapped(result: Any) -> Any:
    """What a worker returned, out of distributed's wrapping."""
    from distributed.protocol.serialize import Serialize, Serialized, deserialize

    if isinstance(result, Serialized):
        return deserialize(result.header, result.frames)
    return result.data if isinstance(result, Serialize) else result


async def metrics_of_span(  # noqa: PLR0917
    flush: bytes,
    span: str | None,
    timeout: float,
    dask_scheduler: Any = None,
    elsewhere: Mapping[str, Mapping[Any, float]] | None = None,
    plugin: str | None = None,
) -> dict[str, Any]:
    """Have every worker report now, and give the cumulative metrics of a span.

    Parameters
    ----------
    flush : bytes
        Pickled function that has a worker report.
    span : str or None
        Identity of the span.
    timeout : float
        Seconds to wait for the workers altogether.
    elsewhere : mapping, optional
        Other spans that took tasks of this one, with what they had counted before: what came since is added.

    Returns
    -------
    dict
        `span`: [(key, value)], or None where no task ran in the span; `complete`: whether the spans have all that the
        workers that answered have counted; `spans`: identities of the span, those inside of it, and the others;
        `running`: tasks that run, with their times, by worker, as the workers' plugin of that name knows them, and
        `counted`: what it has counted; and what `described` gives.
    """
    deadline = time.monotonic() + timeout
    known = dask_scheduler.extensions["spans"].spans
    found = known.get(span)
    before = elsewhere or {}
    own = [] if found is None else [child.id for child in found.traverse_spans()]
    while True:
        left = max(deadline - time.monotonic(), 0.05)
        replies, silent = await ask_workers(dask_scheduler, flush, {"spans": [*own, *before], "plugin": plugin}, left)
        counted = added_up(known[identity]._cumulative_worker_metrics for identity in (*own, *before))
        complete = has_all(counted, replies.values())
        if complete or time.monotonic() > deadline:
            break
        await asyncio.sleep(0.01)
    answer = described(replies, silent) | {
        "span": None,
        "spans": [*own, *before],
        "complete": complete,
        "running": {address: reply["running"] for address, reply in replies.items()},
        "counted": {
            address: dict(reply["counted"]) for address, reply in replies.items() if reply["counted"] is not None
        },
    }
    if found is None and not before:
        return answer
    own_metrics = {} if found is None else found.cumulative_worker_metrics
    since = [difference(known[identity]._cumulative_worker_metrics, counts) for identity, counts in before.items()]
    return answer | {"span": list(added_up([own_metrics, *since]).items())}


def added_up(counts: Iterable[Mapping[Any, float]]) -> dict[Any, float]:
    """Sum of mappings, key by key."""
    total: dict[Any, float] = {}
    for mapping in counts:
        for key, value in mapping.items():
            total[key] = total.get(key, 0) + value
    return total


def of_spans(counted: Mapping[Any, float], spans: Iterable[str | None]) -> dict[Any, float]:
    """What was counted in the tasks of these spans, without their identity, and what was counted in no task."""
    found: dict[Any, float] = {}
    for key, value in counted.items():
        if key[0] != "execute":
            found[key] = found.get(key, 0) + value
        elif key[1] in spans:
            anonymous = (key[0], *key[2:])
            found[anonymous] = found.get(anonymous, 0) + value
    return found


def difference(later: Mapping[Any, float], earlier: Mapping[Any, float]) -> dict[Any, float]:
    """What was added to a mapping of growing numbers."""
    return {key: value - earlier.get(key, 0) for key, value in later.items() if value != earlier.get(key, 0)}


def has_all(counted: Mapping[Any, float], replies: Iterable[Mapping[str, Any]]) -> bool:
    """Whether the spans have counted all that workers have."""
    expected = added_up(dict(reply["digests"]) for reply in replies)
    return all(counted.get(key, 0) >= value - 1e-6 * (1 + abs(value)) for key, value in expected.items())


def described(replies: Mapping[str, Mapping[str, Any]], silent: list[str]) -> dict[str, Any]:
    """What the workers are that answered, by address, under `workers`; those that did not, under `silent`."""
    return {"workers": {address: reply["description"] for address, reply in replies.items()}, "silent": silent}


async def survey(flush: bytes, timeout: float, dask_scheduler: Any = None) -> dict[str, Any]:
    """Have the workers report what they counted so far, and tell what they are.

    Returns
    -------
    dict
        `package` (version of ours that the scheduler can import, or None), and what `described` gives.
    """
    return described(*await ask_workers(dask_scheduler, flush, {}, timeout)) | {"package": importable_package()}


async def register(plugin: CollectorPlugin, worker_plugin: bytes, timeout: float, dask_scheduler: Any = None) -> None:
    """Put the plugins in place; a worker that does not answer in time gets its plugin later."""
    name = plugin.name
    await dask_scheduler.register_scheduler_plugin(plugin=plugin, name=name, idempotent=True)
    registering = asyncio.ensure_future(
        dask_scheduler.register_worker_plugin(None, plugin=worker_plugin, name=name, idempotent=True)
    )
    registering.add_done_callback(note_failure)
    await asyncio.wait([registering], timeout=timeout)


def note_failure(task: asyncio.Future[Any]) -> None:
    """Leave a line in the log of the scheduler where a worker could not be reached."""
    if not task.cancelled() and task.exception() is not None:
        logging.getLogger(__name__).info("a worker plugin was not set up everywhere: %s", task.exception())


async def call_plugin(name: str, method: str, arguments: Mapping[str, Any], dask_scheduler: Any = None) -> Any:
    """Call a method of a collector's plugin; None where the plugin is gone."""
    plugin = dask_scheduler.plugins.get(name)
    if plugin is None:
        return None
    result = getattr(plugin, method)(**arguments)
    return await result if asyncio.iscoroutine(result) else result
