"""The client's hook into coffea: it notices Runner calls and puts a probe around each chunk's function.

While a collector is open, `Runner.run` and the `copy` of executors are patched, and they are restored with the last
collector. The Runner makes a throw-away copy of its executor for each step; that copy, and nothing else, gets a
subclass of its own class whose `__call__` annotates the tasks and wraps the function.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import hashlib
import json
import shutil
import tempfile
import threading
import time
import types
import uuid
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, Protocol

import dask
from dask.utils import funcname, key_split

from roastcoffea.errors import error_text, reported
from roastcoffea.instrument.carried import CarriedProbe
from roastcoffea.instrument.channels import spooled, taken_from
from roastcoffea.instrument.probe import Probe
from roastcoffea.interrupts import interrupts_held, whole
from roastcoffea.log.marks import ANNOTATION
from roastcoffea.records.run import FAILED, FINISHED, RunnerCall
from roastcoffea.records.tasks import PREPROCESSING
from roastcoffea.redaction import added_patterns, redacted_each, redacted_values

PROCESSING = "processing"
_FUNCNAME_LENGTH = 50
"""Where dask cuts the name of a function."""


class Watcher(Protocol):
    """What the hook asks of a collector."""

    @property
    def topic(self) -> str:
        """Name of the plugin that takes this collector's records, unique to the collector."""

    @property
    def of_all_contexts(self) -> bool:
        """Whether it also measures Runner calls of contexts, such as threads, that never had a collector."""

    def out_of_reach(self, executor: Any) -> str | None:
        """Why what runs on this executor is no part of what the collector sees; None where it is."""

    def records_came(self, records: bytes) -> None:
        """Take packed records that did not come through a scheduler."""

    def packed_for_tasks(self, thing: Any) -> bytes | None:
        """Pickle by value of what tasks need, where they cannot import it."""

    def span_ensured(self) -> AbstractContextManager[None]:
        """Context in which tasks are counted in the span of the run."""

    def call_began(self, call: str, executor: Any) -> None:
        """Learn the identity of a Runner call that begins, and its executor."""

    def chunks_unseen(self, reason: str) -> None:
        """Learn why the chunks of a Runner call are not recorded."""

    def items_asked(self, call: str, items: Sequence[Any]) -> None:
        """Learn what a Runner call asked for: files for preprocessing, or chunks."""

    def items_unseen(self) -> None:
        """Learn that it is not known what a Runner call asked for."""

    def call_ended(self, call: RunnerCall) -> None:
        """Take the record of a Runner call."""

    def fetch_records(self) -> None:
        """Get the records of Runner calls that have ended from where they are."""

    def note(self, problem: str) -> None:
        """Take note of what could not be delivered."""


_lock = threading.RLock()
_active: list[Watcher] = []
_outer: dict[str, tuple[Watcher, ...]] = {}
_filters: list[Any] = []
_patches: list[tuple[type, str, Any, Any]] = []
_open_calls: list[_OpenCall] = []
_open_ways: list[_Probed] = []
_here: ContextVar[tuple[Watcher, ...] | None] = ContextVar("roastcoffea_collectors", default=None)
_call: ContextVar[_OpenCall | None] = ContextVar("roastcoffea_call", default=None)


def watch(watcher: Watcher) -> None:
    """Let a collector see the Runner calls of this context, and those of contexts that have no collector."""
    from coffea.processor import Runner
    from coffea.processor.executor import ExecutorBase

    with interrupts_held(), _lock:
        if not _active:
            _patch(Runner, "run", _watched_run)
            _patch(ExecutorBase, "copy", _watched_copy)
            _silence_dask()
        _active.append(watcher)
        _outer[watcher.topic] = _here.get() or ()
        _here.set((*(_here.get() or ()), watcher))


def unwatch(watcher: Watcher) -> None:
    """Undo `watch`, where that was done; with the last collector coffea is as it was."""
    if watcher not in _active:
        return
    others = tuple(other for other in _here.get() or () if other is not watcher)
    # a thread in which a call was recorded without its doing is as one that never had a collector
    _here.set(others if others or watcher.of_all_contexts else None)
    with _lock:
        _active.remove(watcher)
        _outer.pop(watcher.topic)
        if not _active:
            _unsilence_dask()
        while not _active and _patches:
            owner, name, original, replacement = _patches.pop()
            if owner.__dict__.get(name) is replacement:
                setattr(owner, name, original)


def is_watched() -> bool:
    """Whether a collector measures the Runner calls of this context."""
    return bool(_watchers_here()) if _here.get() is not None else bool(_of_all_contexts())


