"""TaskVine: workers and tasks of its managers, from the transactions that they log."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from roastcoffea.log.attempts import offset_within
from roastcoffea.log.marks import TASKVINE
from roastcoffea.log.workers import job_columns
from roastcoffea.records.arrow import table_of_rows, with_column
from roastcoffea.records.tasks import (
    CANCELLED,
    ERROR,
    KINDS,
    LOST,
    MERGE,
    OK,
    OTHER,
    PREPROCESSING,
    PROCESSOR,
    TASK_COLUMNS,
    UNFINISHED,
)
from roastcoffea.records.workers import LIFETIME_COLUMNS
from roastcoffea.units import counted

KIND_OF: Final = {"preprocessing": PREPROCESSING, "processing": PROCESSOR, "accumulating": MERGE}
"""Kinds of tasks by the categories that coffea gives them."""

WAITS: Final = ("READY", "WAITING")
"""States of a task that waits for a worker, in newer and in older versions."""

RETRIEVED: Final = re.compile(r"(?P<result>\S+)\s+(?:(?P<status>-?\d+)\s+)?(?P<resources>\{.*)")
TIMES: Final = ("time_worker_start", "time_worker_end")
"""Times of a task on its worker, by the worker's clock: it makes the task's process, and sees its end."""

Row = dict[str, Any]


class TransactionLog:
    """What one manager logged, in seconds of Unix time.

    Attributes
    ----------
    workers : list of dict
        A row for each time that a worker was connected with a number of cores: `worker`, `address`, `cores`, `memory`
        (bytes), `start`, `stop`. Cores and memory are None until the worker reports them, and `stop` if the log ends
        first.
    attempts : list of dict
        A row for each time that a task was given to a worker: `task`, `category`, `kind`, `worker`, `cores`,
        `runnable`, `assigned`, `arrived`, `start`, `stop`, `seen`, `outcome`; start and stop by the worker's clock.
    unread : int
        Lines that could not be read.
    """

    def __init__(self, lines: Iterable[str]) -> None:
        self.workers: list[Row] = []
        self.attempts: list[Row] = []
        self.unread = 0
        self._connected: dict[str, Row] = {}
        self._waiting: dict[str, tuple[float, str]] = {}
        self._running: dict[str, Row] = {}
        for line in lines:
            if line.startswith("#") or not line.strip():
                continue
            try:
                self._take(line.rstrip("\n"))
            except (ValueError, KeyError, TypeError, AttributeError):
                # the last line of a manager that was killed may be a part of one
                self.unread += 1

    @classmethod
    def of(cls, folder: Path) -> TransactionLog:
        """Log in a manager's folder."""
        with (folder / "transactions").open(encoding="utf-8", errors="replace") as lines:
            return cls(lines)

    def _take(self, line: str) -> None:
        moment, _, subject, identity, event, *rest = line.split(maxsplit=5)
        time, details = int(moment) / 1e6, rest[0] if rest else ""
        if subject == "WORKER":
            self._take_worker(time, identity, event, details)
        elif subject == "TASK":
            self._take_task(time, identity, event, details)
        elif subject == "MANAGER" and event == "END":
            for worker in list(self._connected):
                self._connected.pop(worker)["stop"] = time

    def _take_worker(self, time: float, worker: str, event: str, details: str) -> None:
        if event == "CONNECTION":
            self._connect(worker, details.strip() or None, time)
        elif event == "DISCONNECTION":
            self._connected.pop(worker)["stop"] = time
            for task in [task for task, attempt in self._running.items() if attempt["worker"] == worker]:
                self._running.pop(task).update(outcome=LOST, seen=time)
        elif event == "RESOURCES":
            resources = json.loads(details)
            found = {"cores": int(resources["cores"][0]), "memory": round(resources["memory"][0] * 2**20)}
            before = self._connected[worker]
            if before["cores"] not in {None, found["cores"]}:
                before["stop"] = time
                before = self._connect(worker, before["address"], time)
            before.update(found)

    def _connect(self, worker: str, address: str | None, time: float) -> Row:
        row = {"worker": worker, "address": address, "cores": None, "memory": None, "start": time, "stop": None}
        self._connected[worker] = row
        self.workers.append(row)
        return row

    def _take_task(self, time: float, task: str, event: str, details: str) -> None:
        if event in WAITS:
            self._waiting[task] = time, details.split(maxsplit=1)[0]
            if task in self._running:
                self._running.pop(task).update(outcome=LOST, seen=time)
        elif event == "RUNNING":
            self._begin(time, task, details)
        elif event == "WAITING_RETRIEVAL":
            self._running[task]["seen"] = time
        elif event == "RETRIEVED" and task in self._running:
            self._end(time, self._running.pop(task), details)

    def _begin(self, time: float, task: str, details: str) -> None:
        worker, _, allocated = details.split(maxsplit=2)
        resources = json.loads(allocated)
        runnable, category = self._waiting[task]
        self._running[task] = {
            "task": int(task),
            "category": category,
            "kind": KIND_OF.get(category, OTHER),
            "worker": worker,
            "cores": resources["cores"][0] if "cores" in resources else None,
            "runnable": runnable,
            "assigned": resources["time_commit_start"][0] if "time_commit_start" in resources else time,
            "arrived": time,
            "start": None,
            "stop": None,
            "seen": None,
            "outcome": UNFINISHED,
        }
        self.attempts.append(self._running[task])

    def _end(self, time: float, attempt: Row, details: str) -> None:
        attempt.update(seen=time, outcome=ERROR)
        found = RETRIEVED.match(details)
        if found is None:
            raise ValueError(details)
        succeeded = found["result"] == "SUCCESS" and found["status"] in {None, "0"}
        outcome = OK if succeeded else CANCELLED if found["result"] == "CANCELLED" else ERROR
        measured = _last_object(found["resources"])
        start, stop = (measured[name][0] if name in measured else None for name in TIMES)
        # TaskVine writes 0 for what did not happen
        attempt.update(outcome=outcome, start=start or None, stop=stop or None)


