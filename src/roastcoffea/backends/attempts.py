"""Log of task attempts, written on the scheduler."""

from __future__ import annotations

import json
import math
import struct
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from roastcoffea.backends.worker import BEGUN
from roastcoffea.log.kinds import (
    CHUNK,
    MERGED,
    MOST_LEVELS,
    NO_SIZE,
    NO_STRING,
    NO_TIME,
    PROBLEM,
    TASK,
    TASK_CHUNK,
    TASK_ERROR,
    LogWriter,
)
from roastcoffea.log.marks import METADATA_KEY, call_of, is_measured, mark_of
from roastcoffea.records.calls import (
    CANCELLED,
    ERROR,
    KINDS,
    MERGE,
    MERGE_PREFIX,
    OK,
    OTHER,
    OUTCOMES,
    PREPROCESSING,
    PROCESSOR,
    UNFINISHED,
    WORKER_LOST,
)
from roastcoffea.redaction import redacted_beginning

OF_TYPES = {"WorkItem": PROCESSOR, "FileMeta": PREPROCESSING, "_reduce": MERGE}
"""Maps the coffea class of a task's first argument or function to the task kind."""

PARTS = ("dataset", "filename", "treename", "entrystart", "entrystop")
"""Attributes of a `WorkItem` that identify its chunk."""


class CoffeaTasks:
    """Identifies coffea's tasks and their chunks. Merges of preprocessing results are classified as preprocessing."""

    def __init__(self) -> None:
        self._preparing: set[Any] = set()

    def described(self, task: Any) -> tuple[Any, ...]:
        """Return the code for the task kind and, for chunks, the values of `PARTS`; for other tasks, an empty tuple."""
        function, arguments = call_of(task)
        item = first_of(arguments)
        kind = kind_by(type(item)) or kind_by(type(function))
        if kind is None:
            return ()
        if kind == MERGE and any(other.key in self._preparing for other in task.dependencies):
            kind = PREPROCESSING
        if kind == PREPROCESSING:
            self._preparing.add(task.key)
        code = KINDS.index(kind)
        return (code, *(getattr(item, part) for part in PARTS)) if kind == PROCESSOR else (code,)

    def forget(self, key: Any) -> None:
        self._preparing.discard(key)


def kind_by(of: type) -> str | None:
    """Task kind for a coffea class; None for other classes.

    Results are not cached, because a cache would keep users' classes alive.
    """
    return OF_TYPES.get(of.__name__) if of.__module__.partition(".")[0] == "coffea" else None


def chunk_of(task: Any) -> list[Any] | None:
    """Return the `PARTS` of a task's chunk as JSON values, or None if the task has no chunk."""
    item = first_of(call_of(task)[1])
    if not all(hasattr(item, part) for part in PARTS):
        return None
    return [None if (value := getattr(item, part)) is None else plain_part(value) for part in PARTS]


def plain_part(part: Any) -> Any:
    try:
        return part.__index__()
    except (AttributeError, TypeError):
        return str(part)


def first_of(arguments: Any) -> Any:
    """Return a task's first argument, without any heavy input that coffea passes in the same tuple."""
    first: Any = arguments[0] if arguments else None
    if type(first).__name__ == "Tuple":
        return first_of(first.args)
    return first[0] if type(first) is tuple and first else first


LONGEST_TEXT = 2000
MOST_PROBLEMS = 20
"""Maximum number of distinct problems to list; any others are only counted."""


class Problems:
    def __init__(self, log: LogWriter) -> None:
        self.failures = 0
        self._log = log
        self._noted: set[str] = set()
        self._more = 0

    def failed(self, problem: Exception) -> None:
        """Count and log an error in the plugin itself, because distributed would swallow it."""
        self.failures += 1
        self.note(f"the scheduler plugin failed: {type(problem).__name__}: {problem}")

    def note(self, text: str) -> None:
        text = redacted_beginning(text, LONGEST_TEXT)
        if text not in self._noted and len(self._noted) == MOST_PROBLEMS:
            self._more += 1
        elif text not in self._noted:
            self._noted.add(text)
            self._log.write_text(PROBLEM, text)

    def note_rest(self) -> None:
        if self._more:
            self._log.write_text(PROBLEM, f"{self._more} further problem(s) on the scheduler are not listed")


UNKNOWN_TIMES = (math.nan,) * 4

MOST_FAILURES = 1000
"""Maximum number of failed attempts to keep while waiting for the scheduler to report that they ended."""

UNASSIGNED = ("queued", "no-worker")


