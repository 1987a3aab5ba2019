"""The halves of a task monitor on the cluster: each state that a task comes to, and tasks as the workers hold them.

This module may be pickled by value. It uses the standard library, `records` and distributed, and no module of ours by
its name.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import struct
import time
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from roastcoffea.backends.scheduler import CollectorPlugin, ask_workers
from roastcoffea.backends.worker import LEAVING, WorkerHalf
from roastcoffea.log.wire import (
    METADATA_KEY,
    NO_SIZE,
    NO_STRING,
    STATE,
    STATE_FIELDS,
    STATES,
    STATES_HEADER,
    VIEWS,
    packing,
)
from roastcoffea.redaction import redacted_beginning, redacted_values

CENSUS_SLICE = 1000
"""Tasks that are written in one go when a monitor begins: they hold the scheduler for a few milliseconds."""

ENTRY = 100_000
"""Bytes of states in one entry of the log; what is written one by one costs the scheduler more."""

PLACED = ("processing", "memory", "erred")
"""States in which a task is with a worker."""

SEND_SECONDS = 1.0
"""Between two messages of a worker's views: so much is missing at most of a worker that is killed."""

BATCH = 500
"""Views that a worker sends at once, if they come faster than that."""

LONGEST_LIST = 1000
"""Dependencies, dependents or holders that are listed; how many there are is told as well."""

LONGEST_TEXT = 10_000
"""Characters of an error's text; of a task's annotations, and of its metadata, with their items."""

LONGEST_INTEGER = 64
"""Bits of an integer that is written as a number."""

DEEPEST = 20
"""Levels of collections in each other: one may even hold itself."""

TOLD_IN = ("waiting", "flight", "memory", "error", "rescheduled")
"""States in which a worker knows something new of a task; in some others it has just cleared what it knew."""

ENDED = ("memory", "error", "rescheduled", "missing", "forgotten")
"""States after which nothing happens to a task for a while: what is known is sent."""


class TaskEventsPlugin(CollectorPlugin):
    """Records for one monitor each state that a task comes to, beside what a collector's plugin records.

    Parameters
    ----------
    name, client : str
        As for `CollectorPlugin`.
    views : bytes or None
        Pickled function that has a worker give its views of tasks; None where workers do not tell them.
    token : str
        As for `CollectorPlugin`.
    """

    def __init__(self, name: str, client: str, views: bytes | None, token: str) -> None:
        super().__init__(name, client, None, None, token)
        self.views = views

    async def start(self, scheduler: Any) -> None:
        await super().start(scheduler)
        self._began = time.time()
        self._state = struct.Struct(packing(STATE_FIELDS)).pack
        self._states = {state: code for code, state in enumerate(STATES)}
        self._numbers: dict[Any, int] = {}
        self._known = self._written = 0
        self._names: list[str] = []
        self._rows = bytearray()
        self._batches: dict[str, int] = {}
        self._present = dict.fromkeys(scheduler.tasks)
        self._census = asyncio.ensure_future(self._count_present())

    def transition(self, key: Any, start: str, finish: str, *args: Any, stimulus_id: str = "", **kwargs: Any) -> None:
        try:
            self._came_to(key, start, finish)
        except Exception as problem:  # noqa: BLE001  (distributed would swallow it: count it)
            self._failed(problem)
        super().transition(key, start, finish, *args, stimulus_id=stimulus_id, **kwargs)

    def drain(self, limit: int, received: int) -> dict[str, Any]:
        """As that of a collector's plugin."""
        self._write_entry()
        return super().drain(limit, received)

    async def finish(self, flush: bytes, timeout: float, limit: int, received: int) -> dict[str, Any]:
        """As that of a collector's plugin, with what the workers have still to tell of their tasks."""
        if self.views is not None:
            await self._fetch_views(self.views, timeout)
        return await super().finish(flush, timeout, limit, received)

    async def _count_present(self) -> None:
        """Write the states of the tasks that were there before, some at a time."""
        while self._present:
            for key in list(itertools.islice(self._present, CENSUS_SLICE)):
                del self._present[key]
                task = self.scheduler.tasks.get(key)
                if task is not None:
                    self._write_state(task, task.state, self._began)
            await asyncio.sleep(0)

    def _came_to(self, key: Any, start: str, finish: str) -> None:
        task = self.scheduler.tasks[key]
        if key in self._present:
            del self._present[key]
            self._write_state(task, start, self._began)
        self._write_state(task, finish, time.time())
        if finish == "forgotten":
            self._numbers.pop(key, None)

    def _write_state(self, task: Any, state: str, moment: float) -> None:
        if not self.log.has_room(STATE):
            return
        number = self._numbers.get(task.key)
        if number is None:
            number = self._named(task.key)
        told: tuple[int, ...] = NOWHERE
        if state in PLACED:
            text = self.log.number
            told = (task.suspicious, text(place(task)), text(task.type), task.nbytes)
        self._rows += self._state(number, self._states[state], *told, moment)
        if len(self._rows) >= ENTRY:
            self._write_entry()

    def _named(self, key: Any) -> int:
        """Number of a task that is new here."""
        number = self._numbers[key] = self._known
        self._known += 1
        self._names.append(str(key))
        return number

    def _write_entry(self) -> None:
        """Put states and names into the log; what they mean by numbers is there already."""
        names, rows = json.dumps(self._names).encode(), bytes(self._rows)
        header = struct.pack(STATES_HEADER, self._written, len(rows))
        self._written = self._known
        self._names.clear()
        self._rows.clear()
        if rows:
            self.log.append(STATE, header + rows + names)

    def _departure(self, address: str) -> None:
        super()._departure(address)
        self._batches.pop(address, None)

    def _worker_reported(self, message: Mapping[str, Any]) -> None:
        super()._worker_reported(message)
        if "views" not in message:
            return
        self.log.write(VIEWS, message["views"])
        if message["worker"] in self._workers:
            self._batches[message["worker"]] = message["batch"]
        topic = getattr(getattr(self.scheduler, "_broker", None), "_topics", {}).get(self.name)
        if topic is not None:
            topic.events.clear()  # else Dask keeps the last thousand batches

    async def _fetch_views(self, views: bytes, timeout: float) -> None:
        """Have the workers send what they have, and wait until it came; it comes by another way than their answer."""
        deadline = time.monotonic() + timeout
        sent, silent = await ask_workers(self.scheduler, views, {"plugin": self.name}, timeout)
        while late := [address for address, batch in sent.items() if self._batches.get(address, 0) < batch]:
            if time.monotonic() > deadline:
                break
            await asyncio.sleep(0.01)
        for address in sorted({*silent, *late}):
            self._problem(f"{address} did not tell its view of tasks in time: what it did last is missing there")

    def _mark(self, task: Any) -> None:
        """No task is a monitor's own: the records of chunks are for their collectors."""

    def _is_of_user(self, task: Any, mark: Mapping[str, Any] | None) -> bool:
        """A monitor is asked for every task, whoever submitted it; it saves nothing."""
        return True

    def _note_lost(self, address: str) -> None:
        if self.views is not None:
            self._problem(f"{address} was lost: its view of tasks lacks the last {SEND_SECONDS:g} s at most")

    def _end(self) -> None:
        super()._end()
        self._census.cancel()


