"""Workers and attempts of tasks, from the transactions that a manager of TaskVine logs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from roastcoffea.records.tasks import CANCELLED, ERROR, LOST, MERGE, OK, OTHER, PREPROCESSING, PROCESSOR, UNFINISHED

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