def _last_object(text: str) -> dict[str, Any]:
    """The last of several JSON objects: the first has the limits that a task exceeded."""
    decoder, place = json.JSONDecoder(), 0
    found: dict[str, Any] = {}
    while (place := text.find("{", place)) >= 0:
        found, place = decoder.raw_decode(text, place)
    return found


NO_LOGS: Final = "TaskVine reports its workers in the logs of its manager, and {}"
NO_SAMPLES: Final = "TaskVine does not report memory and CPU time of its workers; chunks have those of their processes"

SAME: Final = ("key", "run_id", "kind", "worker", "runnable", "assigned", "arrived", "seen", "outcome")
"""Columns of tasks that an attempt in the logs has, too."""


OF_RECORDS: Final = ("worker", "key", "run_id")
"""Columns of records that the logs know better."""


def is_taskvine(executor: Any) -> bool:
    """Whether this is coffea's executor for TaskVine."""
    return any(kind.__name__ == "TaskVineExecutor" for kind in type(executor).__mro__)


class TaskVineLogs:
    """Logs of the managers that ran the Runner calls of a run.

    Parameters
    ----------
    note : callable
        Takes a problem.
    """

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note
        self._folders: list[Path] = []
        self._calls: dict[tuple[str | None, bool], list[int]] = {}
        """Managers by Runner call, and whether they worked for its preprocessing."""
        self._logs: list[TransactionLog] | None = None
        self._clocks: dict[str, float] = {}
        self._hosts: dict[str | None, str | None] = {}
        self._jobs: dict[str, Row] = {}
        """Batch jobs of workers, as their tasks reported them."""
        self._startups: dict[int, float] = {}
        self.reason: str | None = None
        """Why workers and tasks are unknown, if so."""

    @property
    def used(self) -> bool:
        """Whether a step ran on TaskVine."""
        return bool(self._calls)

    def calls(self, preprocessing: bool) -> list[str]:
        """Runner calls whose chunks, or preprocessing, ran on TaskVine."""
        return [call or "" for call, of_files in self._calls if of_files == preprocessing]

    @contextmanager
    def step(self, executor: Any, call: str | None, *, preprocessing: bool) -> Iterator[None]:
        """Context in which this executor works: it makes its manager, or keeps that of preprocessing, and calls us."""
        managers = self._calls.setdefault((call, preprocessing), [])
        of_user = executor.custom_init

        def custom_init(manager: Any) -> None:
            folder = Path(manager.logging_directory).absolute()
            if folder not in self._folders:
                self._folders.append(folder)
            managers.append(self._folders.index(folder))
            if of_user:
                of_user(manager)

        executor.custom_init = custom_init
        try:
            yield
        finally:
            executor.custom_init = of_user
            self._logs = None

    def _read(self) -> list[TransactionLog]:
        """Logs of all managers; `reason` says why there are none."""
        if self._logs is None:
            self._logs = []
            try:
                self._logs = [TransactionLog.of(folder) for folder in self._folders]
            except OSError as error:
                self.reason = NO_LOGS.format(f"{error.filename} could not be read: {error.strerror}")
            unread = sum(log.unread for log in self._logs)
            if unread:
                self._note(f"{counted(unread, 'line')} of TaskVine's logs could not be read")
            if self.reason is None and not any(log.workers for log in self._logs):
                self.reason = NO_LOGS.format("no worker is in them")
            self._clocks = _clock_offsets([attempt for log in self._logs for attempt in log.attempts])
            self._note_wide_tasks()
            everything = [(manager, attempt) for manager, log in enumerate(self._logs) for attempt in log.attempts]
            for number, (manager, attempt) in enumerate(everything):
                attempt.update(run_id=number, key=f"{attempt['category']}-{manager + 1}.{attempt['task']}")
        return self._logs

    def _attempts(self) -> Iterator[Row]:
        for log in self._logs or ():
            yield from log.attempts

    def _note_wide_tasks(self) -> None:
        cores = max((attempt["cores"] or 1 for attempt in self._attempts()), default=1)
        if cores > 1:
            self._note(f"TaskVine gave up to {cores:g} cores to a task: all but one of them count as idle")

    def why_unknown(self, steps_elsewhere: int) -> str | None:
        """Why workers and tasks are unknown; None if they are known."""
        if steps_elsewhere:
            return "some Runner calls ran on TaskVine, and others did not: their workers cannot be added up"
        self._read()
        return self.reason

    # records of chunks and files

    def placed(self, records: pa.Table, facts: Mapping[str, Row], *, preprocessing: bool) -> pa.Table:
        """Records of chunks, or of openings of files, with their TaskVine worker and task.

        Each task ran in a process of its own, which is all that a record knows; `facts` are what it reported of itself.
        """
        logs = self._read()
        tasks: dict[tuple[int, int | None], list[Row]] = {}
        for manager, log in enumerate(logs):
            for one in log.attempts:
                tasks.setdefault((manager, one["task"]), []).append(one)
        rows = records.select(["call", "key", "worker", "start", "run_id"]).to_pylist()
        addresses = {row["worker"]: row["address"] for log in logs for row in log.workers}
        lost = 0
        for row in rows:
            managers = self._calls.get((row["call"], preprocessing))
            if managers is None:
                continue
            number = _task_number(row["key"])
            found = [one for manager in managers for one in tasks.get((manager, number), ())]
            attempt = _of_moment(found, row["start"])
            if attempt is None:
                lost += 1
                continue
            self._hosts.setdefault(_host(addresses.get(attempt["worker"])), row["worker"].rpartition("/")[0])
            if "batch_system" in facts.get(row["worker"], {}):
                self._jobs[attempt["worker"]] = job_columns(facts[row["worker"]], row["start"])
            if attempt["start"] is not None:
                begun = max(row["start"] - attempt["start"], 0.0)
                self._startups[attempt["run_id"]] = min(begun, self._startups.get(attempt["run_id"], math.inf))
            row |= {name: attempt[name] for name in OF_RECORDS}
        if lost and self.reason is None:
            self._note(f"{counted(lost, 'record')} of TaskVine's tasks could not be found in its logs")
        for name in OF_RECORDS:
            records = with_column(records, name, [row[name] for row in rows])
        return records

    # tables

    def lifetimes(self, start: float, stop: float) -> pa.Table:
        """Workers connected between start and stop, with their cores."""
        rows = []
        for log in self._read():
            for worker in log.workers:
                begin, end = max(worker["start"], start), min(worker["stop"] or stop, stop)
                if begin >= end:
                    continue
                host = _host(worker["address"])
                rows.append(
                    self._jobs.get(worker["worker"], {})
                    | {
                        "worker": worker["worker"],
                        "host": self._hosts.get(host, host),
                        "threads": worker["cores"],
                        "memory_limit": worker["memory"],
                        "start": begin,
                        "stop": end,
                        "clock_offset": self._clocks.get(worker["worker"]),
                    }
                )
        return table_of_rows(LIFETIME_COLUMNS, rows)

    def tasks(self) -> pa.Table:
        """Attempts of tasks that were given to a worker."""
        rows = []
        for log in self._read():
            tried: dict[int, int] = {}
            for attempt in log.attempts:
                tried[attempt["task"]] = tried.get(attempt["task"], 0) + 1
                clock = self._clocks.get(attempt["worker"]) or 0.0
                times = {name: attempt[name] and attempt[name] - clock for name in ("start", "stop")}
                known = {name: attempt[name] for name in SAME}
                of_tasks = {"prefix": attempt["category"], "attempt": tried[attempt["task"]], "stolen": 0}
                rows.append(known | times | of_tasks | {"startup_seconds": self._startups.get(attempt["run_id"])})
        return table_of_rows(TASK_COLUMNS, rows)

    def attempts(self) -> dict[str, int]:
        """Number of attempts by kind."""
        self._read()
        kinds = [attempt["kind"] for attempt in self._attempts()]
        return {kind: kinds.count(kind) for kind in KINDS}


