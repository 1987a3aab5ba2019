"""What the client's thread does for an executor on Dask: it submits graphs, waits for the result, and merges it.

Meanwhile four methods of the client are wrapped, for the threads of executors that are recorded; the last executor
restores them.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, NamedTuple

from roastcoffea.interrupts import interrupts_held, raise_if_interrupted
from roastcoffea.records.client import EXECUTOR, MERGE, RESULTS, SUBMIT

Row = dict[str, Any]

STEP_OF: Final[Mapping[str, str]] = {"map": SUBMIT, "submit": SUBMIT, "sync": RESULTS}
"""Methods of a client, and the step that they are a part of."""
SEND: Final = "_send_to_scheduler"
UPDATE: Final = "update-graph"
"""The method that sends messages, and the message with a graph."""

MOST_SUBMITS: Final = 10_000
"""Most rows of graphs of one executor call; further ones are in the last row."""


class Moment(NamedTuple):
    """Unix time, and CPU time of the thread."""

    time: float
    cpu: float


class Steps:
    """Steps of one executor call.

    Parameters
    ----------
    call, work
        Identity of the Runner call, and what the executor does for it.
    """

    def __init__(self, call: str | None, work: str) -> None:
        self._of = {"call": call, "work": work}
        self._offset = time.time() - time.perf_counter()
        self._submits: list[Row] = []
        self._began = self._submitted = self._now()
        self._returned: Moment | None = None
        self._is_inside = False
        self._sent: int | None = None
        self._tasks: int | None = None

    def during(self, step: str, method: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call a method of the client as a part of this step, unless another one calls it."""
        if self._is_inside:
            return method(*args, **kwargs)
        self._is_inside, began = True, self._now()
        self._sent = self._tasks = None
        try:
            return method(*args, **kwargs)
        finally:
            self._is_inside = False
            self._ended(step, began, self._now())

    def sends(self, message: Any) -> None:
        """Note the size of a graph that is sent."""
        if isinstance(message, Mapping) and message.get("op") == UPDATE:
            try:
                frames = message["expr_ser"].frames if "expr_ser" in message else message["graph_frames"]
                self._sent = (self._sent or 0) + sum(memoryview(frame).nbytes for frame in frames)
                self._tasks = (self._tasks or 0) + len(message["keys"])
            except (AttributeError, KeyError, TypeError) as error:  # a version with another form: not known
                raise_if_interrupted(error)

    def rows(self) -> Iterator[Row]:
        """All steps, after the executor call."""
        end = self._now()
        yield self._row(EXECUTOR, self._began, end)
        yield from self._submits
        if self._submits:
            yield self._row(RESULTS, self._submitted, self._returned or end)
        if self._submits and self._returned is not None:
            yield self._row(MERGE, self._returned, end)

    def _now(self) -> Moment:
        return Moment(self._offset + time.perf_counter(), time.thread_time())

    def _ended(self, step: str, began: Moment, ended: Moment) -> None:
        if step == SUBMIT:
            row = self._row(SUBMIT, began, ended) | {"graph_bytes": self._sent, "tasks": self._tasks}
            self._submitted, self._returned = ended, None
            if len(self._submits) < MOST_SUBMITS:
                self._submits.append(row)
            else:
                self._submits[-1] = _joined(self._submits[-1], row)
        else:
            self._returned = ended

    def _row(self, step: str, began: Moment, ended: Moment) -> Row:
        return self._of | {"step": step, "start": began.time, "stop": ended.time, "cpu_seconds": ended.cpu - began.cpu}


def _joined(row: Row, other: Row) -> Row:
    """One row for two, with the time between them."""
    sums = {name: _sum(row[name], other[name]) for name in ("cpu_seconds", "graph_bytes", "tasks")}
    return row | sums | {"stop": other["stop"]}


def _sum(one: Any, other: Any) -> Any:
    return None if one is None or other is None else one + other


@contextmanager
def recorded_steps(client: Any, call: str | None, work: str, take: Callable[[list[Row]], None]) -> Iterator[None]:
    """Context in which an executor works on this thread with a client; its steps are taken at the end."""
    steps = Steps(call, work)
    with _wrapped(client):
        token = _current.set(steps)
        try:
            yield
        finally:
            _current.reset(token)
            take(list(steps.rows()))


_current: Final[ContextVar[Steps | None]] = ContextVar("roastcoffea_steps", default=None)
"""Steps that this thread records."""

_lock: Final = threading.Lock()
_clients: Final[dict[int, tuple[int, dict[str, Any]]]] = {}
"""For each wrapped client, how many executors work with it, and the wrappers."""


@contextmanager
def _wrapped(client: Any) -> Iterator[None]:
    with interrupts_held(), _lock:
        users, wrappers = _clients.get(id(client)) or (0, _wrap(client))
        _clients[id(client)] = users + 1, wrappers
    try:
        yield
    finally:
        with interrupts_held(), _lock:
            users, wrappers = _clients.pop(id(client))
            if users > 1:
                _clients[id(client)] = users - 1, wrappers
            else:
                _unwrap(client, wrappers)


def _wrap(client: Any) -> dict[str, Any]:
    """Wrap methods of one client; attributes that it has itself are left alone."""
    names = [name for name in (*STEP_OF, SEND) if name not in vars(client)]
    wrappers = {name: _sender(client) if name == SEND else _wrapper(client, name) for name in names}
    vars(client).update(wrappers)
    return wrappers


def _unwrap(client: Any, wrappers: Mapping[str, Any]) -> None:
    for name, wrapper in wrappers.items():
        if vars(client).get(name) is wrapper:
            delattr(client, name)


def _wrapper(client: Any, name: str) -> Callable[..., Any]:
    original, step = getattr(client, name), STEP_OF[name]

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        steps = _current.get()
        return original(*args, **kwargs) if steps is None else steps.during(step, original, args, kwargs)

    return wrapper


def _sender(client: Any) -> Callable[[Any], None]:
    original = getattr(client, SEND)

    @functools.wraps(original)
    def wrapper(message: Any) -> None:
        steps = _current.get()
        if steps is not None:
            steps.sends(message)
        original(message)

    return wrapper
