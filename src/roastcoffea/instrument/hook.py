"""The client's hook into coffea: it intercepts Runner calls and wraps each chunk's function in a probe.

While a collector is open, `Runner.run` and the `copy` of executors are patched; the last collector restores them. The
Runner makes a temporary copy of its executor for each step; only that copy gets a subclass of its class whose
`__call__` annotates the tasks and wraps the function. Records travel by the transport of the executor's call.
"""

from __future__ import annotations

import functools
import shutil
import tempfile
import threading
import time
import types
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any, Final, NamedTuple

import dask
from dask.utils import funcname, key_split

from roastcoffea.errors import error_text, reported
from roastcoffea.instrument import calls
from roastcoffea.instrument.calls import OpenCall, Watcher, Watchers, watchers
from roastcoffea.instrument.channels import CarriedProbe, spooled, taken_from
from roastcoffea.instrument.gauges import process_name
from roastcoffea.instrument.probe import Probe, TraceWatch
from roastcoffea.interrupts import interrupts_held, raise_if_interrupted, whole
from roastcoffea.log.marks import ANNOTATION, PARSL, TASKVINE
from roastcoffea.log.packing import packed_records
from roastcoffea.records.tasks import PREPROCESSING
from roastcoffea.records.workers import EXECUTOR, MERGE, RESULTS, SUBMIT
from roastcoffea.redaction import added_patterns

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


LOST: Final = "records were lost"
PROCESSING: Final = "processing"
_filters: list[Any] = []
_patches: list[tuple[type, str, Any, Any]] = []


def watch(watcher: Watcher) -> None:
    """Let a collector record the Runner calls of this context, and of contexts without a collector."""
    from coffea.processor import Runner
    from coffea.processor.executor import ExecutorBase

    with interrupts_held(), calls.lock:
        try:
            if not calls.active:
                _patch(Runner, "run", _watched_run)
                _patch(ExecutorBase, "copy", _watched_copy)
                # dask.dataframe ignores annotations, and warns users who have not made any
                warnings.filterwarnings("ignore", "Dask annotations", UserWarning)
                _filters.append(warnings.filters[0])
                if "_trace_preload" in vars(Runner):
                    _patch(Runner, "_trace_preload", _watched_trace)
            calls.add(watcher)
        finally:
            _restore_unwatched()


def unwatch(watcher: Watcher) -> None:
    """Undo `watch` if necessary; the last collector leaves coffea unchanged."""
    if watcher not in calls.active:
        return
    with interrupts_held(), calls.lock:
        calls.remove(watcher)
        _restore_unwatched()


def _restore_unwatched() -> None:
    """Leave coffea and the filters of warnings as they were, unless a collector watches."""
    while not calls.active and _filters:
        ours = _filters.pop()
        warnings.filters[:] = [entry for entry in warnings.filters if entry is not ours]  # type: ignore[index]
    while not calls.active and _patches:
        owner, name, original, replacement = _patches.pop()
        if owner.__dict__.get(name) is replacement:
            setattr(owner, name, original)


def take_new_records() -> None:
    """Fetch new records from the folders of active executors."""
    for call in list(open_executor_calls):
        call.take_new()


def end_open_calls(watcher: Watcher, error: BaseException) -> None:
    """Deliver what was recorded of active Runner calls as failed calls: the process is about to end."""
    for executor_call in list(open_executor_calls):
        executor_call.take_all_for(watcher)
    for call in list(calls.open_calls):
        call.end_for(watcher, error)


def _patch(owner: type, name: str, wrapping: Callable[..., Any]) -> None:
    original = owner.__dict__[name]
    replacement = functools.wraps(original)(wrapping(original))
    setattr(owner, name, replacement)
    _patches.append((owner, name, original, replacement))


def _watched_run(original: Callable[..., Any]) -> Callable[..., Any]:
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        found = watchers()
        if not found or calls.current.get() is not None:
            return original(self, *args, **kwargs)
        with interrupts_held():
            call = OpenCall(found, self, kwargs.get("processor_instance", args[1] if len(args) > 1 else None))
            _watch_own_copy(type(self.executor))
            _watch_own_copy(type(self.pre_executor))
        try:
            with whole(call.open()):
                call.result = original(self, *args, **kwargs)
                return call.result
        finally:
            for watcher in found:
                watcher.fetch_records()

    return run


