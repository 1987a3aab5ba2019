"""Open collectors of this process and active `Runner.run` calls: what is recorded, and by which collector."""

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
from roastcoffea.records.run import FAILED, FINISHED, LOST, OF_TASKS, RunnerCall
from roastcoffea.redaction import redacted, redacted_beginning, redacted_each, redacted_values

if TYPE_CHECKING:
    import pyarrow as pa

Watcher = Any
"""The collector, of a room above this one: see the requests of the hook there."""

CONFIGURATIONS: Final = ("cfg", "config", "configuration")
"""Attributes of processors in which frameworks keep their configuration."""
LONGEST_NAME: Final = 120
"""Letters of a processor's name at most."""


def given_name(name: str | None) -> str | None:
    """The name that a user gives to a run, in one line; None for none.

    Raises
    ------
    TypeError
        It is no text.
    ValueError
        It has no visible letter.
    """
    if name is None:
        return None
    if not isinstance(name, str):
        raise TypeError(f"the name of a run is text, not {type(name).__name__}: {name!r}")
    if not (line := _line_of(name)):
        raise ValueError(f"the name of a run needs a visible letter, which {name!r} lacks")
    return line


def name_of_processor(processor: Any) -> str:
    """A processor's own name; where it has a configuration, that of this.

    Its own name is a text in its attribute `name`, otherwise the name of the function or class. Attributes are looked
    up without running code of the class, such as properties.
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
        # PocketCoffea's objects do not know their file
        words = [word for argument in sys.argv for word in argument.split("=", 1)]
        files = configuration, *(value for option, value in pairwise(words) if option == "--cfg")
        name = _line_of(_attribute(configuration, "name")) or next(filter(None, map(_of_file, files)), "")
        name = name or _line_of(_attribute(configuration, "workflow"))
    return redacted_beginning(name or kind.__name__, LONGEST_NAME)


def _of_file(path: Any) -> str:
    """Name of a configuration's file, or of its folder where that says more."""
    # files that people write: the pickled configuration of a batch job is named after the job
    written = (".py", ".yaml", ".yml", ".json", ".toml")
    if not issubclass(type(path), (str, PurePath)) or (file := Path(path)).suffix not in written:
        return ""
    return file.absolute().parent.name if file.stem in {"cfg", "config"} else file.stem


def _attribute(thing: Any, name: str) -> Any:
    """Attribute of an object, or item of a dict, without calls of its class's code; None for properties."""
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
    """A text in one line, without control characters; empty for what is no text."""
    if not issubclass(type(text), str):
        return ""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in str.__str__(text)).split())


Files = Mapping[str, str]
"""Files by function, as both are called in profiles."""


_known: Final[dict[tuple[str, str], str]] = Remembered()
"""Files of functions, by module and name, as they were before."""


def files_of_functions(processor: Any) -> Files:
    """Files of the functions in the module that defines a processor; those of one name in two files are left out."""
    while isinstance(processor, functools.partial | types.MethodType):
        processor = processor.func if isinstance(processor, functools.partial) else processor.__func__
    module = (processor if isinstance(processor, types.FunctionType) else type(processor)).__module__
    found: dict[str, set[str]] = {}
    for code in _codes(module):
        name = function_of(code)
        file: str | None = code.co_filename
        if file == SENT:  # a worker in this process has put what it was sent in the place of the class's methods
            file = _known.get((module, name)) or getattr(sys.modules.get(module), "__file__", None)
        if file is not None:
            _known[module, name] = file
            found.setdefault(name, set()).add(file)
    return {name: redacted(_called(files.pop())) for name, files in found.items() if len(files) == 1}


def _codes(module: str) -> list[types.CodeType]:
    """Code of functions and methods that a module defines, and of functions inside of them."""
    members = list(vars(sys.modules.get(module, types)).values())
    kinds = [member for member in members if issubclass(type(member), type)]
    members += [member for kind in kinds if kind.__module__ == module for member in vars(kind).values()]
    found = []
    for member in members:
        of_class = isinstance(member, staticmethod | classmethod)
        function = member.__func__ if of_class else member.fget if type(member) is property else member
        if type(function) is types.FunctionType and function.__module__ == module:
            found.append(function.__code__)
    for code in found:  # which grows
        found += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return found


