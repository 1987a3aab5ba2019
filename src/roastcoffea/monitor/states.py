"""The monitor's part on the scheduler: each state that a task enters.

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
"""Tasks without a transition written at a time, which blocks the scheduler for a few milliseconds."""

ROW = packing(STATE_FIELDS)
BLOCK = 256
"""Rows packed at a time into one entry of the log; individually they cost the scheduler twice as much."""

PARTS = 7
"""Fields noted for a state: number of the task, previous state, state, place, time; task, and how its attempt ended."""

FULL = PARTS * BLOCK

PLACED = ("processing", "memory", "erred")
"""States in which a task is with a worker."""

WITHOUT_ATTEMPT = {("released", "waiting"), ("memory", "released"), ("released", "forgotten"), ("memory", "forgotten")}
"""Transitions that start and end no attempt, and leave no queue."""

NO_DURATION = -1.0

ADDRESS = itemgetter(1)

NOWHERE = (0, None, None, NO_SIZE, NO_DURATION)
"""Place of a task that is with no worker: see `place_of`."""


class TaskStates(Addition):
    """Writes each state that a task enters, including tasks that existed before."""

    def start(self, plugin: ClusterPlugin) -> None:
        """Take over the plugin's transitions."""
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
        """Last written worker of each numbered task."""
        self._known = self._written = self._unmatched = 0
        self._names: list[Any] = []
        self._new: list[Any] = []
        """Tasks with a number whose names are not written yet."""
        self._noted: list[Any] = []
        """`PARTS` of each state, in sequence."""
        self._present = dict.fromkeys(plugin.scheduler.tasks, time.time())
        """Tasks that entered their state without a transition and are still to be written, with the time of that."""
        self._census = asyncio.ensure_future(self._count_present())
        plugin.transition = self._follow

    def before_drain(self) -> int:
        """Put states and names into the log, which already has the texts behind their numbers.

        Return the number of tasks without a transition that are still to be written.
        """
        self._look_for_data()
        self._take_noted()
        return len(self._present)

    def departed(self, address: str) -> None:
        """Write the new holders of this worker's results: they moved without a transition."""
        self._take_noted()
        left = [key for key, number in self._numbers.items() if self._holders.get(number) == address]
        self.moved(left)

    def moved(self, keys: Iterable[Any]) -> None:
        """Write the holders of these results if they have changed."""
        self._take_noted()
        for key in keys:
            task, number = self._scheduler.tasks.get(key), self._numbers.get(key)
            if task is None or number is None or task.state != "memory":
                continue
            if self._holders.get(number) not in {holder.address for holder in task.who_has or ()}:
                self._note_state(task, number, "memory", time.time())

    async def before_end(self, timeout: float) -> None:
        """Have all existing tasks written."""
        self.before_drain()
        await asyncio.wait([self._census], timeout=timeout)

    def end(self) -> None:
        """Stop counting."""
        self._census.cancel()

    def _follow(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        # half a dozen times for each task, each time between a hundred other things of the scheduler: what can be done
        # for many tasks in one go is done in a quarter of the time
        try:
            now = time.time()
            task = self._scheduler.tasks[key]
            number = self._numbers.get(key)
            if number is None:
                # new tasks start as released: others existed before, or came without a transition
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
            if start == "processing" and finish != "memory":  # Dask's details of the reason are only valid now
                self._take_noted()
                self._transition(key, start, finish, *args, **kwargs)
            elif len(self._noted) >= FULL:
                self._take_noted()
        except Exception as problem:  # noqa: BLE001  (distributed would swallow it: count it)
            self._failed(problem)

    def _look_for_data(self) -> None:
        """Find tasks that came without a transition, such as scattered data, if the number of tasks indicates any.

        Not within a transition: the scheduler creates many tasks before the first of them enters a state.
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
        """Note the states of the tasks that came without a transition, in batches."""
        while self._present:
            for key in list(itertools.islice(self._present, CENSUS_SLICE)):
                task = self._scheduler.tasks.get(key)
                if task is None:
                    del self._present[key]
                else:
                    self._note_present(task, task.state, time.time())
            await asyncio.sleep(0)

    def _note_present(self, task: Any, state: str, now: float) -> None:
        """Note the state that a task entered without a transition, at the time it was found."""
        moment = self._present.pop(task.key, now)
        self._note_state(task, self._numbered(task), state, moment)
        if len(self._noted) >= FULL:
            self._take_noted()

    def _note_state(self, task: Any, number: int, state: str, moment: float) -> None:
        """Note a state without a transition."""
        # a task that was found as it ended is no longer with a worker
        placed = task.processing_on is not None if state == "processing" else state in PLACED
        place = place_of(task, state) if placed else NOWHERE
        self._noted += (number, None, state, place, moment, task, None)

    def _take_noted(self) -> None:
        noted, self._noted = self._noted, []
        if noted:
            self._take(noted)

    def _take(self, noted: list[Any]) -> None:
        """Put states and the names of new tasks into the log, and start and end attempts."""
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
            except Exception as problem:  # noqa: BLE001  (that of one task is not that of the others)
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
        if task.dependencies:  # the scheduler forgets them along with the task
            self._describe_new()
        return number

    def _describe_new(self) -> None:
        self._names += [(task.key, *self._coffea.described(task)) for task in self._new]
        self._new.clear()


def place_of(task: Any, state: str) -> tuple[int, str | None, str | None, int, float]:
    """Deaths of workers, worker, type, size, and Dask's expected duration for a task with a worker."""
    if state == "processing":
        address, expected = task.processing_on.address, task.prefix.duration_average
    else:
        address, expected = holder_of(task), NO_DURATION
    return task.suspicious, address, task.type, task.nbytes, expected


def holder_of(task: Any) -> str | None:
    """Address of the worker that has a task's result, or had its error."""
    for holder in task.who_has or ():
        return str(holder.address)
    return next(iter(task.erred_on or ()), None)
