"""The monitor's scheduler side: records each state that a task enters.

This module may be pickled by value.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import struct
import time
from collections.abc import Iterable
from operator import itemgetter
from typing import Any

from roastcoffea.backends.attempts import UNASSIGNED, CoffeaTasks, plain_part
from roastcoffea.backends.scheduler import Addition, ClusterPlugin
from roastcoffea.log.kinds import NO_SIZE, NO_STATE, STATE, STATE_FIELDS, STATES, packing

CENSUS_SLICE = 1000
"""Number of existing tasks to write at once. Writing them blocks the scheduler for a few milliseconds."""

ROW = packing(STATE_FIELDS)
BLOCK = 256
"""Number of rows to pack into one log entry. Packing rows individually takes the scheduler twice as long."""

PARTS = 7
"""Number of values recorded per state: task number, previous state, state, place, time, task, end of attempt."""

FULL = PARTS * BLOCK

PLACED = ("processing", "memory", "erred")
"""States in which a task is on a worker."""

WITHOUT_ATTEMPT = {("released", "waiting"), ("memory", "released"), ("released", "forgotten"), ("memory", "forgotten")}
"""Transitions that do not start or end an attempt and do not leave a queue."""

NO_DURATION = -1.0

ADDRESS = itemgetter(1)

NOWHERE = (0, None, None, NO_SIZE, NO_DURATION)


class TaskStates(Addition):
    """Records each state that a task enters, and the states of tasks that already exist."""

    def start(self, plugin: ClusterPlugin) -> None:
        """Take over the handling of transitions from the plugin."""
        self._scheduler = plugin.scheduler
        self._log = plugin.log
        self._failed = plugin.problems.failed
        self._transition = plugin.transition
        self._attempts = plugin.attempts
        plugin.attempts.take_noted = self._take_noted
        self._pack_block = struct.Struct("<" + BLOCK * ROW[1:]).pack
        self._codes = {state: code for code, state in enumerate(STATES)} | {None: NO_STATE}
        self._coffea = CoffeaTasks()
        self._numbers: dict[Any, int] = {}
        self._holders: dict[int, str | None] = {}
        """The last worker written to the log for each numbered task."""
        self._known = self._written = self._unmatched = 0
        self._names: list[Any] = []
        self._new: list[Any] = []
        self._noted: list[Any] = []
        """Recorded values, `PARTS` per state, in one flat list."""
        self._present = dict.fromkeys(plugin.scheduler.tasks, time.time())
        """Tasks that appeared without a transition and have not been written yet, with their discovery times."""
        self._census = asyncio.ensure_future(self._count_present())
        plugin.transition = self._follow

    def before_drain(self) -> int:
        """Write states and names to the log, after the strings to which they refer.

        Return the number of tasks that appeared without a transition and have not been written yet.
        """
        self._look_for_data()
        self._take_noted()
        return len(self._present)

    def departed(self, address: str) -> None:
        """Log the new holders of the departed worker's results, which move without a transition."""
        self._take_noted()
        left = [key for key, number in self._numbers.items() if self._holders.get(number) == address]
        self.moved(left)

    def moved(self, keys: Iterable[Any]) -> None:
        self._take_noted()
        for key in keys:
            task, number = self._scheduler.tasks.get(key), self._numbers.get(key)
            if task is None or number is None or task.state != "memory":
                continue
            if self._holders.get(number) not in {holder.address for holder in task.who_has or ()}:
                self._note_state(task, number, "memory", time.time())

    async def before_end(self, timeout: float) -> None:
        self.before_drain()
        await asyncio.wait([self._census], timeout=timeout)

    def end(self) -> None:
        self._census.cancel()

    def _follow(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        # this is called about six times per task while the scheduler is working; batching the remaining work across
        # tasks reduces the time to a quarter
        try:
            now = time.time()
            task = self._scheduler.tasks[key]
            number = self._numbers.get(key)
            if number is None:
                # new tasks start as released: all other tasks existed before, or appeared without a transition
                if start != "released" or key in self._present:
                    self._note_present(task, start, now)
                    number = self._numbers[key]
                else:
                    number = self._numbered(task)
            place = place_of(task, finish) if finish in PLACED else NOWHERE
            ending = (task.run_id, kwargs) if start == "processing" and finish == "memory" else None
            self._noted += (number, start, finish, place, now, task, ending)
            if finish == "forgotten":
                del self._numbers[key]
            if start == "processing" and finish != "memory":  # Dask's details about the reason are valid only now
                self._take_noted()
                self._transition(key, start, finish, *args, **kwargs)
            elif len(self._noted) >= FULL:
                self._take_noted()
        except Exception as problem:  # noqa: BLE001  (distributed would swallow the error, so it is counted)
            self._failed(problem)

    def _look_for_data(self) -> None:
        """Find tasks that appeared without a transition, such as scattered data.

        Never call this method during a transition, because the scheduler creates many tasks before the first of these
        tasks enters a state.
        """
        tasks = self._scheduler.tasks
        if len(tasks) - len(self._numbers) - len(self._present) == self._unmatched:
            return
        now = time.time()
        found = [key for key in tasks if key not in self._numbers and key not in self._present]
        if len(found) <= CENSUS_SLICE:
            for key in found:
                self._note_present(tasks[key], tasks[key].state, now)
        else:
            self._present |= dict.fromkeys(found, now)
            if self._census.done():
                self._census = asyncio.ensure_future(self._count_present())
        self._unmatched = len(tasks) - len(self._numbers) - len(self._present)

    async def _count_present(self) -> None:
        while self._present:
            for key in list(itertools.islice(self._present, CENSUS_SLICE)):
                task = self._scheduler.tasks.get(key)
                if task is None:
                    del self._present[key]
                else:
                    self._note_present(task, task.state, time.time())
            await asyncio.sleep(0)

    def _note_present(self, task: Any, state: str, now: float) -> None:
        """Record the state of a task that appeared without a transition, at the time of its discovery."""
        moment = self._present.pop(task.key, now)
        self._note_state(task, self._numbered(task), state, moment)
        if len(self._noted) >= FULL:
            self._take_noted()

    def _note_state(self, task: Any, number: int, state: str, moment: float) -> None:
        # a task discovered just as it ends is no longer on a worker
        placed = task.processing_on is not None if state == "processing" else state in PLACED
        place = place_of(task, state) if placed else NOWHERE
        self._noted += (number, None, state, place, moment, task, None)

    def _take_noted(self) -> None:
        noted, self._noted = self._noted, []
        if noted:
            self._take(noted)

    def _take(self, noted: list[Any]) -> None:
        parts = [noted[part::PARTS] for part in range(PARTS)]
        self._holders |= zip(parts[0], map(ADDRESS, parts[3]), strict=True)
        self._describe_new()
        if self._log.has_room(STATE, len(parts[0])):
            rows = self._packed(*parts[:-2])
            names = json.dumps(self._names, default=plain_part).encode()
            self._log.append(STATE, struct.pack(STATE.packing, self._written, len(rows)) + rows + names)
        self._written = self._known
        self._names.clear()
        for row in zip(*parts, strict=True):
            try:
                self._take_attempt(*row)
            except Exception as problem:  # noqa: BLE001  (one task's problem must not affect the others)
                self._failed(problem)

    def _take_attempt(  # noqa: PLR0917
        self, number: int, start: str | None, finish: str, place: Any, moment: float, task: Any, ending: Any
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
            del self._holders[number]
        elif finish in UNASSIGNED or start in UNASSIGNED:
            self._attempts.waited(task.key, finish, moment)

    def _packed(self, numbers: Any, before: Any, states: Any, places: Any, times: Any) -> bytes:
        suspicious, workers, types, *others = zip(*places, strict=True)
        code, text = self._codes.__getitem__, self._log.number
        known = map(code, before), map(code, states), suspicious, map(text, workers), map(text, types), *others
        pack = self._pack_block if len(numbers) == BLOCK else struct.Struct("<" + len(numbers) * ROW[1:]).pack
        return pack(*itertools.chain.from_iterable(zip(numbers, *known, times, strict=True)))

    def _numbered(self, task: Any) -> int:
        number = self._numbers[task.key] = self._known
        self._known += 1
        self._new.append(task)
        if task.dependencies:  # the scheduler forgets dependencies along with the task
            self._describe_new()
        return number

    def _describe_new(self) -> None:
        self._names += [(task.key, *self._coffea.described(task)) for task in self._new]
        self._new.clear()


def place_of(task: Any, state: str) -> tuple[int, str | None, str | None, int, float]:
    """For a task on a worker, return the number of worker deaths, the worker, type, size and expected duration."""
    if state == "processing":
        address, expected = task.processing_on.address, task.prefix.duration_average
    else:
        address, expected = holder_of(task), NO_DURATION
    return task.suspicious, address, task.type, task.nbytes, expected


def holder_of(task: Any) -> str | None:
    for holder in task.who_has or ():
        return str(holder.address)
    return next(iter(task.erred_on or ()), None)