def _called(file: str) -> str:
    """A file as profiles call it; a cell of a notebook as its traceback does, such as In[3]."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    of_cell = getattr(getattr(shell, "compile", None), "format_code_name", lambda _: None)(file)
    return of_cell[1] if of_cell else place_of(file)


class Watchers(tuple[Watcher, ...]):
    """Several collectors that receive the same information."""

    __slots__ = ()

    def note(self, problem: str) -> None:
        """Add a problem to each."""
        for watcher in self:
            watcher.note(problem)

    def chunks_lost(self, reason: str, call: str | None = None) -> None:
        """Record with each why chunks are missing."""
        for watcher in self:
            watcher.chunks_lost(reason, call)

    def take_records(self, records: bytes) -> None:
        """Give packed records to each."""
        for watcher in self:
            watcher.take_records(records)


lock: Final = threading.RLock()
active: Final[list[Watcher]] = []
_outer: Final[dict[str, Watchers]] = {}
"""For the topic of each, the collectors that its context had before."""
here: Final[ContextVar[Watchers | None]] = ContextVar("roastcoffea_collectors", default=None)
"""Collectors opened in this context; None if there never were any."""


def add(watcher: Watcher) -> None:
    """Let a collector take the Runner calls of this context, and of contexts without a collector."""
    outer = here.get() or Watchers()
    active.append(watcher)
    _outer[watcher.topic] = outer
    here.set(Watchers((*outer, watcher)))


def remove(watcher: Watcher) -> None:
    """Undo `add`."""
    others = Watchers(other for other in here.get() or () if other is not watcher)
    # a thread whose call was recorded by someone else counts as one that never had a collector
    here.set(others if others or watcher.of_all_contexts else None)
    with lock:
        active.remove(watcher)
        _outer.pop(watcher.topic)


def watchers() -> Watchers:
    """Open collectors of this context; for a thread that never had one, all that measure such threads as well."""
    with lock:
        found = _watching()
        if here.get() is None and any(other not in _outer[found[-1].topic] for other in found[:-1]):
            found.note(
                "a Runner call in a thread without a collector was counted in every open collector: "
                "open one in that thread"
            )
        return found


def is_watched() -> bool:
    """Whether a collector measures the Runner calls of this context."""
    return bool(_watching())


def _watching() -> Watchers:
    ours = here.get()
    return Watchers(each for each in list(active) if (each.of_all_contexts if ours is None else each in ours))


class OpenCall:
    """An active call of `Runner.run`."""

    def __init__(self, watchers: Watchers, runner: Any, processor: Any) -> None:
        self.id = uuid.uuid4().hex
        self.watchers = watchers
        self.result: Any = None
        self._class = type(processor).__name__
        self._runner = runner
        self._known: Row = {"processor": self._class}
        """Fields of its record."""
        self._files_of_functions: Files = {}
        with reported(watchers.note, "the processor is known by its class alone", Exception):
            self._known["processor"] = name_of_processor(processor)
            self._files_of_functions = files_of_functions(processor)

    @contextmanager
    def open(self) -> Iterator[None]:
        """Context in which the Runner works; at its end the collectors receive the record of the call."""
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
        """Give a collector the record of the call as if it failed now."""
        if watcher in self.watchers:
            watcher.call_ended(self._record(time.time(), error))
            watcher.fetch_records()

    def name(self, executor: Any) -> str:
        """Name of the tasks: that of the processor's class, as in coffea."""
        # Dask truncates the name of a function there
        return str(getattr(executor, "function_name", None) or self._class)[:50]

    def process_chunks(self, items: Sequence[Any]) -> None:
        """Record the chunks passed to the executor."""
        self._known["chunks"] = len(items)
        with reported(self.watchers.note, "the fileset has no fingerprint", Exception):
            self._known["fileset"] = fingerprint(items)
        self._items_requested(items)

    def preprocess_files(self, items: Sequence[Any]) -> None:
        """Record the files passed to the executor for preprocessing."""
        with reported(self.watchers.note, "the files of preprocessing were not counted", Exception):
            self._known["files"] = self._known.get("files", 0) + len(items)
        self._items_requested(items)

    def take_result(self, items: Sequence[Any], result: Any) -> None:
        """Learn which chunks an executor gave back although one of them failed."""
        with reported(self.watchers.note, "the chunks in a partial output are not known", Exception):
            match result:
                case ({"processed": processed}, BaseException()):
                    self._known["kept"] = [number for number, item in enumerate(items) if item in processed]

    def _items_requested(self, items: Sequence[Any]) -> None:
        for watcher in self.watchers:
            known = False
            with reported(watcher.note, "the requests of a Runner call were not recorded", Exception):
                watcher.items_requested(self.id, items)
                known = True
            if not known:
                watcher.requests_unknown()
        self._tell_running()

    def _tell_running(self) -> None:
        """Tell the collectors what is known of the call, in case that the client is lost before it ends."""
        with reported(self.watchers.note, "a running Runner call was not recorded", Exception):
            error = "the client was lost while the call ran"
            record = dataclasses.replace(self._record(time.time(), None), outcome=LOST, error=error)
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
"""The call of this context."""