class Assignment(NamedTuple):
    """When a task became runnable, when it was assigned to a worker, and how often it was moved afterwards.

    Both times are on the scheduler's clock.
    """

    worker: str | None
    runnable: float
    time: float
    kind: str
    stolen: int = 0


class TasksOfRun(NamedTuple):
    """Collector mark, client ID and span ID that identify a run's tasks."""

    collector: str
    client: str
    span: str | None


class Attempts:
    """Log of finished task attempts, based on the scheduler's task transitions.

    Parameters
    ----------
    run : TasksOfRun or None
        The run to record. For tasks outside the run, only the worker, thread and times are logged. None for a monitor,
        which records every task and saves nothing.

    Attributes
    ----------
    of_others : int
        Number of attempts at other users' tasks that Dask counted in the run's spans.
    elsewhere : dict
        Maps each other span in which Dask counts the run's tasks to its counts before the first such task.
    """

    def __init__(self, name: str, scheduler: Any, log: LogWriter, problems: Problems, run: TasksOfRun | None) -> None:
        self.name = name
        self.scheduler = scheduler
        self.of_others = 0
        self.elsewhere: dict[str, dict[Any, float]] = {}
        self._log = log
        self._failed = problems.failed
        self._run = run
        self._pack = struct.Struct(TASK.packing).pack
        self._kinds = {kind: code for code, kind in enumerate(KINDS)}
        self._outcomes = {outcome: code for code, outcome in enumerate(OUTCOMES)}
        self._runnable: dict[Any, float] = {}
        self._open: dict[Any, Assignment] = {}
        self._unfinished: set[Any] = set()
        self._begun: dict[str, int] = dict.fromkeys(KINDS, 0)
        self._failures: dict[tuple[Any, int], Mapping[str, Any]] = {}
        self._recorded: dict[tuple[Any, int], None] = {}
        self._measured: set[str] = set()
        """Prefixes of non-Runner tasks that have produced a record."""
        self.take_noted: Callable[[], object] = bool
        """Callback that flushes the task starts and ends buffered by another recorder."""

    # events from the scheduler

    def transition(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        try:
            if finish == "processing":
                task = self.scheduler.tasks[key]
                self.began(task, task.processing_on.address, time.time())
            elif start == "processing":
                task = self.scheduler.tasks[key]
                self.ended(task, task.run_id, finish, kwargs, time.time())
            elif finish in UNASSIGNED or start in UNASSIGNED:
                self.waited(key, finish, time.time())
        except Exception as problem:  # noqa: BLE001  (distributed would swallow it: count it)
            self._failed(problem)

    def began(self, task: Any, address: str, now: float) -> None:
        runnable, mark = self._runnable.pop(task.key, now), self._mark(task)
        self._assign(task, Assignment(address, runnable, now, self._kind(task, mark)))
        span = task.group.span_id
        if span not in self.elsewhere and mark is not None and not self._is_in_span(task):
            counted = self.scheduler.extensions["spans"].spans[span]._cumulative_worker_metrics
            self.elsewhere[span] = dict(counted)

    def ended(self, task: Any, run_id: int, state: str, ending: Mapping[str, Any], now: float) -> None:
        """Handle the end of an attempt; `ending` contains Dask's report."""
        mark = self._mark(task)
        assignment = self._open.pop(task.key, None) or self._unseen(task, mark)
        failed = self._failures.pop((task.key, run_id), None)
        outcome = ERROR if failed else self._outcome(state, ending, assignment.worker)
        metadata = ending.get("metadata") or {}
        record, times = metadata.get(METADATA_KEY), metadata.get(self.name)
        if mark is not None and mark["step"] is None:
            assignment = self._known_now(task, run_id, assignment, outcome, is_recorded=isinstance(record, bytes))
        if times is not None:
            task.metadata.pop(self.name, None)
        if mark is None and (task.group.span_id in self.elsewhere or self._is_in_span(task)):
            self.of_others += 1
        if self._log.has_room(TASK):
            of_user = self._is_of_user(task, mark)
            found = _attempt_times(ending, times, failed)
            self._write(task, run_id, ending, assignment, outcome, found, of_user, now)
            if of_user and ending.get("exception_text"):
                self._log.write_text(TASK_ERROR, redacted_beginning(ending["exception_text"], LONGEST_TEXT))
            self._write_more(task, assignment.kind, outcome)
        if isinstance(record, bytes) and mark is not None:
            self._log.write(CHUNK, record)
            task.metadata.pop(METADATA_KEY, None)

    def recorded(self, key: Any, run_id: int) -> None:
        """Remember that a failing attempt has produced a record."""
        self._recorded[key, run_id] = None
        if len(self._recorded) > MOST_FAILURES:
            del self._recorded[next(iter(self._recorded))]

    def waited(self, key: Any, state: str, now: float) -> None:
        """Handle a task that starts or stops waiting for a worker."""
        if state in UNASSIGNED:
            self._runnable.setdefault(key, now)
        else:
            self._runnable.pop(key, None)

    def had_tasks(self, address: str, tasks: Iterable[Any]) -> None:
        """Handle tasks that were already assigned to a worker when the worker was first seen."""
        self.take_noted()
        for task in tasks:
            self._assign(task, Assignment(address, NO_TIME, NO_TIME, self._kind(task, self._mark(task))))

    def take_waiting_records(self) -> None:
        """Store the records of attempts that ended between two fetches."""
        for task in list(self.scheduler.tasks.values()):
            if self._mark(task) is not None and isinstance((task.metadata or {}).get(METADATA_KEY), bytes):
                self._log.write(CHUNK, task.metadata.pop(METADATA_KEY))

    def restarted(self) -> None:
        self.take_noted()
        for assignment in self._open.values():
            self._begun[assignment.kind] -= 1
        self._open.clear()

    def stolen(self, message: Any) -> None:
        self.take_noted()
        match message:
            case ("confirm", str() | tuple() as key, _, _, str() as thief, *_) if key in self._open:
                before = self._open[key]
                stolen = min(before.stolen + 1, 255)
                self._open[key] = before._replace(worker=thief, time=time.time(), stolen=stolen)

    def failing(self, message: Mapping[str, Any]) -> None:
        """Keep a worker's report of a failed attempt until the attempt ends."""
        self._failures[message["failed"], message["run_id"]] = message
        if len(self._failures) > MOST_FAILURES:
            del self._failures[next(iter(self._failures))]

    # results

    @property
    def open_keys(self) -> Iterable[Any]:
        self.take_noted()
        return self._open.keys()

    def by_kind(self) -> dict[str, int]:
        """Number of logged attempts by kind, including dropped rows.

        Attempts that have not ended are included only if `write_unfinished` has logged them.
        """
        self.take_noted()
        written = dict(self._begun)
        for key, assignment in self._open.items():
            if key not in self._unfinished:
                written[assignment.kind] -= 1
        return written

    def write_unfinished(self, running: Mapping[str, Iterable[tuple[Any, list[float]]]]) -> None:
        """Log the attempts that are still running, with a start time but no stop time."""
        self.take_noted()
        for address, tasks in running.items():
            for key, times in tasks:
                assignment, task = self._open.get(key), self.scheduler.tasks.get(key)
                if assignment is None or task is None or assignment.worker != address or not self._log.has_room(TASK):
                    continue
                begun, shift = times[2:BEGUN]
                known = (begun + shift, NO_TIME, *_from_start(times, begun), 0)
                of_user = self._is_of_user(task, self._mark(task))
                self._write(task, task.run_id, {}, assignment, UNFINISHED, known, of_user, time.time())
                self._write_more(task, assignment.kind, UNFINISHED)
                self._unfinished.add(key)

    # implementation

    def _assign(self, task: Any, assignment: Assignment) -> None:
        self._open[task.key] = assignment
        self._begun[assignment.kind] += 1

    def _kind(self, task: Any, mark: Mapping[str, Any] | None) -> str:
        """A task's kind; a non-Runner task that reads data counts as a chunk."""
        kind = kind_of(task, mark)
        if kind == OTHER and mark is not None and (task.prefix.name in self._measured or is_measured(task)):
            return PROCESSOR
        return kind

    def _known_now(
        self, task: Any, run_id: int, assignment: Assignment, outcome: str, *, is_recorded: bool
    ) -> Assignment:
        """Assignment of a finished non-Runner task, with the task's final kind.

        The final kind depends on whether the task produced a record.
        """
        is_recorded |= self._recorded.pop((task.key, run_id), False) is None
        kind = assignment.kind
        if is_recorded:
            self._measured.add(task.prefix.name)
            kind = PROCESSOR
        elif outcome in {OK, ERROR} and not is_measured(task):
            kind = OTHER
        self._begun[assignment.kind] -= 1
        self._begun[kind] += 1
        return assignment._replace(kind=kind)

    def _write_more(self, task: Any, kind: str, outcome: str) -> None:
        """Log the input size of a merge, or the chunk of a failed attempt, which may not have produced a record."""
        if kind == MERGE:
            sizes = [max(one.nbytes, 0) for one in task.dependencies]
            self._log.write_fields(MERGED, merge_level(task), len(sizes), sum(sizes))
        elif kind == PROCESSOR and outcome != OK and (chunk := chunk_of(task)) is not None:
            self._log.write_text(TASK_CHUNK, json.dumps(chunk))

    def _unseen(self, task: Any, mark: Any) -> Assignment:
        """Assignment for an attempt whose start was not recorded."""
        kind = self._kind(task, mark)
        self._begun[kind] += 1
        return Assignment(None, NO_TIME, NO_TIME, kind)

    def _mark(self, task: Any) -> Mapping[str, Any] | None:
        return None if self._run is None else mark_of(task, self._run.collector)

    def _is_of_user(self, task: Any, mark: Mapping[str, Any] | None) -> bool:
        """Whether the run's client submitted the task; always true for a monitor."""
        run = self._run
        return run is None or mark is not None or any(one.client_key == run.client for one in task.who_wants or ())

    def _is_in_span(self, task: Any) -> bool:
        """Whether Dask counts the task in the run's span or in a nested one.

        As long as any task with a given name is alive, Dask counts all tasks with this name in the same span,
        regardless of who submitted them.
        """
        spans = ((task.annotations or {}).get("span") or {}).get("ids", ())
        return self._run is not None and self._run.span in spans

    def _outcome(self, finish: str, ending: Mapping[str, Any], assigned: str | None) -> str:
        if finish == "memory":
            return OK
        # the stimulus does not show whether this task failed: if it is released because another task failed, it carries
        # that task's stimulus
        if ending.get("exception_text"):
            return ERROR
        return WORKER_LOST if assigned not in self.scheduler.workers else CANCELLED

    def _write(  # noqa: PLR0917
        self,
        task: Any,
        run: int,
        ending: Mapping[str, Any],
        assignment: Assignment,
        outcome: str,
        times: tuple[float, ...],
        of_user: bool,
        now: float,
    ) -> None:
        number = self._log.number
        start, stop, *others, thread = times
        worker = number(ending.get("worker") or assignment.worker)
        kind, outcome_code = self._kinds[assignment.kind], self._outcomes[outcome]
        runnable, assigned, stolen = assignment.runnable, assignment.time, assignment.stolen
        if of_user:
            key, size, run_id = str(task.key), ending.get("nbytes", NO_SIZE), run
            prefix, type_, span = number(task.prefix.name), number(ending.get("typename")), number(task.group.span_id)
        else:
            key, prefix, type_, span, size, run_id = "", NO_STRING, NO_STRING, NO_STRING, NO_SIZE, NO_SIZE
        known = kind, outcome_code, stolen, start, stop, now, size, run_id, int(thread), runnable, assigned
        fixed = self._pack(worker, prefix, type_, span, *known, *others)
        self._log.append(TASK, fixed + key.encode("utf-8", "surrogatepass"))


def kind_of(task: Any, mark: Mapping[str, Any] | None) -> str:
    if mark is None or mark["step"] is None:
        return OTHER
    if mark["step"] == PREPROCESSING:
        return PREPROCESSING
    prefix = task.prefix.name
    if prefix == mark["prefix"]:
        return PROCESSOR
    return MERGE if prefix == MERGE_PREFIX else OTHER


def merge_level(task: Any) -> int:
    """Return a merge's level in the merge tree (1 if it merges chunk results)."""
    level = 1
    while level < MOST_LEVELS:
        task = next(iter(task.dependencies), None)
        if task is None or task.prefix.name != MERGE_PREFIX:
            break
        level += 1
    return level


def _attempt_times(
    ending: Mapping[str, Any], times: list[float] | None, failed: Mapping[str, Any] | None
) -> tuple[float, ...]:
    """An attempt's start and stop times, the values from `_from_start`, and the thread ID."""
    if failed is not None:
        ending, times = failed, failed["times"]
    start = stop = NO_TIME
    for span in ending.get("startstops") or ():
        if span["action"] == "compute":
            start, stop = span["start"], span["stop"]
    thread = ending.get("thread") or 0
    if times is None or len(times) < BEGUN or start == NO_TIME:
        return start, stop, *UNKNOWN_TIMES, thread
    return start, stop, *_from_start(times, start - times[3]), thread


def _from_start(times: list[float], start: float) -> tuple[float, float, float, float]:
    """Dask's clock offset, and the times when a task arrived, became ready and seceded.

    All values are in seconds. The times are on the worker's clock, relative to the start of the task.
    """
    arrived, ready, _, shift, *seceded = times
    return shift, arrived - start, ready - start, seceded[0] - start if seceded else math.nan
