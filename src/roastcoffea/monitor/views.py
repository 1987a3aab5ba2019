"""The workers' views of tasks, as plain values of bounded size: sent by workers, written by the scheduler."""

from __future__ import annotations

import asyncio
import itertools
import json
import reprlib
import time
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from roastcoffea.backends.plugin_lifetime import ask_workers
from roastcoffea.backends.scheduler import Addition, ClusterPlugin
from roastcoffea.backends.worker import WorkerHalf
from roastcoffea.generations import event_topics
from roastcoffea.log.kinds import VIEWS
from roastcoffea.log.marks import METADATA_KEY
from roastcoffea.redaction import redacted_beginning, redacted_values

Item = TypeVar("Item")

LONGEST_LIST = 1000
"""Most items of a collection listed, followed by the number of others."""

LONGEST_TEXT = 10_000
"""Most characters of a value, with one for each item."""

LONGEST_INTEGER = 64
"""Most bits of an integer written as a number."""

DEEPEST = 20
"""Most levels of nested collections: one may even contain itself."""


def plain(value: Any) -> Any:
    """JSON form of a value, truncated if large; None for other types.

    Truncated values end with "..." and the size of the rest.
    """
    return Plain().of(value)


class Plain:
    """Makes plain values with a limit on their total characters and items."""

    room = LONGEST_TEXT

    def of(self, value: Any, depth: int = 0) -> Any:
        """JSON form of this value, in the remaining room."""
        self.room -= 1
        match value:
            case float() | int() if isinstance(value, float) or value.bit_length() < LONGEST_INTEGER:
                return value
            case int() | str():
                return self._text(hex(value) if isinstance(value, int) else value)
            case Mapping() | list() | tuple() | set() | frozenset() if depth == DEEPEST:
                return "... (nested too deeply)"
            case Mapping():
                # a value takes its room before its name
                named = [(self.of(one, depth + 1), self._text(str(key))) for key, one in self._in_room(value.items())]
                found: Any = {name: one for one, name in named}
                return found | {"...": f"... ({more} more)"} if (more := len(value) - len(found)) > 0 else found
            case list() | tuple() | set() | frozenset():
                found = [self.of(one, depth + 1) for one in self._in_room(value)]
                return [*found, f"... ({more} more)"] if (more := len(value) - len(found)) > 0 else found
        return None

    def _text(self, text: str) -> str:
        room = max(self.room, 0)
        self.room -= len(text)
        return text if len(text) <= room else f"{text[:room]}... ({len(text) - room} characters more)"

    def _in_room(self, values: Collection[Item]) -> Iterator[Item]:
        """Items until there are too many, or no room is left."""
        return itertools.takewhile(lambda _: self.room > 0, itertools.islice(values, LONGEST_LIST))


SEND_SECONDS = 1.0
"""Seconds between a worker's messages with its views, and the most that is missing for a killed one."""

BATCH = 500
"""Views that a worker sends immediately once it has this many."""

TOLD_IN = ("waiting", "flight", "memory", "error", "rescheduled")
"""States in which a worker has news of a task; in some others it has just cleared its data."""

ENDED = ("memory", "error", "rescheduled", "missing", "forgotten")
"""States after which nothing happens to a task for a while: its view is sent."""

UNKNOWN: tuple[Any, ...] = (None, "", [], {})


class TaskViews(Addition):
    """The part on the scheduler: writes the workers' messages.

    Parameters
    ----------
    send : bytes
        Pickled `send_views`, which makes a worker send all its views.
    """

    def __init__(self, send: bytes) -> None:
        self._send = send

    def start(self, plugin: ClusterPlugin) -> None:
        """Take the workers' messages from now on."""
        self._plugin = plugin
        self._batches: dict[str, int] = {}

    def reported(self, message: Mapping[str, Any]) -> None:
        """Write a batch of views."""
        if "views" not in message:
            return
        self._plugin.log.write(VIEWS, message["views"])
        if message["worker"] in self._plugin.workers.here:
            self._batches[message["worker"]] = message["batch"]
        topic = event_topics(self._plugin.scheduler).get(self._plugin.name)
        if topic is not None:
            topic.events.clear()  # otherwise Dask keeps the last thousand batches

    def departed(self, address: str) -> None:
        """Forget a worker that left."""
        self._batches.pop(address, None)

    async def before_end(self, timeout: float) -> None:
        """Have the workers send their views, and wait until they arrive, which is independent of their answers."""
        deadline = time.monotonic() + timeout
        sent, silent = await ask_workers(self._plugin.scheduler, self._send, {"plugin": self._plugin.name}, timeout)
        while late := [address for address, batch in sent.items() if self._batches.get(address, 0) < batch]:
            if time.monotonic() > deadline:
                break
            await asyncio.sleep(0.01)
        for address in sorted({*silent, *late}):
            late_views = f"{address} did not report its view of tasks in time"
            self._plugin.problems.note(f"{late_views}: its last actions are missing there")