def fingerprint(items: Iterable[Any]) -> str | None:
    """SHA-256 over dataset, file, tree and file uuid of chunks: equal for equal input, independent of chunk size."""
    try:
        files = {(*map(str, (item.dataset, item.filename, item.treename)), item.fileuuid.hex()) for item in items}
    except AttributeError:
        return None
    clean = {(*redacted_each(texts), identity) for *texts, identity in files}
    return hashlib.sha256(json.dumps(sorted(clean)).encode()).hexdigest()


def _options(runner: Any) -> Row:
    """The plain settings of a Runner and its executor, and the names of classes: schema, and pools that are made."""
    options: Row = {}
    for owner, thing in (("", runner), ("executor.", runner.executor)):
        for setting in dataclasses.fields(thing):
            value = getattr(thing, setting.name, None)
            value = value.__name__ if isinstance(value, type) else value
            if isinstance(value, (str, int, float, bool)):
                options[owner + setting.name] = value
    return dict(redacted_values(options))


def coffea_report(result: Any) -> Row | None:
    """coffea's own metrics, without secrets; None unless the Runner has savemetrics on."""
    output = output_of(result)
    metrics = output.get("metrics") if isinstance(output, Mapping) else None
    return redacted_values(copy.deepcopy(dict(metrics))) if isinstance(metrics, Mapping) else None


def calls_of_tasks(chunks: pa.Table, tasks: pa.Table | None) -> list[RunnerCall]:
    """What tasks did without a Runner, as calls: from the first runnable task of a name to the end of its last one.

    Parameters
    ----------
    chunks
        Records of attempts, of which some are of such tasks.
    tasks
        Attempts of Dask tasks; None without a scheduler.
    """
    import pyarrow.compute as pc

    ours = chunks.select(["call", "key", "start", "stop"]).filter(pc.starts_with(chunks["call"], OF_TASKS)).to_pandas()
    if tasks is not None and len(ours):
        runnable = tasks.select(["key", "runnable"]).to_pandas().groupby("key", observed=True)["runnable"].min()
        ours["start"] = ours["start"].combine(ours["key"].map(runnable), min)
    spans = ours.groupby("call", observed=True, sort=False).agg({"start": "min", "stop": "max"})
    return [
        RunnerCall(
            id=call,
            processor=call.removeprefix(OF_TASKS),
            executor="none: tasks of their own",
            start=start,
            stop=stop,
            outcome=FINISHED,
        )
        for call, start, stop in spans.itertuples()
    ]