NOWHERE = (0, NO_STRING, NO_STRING, NO_SIZE)
"""What is told of a task that is with no worker."""


def place(task: Any) -> str | None:
    """Address of the worker that has a task, or had its error."""
    if task.processing_on is not None:
        return str(task.processing_on.address)
    for holder in task.who_has or ():
        return str(holder.address)
    return next(iter(task.erred_on or ()), None)


class WorkerView(WorkerHalf):
    """Sends what this worker knows of each task, in batches."""

    def setup(self, worker: Any) -> None:
        from tornado.ioloop import PeriodicCallback

        super().setup(worker)
        self._numbers = itertools.count(time.time_ns())
        self._views: dict[Any, dict[str, Any]] = {}
        self._unsent: dict[Any, None] = {}
        self._rows: list[dict[str, Any]] = []
        self._batch = 0
        self._failed = False
        self._sender = PeriodicCallback(self.send, 1000 * SEND_SECONDS)
        self._sender.start()

    def transition(self, key: Any, start: str, finish: str, **kwargs: Any) -> None:
        super().transition(key, start, finish, **kwargs)
        try:
            self._see(key, finish)
        except Exception as problem:  # noqa: BLE001  (distributed would swallow it: tell it once)
            self._tell_failure(problem)

    def send(self) -> None:
        """Send the views that have grown."""
        rows, self._rows = self._rows, []
        if rows:
            self._batch += 1
            packed = zlib.compress(json.dumps([self.worker.address, rows], default=str).encode(), 1)
            self.report({"worker": self.worker.address, "batch": self._batch, "views": packed})

    def send_all(self) -> int:
        """Send also the views of tasks that go on; give how many batches were sent so far."""
        for key in list(self._unsent):
            self._settle(key)
        self.send()
        return self._batch

    def teardown(self, worker: Any) -> None:
        self._sender.stop()
        if worker.status.name in LEAVING:
            self.send_all()
        self._views.clear()
        self._unsent.clear()
        super().teardown(worker)

    def _see(self, key: Any, state: str) -> None:
        view = self._views.get(key)
        if view is None:
            view = self._views[key] = {"number": next(self._numbers), "key": str(key), "transitions": []}
        view["transitions"].append([state, time.time()])
        self._unsent[key] = None
        if state in TOLD_IN:
            view |= described(self.worker, self.worker.state.tasks[key], self.name)
        if state in ENDED:
            self._settle(key)
        if state == "forgotten":
            del self._views[key]

    def _settle(self, key: Any) -> None:
        """Have a view sent with the next batch; what comes later is sent by itself."""
        view = self._views[key]
        del self._unsent[key]
        self._views[key] = {"number": view["number"], "transitions": []}
        self._rows.append(view)
        if len(self._rows) >= BATCH:
            self.send()

    def _tell_failure(self, problem: Exception) -> None:
        if not self._failed:
            self._failed = True
            text = f"{self.worker.address} failed to tell its view of a task: {type(problem).__name__}: {problem}"
            self.report({"problem": text})