def _task_number(key: str | None) -> int | None:
    """Number of a task by the key that the probe found in it."""
    found = None if key is None else re.fullmatch(rf"{TASKVINE}-(\d+)", key)
    return None if found is None else int(found[1])


def _of_moment(attempts: list[Row], moment: float) -> Row | None:
    """The attempt at a task in which something began: the last one that had been given to a worker by then."""
    begun = [attempt for attempt in attempts if attempt["assigned"] <= moment]
    return next(reversed(begun or attempts), None)


def _host(address: str | None) -> str | None:
    """Host of an address with a port."""
    return None if address is None else address.rpartition(":")[0]


def _clock_offsets(attempts: list[Row]) -> dict[str, float]:
    """Seconds by which the clock of each worker is ahead of the manager's.

    No task begins before it is sent, and none is reported before it ends: that bounds them.
    """
    bounds: dict[str, tuple[float, float]] = {}
    for attempt in attempts:
        if None not in {attempt["start"], attempt["stop"], attempt["seen"]}:
            low, high = bounds.get(attempt["worker"], (-math.inf, math.inf))
            low, high = max(low, attempt["stop"] - attempt["seen"]), min(high, attempt["start"] - attempt["assigned"])
            bounds[attempt["worker"]] = low, high
    return {worker: offset_within(low, high) for worker, (low, high) in bounds.items()}