def _watched_trace(original: Callable[..., Any]) -> Callable[..., Any]:
    from coffea.processor import IterativeExecutor

    def trace_preload(self: Any, fileset: Any, *args: Any) -> Any:
        """Trace the columns of one dataset after the other, as coffea does, each with a record."""
        call = calls.current.get()
        found = call.watchers if call is not None else watchers()
        if not found or len(args) != 3 or not isinstance(args[-1], dict):
            return original(self, fileset, *args)
        datasets: dict[str, list[Any]] = {}
        for file in fileset:
            datasets.setdefault(file.dataset, []).append(file)
        here = isinstance(self.executor, IterativeExecutor)
        for files in datasets.values():
            watch: TraceWatch | None = None
            with interrupts_held(), reported(found.note, "the tracing of columns was not recorded", Exception):
                closure = functools.partial(original, self, files, *args)
                worker = process_name() if here else None
                watch = TraceWatch(closure, files[0], None if call is None else call.id, worker)
            try:
                (watch or functools.partial(original, self, files, *args))()
            finally:
                with interrupts_held(), reported(found.note, LOST, Exception):
                    packed = packed_records([] if watch is None else watch.records)
                    for watcher in found:
                        watcher.take_records(packed)
        return None

    return trace_preload


def _watch_own_copy(executor: type) -> None:
    """Patch the class of an executor that has its own `copy`, unless it is patched already."""
    owner = next((base for base in executor.__mro__ if "copy" in base.__dict__), None)
    with calls.lock:
        if owner is not None and calls.active and all(patched is not owner for patched, *_ in _patches):
            _patch(owner, "copy", _watched_copy)


def _watched_copy(original: Callable[..., Any]) -> Callable[..., Any]:
    def copy_executor(self: Any, *args: Any, **kwargs: Any) -> Any:
        executor = original(self, *args, **kwargs)
        call = calls.current.get()
        found = call.watchers if call is not None else watchers()
        lose = functools.partial(found.chunks_lost, call=None if call is None else call.id)
        lost = f"the chunks of the {type(executor).__name__} were not recorded"
        with interrupts_held(), reported(lose, lost, Exception):
            _watch_executor(executor, found, call, preprocessing=kwargs.get("desc") == "Preprocessing")
        return executor

    return copy_executor


def _watch_executor(executor: Any, found: Watchers, call: OpenCall | None, *, preprocessing: bool) -> None:
    """Give this one executor a `__call__` that tags its tasks and inserts the probe."""
    kind = type(executor)
    if not found or "_roastcoffea" in kind.__dict__ or not (preprocessing or call):
        return

    def __call__(self: Any, items: Any, function: Any, accumulator: Any) -> Any:  # noqa: N807
        self.__class__ = kind
        step, name = PREPROCESSING, None
        if not preprocessing:
            items = list(items)
        with interrupts_held():
            if call is not None and preprocessing:
                call.preprocess_files(items)
            elif call is not None:
                step, name = PROCESSING, call.name(self)
                call.process_chunks(items)
            prefix = None if name is None else str(key_split(f"{name}-{'0' * 32}"))
            watched = ExecutorCall(found, self, None if call is None else call.id, name)
            collectors = tuple(watcher.topic for watcher in found)
            of_call = {} if call is None else {"call": call.id}
            mark = dask.annotate(**{ANNOTATION: {"collectors": collectors, "step": step, "prefix": prefix, **of_call}})
        with whole(found[-1].span_ensured()), whole(mark), whole(watched.transport()):
            with interrupts_held():
                probed = watched.probed(function)
            with whole(watched.at_work(self)):
                result = kind.__call__(self, items, probed, accumulator)
            result = watched.without_records(result)
            if call is not None and not preprocessing:
                call.take_result(items, result)
            return result

    names = {name: getattr(kind, name) for name in ("__module__", "__qualname__", "__doc__")}
    body = names | {"__call__": __call__, "__slots__": (), "_roastcoffea": True}
    executor.__class__ = types.new_class(kind.__name__, (kind,), exec_body=lambda space: space.update(body))


