"""TaskVine workers and tasks, as listed in the managers' transaction logs."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from roastcoffea.backends.base import Busy, ExecutorLog, Row
from roastcoffea.log.attempts import offset_within
from roastcoffea.log.workers import job_columns
from roastcoffea.records.arrow import table_of_rows, with_column
from roastcoffea.records.columns import grouped
from roastcoffea.records.workers import (
    CANCELLED,
    ERROR,
    LOST,
    MERGE,
    OK,
    OTHER,
    PREPROCESSING,
    PROCESSOR,
    TASK_COLUMNS,
    UNFINISHED,
)
from roastcoffea.units import counted

KIND_OF: Final = {"preprocessing": PREPROCESSING, "processing": PROCESSOR, "accumulating": MERGE}

RETRIEVED: Final = re.compile(r"(?P<result>\S+)\s+(?:(?P<status>-?\d+)\s+)?(?P<resources>\{.*)")


class TransactionLog:
    """A TaskVine manager's transaction log; all times are Unix times.

    Attributes
    ----------
    workers : list of dict
        A row for each period during which a worker was connected with a constant number of cores: `worker`, `address`,
        `cores`, `memory` (bytes), `start`, `stop`. Cores and memory are None until the worker reports them; `stop` is
        None if the log ends first.
    attempts : list of dict
        A row for each assignment of a task to a worker: `task`, `category`, `kind`, `worker`, `cores`, `runnable`,
        `assigned`, `arrived`, `start`, `stop`, `seen`, `outcome`; start and stop are on the worker's clock.
    unread : int
        Number of lines that could not be read.
    """

    def __init__(self, lines: Iterable[str]) -> None:
        self.workers: list[Row] = []
        self.attempts: list[Row] = []
        self.unread = 0
        self._connected: dict[str, Row] = {}
        self._waiting: dict[str, tuple[float, str]] = {}
        self._running: dict[str, Row] = {}
        for line in lines:
            if not line.startswith("#") and line.strip():
                try:
                    moment, _, subject, identity, event, *rest = line.rstrip("\n").split(maxsplit=5)
                    self._take(int(moment) / 1e6, f"{subject} {event}", identity, "".join(rest))
                except (ValueError, KeyError, TypeError, AttributeError):
                    # if the manager was killed, the last line of its log may be incomplete
                    self.unread += 1

    def _take(self, time: float, event: str, identity: str, details: str) -> None:
        match event:
            case "MANAGER END":
                while self._connected:
                    self._connected.popitem()[1]["stop"] = time
            case "WORKER CONNECTION":
                self._connect(identity, details.strip() or None, time)
            case "WORKER DISCONNECTION":
                self._connected.pop(identity)["stop"] = time
                for task in [task for task, attempt in self._running.items() if attempt["worker"] == identity]:
                    self._running.pop(task).update(outcome=LOST, seen=time)
            case "WORKER RESOURCES":
                resources = json.loads(details)
                cores, before = int(resources["cores"][0]), self._connected[identity]
                if before["cores"] not in {None, cores}:
                    before["stop"] = time
                    before = self._connect(identity, before["address"], time)
                before.update(cores=cores, memory=round(resources["memory"][0] * 2**20))
            case "TASK READY" | "TASK WAITING":  # newer and older versions
                self._waiting[identity] = time, details.split(maxsplit=1)[0]
                if identity in self._running:
                    self._running.pop(identity).update(outcome=LOST, seen=time)
            case "TASK RUNNING":
                self._begin(time, identity, details)
            case "TASK WAITING_RETRIEVAL":
                self._running[identity]["seen"] = time
            case "TASK RETRIEVED" if identity in self._running:
                self._end(time, self._running.pop(identity), details)

    def _connect(self, worker: str, address: str | None, time: float) -> Row:
        row = {"worker": worker, "address": address, "cores": None, "memory": None, "start": time, "stop": None}
        self._connected[worker] = row
        self.workers.append(row)
        return row

    def _begin(self, time: float, task: str, details: str) -> None:
        worker, _, allocated = details.split(maxsplit=2)
        resources = json.loads(allocated)
        runnable, category = self._waiting[task]
        attempt = dict.fromkeys(("start", "stop", "seen")) | {
            "task": int(task),
            "category": category,
            "kind": KIND_OF.get(category, OTHER),
            "worker": worker,
            "cores": resources.get("cores", [None])[0],
            "runnable": runnable,
            "assigned": resources.get("time_commit_start", [time])[0],
            "arrived": time,
            "outcome": UNFINISHED,
        }
        self._running[task] = attempt
        self.attempts.append(attempt)

    def _end(self, time: float, attempt: Row, details: str) -> None:
        attempt.update(seen=time, outcome=ERROR)
        found = RETRIEVED.match(details)
        if found is None:
            raise ValueError(details)
        if found["result"] == "SUCCESS" and found["status"] in {None, "0"}:
            attempt["outcome"] = OK
        elif found["result"] == "CANCELLED":
            attempt["outcome"] = CANCELLED
        # use the last of several JSON objects: the first contains the limits that the task exceeded
        text, place = found["resources"], 0
        measured: Row = {}
        while (place := text.find("{", place)) >= 0:
            measured, place = json.JSONDecoder().raw_decode(text, place)
        for name in ("start", "stop"):
            # on the worker's clock; 0 if the worker did not see the task's process start or end
            times = measured.get("time_worker_start" if name == "start" else "time_worker_end", [None])
            attempt[name] = times[0] or None


NO_LOGS: Final = "TaskVine reports its workers only in its manager's logs, and {}"
NO_SAMPLES: Final = "TaskVine does not report the memory and CPU time of its workers, but chunk records include both"


class TaskVineLogs(ExecutorLog):
    label = "TaskVine"
    is_apart = True
    # the worker runs each task in a numbered folder
    environment = (("key", "TMPDIR", r"/t(?:ask)?\.(\d+)/[^/]+$"),)

    def __init__(self, note: Any) -> None:
        super().__init__(note)
        self._folders: list[Path] = []
        self._calls: dict[tuple[str | None, bool], list[int]] = {}
        self._is_read = False
        self._workers: list[Row] = []
        self._attempts: list[Row] = []
        self._clocks: dict[str, float] = {}
        self._hosts: dict[str | None, str | None] = {}
        self._jobs: dict[str, Row] = {}
        self._startups: dict[int, float] = {}
        self.reason: str | None = None
        """Why workers and tasks are unknown; None if they are known."""

    def calls(self, preprocessing: bool) -> list[str]:
        return [call or "" for call, of_files in self._calls if of_files == preprocessing]

    @contextmanager
    def step(self, executor: Any, call: str | None, *, preprocessing: bool) -> Iterator[None]:
        """Context manager entered while an executor runs a Runner call.

        The executor creates a manager or reuses the manager from preprocessing, and then calls `custom_init`.
        """
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
            self._is_read = False

    def _read(self) -> None:
        """Read the logs of all managers; if they cannot be read, `reason` says why."""
        if self._is_read:
            return
        self._is_read = True
        logs: list[TransactionLog] = []
        try:
            for folder in self._folders:
                with (folder / "transactions").open(encoding="utf-8", errors="replace") as lines:
                    logs.append(TransactionLog(lines))
        except OSError as error:
            self.reason = NO_LOGS.format(f"{error.filename} could not be read: {error.strerror}")
        if unread := sum(log.unread for log in logs):
            self.note(f"{counted(unread, 'line')} of TaskVine's logs could not be read")
        self._workers = [worker for log in logs for worker in log.workers]
        if self.reason is None and not self._workers:
            self.reason = NO_LOGS.format("these list no workers")
        everything = [(manager, attempt) for manager, log in enumerate(logs) for attempt in log.attempts]
        self._attempts = [
            attempt
            | {"manager": manager, "run_id": number, "key": f"{attempt['category']}-{manager + 1}.{attempt['task']}"}
            for number, (manager, attempt) in enumerate(everything)
        ]
        self._clocks = _clock_offsets(self._attempts)
        cores = max((attempt["cores"] or 1 for attempt in self._attempts), default=1)
        if cores > 1:
            self.note(f"TaskVine assigned up to {cores:g} cores to a task: all but one of them count as idle")

    def absent(self, steps_elsewhere: int) -> dict[str, str]:
        self._read()
        reason = self.reason
        if steps_elsewhere:
            reason = "some Runner calls ran on TaskVine, and others did not: the two cannot be combined"
        return {"samples": NO_SAMPLES} | ({} if reason is None else dict.fromkeys(("lifetimes", "tasks"), reason))

    # records of chunks and files

    def placed(self, records: pa.Table, facts: Mapping[str, Row], *, preprocessing: bool) -> pa.Table:
        """Chunk or file-open records, with the TaskVine worker and task added.

        Each task ran in a separate process. A record identifies only that process; `facts` contains what the process
        reported.
        """
        self._read()
        tasks = grouped(self._attempts, "manager", "task")
        addresses = {row["worker"]: row["address"] for row in self._workers}
        rows = records.select(["call", "key", "worker", "start", "run_id"]).to_pylist()
        known, lost = ("worker", "key", "run_id"), 0
        for row in rows:
            managers = self._calls.get((row["call"], preprocessing))
            if managers is None:
                continue
            number = int(row["key"] or 0)  # from the task's environment
            found = [one for manager in managers for one in tasks.get((manager, number), ())]
            if not found:
                lost += 1
                continue
            # the last attempt assigned before the record began
            attempt = ([one for one in found if one["assigned"] <= row["start"]] or found)[-1]
            self._hosts.setdefault(_host(addresses.get(attempt["worker"])), row["worker"].rpartition("/")[0])
            if "batch_system" in facts.get(row["worker"], {}):
                self._jobs[attempt["worker"]] = job_columns(facts[row["worker"]], row["start"])
            if attempt["start"] is not None:
                begun = max(row["start"] - attempt["start"], 0.0)
                self._startups[attempt["run_id"]] = min(begun, self._startups.get(attempt["run_id"], math.inf))
            row.update((name, attempt[name]) for name in known)
        if lost and self.reason is None:
            self.note(f"{counted(lost, 'record')} from TaskVine tasks could not be matched to its logs")
        for name in known:
            records = with_column(records, name, [row[name] for row in rows])
        return records

    # tables

    def complete(self, rows: list[Row], facts: Mapping[str, Row], busy: Busy, start: float, stop: float) -> None:  # noqa: ARG002
        """Add the workers connected between start and stop, with their core counts."""
        self._read()
        for worker in self._workers:
            name, host = worker["worker"], _host(worker["address"])
            times = {"start": max(worker["start"], start), "stop": min(worker["stop"] or stop, stop)}
            if times["start"] < times["stop"]:
                known = {"host": self._hosts.get(host, host), "threads": worker["cores"]}
                known |= {"memory_limit": worker["memory"], "clock_offset": self._clocks.get(name)}
                rows.append(self._jobs.get(name, {}) | {"worker": name} | known | times)

    def tasks(self) -> pa.Table:
        """Attempts at tasks that were assigned to a worker."""
        self._read()
        rows, tried = [], Counter[tuple[int, int]]()
        for attempt in self._attempts:
            place = attempt["manager"], attempt["task"]
            tried[place] += 1
            clock = self._clocks.get(attempt["worker"]) or 0.0
            times = {name: attempt[name] and attempt[name] - clock for name in ("start", "stop")}
            times["startup_seconds"] = self._startups.get(attempt["run_id"])
            rows.append(attempt | times | {"prefix": attempt["category"], "attempt": tried[place], "stolen": 0})
        return table_of_rows(TASK_COLUMNS, rows)


def _host(address: str | None) -> str | None:
    return None if address is None else address.rpartition(":")[0]


def _clock_offsets(attempts: list[Row]) -> dict[str, float]:
    """Each worker's clock minus the manager's clock, in seconds.

    Each task provides bounds for the offset, because it starts after being sent and ends before being reported.
    """
    bounds: dict[str, tuple[float, float]] = {}
    for attempt in attempts:
        if None not in {attempt["start"], attempt["stop"], attempt["seen"]}:
            low, high = bounds.get(attempt["worker"], (-math.inf, math.inf))
            low, high = max(low, attempt["stop"] - attempt["seen"]), min(high, attempt["start"] - attempt["assigned"])
            bounds[attempt["worker"]] = low, high
    return {worker: offset_within(low, high) for worker, (low, high) in bounds.items()}