def take_new_records() -> None:
    """Take home what lies in the folders of executors that work now, and was not taken yet."""
    for way in list(_open_ways):
        way.take_new()


def end_open_calls(watcher: Watcher, error: BaseException) -> None:
    """Deliver what was seen of Runner calls that go on, as of calls that failed: the process is about to end."""
    for way in list(_open_ways):
        way.take_spooled(watcher)
    for call in list(_open_calls):
        call.end_for(watcher, error)


def _patch(owner: type, name: str, wrapping: Callable[..., Any]) -> None:
    original = owner.__dict__[name]
    replacement = functools.wraps(original)(wrapping(original))
    setattr(owner, name, replacement)
    _patches.append((owner, name, original, replacement))


def _silence_dask() -> None:
    """Ignore that dask.dataframe does not know annotations: it tells users who have made none."""
    warnings.filterwarnings("ignore", "Dask annotations", UserWarning)
    _filters.append(warnings.filters[0])


def _unsilence_dask() -> None:
    ours = _filters.pop()
    warnings.filters[:] = [entry for entry in warnings.filters if entry is not ours]  # type: ignore[index]


def _watchers() -> tuple[Watcher, ...]:
    """Open collectors of this context; in a thread that never had one, all that measure such threads as well."""
    if _here.get() is not None:
        return _watchers_here()
    with _lock:
        watchers = _of_all_contexts()
        unrelated = [watcher for watcher in watchers[:-1] if watcher not in _outer[watchers[-1].topic]]
        for watcher in watchers if unrelated else ():
            watcher.note(
                "a thread that no collector was opened in was counted in each collector that was open: "
                "open one in that thread"
            )
        return watchers


def _watchers_here() -> tuple[Watcher, ...]:
    return tuple(watcher for watcher in _here.get() or () if watcher in _active)


def _of_all_contexts() -> tuple[Watcher, ...]:
    return tuple(watcher for watcher in list(_active) if watcher.of_all_contexts)


def _watched_run(original: Callable[..., Any]) -> Callable[..., Any]:
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        watchers = _watchers()
        if not watchers or _call.get() is not None:
            return original(self, *args, **kwargs)
        call = _OpenCall(watchers, self, kwargs.get("processor_instance", args[1] if len(args) > 1 else None))
        _watch_own_copy(type(self.executor))
        _watch_own_copy(type(self.pre_executor))
        try:
            with whole(call.open()):
                call.result = original(self, *args, **kwargs)
                return call.result
        finally:
            call.fetch_records()

    return run


def _watch_own_copy(executor: type) -> None:
    """Patch the class of the executor that has a `copy` of its own, where that is not patched yet."""
    owner = next((base for base in executor.__mro__ if "copy" in base.__dict__), None)
    with _lock:
        if owner is not None and _active and all(patched is not owner for patched, *_ in _patches):
            _patch(owner, "copy", _watched_copy)


def _watched_copy(original: Callable[..., Any]) -> Callable[..., Any]:
    def copy_executor(self: Any, *args: Any, **kwargs: Any) -> Any:
        executor = original(self, *args, **kwargs)
        call = _call.get()
        watchers = call.watchers if call is not None else _watchers()
        with reported(
            partial(_unseen, watchers), f"the chunks of the {type(executor).__name__} were not seen", Exception
        ):
            _watch_executor(executor, watchers, call, preprocessing=kwargs.get("desc") == "Preprocessing")
        return executor

    return copy_executor


def _unseen(watchers: Iterable[Watcher], reason: str) -> None:
    for watcher in watchers:
        watcher.chunks_unseen(reason)


def _watch_executor(
    executor: Any, watchers: tuple[Watcher, ...], call: _OpenCall | None, *, preprocessing: bool
) -> None:
    """Give this one executor a `__call__` that tags its tasks and puts the probe in."""
    kind = type(executor)
    if not watchers or "_roastcoffea" in kind.__dict__ or not (preprocessing or call):
        return

    def __call__(self: Any, items: Any, function: Any, accumulator: Any) -> Any:  # noqa: N807
        self.__class__ = kind
        step, name = (PREPROCESSING, None) if call is None or preprocessing else (PROCESSING, call.name(self))
        if call is not None and not preprocessing:
            items = list(items)
            call.saw(items)
        if call is not None and preprocessing:
            call.saw_files(items)
        prefix = None if name is None else str(key_split(f"{name}-{'0' * 32}"))
        probed = _Probed(watchers, self, None if call is None else call.id, name)
        with whole(_marked(watchers, step, prefix)), whole(probed.way_home()):
            return probed.emptied(kind.__call__(self, items, probed.function(function), accumulator))

    names = {name: getattr(kind, name) for name in ("__module__", "__qualname__", "__doc__")}
    body = names | {"__call__": __call__, "__slots__": (), "_roastcoffea": True}
    executor.__class__ = types.new_class(kind.__name__, (kind,), exec_body=lambda space: space.update(body))