class ExecutorCall:
    """One call of an executor, with the probe around its function if the client can receive the records.

    A call without a name is preprocessing: the function receives files and keeps its own name.
    """

    def __init__(self, watchers: Watchers, executor: Any, call: str | None, name: str | None) -> None:
        from coffea.processor import DaskExecutor, ParslExecutor, TaskVineExecutor

        self._call = call
        self._name = name
        self._on_dask = isinstance(executor, DaskExecutor)
        systems = {TASKVINE: TaskVineExecutor, PARSL: ParslExecutor}
        self._system = next((name for name, kind in systems.items() if isinstance(executor, kind)), None)
        self._spool: str | None = None
        self._read: dict[str, int] = {}
        self._reading = threading.Lock()
        here = name is None and not self._on_dask
        reasons = [(watcher, watcher.out_of_reach(executor)) for watcher in watchers]
        self._reached = Watchers(watcher for watcher, reason in reasons if here or reason is None)
        for watcher, reason in reasons:
            if watcher not in self._reached:
                self._missing([watcher], f"of the {type(executor).__name__} were not recorded: {reason}")

    def _missing(self, watchers: Iterable[Watcher], reason: str) -> None:
        for watcher in watchers:
            if self._name is None:
                watcher.note(f"the preprocessing tasks {reason}")
            else:
                watcher.chunks_lost(f"the chunks {reason}", self._call)

    def probed(self, function: Any) -> Any:
        """The function with the probe around it."""
        if not self._reached:
            return function
        try:
            packed = self._reached[-1].packed_for_tasks(CarriedProbe)
        except Exception as problem:  # noqa: BLE001  (the analysis must run where it cannot be measured)
            raise_if_interrupted(problem)
            self._missing(self._reached, f"were not recorded: {error_text(problem)}")
            return function
        topics = tuple(watcher.topic for watcher in self._reached) if self._on_dask else ()
        in_output = not self._on_dask and self._name is not None
        name = self._name or funcname(function)
        profile = any(watcher.profile for watcher in self._reached)
        peak_memory = any(watcher.peak_memory for watcher in self._reached)
        transport = topics, self._spool, in_output, self._system
        state = (self._call, transport, self._name is None, added_patterns(), profile, peak_memory)
        if packed is None:
            return Probe(function, name, *state)
        return CarriedProbe(packed, name, topics[-1], function, state)

    @contextmanager
    def at_work(self, executor: Any) -> Iterator[None]:
        """Context in which the collectors know that this executor works for the call; it may have a pool of its own."""
        with ExitStack() as stack:
            for watcher in self._reached:
                stack.enter_context(watcher.step(executor, self._call, preprocessing=self._name is None))
            if self._on_dask and self._reached:
                work = PREPROCESSING if self._name is None else PROCESSING
                stack.enter_context(recorded_steps(executor.client, self._call, work, self._take_steps))
            yield

    def _take_steps(self, steps: list[dict[str, Any]]) -> None:
        for watcher in self._reached:
            with reported(watcher.note, "what the client did for an executor was not recorded", Exception):
                watcher.client_steps(steps)

    @contextmanager
    def transport(self) -> Iterator[None]:
        """Context with a folder for records, which are collected at its end."""
        if self._on_dask or not self._reached:
            yield
            return
        with reported(self._reached.note, "there is no folder for the records of failed attempts", OSError):
            self._spool = tempfile.mkdtemp(prefix="roastcoffea-")
        open_executor_calls.append(self)
        try:
            yield
        finally:
            open_executor_calls.remove(self)
            self.take_new()
            with self._reading:
                folder, self._spool = self._spool, None
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)

    def take_new(self) -> None:
        """Take new records from the folder."""
        with self._reading, reported(self._reached.note, LOST, Exception):
            if self._spool is not None:
                self._take(spooled(self._spool, self._read))

    def take_all_for(self, watcher: Watcher) -> None:
        """Give a collector the records in the folder so far."""
        if self._spool is not None and watcher in self._reached:
            with reported(self._reached.note, LOST, Exception):
                for packed in spooled(self._spool):
                    watcher.take_records(packed)

    def without_records(self, result: Any) -> Any:
        """Result of the executor, without the records."""
        if self._on_dask or not self._reached or not (isinstance(result, tuple) and len(result) == 2):
            return result
        (output, records), error = taken_from(result[0]), result[1]
        with interrupts_held(), reported(self._reached.note, LOST, Exception):
            self._take(records)
        return output, error

    def _take(self, records: Iterable[bytes]) -> None:
        for packed in records:
            for watcher in self._reached:
                watcher.take_records(packed)


open_executor_calls: Final[list[ExecutorCall]] = []
"""Calls with a folder for records."""
