"""Open collectors in this process, and the active `Runner.run` calls that they record."""

from __future__ import annotations

import copy
import dataclasses
import functools
import hashlib
import inspect
import json
import sys
import threading
import time
import types
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import pairwise
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Final

from roastcoffea.errors import error_text, reported
from roastcoffea.generations import captured_error, output_of
from roastcoffea.instrument.shared import Remembered, Row
from roastcoffea.log.stacks import SENT, function_of, place_of
from roastcoffea.records.calls import CLIENT_LOST, FAILED, FINISHED, RunnerCall
from roastcoffea.redaction import redacted, redacted_beginning, redacted_each, redacted_values

if TYPE_CHECKING:
    pass

Watcher = Any
"""A collector; `collector._Watcher`, in a higher-level package, defines the interface."""

CONFIGURATIONS: Final = ("cfg", "config", "configuration")
"""Processor attributes that hold a framework's configuration."""
LONGEST_NAME: Final = 120


def given_name(name: str | None) -> str | None:
    """Check a run's name, and put it on a single line. None is returned unchanged.

    Raises
    ------
    TypeError
        The name is not a string.
    ValueError
        The name has no visible characters.
    """
    if name is None:
        return None
    if not isinstance(name, str):
        raise TypeError(f"the name of a run must be a string, not {type(name).__name__}: {name!r}")
    if not (line := _line_of(name)):
        raise ValueError(f"the name of a run must contain a visible character; {name!r} has none")
    return line


def name_of_processor(processor: Any) -> str:
    """Name a processor by its own name, its configuration's name or its class name, in that order.

    The processor's own name is its `name` attribute, if that is a string, or the name of the function or class.
    Attributes are looked up without running code in the class, such as properties.
    """
    while (kind := type(processor)) in (functools.partial, types.MethodType):
        processor = processor.func if kind is functools.partial else processor.__self__
    configuration = next(
        (one for one in map(functools.partial(_attribute, processor), CONFIGURATIONS) if one is not None), None
    )
    name = _line_of(_attribute(processor, "name")) or _line_of(_attribute(processor, "__name__"))
    name = name or (
        processor.__name__ if issubclass(kind, type | types.FunctionType | types.BuiltinFunctionType) else ""
    )
    if not name and configuration is not None:
        # PocketCoffea's configuration objects do not store their file's path
        words = [word for argument in sys.argv for word in argument.split("=", 1)]
        files = configuration, *(value for option, value in pairwise(words) if option == "--cfg")
        name = _line_of(_attribute(configuration, "name")) or next(filter(None, map(_of_file, files)), "")
        name = name or _line_of(_attribute(configuration, "workflow"))
    return redacted_beginning(name or kind.__name__, LONGEST_NAME)


def _of_file(path: Any) -> str:
    """Return a configuration file's name, or its folder's name if the file is called cfg or config."""
    # only for files written by hand: a batch job's pickled configuration is named after the job
    written = (".py", ".yaml", ".yml", ".json", ".toml")
    if not issubclass(type(path), (str, PurePath)) or (file := Path(path)).suffix not in written:
        return ""
    return file.absolute().parent.name if file.stem in {"cfg", "config"} else file.stem


def _attribute(thing: Any, name: str) -> Any:
    """Look up an object's attribute or a dict's item without running code in the class.

    The result is None for properties.
    """
    if type(thing) is dict:
        return thing.get(name)
    found = inspect.getattr_static(thing, name, None)
    if type(found) is types.MemberDescriptorType:  # a slot
        try:
            return found.__get__(thing)
        except AttributeError:
            return None
    return None if hasattr(type(found), "__get__") and not issubclass(type(found), type) else found


def _line_of(text: Any) -> str:
    """Put a string on a single line without control characters. Other types become an empty string."""
    if not issubclass(type(text), str):
        return ""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in str.__str__(text)).split())


Files = Mapping[str, str]
"""Maps function names to file names, both as in profiles."""


_known: Final[dict[tuple[str, str], str]] = Remembered()
"""Maps the module and name of each function to its original file."""