class WorkerViews:
    """The part on a worker: sends its view of each task, in batches.

    Parameters
    ----------
    run_spec : int
        Characters of a task's call to send; 0 for none.
    """

    def __init__(self, run_spec: int = 0) -> None:
        self._run_spec = run_spec

    def setup(self, half: WorkerHalf) -> None:
        """Take over the plugin's transitions, and send from now on."""
        from tornado.ioloop import PeriodicCallback

        self._half = half
        self._transition = half.transition
        self._numbers = itertools.count(time.time_ns())
        self._views: dict[Any, dict[str, Any]] = {}
        self._dependents: dict[Any, set[Any]] = {}
        self._unsent: dict[Any, None] = {}
        self._rows: list[dict[str, Any]] = []
        self._batch = 0
        self._has_failed = False
        self._sender = PeriodicCallback(self.send, 1000 * SEND_SECONDS)
        self._sender.start()
        half.transition = self._follow  # type: ignore[method-assign]

    def teardown(self, leaving: bool) -> None:
        """Stop sending; a worker that leaves sends everything first."""
        self._sender.stop()
        if leaving:
            self.send_all()
        self._views.clear()
        self._dependents.clear()
        self._unsent.clear()

    def send(self) -> None:
        """Send the views that have grown."""
        rows, self._rows = self._rows, []
        if rows:
            self._batch += 1
            address = self._half.worker.address
            packed = zlib.compress(json.dumps([address, rows], default=str).encode(), 1)
            self._half.report({"worker": address, "batch": self._batch, "views": packed})

    def send_all(self) -> int:
        """Send also the views of active tasks; return the number of batches sent so far."""
        for key in list(self._unsent):
            self._settle(key)
        self.send()
        return self._batch

    def _follow(self, key: Any, start: str, finish: str, **kwargs: Any) -> None:
        self._transition(key, start, finish, **kwargs)
        try:
            self._note(key, finish)
        except Exception as problem:  # noqa: BLE001  (distributed would swallow it: report it once)
            self._report_failure(problem)

    def _note(self, key: Any, state: str) -> None:
        view = self._views.get(key)
        if view is None:
            view = self._views[key] = {"number": next(self._numbers), "key": key, "transitions": []}
            self._dependents[key] = set()
        view["transitions"].append([state, time.time()])
        self._unsent[key] = None
        if state in TOLD_IN:
            worker = self._half.worker
            task = worker.state.tasks[key]
            view |= view_of(worker, task, self._half.name)
            if self._run_spec and state == "waiting":
                view["run_spec"] = call_text(task.run_spec, self._run_spec)
            self._link(key, task.dependents)
            for needed in task.dependencies:
                self._link(needed.key, (task,))
        if state in ENDED:
            self._settle(key)
        if state == "forgotten":
            del self._views[key], self._dependents[key]

    def _link(self, key: Any, dependents: Iterable[Any]) -> None:
        """Keep what needs a task: Dask forgets it before the task itself, and rarely has it when the task ends."""
        known = self._dependents.get(key)
        if known is None:
            return
        if new := [task.key for task in dependents if task.key not in known]:
            listed = self._views[key].setdefault("dependents", [])
            listed += new[: max(0, LONGEST_LIST - len(known))]
            known.update(new)
            self._views[key]["num_dependents"] = len(known)
            self._unsent[key] = None

    def _settle(self, key: Any) -> None:
        """Send a view with the next batch; later changes are sent separately."""
        view = self._views[key]
        del self._unsent[key]
        self._views[key] = {"number": view["number"], "transitions": []}
        self._rows.append(view)
        if len(self._rows) >= BATCH:
            self.send()

    def _report_failure(self, problem: Exception) -> None:
        if not self._has_failed:
            self._has_failed = True
            address = self._half.worker.address
            text = f"{address} failed to report its view of a task: {type(problem).__name__}: {problem}"
            self._half.report({"problem": text})