def described(worker: Any, task: Any, name: str) -> dict[str, Any]:
    """What a worker knows of a task, in plain values; what is not known or empty is left out."""
    values = {of: value for of, read in READERS.items() if (value := read(task)) not in UNKNOWN}
    values["thread"] = worker.state.threads.get(task.key)
    times = task.metadata.get(name)
    values["startstops"] = freed_of_shift(task.startstops, times[3] if times else None, worker.scheduler_delay)
    metadata = {of: value for of, value in task.metadata.items() if of not in (name, METADATA_KEY)}
    values["metadata"] = redacted_values(plain(metadata))
    return {"told": True, **{of: value for of, value in values.items() if value not in UNKNOWN}}


UNKNOWN: tuple[Any, ...] = (None, "", [], {})


def keys_of(tasks: Iterable[Any]) -> list[str]:
    """Keys of so many tasks as are listed."""
    return [str(task.key) for task in itertools.islice(tasks, LONGEST_LIST)]


def type_name(kind: type | None) -> str | None:
    """Name of a type in Dask's manner."""
    from dask.utils import typename

    return None if kind is None else str(typename(kind))


READERS: dict[str, Callable[[Any], Any]] = {
    "run_id": lambda task: task.run_id if task.run_id >= 0 else None,
    "priority": lambda task: None if task.priority is None else list(task.priority),
    "dependencies": lambda task: keys_of(task.dependencies),
    "num_dependencies": lambda task: len(task.dependencies) or None,
    "dependents": lambda task: keys_of(task.dependents),
    "num_dependents": lambda task: len(task.dependents) or None,
    "waiting_for_data": lambda task: keys_of(task.waiting_for_data),
    "who_has": lambda task: list(itertools.islice(task.who_has, LONGEST_LIST)),
    "coming_from": lambda task: task.coming_from,
    "resource_restrictions": lambda task: dict(task.resource_restrictions or {}),
    "exception": lambda task: redacted_beginning(task.exception_text, LONGEST_TEXT),
    "traceback": lambda task: redacted_beginning(task.traceback_text, LONGEST_TEXT),
    "type": lambda task: type_name(task.type),
    "nbytes": lambda task: task.nbytes,
    "annotations": lambda task: redacted_values(plain(task.annotations or {})),
    "span": lambda task: task.span_id,
}
"""What is read of a worker's state of a task."""


def freed_of_shift(
    startstops: Iterable[Mapping[str, Any]], shift: float | None, now: float
) -> list[list[str | float | None]]:
    """Action, start, stop and source of what was timed, on the worker's clock.

    Dask moves computing and transfers by its estimate of the scheduler's clock, at the moment of each; that of
    transfers was not kept, and the present one stands in for it.
    """
    shifts = {"compute": now if shift is None else shift, "transfer": now}
    return [
        [one["action"], one["start"] - by, one["stop"] - by, one.get("source")]
        for one in startstops
        for by in [shifts.get(one["action"], 0.0)]
    ]


def plain(value: Any) -> Any:
    """What JSON can hold of a value, cut where it is large; None where it is of another type.

    What was cut ends with "..." and how much more there was.
    """
    return Plain(LONGEST_TEXT).of(value)


class Plain:
    """Makes plain values that have so many characters and items in all, and no more.

    Parameters
    ----------
    room : int
        Characters of texts, and items of collections.
    """

    def __init__(self, room: int) -> None:
        self.room = room

    def of(self, value: Any, depth: int = 0) -> Any:
        """What JSON can hold of this value, in the room that is left."""
        self.room -= 1
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, (bool, float)):
            return value
        if isinstance(value, int):
            return value if value.bit_length() < LONGEST_INTEGER else self._text(hex(value))
        if not isinstance(value, (Mapping, list, tuple, set, frozenset)):
            return None
        if depth == DEEPEST:
            return "... (deeper than is shown)"
        return self._mapping(value, depth) if isinstance(value, Mapping) else self._items(value, depth)

    def _text(self, text: str) -> str:
        room = max(self.room, 0)
        self.room -= len(text)
        return text if len(text) <= room else f"{text[:room]}... ({len(text) - room} characters more)"

    def _mapping(self, values: Mapping[Any, Any], depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in itertools.islice(values.items(), LONGEST_LIST):
            if self.room <= 0:
                break
            found[self._text(str(key))] = self.of(value, depth + 1)
        more = len(values) - len(found)
        return found | {"...": f"... ({more} more)"} if more > 0 else found

    def _items(self, values: Collection[Any], depth: int) -> list[Any]:
        found: list[Any] = []
        for value in itertools.islice(values, LONGEST_LIST):
            if self.room <= 0:
                break
            found.append(self.of(value, depth + 1))
        more = len(values) - len(found)
        return [*found, f"... ({more} more)"] if more > 0 else found


def send_views(plugin: str, dask_worker: Any) -> int:
    """Have a worker send all its views; give how many batches it has sent so far."""
    half = dask_worker.plugins.get(plugin)
    return 0 if half is None else int(half.send_all())