def files_of_functions(processor: Any) -> Files:
    """Files of the functions in a processor's module, excluding function names that occur in several files."""
    while isinstance(processor, functools.partial | types.MethodType):
        processor = processor.func if isinstance(processor, functools.partial) else processor.__func__
    module = (processor if isinstance(processor, types.FunctionType) else type(processor)).__module__
    found: dict[str, set[str]] = {}
    for code in _codes(module):
        name = function_of(code)
        file: str | None = code.co_filename
        if file == SENT:  # a worker in this process has replaced the class's methods with the unpickled copies
            file = _known.get((module, name)) or getattr(sys.modules.get(module), "__file__", None)
        if file is not None:
            _known[module, name] = file
            found.setdefault(name, set()).add(file)
    return {name: redacted(_called(files.pop())) for name, files in found.items() if len(files) == 1}


def _codes(module: str) -> list[types.CodeType]:
    members = list(vars(sys.modules.get(module, types)).values())
    kinds = [member for member in members if issubclass(type(member), type)]
    members += [member for kind in kinds if kind.__module__ == module for member in vars(kind).values()]
    found = []
    for member in members:
        of_class = isinstance(member, staticmethod | classmethod)
        function = member.__func__ if of_class else member.fget if type(member) is property else member
        if type(function) is types.FunctionType and function.__module__ == module:
            found.append(function.__code__)
    for code in found:  # the list grows during the loop
        found += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return found


def _called(file: str) -> str:
    """Return a file's name for profiles. Notebook cells are named as in tracebacks, e.g. In[3]."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    of_cell = getattr(getattr(shell, "compile", None), "format_code_name", lambda _: None)(file)
    return of_cell[1] if of_cell else place_of(file)


class Watchers(tuple[Watcher, ...]):
    """A group of collectors that receive the same information."""

    __slots__ = ()

    def note(self, problem: str) -> None:
        for watcher in self:
            watcher.note(problem)

    def chunks_lost(self, reason: str, call: str | None = None) -> None:
        for watcher in self:
            watcher.chunks_lost(reason, call)

    def take_records(self, records: bytes) -> None:
        for watcher in self:
            watcher.take_records(records)


lock: Final = threading.RLock()
active: Final[list[Watcher]] = []
_outer: Final[dict[str, Watchers]] = {}
"""Maps each collector's topic to the collectors opened earlier in the same context."""
here: Final[ContextVar[Watchers | None]] = ContextVar("roastcoffea_collectors", default=None)
"""Collectors opened in this context, or None if there have never been any."""


def add(watcher: Watcher) -> None:
    """Record Runner calls for a collector, in this context and in contexts without a collector."""
    outer = here.get() or Watchers()
    active.append(watcher)
    _outer[watcher.topic] = outer
    here.set(Watchers((*outer, watcher)))


def remove(watcher: Watcher) -> None:
    others = Watchers(other for other in here.get() or () if other is not watcher)
    # a collector limited to this context is ignored, as if the thread had never had a collector
    here.set(others if others or watcher.of_all_contexts else None)
    with lock:
        active.remove(watcher)
        _outer.pop(watcher.topic)


def watchers() -> Watchers:
    """Return this context's open collectors.

    If the thread has never had a collector, return all collectors that also measure such threads.
    """
    with lock:
        found = _watching()
        if here.get() is None and any(other not in _outer[found[-1].topic] for other in found[:-1]):
            found.note(
                "a Runner call in a thread without a collector was counted in every open collector: "
                "open a collector in that thread"
            )
        return found


def is_watched() -> bool:
    return bool(_watching())


def _watching() -> Watchers:
    ours = here.get()
    return Watchers(each for each in list(active) if (each.of_all_contexts if ours is None else each in ours))


