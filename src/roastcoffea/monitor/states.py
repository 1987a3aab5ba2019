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

from roastcoffea.backends.attempts import UNASSIGNED
from roastcoffea.backends.scheduler import Addition, ClusterPlugin
from roastcoffea.log.kinds import NO_SIZE, NO_STATE, STATE, STATE_FIELDS, STATES, packing
from roastcoffea.monitor.coffea_tasks import CoffeaTasks

CENSUS_SLICE = 1000
"""Tasks that are written in one go when a monitor begins: they hold the scheduler for a few milliseconds."""

ROW = packing(STATE_FIELDS)
BLOCK = 256
"""Rows that are packed in one go, and are one entry of the log; one by one they cost the scheduler twice as much."""

PARTS = 7
"""What is noted of a state: number of the task, state before, state, place, time; task, and how its attempt ended."""

FULL = PARTS * BLOCK

PLACED = ("processing", "memory", "erred")
"""States in which a task is with a worker."""

WITHOUT_ATTEMPT = {("released", "waiting"), ("memory", "released"), ("released", "forgotten"), ("memory", "forgotten")}
"""Transitions that begin and end no attempt, and leave no queue."""

NO_DURATION = -1.0

NOWHERE = (0, None, None, NO_SIZE, NO_DURATION)
"""What is known of a task that is with no worker: see `place_of`."""


class TaskStates(Addition):
    """Writes each state that a task comes to, also of the tasks that were there before."""

    def start(self, plugin: ClusterPlugin) -> None:
        """Take the plugin's transitions first."""
        self._scheduler = plugin.scheduler
        self._log = plugin.log
        self._failed = plugin.problems.failed
        self._transition = plugin.transition
        self._attempts = plugin.attempts
        plugin.attempts.take_noted = self.before_drain
        self._began = time.time()
        self._pack_block = struct.Struct("<" + BLOCK * ROW[1:]).pack
        self._codes = {state: code for code, state in enumerate(STATES)} | {None: NO_STATE}
        self._coffea = CoffeaTasks()
        self._numbers: dict[Any, int] = {}
        self._known = self._written = 0
        self._names: list[Any] = []
        self._new: list[Any] = []
        """Tasks that have a number, and no name yet."""
        self._noted: list[Any] = []
        """`PARTS` of each state, one after the other."""
        self._present = dict.fromkeys(plugin.scheduler.tasks)
        self._census = asyncio.ensure_future(self._count_present())
        plugin.transition = self._follow

    def before_drain(self) -> int:
        """Put states and names into the log; what they mean by numbers is there already.

        Give how many of the tasks that were there before are still to be written.
        """
        noted, self._noted = self._noted, []
        if noted:
            self._take(noted)
        return len(self._present)

    def end(self) -> None:
        """Count no more."""
        self._census.cancel()

    def _follow(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        # half a dozen times for each task, each time between a hundred other things of the scheduler: what can be done
        # for many tasks in one go is done in a quarter of the time
        try:
            now = time.time()
            if self._present and key in self._present:
                self._note_present(key, start)
            task = self._scheduler.tasks[key]
            number = self._numbers.get(key)
            if number is None:
                number = self._numbered(task)
            place = place_of(task, finish) if finish in PLACED else NOWHERE
            ending = (task.run_id, kwargs) if start == "processing" and finish == "memory" else None
            self._noted += (number, start, finish, place, now, task, ending)
            if finish == "forgotten":
                del self._numbers[key]
            if start == "processing" and finish != "memory":  # what Dask says of the reason holds now only
                self.before_drain()
                self._transition(key, start, finish, *args, **kwargs)
            elif len(self._noted) >= FULL:
                self.before_drain()
        except Exception as problem:  # noqa: BLE001  (distributed would swallow it: count it)
            self._failed(problem)

    async def _count_present(self) -> None:
        """Note the states of the tasks that were there before, some at a time."""
        while self._present:
            for key in list(itertools.islice(self._present, CENSUS_SLICE)):
                task = self._scheduler.tasks.get(key)
                if task is None:
                    del self._present[key]
                else:
                    self._note_present(key, task.state)
            await asyncio.sleep(0)

    def _note_present(self, key: Any, state: str) -> None:
        """Note the state that a task had before."""
        del self._present[key]
        task = self._scheduler.tasks[key]
        place = place_of(task, state) if state in PLACED else NOWHERE
        self._noted += (self._numbered(task), None, state, place, self._began, task, None)
        if len(self._noted) >= FULL:
            self.before_drain()

    def _take(self, noted: list[Any]) -> None:
        """Put states and the names of new tasks into the log, and have attempts begin and end."""
        parts = [noted[part::PARTS] for part in range(PARTS)]
        self._describe_new()
        if self._log.has_room(STATE, len(parts[0])):
            rows = self._packed(*parts[:-2])
            names = json.dumps(self._names, default=plain_part).encode()
            self._log.append(STATE, struct.pack(STATE.packing, self._written, len(rows)) + rows + names)
        self._written = self._known
        self._names.clear()
        for start, finish, place, moment, task, ending in zip(*parts[1:], strict=True):
            try:
                self._take_attempt(start, finish, place, moment, task, ending)
            except Exception as problem:  # noqa: BLE001  (that of one task is not that of the others)
                self._failed(problem)

    def _take_attempt(  # noqa: PLR0917
        self, start: str | None, finish: str, place: Any, moment: float, task: Any, ending: Any
    ) -> None:
        if ending is not None:
            run, reported = ending
            self._attempts.ended(task, run, finish, reported, moment)
        elif start is None or start == "processing":
            return
        elif finish == "processing":
            self._attempts.began(task, place[1], moment)
        elif finish == "forgotten":
            self._coffea.forget(task.key)
        elif finish in UNASSIGNED or start in UNASSIGNED:
            self._attempts.waited(task.key, finish, moment)

    def _packed(self, numbers: Any, before: Any, states: Any, places: Any, times: Any) -> bytes:
        """Rows of `STATE_FIELDS`."""
        suspicious, workers, types, *others = zip(*places, strict=True)
        code, text = self._codes.__getitem__, self._log.number
        known = map(code, before), map(code, states), suspicious, map(text, workers), map(text, types), *others
        pack = self._pack_block if len(numbers) == BLOCK else struct.Struct("<" + len(numbers) * ROW[1:]).pack
        return pack(*itertools.chain.from_iterable(zip(numbers, *known, times, strict=True)))

    def _numbered(self, task: Any) -> int:
        """Number of a task that is new here."""
        number = self._numbers[task.key] = self._known
        self._known += 1
        self._new.append(task)
        if task.dependencies:  # the scheduler forgets them with the task
            self._describe_new()
        return number

    def _describe_new(self) -> None:
        self._names += [(task.key, *self._coffea.described(task)) for task in self._new]
        self._new.clear()


def place_of(task: Any, state: str) -> tuple[int, str | None, str | None, int, float]:
    """How often its worker died, its worker, type, size, and the duration that Dask expects of a task with a worker."""
    if state == "processing":
        address, expected = task.processing_on.address, task.prefix.duration_average
    else:
        address, expected = holder_of(task), NO_DURATION
    return task.suspicious, address, task.type, task.nbytes, expected


def holder_of(task: Any) -> str | None:
    """Address of the worker that has the result of a task, or had its error."""
    for holder in task.who_has or ():
        return str(holder.address)
    return next(iter(task.erred_on or ()), None)


def plain_part(part: Any) -> Any:
    """A part of a key, or of a chunk's identity, in what JSON has."""
    try:
        return part.__index__()
    except (AttributeError, TypeError):
        return str(part)
