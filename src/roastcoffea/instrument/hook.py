"""Client-side hook into coffea that wraps the function run on each chunk in a probe.

While a collector is open, `Runner.run` and the executors' `copy` methods are patched. Dask client methods are patched
once an executor uses a client. The last collector to close restores all of them. The Runner makes a temporary copy of
its executor for each step. Only this copy's class is replaced with a subclass whose `__call__` annotates the tasks and
wraps the function. Each executor call has its own transport for records.
"""

from __future__ import annotations

import functools
import shutil
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any, Final

import dask
from dask.utils import funcname, key_split

from roastcoffea.errors import error_text, reported
from roastcoffea.generations import runner_and_executor
from roastcoffea.instrument import calls
from roastcoffea.instrument.calls import OpenCall, Watcher, Watchers, watchers
from roastcoffea.instrument.channels import CarriedProbe, spooled, taken_from
from roastcoffea.instrument.gauges import process_name
from roastcoffea.instrument.probe import Probe, TraceWatch
from roastcoffea.instrument.shared import Action, Row
from roastcoffea.interrupts import interrupts_held, raise_if_interrupted, whole
from roastcoffea.log.marks import ANNOTATION, FromEnvironment
from roastcoffea.log.packing import packed_records
from roastcoffea.records.calls import EXECUTOR, MERGE, PREPROCESSING, RESULTS, SUBMIT
from roastcoffea.redaction import added_patterns

STEP_OF: Final = {"map": SUBMIT, "submit": SUBMIT, "sync": RESULTS, "_send_to_scheduler": None}
"""Maps each client method to the step that it performs. The last method sends messages such as graphs."""

LOST: Final = "records were lost"
PROCESSING: Final = "processing"