@contextmanager
def _marked(watchers: tuple[Watcher, ...], step: str, prefix: str | None) -> Iterator[None]:
    collectors = tuple(watcher.topic for watcher in watchers)
    mark = {ANNOTATION: {"collectors": collectors, "step": step, "prefix": prefix}}
    with watchers[-1].span_ensured(), dask.annotate(**mark):
        yield


class _Probed:
    """One call of an executor, with the probe around its function where the records come home.

    Without a name it is preprocessing: the function gets files, and keeps its own name.
    """

    def __init__(self, watchers: tuple[Watcher, ...], executor: Any, call: str | None, name: str | None) -> None:
        from coffea.processor import DaskExecutor

        self._call = call
        self._name = name
        self._on_dask = isinstance(executor, DaskExecutor)
        self._spool: str | None = None
        self._read: dict[str, int] = {}
        self._reading = threading.Lock()
        reasons = [watcher.out_of_reach(executor) for watcher in watchers]
        if name is None and not self._on_dask:
            reasons = [None for _ in reasons]
        self._reached = [watcher for watcher, reason in zip(watchers, reasons, strict=True) if reason is None]
        for watcher, reason in zip(watchers, reasons, strict=True):
            if reason is not None:
                self._tell_unseen(watcher, f"of the {type(executor).__name__} were not seen: {reason}")

    def _tell_unseen(self, watcher: Watcher, reason: str) -> None:
        if self._name is None:
            watcher.note(f"the preprocessing tasks {reason}")
        else:
            watcher.chunks_unseen(f"the chunks {reason}")

    def function(self, function: Any) -> Any:
        """The function with the probe around it."""
        if not self._reached:
            return function
        try:
            packed = self._reached[-1].packed_for_tasks(CarriedProbe)
        except Exception as problem:  # noqa: BLE001  (the analysis must run where it cannot be measured)
            for watcher in self._reached:
                self._tell_unseen(watcher, f"were not seen: {error_text(problem)}")
            return function
        topics = tuple(watcher.topic for watcher in self._reached) if self._on_dask else ()
        in_output = not self._on_dask and self._name is not None
        name = self._name or funcname(function)
        state = (self._call, (topics, self._spool, in_output), self._name is None, added_patterns())
        if packed is None:
            return Probe(function, name, *state)
        return CarriedProbe(packed, name, topics[-1], function, state)

    @contextmanager
    def way_home(self) -> Iterator[None]:
        """Context in which records can be left in a folder; what is there at its end is taken home."""
        if self._on_dask or not self._reached:
            yield
            return
        with reported(self._note, "there is no folder for the records of attempts that fail", OSError):
            self._spool = tempfile.mkdtemp(prefix="roastcoffea-")
        _open_ways.append(self)
        try:
            yield
        finally:
            _open_ways.remove(self)
            self.take_new()
            self._remove_folder()

    def take_new(self) -> None:
        """Take what lies in the folder and was not taken yet."""
        with self._reading, reported(self._note, "records were lost", Exception):
            if self._spool is not None:
                self._take(spooled(self._spool, self._read))

    def _remove_folder(self) -> None:
        with self._reading:
            folder, self._spool = self._spool, None
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)

    def take_spooled(self, watcher: Watcher) -> None:
        """Have a collector take what lies in the folder so far."""
        if self._spool is not None and watcher in self._reached:
            with reported(self._note, "records were lost", Exception):
                for packed in spooled(self._spool):
                    watcher.records_came(packed)

    def emptied(self, result: Any) -> Any:
        """What the executor gave, without the records in it."""
        if self._on_dask or not self._reached or not (isinstance(result, tuple) and len(result) == 2):
            return result
        output, error = result
        output, records = taken_from(output)
        with reported(self._note, "records were lost", Exception):
            self._take(records)
        return output, error

    def _take(self, records: Iterable[bytes]) -> None:
        for packed in records:
            with interrupts_held():
                for watcher in self._reached:
                    watcher.records_came(packed)

    def _note(self, problem: str) -> None:
        for watcher in self._reached:
            watcher.note(problem)