class OpenCall:
    def __init__(self, watchers: Watchers, runner: Any, processor: Any) -> None:
        self.id = uuid.uuid4().hex
        self.watchers = watchers
        self.result: Any = None
        self._class = type(processor).__name__
        self._runner = runner
        self._known: Row = {"processor": self._class}
        self._files_of_functions: Files = {}
        with reported(watchers.note, "only the processor's class is known", Exception):
            self._known["processor"] = name_of_processor(processor)
            self._files_of_functions = files_of_functions(processor)

    @contextmanager
    def open(self) -> Iterator[None]:
        for watcher in self.watchers:
            watcher.call_began(self.id, self._files_of_functions)
        token = current.set(self)
        self._known["start"], began = time.time(), time.perf_counter()
        self._tell_running()
        error: BaseException | None = None
        open_calls.append(self)
        try:
            yield
        except BaseException as raised:
            error = raised
            raise
        finally:
            current.reset(token)
            open_calls.remove(self)
            with reported(self.watchers.note, "a Runner call was not recorded", Exception):
                stop = self._known["start"] + time.perf_counter() - began
                record = self._record(stop, error or captured_error(self.result))
                for watcher in self.watchers:
                    watcher.call_ended(record)

    def end_for(self, watcher: Watcher, error: BaseException) -> None:
        """Pass the call's record to a collector as if the call had just failed."""
        if watcher in self.watchers:
            watcher.call_ended(self._record(time.time(), error))
            watcher.fetch_records()

    def name(self, executor: Any) -> str:
        """Task name: by default, the processor's class name, as in coffea."""
        # Dask truncates function names at this length
        return str(getattr(executor, "function_name", None) or self._class)[:50]

    def process_chunks(self, items: Sequence[Any]) -> None:
        """Record the chunks passed to the executor."""
        self._known["chunks"] = len(items)
        with reported(self.watchers.note, "the fileset has no fingerprint", Exception):
            self._known["fileset"] = fingerprint(items)
        self._items_requested(items)

    def preprocess_files(self, items: Sequence[Any]) -> None:
        """Record the files passed to the executor for preprocessing."""
        with reported(self.watchers.note, "the files to preprocess were not counted", Exception):
            self._known["files"] = self._known.get("files", 0) + len(items)
        self._items_requested(items)

    def take_result(self, items: Sequence[Any], result: Any) -> None:
        """Record which chunks are in the executor's output if other chunks failed."""
        with reported(self.watchers.note, "the chunks in a partial output are unknown", Exception):
            match result:
                case ({"processed": processed}, BaseException()):
                    self._known["kept"] = [number for number, item in enumerate(items) if item in processed]

    def _items_requested(self, items: Sequence[Any]) -> None:
        for watcher in self.watchers:
            known = False
            with reported(watcher.note, "a Runner call's requests were not recorded", Exception):
                watcher.items_requested(self.id, items)
                known = True
            if not known:
                watcher.requests_unknown()
        self._tell_running()

    def _tell_running(self) -> None:
        """Send the call's record so far to the collectors, in case the client is lost."""
        with reported(self.watchers.note, "a running Runner call was not recorded", Exception):
            error = "the client was lost while the call ran"
            record = dataclasses.replace(self._record(time.time(), None), outcome=CLIENT_LOST, error=error)
            for watcher in self.watchers:
                watcher.call_runs(record)

    def _record(self, stop: float, error: BaseException | None) -> RunnerCall:
        return RunnerCall(
            id=self.id,
            executor=type(self._runner.executor).__name__,
            stop=stop,
            outcome=FINISHED if error is None else FAILED,
            error=None if error is None else error_text(error),
            options=_options(self._runner),
            report=coffea_report(self.result),
            **self._known,
        )


open_calls: Final[list[OpenCall]] = []
current: Final[ContextVar[OpenCall | None]] = ContextVar("roastcoffea_call", default=None)


def fingerprint(items: Iterable[Any]) -> str | None:
    """SHA-256 hash of the chunks' datasets, files, trees and file UUIDs.

    The hash does not depend on the chunk size.
    """
    try:
        files = {(*map(str, (item.dataset, item.filename, item.treename)), item.fileuuid.hex()) for item in items}
    except AttributeError:
        return None
    clean = {(*redacted_each(texts), identity) for *texts, identity in files}
    return hashlib.sha256(json.dumps(sorted(clean)).encode()).hexdigest()


def _options(runner: Any) -> Row:
    """Settings of a Runner and its executor as plain values. Classes are replaced with their names."""
    options: Row = {}
    for owner, thing in (("", runner), ("executor.", runner.executor)):
        for setting in dataclasses.fields(thing):
            value = getattr(thing, setting.name, None)
            value = value.__name__ if isinstance(value, type) else value
            if isinstance(value, (str, int, float, bool)):
                options[owner + setting.name] = value
    return dict(redacted_values(options))


def coffea_report(result: Any) -> Row | None:
    """Redacted copy of coffea's own metrics; None unless the Runner option `savemetrics` is set."""
    output = output_of(result)
    metrics = output.get("metrics") if isinstance(output, Mapping) else None
    return redacted_values(copy.deepcopy(dict(metrics))) if isinstance(metrics, Mapping) else None
