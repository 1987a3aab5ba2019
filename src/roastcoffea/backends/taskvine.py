"""TaskVine: workers and tasks of its managers, taken from their logs; each task there is a process of its own."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from roastcoffea.backends.taskvine_log import Row, TransactionLog
from roastcoffea.log.clocks import offset_within
from roastcoffea.log.marks import TASKVINE
from roastcoffea.log.workers import job_columns
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.tasks import KINDS, TASK_COLUMNS
from roastcoffea.records.workers import LIFETIME_COLUMNS
from roastcoffea.units import counted

NO_LOGS: Final = "TaskVine reports its workers in the logs of its manager, and {}"
NO_SAMPLES: Final = "TaskVine does not report memory and CPU time of its workers; chunks have those of their processes"

SAME: Final = ("key", "run_id", "kind", "worker", "runnable", "assigned", "arrived", "seen", "outcome")
"""Columns of tasks that an attempt in the logs has, too."""


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
        rows = records.select(["call", "key", "worker", "start"]).to_pylist()
        worker, key = ([row[name] for row in rows] for name in ("worker", "key"))
        run_id: list[int | None] = [None] * len(rows)
        addresses = {row["worker"]: row["address"] for log in logs for row in log.workers}
        lost = 0
        for place, row in enumerate(rows):
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
            worker[place], key[place], run_id[place] = attempt["worker"], attempt["key"], attempt["run_id"]
        if lost and self.reason is None:
            self._note(f"{counted(lost, 'record')} of TaskVine's tasks could not be found in its logs")
        for name, values in {"worker": worker, "key": key, "run_id": run_id}.items():
            place = records.schema.get_field_index(name)
            records = records.set_column(place, name, pa.array(values, records.schema.field(place).type))
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
