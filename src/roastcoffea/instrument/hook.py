"""The client's hook into coffea: it notices Runner calls and puts a probe around each chunk's function.

While a collector is open, `Runner.run` and the `copy` of executors are patched, and they are restored with the last
collector. The Runner makes a throw-away copy of its executor for each step; that copy, and nothing else, gets a
subclass of its own class whose `__call__` annotates the tasks and wraps the function.
"""

from __future__ import annotations

import functools
import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import dask
from dask.utils import key_split

from roastcoffea.errors import reported
from roastcoffea.instrument import calls, executors, watchers
from roastcoffea.instrument.calls import OpenCall
from roastcoffea.instrument.executors import ExecutorCall
from roastcoffea.instrument.watchers import Watcher, Watchers
from roastcoffea.interrupts import interrupts_held, whole
from roastcoffea.log.marks import ANNOTATION
from roastcoffea.records.tasks import PREPROCESSING

PROCESSING = "processing"

_filters: list[Any] = []
_patches: list[tuple[type, str, Any, Any]] = []


def watch(watcher: Watcher) -> None:
    """Let a collector see the Runner calls of this context, and those of contexts that have no collector."""
    from coffea.processor import Runner
    from coffea.processor.executor import ExecutorBase

    with interrupts_held(), watchers.lock:
        if not watchers.active:
            _patch(Runner, "run", _watched_run)
            _patch(ExecutorBase, "copy", _watched_copy)
            _silence_dask()
        watchers.add(watcher)


def unwatch(watcher: Watcher) -> None:
    """Undo `watch`, where that was done; with the last collector coffea is as it was."""
    if watcher not in watchers.active:
        return
    with watchers.lock:
        watchers.remove(watcher)
        if not watchers.active:
            _unsilence_dask()
        while not watchers.active and _patches:
            owner, name, original, replacement = _patches.pop()
            if owner.__dict__.get(name) is replacement:
                setattr(owner, name, original)


def take_new_records() -> None:
    """Take home what lies in the folders of executors that work now, and was not taken yet."""
    for call in list(executors.open_calls):
        call.take_new()


def end_open_calls(watcher: Watcher, error: BaseException) -> None:
    """Deliver what was seen of Runner calls that go on, as of calls that failed: the process is about to end."""
    for executor_call in list(executors.open_calls):
        executor_call.take_all_for(watcher)
    for call in list(calls.open_calls):
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


def _watched_run(original: Callable[..., Any]) -> Callable[..., Any]:
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        found = watchers.watchers()
        if not found or calls.current.get() is not None:
            return original(self, *args, **kwargs)
        call = OpenCall(found, self, kwargs.get("processor_instance", args[1] if len(args) > 1 else None))
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
    with watchers.lock:
        if owner is not None and watchers.active and all(patched is not owner for patched, *_ in _patches):
            _patch(owner, "copy", _watched_copy)


def _watched_copy(original: Callable[..., Any]) -> Callable[..., Any]:
    def copy_executor(self: Any, *args: Any, **kwargs: Any) -> Any:
        executor = original(self, *args, **kwargs)
        call = calls.current.get()
        found = call.watchers if call is not None else watchers.watchers()
        with reported(found.chunks_unseen, f"the chunks of the {type(executor).__name__} were not seen", Exception):
            _watch_executor(executor, found, call, preprocessing=kwargs.get("desc") == "Preprocessing")
        return executor

    return copy_executor


def _watch_executor(executor: Any, found: Watchers, call: OpenCall | None, *, preprocessing: bool) -> None:
    """Give this one executor a `__call__` that tags its tasks and puts the probe in."""
    kind = type(executor)
    if not found or "_roastcoffea" in kind.__dict__ or not (preprocessing or call):
        return

    def __call__(self: Any, items: Any, function: Any, accumulator: Any) -> Any:  # noqa: N807
        self.__class__ = kind
        step, name = PREPROCESSING, None
        if call is not None and preprocessing:
            call.preprocess_files(items)
        elif call is not None:
            step, name = PROCESSING, call.name(self)
            items = list(items)
            call.process_chunks(items)
        prefix = None if name is None else str(key_split(f"{name}-{'0' * 32}"))
        watched = ExecutorCall(found, self, None if call is None else call.id, name)
        with whole(_marked(found, step, prefix)), whole(watched.transport()):
            return watched.without_records(kind.__call__(self, items, watched.probed(function), accumulator))

    names = {name: getattr(kind, name) for name in ("__module__", "__qualname__", "__doc__")}
    body = names | {"__call__": __call__, "__slots__": (), "_roastcoffea": True}
    executor.__class__ = types.new_class(kind.__name__, (kind,), exec_body=lambda space: space.update(body))


@contextmanager
def _marked(found: Watchers, step: str, prefix: str | None) -> Iterator[None]:
    collectors = tuple(watcher.topic for watcher in found)
    mark = {ANNOTATION: {"collectors": collectors, "step": step, "prefix": prefix}}
    with found[-1].span_ensured(), dask.annotate(**mark):
        yield
