"""Workers' views of tasks, sent as plain values and logged by the scheduler."""

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
"""Maximum number of items to list from a collection. The list ends with the number of omitted items."""

LONGEST_TEXT = 10_000
"""Maximum length of a value in characters. Each item counts as one character."""

LONGEST_INTEGER = 64
"""Integers with at least this many bits are written as hexadecimal text."""

DEEPEST = 20
"""Maximum nesting depth of collections. A collection may even contain itself."""


def plain(value: Any) -> Any:
    """Convert a value to plain JSON values, truncating large values.

    Unsupported types become None. Truncated values end with "..." and the size of the omitted part.
    """
    return Plain().of(value)


class Plain:
    room = LONGEST_TEXT

    def of(self, value: Any, depth: int = 0) -> Any:
        self.room -= 1
        match value:
            case float() | int() if isinstance(value, float) or value.bit_length() < LONGEST_INTEGER:
                return value
            case int() | str():
                return self._text(hex(value) if isinstance(value, int) else value)
            case Mapping() | list() | tuple() | set() | frozenset() if depth == DEEPEST:
                return "... (nested too deeply)"
            case Mapping():
                # values are converted first, so names get only the remaining room
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
        return itertools.takewhile(lambda _: self.room > 0, itertools.islice(values, LONGEST_LIST))


SEND_SECONDS = 1.0
"""Seconds between a worker's messages with views. If a worker is killed, views from at most this period are lost."""

BATCH = 500
"""Number of collected views that a worker sends immediately, without waiting."""

TOLD_IN = ("waiting", "flight", "memory", "error", "rescheduled")
"""States in which a worker has new data about a task. In some other states, the worker has just cleared the data."""

ENDED = ("memory", "error", "rescheduled", "missing", "forgotten")
"""States that usually last long enough for a view of the task to be worth sending."""

UNKNOWN: tuple[Any, ...] = (None, "", [], {})


class TaskViews(Addition):
    """The scheduler side, which writes the workers' messages to the log.

    Parameters
    ----------
    send : bytes
        Pickled `send_views`, which makes a worker send all its views.
    """

    def __init__(self, send: bytes) -> None:
        self._send = send

    def start(self, plugin: ClusterPlugin) -> None:
        self._plugin = plugin
        self._batches: dict[str, int] = {}

    def reported(self, message: Mapping[str, Any]) -> None:
        if "views" not in message:
            return
        self._plugin.log.write(VIEWS, message["views"])
        if message["worker"] in self._plugin.workers.here:
            self._batches[message["worker"]] = message["batch"]
        topic = event_topics(self._plugin.scheduler).get(self._plugin.name)
        if topic is not None:
            topic.events.clear()  # otherwise, Dask would keep the last thousand batches

    def departed(self, address: str) -> None:
        self._batches.pop(address, None)

    async def before_end(self, timeout: float) -> None:
        """Have the workers send their views, and wait until the views arrive.

        Views are sent separately from the workers' replies, and may arrive later.
        """
        deadline = time.monotonic() + timeout
        sent, silent = await ask_workers(self._plugin.scheduler, self._send, {"plugin": self._plugin.name}, timeout)
        while late := [address for address, batch in sent.items() if self._batches.get(address, 0) < batch]:
            if time.monotonic() > deadline:
                break
            await asyncio.sleep(0.01)
        for address in sorted({*silent, *late}):
            late_views = f"{address} did not report its view of tasks in time"
            self._plugin.problems.note(f"{late_views}: its last actions are missing")


class WorkerViews:
    """The worker side, which sends the worker's view of each task in batches.

    Parameters
    ----------
    run_spec : int
        Maximum number of characters to send from a task's call. With 0, the call is omitted.
    """

    def __init__(self, run_spec: int = 0) -> None:
        self._run_spec = run_spec

    def setup(self, half: WorkerHalf) -> None:
        """Take over the handling of transitions from the plugin, and start sending views."""
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
        """Stop sending. A worker that is leaving sends all its views first."""
        self._sender.stop()
        if leaving:
            self.send_all()
        self._views.clear()
        self._dependents.clear()
        self._unsent.clear()

    def send(self) -> None:
        rows, self._rows = self._rows, []
        if rows:
            self._batch += 1
            address = self._half.worker.address
            packed = zlib.compress(json.dumps([address, rows], default=str).encode(), 1)
            self._half.report({"worker": address, "batch": self._batch, "views": packed})

    def send_all(self) -> int:
        """Send all views, including those of active tasks, and return the number of batches sent so far."""
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
        """Record a task's dependents.

        Dask forgets a task's dependents before the task itself, and rarely knows them when the task ends.
        """
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
        """Add a view to the next batch. Later changes are sent separately."""
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
    half = dask_worker.plugins.get(plugin)
    return 0 if half is None else int(half.companion.send_all())


def view_of(worker: Any, task: Any, name: str) -> dict[str, Any]:
    """Return a worker's data about a task as plain values, omitting unknown and empty values."""
    values = {of: value for of, read in READERS.items() if (value := read(task)) not in UNKNOWN}
    values["thread"] = worker.state.threads.get(task.key)
    times = task.metadata.get(name)
    values["startstops"] = freed_of_shift(task.startstops, times[3] if times else None, worker.scheduler_delay)
    metadata = {of: value for of, value in task.metadata.items() if of not in (name, METADATA_KEY)}
    values["metadata"] = redacted_values(plain(metadata))
    return {"described": True, **{of: value for of, value in values.items() if value not in UNKNOWN}}


def keys_of(tasks: Iterable[Any]) -> list[Any]:
    return [task.key for task in itertools.islice(tasks, LONGEST_LIST)]


def call_text(spec: Any, most: int) -> str:
    """Format a task's call in at most `most` characters, with secrets redacted."""
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


def freed_of_shift(
    startstops: Iterable[Mapping[str, Any]], shift: float | None, now: float
) -> list[list[str | float | None]]:
    """Return the action, start, stop and source of each timed action, with times on the worker's clock.

    Dask shifts compute and transfer times by its current estimate of the offset to the scheduler's clock. Dask does not
    keep the estimate applied to transfers, so the current estimate is used instead.
    """
    shifts = {"compute": now if shift is None else shift, "transfer": now}
    return [
        [one["action"], one["start"] - by, one["stop"] - by, one.get("source")]
        for one in startstops
        for by in [shifts.get(one["action"], 0.0)]
    ]