def send_views(plugin: str, dask_worker: Any) -> int:
    """Have a worker send all its views; return the number of batches sent so far."""
    half = dask_worker.plugins.get(plugin)
    return 0 if half is None else int(half.companion.send_all())


def view_of(worker: Any, task: Any, name: str) -> dict[str, Any]:
    """A worker's data of a task, in plain values; unknown and empty ones are left out."""
    values = {of: value for of, read in READERS.items() if (value := read(task)) not in UNKNOWN}
    values["thread"] = worker.state.threads.get(task.key)
    times = task.metadata.get(name)
    values["startstops"] = freed_of_shift(task.startstops, times[3] if times else None, worker.scheduler_delay)
    metadata = {of: value for of, value in task.metadata.items() if of not in (name, METADATA_KEY)}
    values["metadata"] = redacted_values(plain(metadata))
    return {"described": True, **{of: value for of, value in values.items() if value not in UNKNOWN}}


def keys_of(tasks: Iterable[Any]) -> list[Any]:
    """Keys of as many tasks as are listed."""
    return [task.key for task in itertools.islice(tasks, LONGEST_LIST)]


def call_text(spec: Any, most: int) -> str:
    """A task's call as text without secrets, of at most this many characters, however large its values are."""
    from dask.utils import funcname

    shown = reprlib.Repr()
    shown.maxstring = shown.maxother = shown.maxlong = most
    write = shown.repr
    function, arguments = getattr(spec, "func", None), getattr(spec, "args", ())
    if function is None:
        return redacted_beginning(write(spec), most)
    parts = [write(value) for value in itertools.islice(arguments, most)]
    named = itertools.islice((getattr(spec, "kwargs", None) or {}).items(), most)
    parts += [f"{name}={write(value)}" for name, value in named]
    return redacted_beginning(f"{funcname(function)}({', '.join(parts)})", most)


def type_name(kind: type | None) -> str | None:
    """Name of a type in Dask's form."""
    from dask.utils import typename

    return None if kind is None else str(typename(kind))


READERS: dict[str, Callable[[Any], Any]] = {
    "run_id": lambda task: task.run_id if task.run_id >= 0 else None,
    "priority": lambda task: None if task.priority is None else list(task.priority),
    "dependencies": lambda task: keys_of(task.dependencies),
    "num_dependencies": lambda task: len(task.dependencies) or None,
    "waiting_for_data": lambda task: keys_of(task.waiting_for_data),
    "who_has": lambda task: list(itertools.islice(task.who_has, LONGEST_LIST)),
    "coming_from": lambda task: task.coming_from,
    "start_time": lambda task: task.start_time,
    "stop_time": lambda task: task.stop_time,
    "suspicious_count": lambda task: task.suspicious_count or None,
    "resource_restrictions": lambda task: dict(task.resource_restrictions or {}),
    "exception": lambda task: redacted_beginning(task.exception_text, LONGEST_TEXT),
    "traceback": lambda task: redacted_beginning(task.traceback_text, LONGEST_TEXT),
    "type": lambda task: type_name(task.type),
    "nbytes": lambda task: task.nbytes,
    "annotations": lambda task: redacted_values(plain(task.annotations or {})),
    "span": lambda task: task.span_id,
}
"""Attributes read from a worker's state of a task."""


def freed_of_shift(
    startstops: Iterable[Mapping[str, Any]], shift: float | None, now: float
) -> list[list[str | float | None]]:
    """Action, start, stop and source of timed actions, on the worker's clock.

    Dask shifts computing and transfers by its estimate of the scheduler's clock at the time; that of transfers is not
    kept, so the present one is used.
    """
    shifts = {"compute": now if shift is None else shift, "transfer": now}
    return [
        [one["action"], one["start"] - by, one["stop"] - by, one.get("source")]
        for one in startstops
        for by in [shifts.get(one["action"], 0.0)]
    ]