class ClientSteps:
    """Records the client's steps during an executor call, such as sending a graph.

    `work` is the kind of work that the executor performs for the Runner call.
    """

    def __init__(self, call: str | None, work: str) -> None:
        self._of = {"call": call, "work": work}
        self._offset = time.time() - time.perf_counter()
        self._submits: list[Row] = []
        self._began = self._submitted = self._now()
        self._returned: tuple[float, float] | None = None
        self._is_inside = False
        self._graph: Row = {}

    def during(self, method: Action, client: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call a client method, and time it as a step unless the caller is another timed method."""
        step = STEP_OF[method.__name__]
        if step is None:
            self._sends(*args)
        if self._is_inside or step is None:
            return method(client, *args, **kwargs)
        self._is_inside, began, self._graph = True, self._now(), {"graph_bytes": None, "tasks": None}
        try:
            return method(client, *args, **kwargs)
        finally:
            self._is_inside, ended = False, self._now()
            self._returned = ended
            if step == SUBMIT:
                self._submits.append(self._row(SUBMIT, began, ended) | self._graph)
                self._submitted, self._returned = ended, None

    def _sends(self, message: Any) -> None:
        if isinstance(message, Mapping) and message.get("op") == "update-graph":
            try:
                frames = message["expr_ser"].frames if "expr_ser" in message else message["graph_frames"]
                sent = {"graph_bytes": sum(memoryview(each).nbytes for each in frames), "tasks": len(message["keys"])}
            except (
                AttributeError,
                KeyError,
                TypeError,
            ):  # other versions use a different format, so the size is unknown
                return
            self._graph = {name: number + (self._graph.get(name) or 0) for name, number in sent.items()}

    def rows(self) -> Iterator[Row]:
        end = self._now()
        yield self._row(EXECUTOR, self._began, end)
        yield from self._submits
        if self._submits:
            yield self._row(RESULTS, self._submitted, self._returned or end)
            if self._returned is not None:
                yield self._row(MERGE, self._returned, end)

    def _now(self) -> tuple[float, float]:
        return self._offset + time.perf_counter(), time.thread_time()

    def _row(self, step: str, began: tuple[float, float], ended: tuple[float, float]) -> Row:
        return self._of | {"step": step, "start": began[0], "stop": ended[0], "cpu_seconds": ended[1] - began[1]}


_steps: Final[ContextVar[ClientSteps | None]] = ContextVar("roastcoffea_steps", default=None)


@contextmanager
def recorded_steps(client: Any, call: str | None, work: str, found: Watchers) -> Iterator[None]:
    """Context manager that records the client's steps for an executor on this thread."""
    for name in STEP_OF:
        _patch_owner(type(client), name, _with_steps)
    steps = ClientSteps(call, work)
    token = _steps.set(steps)
    try:
        yield
    finally:
        _steps.reset(token)
        rows = list(steps.rows())
        for watcher in found:
            with reported(watcher.note, "the client's steps for an executor were not recorded", Exception):
                watcher.client_steps(rows)


def _with_steps(original: Action) -> Action:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        steps = _steps.get()
        return original(self, *args, **kwargs) if steps is None else steps.during(original, self, *args, **kwargs)

    return method


_filters: list[Any] = []
_patches: list[tuple[type, str, Any, Any]] = []


def watch(watcher: Watcher) -> None:
    """Record Runner calls for a collector, in this context and in contexts without a collector."""
    found = runner_and_executor()
    with interrupts_held(), calls.lock:
        try:
            if not calls.active:
                # dask.dataframe warns that it ignores annotations, even if the user has not set any
                warnings.filterwarnings("ignore", "Dask annotations", UserWarning)
                _filters.append(warnings.filters[0])
                if found is not None:
                    runner, executor = found
                    _patch(runner, "run", _watched_run)
                    _patch(executor, "copy", _watched_copy)
                    if "_trace_preload" in vars(runner):
                        _patch(runner, "_trace_preload", _watched_trace)
            calls.add(watcher)
        finally:
            _restore_unwatched()


def unwatch(watcher: Watcher) -> None:
    """Stop recording Runner calls for a collector. The last collector to stop restores coffea."""
    if watcher not in calls.active:
        return
    with interrupts_held(), calls.lock:
        calls.remove(watcher)
        _restore_unwatched()


def _restore_unwatched() -> None:
    if calls.active:
        return
    while _filters:
        ours = _filters.pop()
        warnings.filters[:] = [entry for entry in warnings.filters if entry is not ours]  # type: ignore[index]
    while _patches:
        owner, name, original, replacement = _patches.pop()
        if owner.__dict__.get(name) is replacement:
            setattr(owner, name, original)


def take_new_records() -> None:
    for call in list(open_executor_calls):
        call.take_new()


def end_open_calls(watcher: Watcher, error: BaseException) -> None:
    """Report active Runner calls as failed, because the process is about to exit."""
    for executor_call in list(open_executor_calls):
        executor_call.take_new(again=True)  # otherwise, records in transit would be lost
    for call in list(calls.open_calls):
        call.end_for(watcher, error)


def _patch(owner: type, name: str, wrapping: Callable[[Action], Action]) -> None:
    original = owner.__dict__[name]
    replacement = functools.wraps(original)(wrapping(original))
    setattr(owner, name, replacement)
    _patches.append((owner, name, original, replacement))


def _patch_owner(kind: type, name: str, wrapping: Callable[[Action], Action]) -> None:
    """Patch a method in the class that defines it, unless the method is already patched.

    For example, an executor class may define its own `copy` method.
    """
    owner = next((base for base in kind.__mro__ if name in base.__dict__), None)
    with interrupts_held(), calls.lock:
        if owner is not None and calls.active and all((owner, name) != patched[:2] for patched in _patches):
            _patch(owner, name, wrapping)


def _watched_run(original: Action) -> Action:
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        found = watchers()
        if not found or calls.current.get() is not None:
            return original(self, *args, **kwargs)
        with interrupts_held():
            call = OpenCall(found, self, kwargs.get("processor_instance", args[1] if len(args) > 1 else None))
            for executor in (self.executor, self.pre_executor):
                _patch_owner(type(executor), "copy", _watched_copy)
        try:
            with whole(call.open()):
                call.result = original(self, *args, **kwargs)
                return call.result
        finally:
            for watcher in found:
                watcher.fetch_records()

    return run


def _watched_trace(original: Action) -> Action:
    from coffea.processor import IterativeExecutor

    def trace_preload(self: Any, fileset: Any, *args: Any) -> Any:
        """Trace each dataset's columns as coffea does, and record each trace."""
        call = calls.current.get()
        found = call.watchers if call is not None else watchers()
        if not found or len(args) != 3 or not isinstance(args[-1], dict):
            return original(self, fileset, *args)
        datasets: dict[str, list[Any]] = {}
        for file in fileset:
            datasets.setdefault(file.dataset, []).append(file)
        worker = process_name() if isinstance(self.executor, IterativeExecutor) else None
        for files in datasets.values():
            watch: TraceWatch | None = None
            closure = functools.partial(original, self, files, *args)
            with interrupts_held(), reported(found.note, "column tracing was not recorded", Exception):
                watch = TraceWatch(closure, files[0], None if call is None else call.id, worker)
            try:
                (watch or closure)()
            finally:
                with interrupts_held(), reported(found.note, LOST, Exception):
                    found.take_records(packed_records([] if watch is None else watch.records))
        return None

    return trace_preload


def _watched_copy(original: Action) -> Action:
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
    """Give an executor instance a `__call__` that annotates tasks and inserts the probe."""
    kind: Any = type(executor)
    if not found or "_roastcoffea" in kind.__dict__ or not (preprocessing or call):
        return

    def __call__(self: Any, items: Any, function: Any, accumulator: Any) -> Any:  # noqa: N807
        self.__class__ = kind
        name = None
        if not preprocessing:
            items = list(items)
        with interrupts_held():
            if call is not None and preprocessing:
                call.preprocess_files(items)
            elif call is not None:
                name = call.name(self)
                call.process_chunks(items)
            watched = ExecutorCall(found, self, None if call is None else call.id, name)
        with whole(found[-1].span_ensured()), whole(dask.annotate(**watched.mark())), whole(watched.transport()):
            with whole(watched.at_work()):
                with interrupts_held():
                    probed = watched.probed(function)
                result = kind.__call__(self, items, probed, accumulator)
            result = watched.without_records(result)
            if call is not None and not preprocessing:
                call.take_result(items, result)
            return result

    names = {name: getattr(kind, name) for name in ("__module__", "__qualname__", "__doc__")}
    body = names | {"__call__": __call__, "__slots__": (), "_roastcoffea": True}
    executor.__class__ = type(kind)(kind.__name__, (kind,), body)


class ExecutorCall:
    """An executor call. Its function is wrapped in a probe if records can reach the client.

    A call without a name is a preprocessing call. Its function receives files and keeps its own name.
    """

    def __init__(self, watchers: Watchers, executor: Any, call: str | None, name: str | None) -> None:
        from coffea.processor import DaskExecutor

        self._call = call
        self._name = name
        self._executor = executor
        self._collectors = tuple(watcher.topic for watcher in watchers)
        self._on_dask = isinstance(executor, DaskExecutor)
        self._environment: FromEnvironment | None = None
        self._spool: str | None = None
        self._read: dict[str, int] = {}
        self._reading = threading.RLock()
        here = name is None and not self._on_dask
        reached = []
        for watcher in watchers:
            if here or (reason := watcher.out_of_reach(executor)) is None:
                reached.append(watcher)
            else:
                self._missing([watcher], f"of the {type(executor).__name__} were not recorded: {reason}")
        self._reached = Watchers(reached)

    def _missing(self, watchers: Iterable[Watcher], reason: str) -> None:
        for watcher in watchers:
            if self._name is None:
                watcher.note(f"the preprocessing tasks {reason}")
            else:
                watcher.chunks_lost(f"the chunks {reason}", self._call)

    def mark(self) -> Row:
        prefix = None if self._name is None else str(key_split(f"{self._name}-{'0' * 32}"))
        step = PREPROCESSING if self._name is None else PROCESSING
        mark: Row = {"collectors": self._collectors, "step": step, "prefix": prefix}
        return {ANNOTATION: mark if self._call is None else mark | {"call": self._call}}

    def probed(self, function: Any) -> Any:
        reached = self._reached
        if not reached:
            return function
        try:
            packed = reached[-1].packed_for_tasks(CarriedProbe)
        except Exception as problem:  # noqa: BLE001  (the analysis must run even if it cannot be measured)
            raise_if_interrupted(problem)
            self._missing(reached, f"were not recorded: {error_text(problem)}")
            return function
        topics = tuple(watcher.topic for watcher in reached) if self._on_dask else ()
        name = self._name or funcname(function)
        state = (
            self._call,
            (topics, self._spool, not self._on_dask and self._name is not None, self._environment),
            self._name is None,
            added_patterns(),
            any(watcher.profile for watcher in reached),
            any(watcher.peak_memory for watcher in reached),
        )
        if packed is None:
            return Probe(function, name, *state)
        return CarriedProbe(packed, name, topics[-1], function, state)

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Context manager that tells the collectors that this executor is working on the call."""
        with ExitStack() as stack:
            for watcher in self._reached:
                step = watcher.step(self._executor, self._call, preprocessing=self._name is None)
                self._environment = stack.enter_context(step) or self._environment
            if self._on_dask and self._reached:
                work = PREPROCESSING if self._name is None else PROCESSING
                stack.enter_context(recorded_steps(self._executor.client, self._call, work, self._reached))
            yield

    @contextmanager
    def transport(self) -> Iterator[None]:
        """Context manager that provides a folder for records, and fetches the records at the end."""
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

    def take_new(self, *, again: bool = False) -> None:
        with self._reading, reported(self._reached.note, LOST, Exception):
            if again:
                self._read.clear()
            if self._spool is not None:
                for packed in spooled(self._spool, self._read):
                    self._reached.take_records(packed)

    def without_records(self, result: Any) -> Any:
        """Pass the records in the executor's result to the collectors, and return the rest."""
        if self._on_dask or not self._reached or not (isinstance(result, tuple) and len(result) == 2):
            return result
        output, records = taken_from(result[0])
        with interrupts_held(), reported(self._reached.note, LOST, Exception):
            for packed in records:
                self._reached.take_records(packed)
        return output, result[1]


open_executor_calls: Final[list[ExecutorCall]] = []
"""Active executor calls that use a folder for records."""