class _OpenCall:
    """A call of `Runner.run` that goes on."""

    def __init__(self, watchers: tuple[Watcher, ...], runner: Any, processor: Any) -> None:
        self.id = uuid.uuid4().hex
        self.watchers = watchers
        self.runner = runner
        self._class = type(processor).__name__
        self.processor = processor.__name__ if isinstance(processor, types.FunctionType) else self._class
        self.result: Any = None
        self.chunks: int | None = None
        self.files: int | None = None
        self.fileset: str | None = None

    @contextmanager
    def open(self) -> Iterator[None]:
        """Context in which the Runner works; at its end the collectors get the record of the call."""
        for watcher in self.watchers:
            watcher.call_began(self.id, self.runner.executor)
        token = _call.set(self)
        self.start, began = time.time(), time.perf_counter()
        error: BaseException | None = None
        _open_calls.append(self)
        try:
            yield
        except BaseException as raised:
            error = raised
            raise
        finally:
            _call.reset(token)
            _open_calls.remove(self)
            with reported(self._note, "a Runner call was not recorded", Exception):
                record = self._record(self.start + time.perf_counter() - began, error or _captured_error(self.result))
                for watcher in self.watchers:
                    watcher.call_ended(record)

    def fetch_records(self) -> None:
        """Have the collectors get what was recorded from where it is."""
        for watcher in self.watchers:
            watcher.fetch_records()

    def end_for(self, watcher: Watcher, error: BaseException) -> None:
        """Tell a collector of the call as of one that fails now."""
        if watcher in self.watchers:
            watcher.call_ended(self._record(time.time(), error))
            watcher.fetch_records()

    def name(self, executor: Any) -> str:
        """Name of the tasks: that of the processor's class, as coffea has it."""
        return str(getattr(executor, "function_name", None) or self._class)[:_FUNCNAME_LENGTH]

    def saw(self, items: Sequence[Any]) -> None:
        """Learn the chunks that are handed to the executor."""
        self.chunks = len(items)
        self._tell_asked(items)
        with reported(self._note, "the fileset has no fingerprint", (AttributeError, TypeError, ValueError)):
            self.fileset = fingerprint(items)

    def saw_files(self, items: Sequence[Any]) -> None:
        """Learn the files that are handed to the executor for preprocessing."""
        with reported(self._note, "the files of preprocessing were not counted", Exception):
            self.files = (self.files or 0) + len(items)
            self._tell_asked(items)

    def _tell_asked(self, items: Sequence[Any]) -> None:
        with reported(self._note, "what was asked for was not recorded", Exception):
            for watcher in self.watchers:
                watcher.items_asked(self.id, items)
            return
        for watcher in self.watchers:
            watcher.items_unseen()

    def _note(self, problem: str) -> None:
        for watcher in self.watchers:
            watcher.note(problem)

    def _record(self, stop: float, error: BaseException | None) -> RunnerCall:
        return RunnerCall(
            id=self.id,
            processor=self.processor,
            executor=type(self.runner.executor).__name__,
            start=self.start,
            stop=stop,
            outcome=FINISHED if error is None else FAILED,
            error=None if error is None else error_text(error),
            chunks=self.chunks,
            files=self.files,
            fileset=self.fileset,
            options=_options(self.runner),
            report=_report(self.result),
        )


def fingerprint(items: Iterable[Any]) -> str | None:
    """SHA-256 over dataset, file, tree and file uuid of chunks: equal for equal input, whatever chunks and tokens."""
    with contextlib.suppress(AttributeError):
        files = {(*map(str, (item.dataset, item.filename, item.treename)), item.fileuuid.hex()) for item in items}
        clean = {(*redacted_each(texts), identity) for *texts, identity in files}
        return hashlib.sha256(json.dumps(sorted(clean)).encode()).hexdigest()
    return None


def _options(runner: Any) -> dict[str, Any]:
    """The plain settings of a Runner and its executor, and the name of its schema."""
    options = {"schema": getattr(runner.schema, "__name__", None)}
    for owner, thing in (("", runner), ("executor.", runner.executor)):
        for setting in dataclasses.fields(thing):
            value = getattr(thing, setting.name, None)
            if isinstance(value, (str, int, float, bool)):
                options[owner + setting.name] = value
    return dict(redacted_values(options))


def _unwrapped(result: Any) -> Any:
    """What `Runner.run` gave, out of coffea's result type where that was asked for."""
    value = getattr(result, "value", None)
    return result if isinstance(result, Mapping) else value


def _report(result: Any) -> dict[str, Any] | None:
    output = _unwrapped(result)
    metrics = output.get("metrics") if isinstance(output, Mapping) else None
    return redacted_values(copy.deepcopy(dict(metrics))) if isinstance(metrics, Mapping) else None


def _captured_error(result: Any) -> BaseException | None:
    """The error that coffea captured instead of raising it."""
    output = _unwrapped(result)
    captured = output.get("exception") if isinstance(output, Mapping) else getattr(result, "exception", None)
    return captured if isinstance(captured, BaseException) else None
