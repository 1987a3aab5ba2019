"""The monitor's part on the scheduler: each state that a task comes to.

This module may be pickled by value.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import struct
import time
from typing import Any

from roastcoffea.backends.coffea_tasks import CoffeaTasks, plain_part
from roastcoffea.backends.scheduler import Addition, ClusterPlugin
from roastcoffea.log.kinds import NO_SIZE, NO_STATE, NO_STRING, STATE, STATE_FIELDS, STATES, packing

CENSUS_SLICE = 1000
"""Tasks that are written in one go when a monitor begins: they hold the scheduler for a few milliseconds."""

ROW = packing(STATE_FIELDS)
BLOCK = 256
"""Rows that are packed in one go, and are one entry of the log; one by one they cost the scheduler twice as much."""

FULL = BLOCK * len(STATE_FIELDS)

PLACED = ("processing", "memory", "erred")
"""States in which a task is with a worker."""

WITHOUT_ATTEMPT = {("released", "waiting"), ("memory", "released"), ("released", "forgotten"), ("memory", "forgotten")}
"""Transitions that begin and end no attempt, and leave no queue."""

NO_DURATION = -1.0

NOWHERE = (0, NO_STRING, NO_STRING, NO_SIZE, NO_DURATION)
"""What is known of a task that is with no worker."""


class TaskStates(Addition):
    """Writes each state that a task comes to, also of the tasks that were there before."""

    def start(self, plugin: ClusterPlugin) -> None:
        """Take the plugin's transitions first."""
        self._scheduler = plugin.scheduler
        self._log = plugin.log
        self._failed = plugin.problems.failed
        self._transition = plugin.transition
        self._began = time.time()
        self._pack_block = struct.Struct("<" + BLOCK * ROW[1:]).pack
        self._states = {state: code for code, state in enumerate(STATES)}
        self._coffea = CoffeaTasks()
        self._numbers: dict[Any, int] = {}
        self._known = self._written = 0
        self._names: list[Any] = []
        self._rows: list[float] = []
        """Values of all fields of rows, one after the other."""
        self._present = dict.fromkeys(plugin.scheduler.tasks)
        self._census = asyncio.ensure_future(self._count_present())
        plugin.transition = self._follow

    def before_drain(self) -> int:
        """Put states and names into the log; what they mean by numbers is there already.

        Give how many of the tasks that were there before are still to be written.
        """
        count = len(self._rows) // len(STATE_FIELDS)
        pack = self._pack_block if count == BLOCK else struct.Struct("<" + count * ROW[1:]).pack
        names, rows = json.dumps(self._names, default=plain_part).encode(), pack(*self._rows)
        header = struct.pack(STATE.packing, self._written, len(rows))
        self._written = self._known
        self._names.clear()
        self._rows.clear()
        if rows:
            self._log.append(STATE, header + rows + names)
        return len(self._present)

    def end(self) -> None:
        """Count no more."""
        self._census.cancel()

    def _follow(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        # half a dozen times for each task: what is not called, and not looked up twice, is a third of the cost
        try:
            task = self._scheduler.tasks[key]
            if self._present and key in self._present:
                del self._present[key]
                self._write(task, NO_STATE, start, self._began)
            self._write(task, self._states[start], finish, time.time())
            if finish == "forgotten":
                self._numbers.pop(key, None)
                self._coffea.forget(key)
        except Exception as problem:  # noqa: BLE001  (distributed would swallow it: count it)
            self._failed(problem)
        if (start, finish) not in WITHOUT_ATTEMPT:
            self._transition(key, start, finish, *args, **kwargs)

    async def _count_present(self) -> None:
        """Write the states of the tasks that were there before, some at a time."""
        while self._present:
            for key in list(itertools.islice(self._present, CENSUS_SLICE)):
                del self._present[key]
                task = self._scheduler.tasks.get(key)
                if task is not None:
                    self._write(task, NO_STATE, task.state, self._began)
            await asyncio.sleep(0)

    def _write(self, task: Any, before: int, state: str, moment: float) -> None:
        log = self._log
        if log.size > log.cap and not log.has_room(STATE):
            return
        number = self._numbers.get(task.key)
        if number is None:
            number = self._numbered(task)
        place = NOWHERE
        if state in PLACED:
            expected = task.prefix.duration_average if state == "processing" else NO_DURATION
            place = (task.suspicious, log.number(holder_of(task)), log.number(task.type), task.nbytes, expected)
        self._rows += (number, before, self._states[state], *place, moment)
        if len(self._rows) >= FULL:
            self.before_drain()

    def _numbered(self, task: Any) -> int:
        """Number of a task that is new here."""
        name = (task.key, *self._coffea.described(task))
        number = self._numbers[task.key] = self._known
        self._known += 1
        self._names.append(name)
        return number


def holder_of(task: Any) -> str | None:
    """Address of the worker that has a task, or had its error."""
    if task.processing_on is not None:
        return str(task.processing_on.address)
    for holder in task.who_has or ():
        return str(holder.address)
    return next(iter(task.erred_on or ()), None)
