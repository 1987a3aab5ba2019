"""Functions that tasks run, or that users run without Dask, metered as a chunk is: what they read of files.

A function is measured where the user has wrapped it by `measured`, or where a collector measures every task.
"""

from __future__ import annotations

import functools
import inspect
import operator
import sys
import types
from collections.abc import Callable, Mapping
from functools import partial
from operator import getitem
from typing import Any, Final, NamedTuple

from roastcoffea.errors import reported
from roastcoffea.instrument import calls
from roastcoffea.instrument.attempt import Attempt, columns_of_returned, further
from roastcoffea.instrument.calls import Watchers
from roastcoffea.instrument.channels import CarriedFunction, DaskTask, Packed, Transport, dask_worker
from roastcoffea.instrument.meter.files import FilesMeter
from roastcoffea.instrument.meter.openings import openings_noticed
from roastcoffea.instrument.meter.tally import READ, StandIn
from roastcoffea.instrument.probe import LOST, Probe
from roastcoffea.instrument.shared import Action, Row
from roastcoffea.instrument.track import is_in_chunk
from roastcoffea.interrupts import interrupts_held
from roastcoffea.log.marks import ANNOTATION, IS_MEASURED
from roastcoffea.log.packing import PROBLEMS, packed_records
from roastcoffea.records.run import OF_TASKS
from roastcoffea.redaction import Added, added_patterns, redacted

Events = str | Callable[[Any], Any] | None
"""What counts as events: an item or attribute of the function's result, or what a function makes of the result."""


class Settings(NamedTuple):
    """What a collector wants of functions that tasks run."""

    added: Added = ()
    profile: bool = False
    peak_memory: bool = True
    stand_in: Callable[[Any], Any] | None = None
    """Makes what a worker runs in place of a task, where each task is measured."""


class TaskAttempt(Attempt):
    """One run of a function in a task."""

    meter: FilesMeter

    def __init__(self, task: DaskTask, settings: Settings) -> None:
        added, profile, peak_memory, _ = settings
        super().__init__(task, added, profile=profile, peak_memory=peak_memory, meter=FilesMeter())
        self.meter.added = added
        self._open.meter = self.meter

    def run(self, function: Action, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """What the function gives."""
        with self.current, openings_noticed(self.meter, everything=True):
            return self.timed(self.sampled(partial(function, *args, **kwargs)))

    def end_in(self, home: Any, events: Events, result: Any, error: BaseException | None, *, always: bool) -> None:
        """End, and send the records home, at least where the function opened a file or named something."""
        with reported(home.complain, LOST, Exception):
            did = self.meter.files or self.meter.failed or self._open.entered or self._open.recorded
            records = self.records(home.name, events, result, error)
            if always or did or len(records) > 1:
                home.take(packed_records(records), failed=error is not None)

    def records(self, name: str, events: Events, result: Any, error: BaseException | None) -> list[Row]:
        """Records of the run, which has ended: one of its time, and one of each further file that it read."""
        meter = self.meter
        record = self.end(error) | {"call": OF_TASKS + name, "dataset": meter.dataset or name}
        problems = record.setdefault(PROBLEMS, [])
        failed = meter.columns_of_failed()
        metadata = record.get("bytes_metadata")
        if metadata is not None:
            metadata -= sum(other["bytes_requested"] or 0 for other in failed)
        first, *others = meter.columns_of_files(metadata) or [{"events": 0, **dict.fromkeys(READ, 0)}]
        if error is not None:
            # what a failed attempt requested counts as a whole
            place = next(iter(failed), first) if first.get("file") is None else first
            first = {column: place.get(column) for column in ("file", "tree", "uuid", "entry_start", "entry_stop")}
            others, failed = [], []
        elif events is not None and meter.files:
            with reported(problems.append, "the events of a task are not known", Exception):
                first["events"] = None
                first["events"] = events_of(result, events)
            others = [other | {"events": 0} for other in others]
        if others:
            which = "their time and memory are in the record of one of these files"
            problems.append(f"tasks read more than one file each: {which}")
        with reported(problems.append, "exceptions in the result of a task are not known", Exception):
            failed += columns_of_returned(result, failed, self._added)
        records = [record | first, *(further(record) | other for other in (*others, *failed))]
        for each in records:
            named = {column: each.get(column) for column in ("dataset", "file", "tree")}
            clean = {column: None if text is None else redacted(text, self._added) for column, text in named.items()}
            each.update(clean, **dict.fromkeys(meter.unknown & each.keys()))
        return records


def events_of(result: Any, events: Any) -> int:
    """Events by the result of a function; see `Events`."""
    if callable(events):
        number = events(result)
    else:
        number = result[events] if isinstance(result, Mapping) else getattr(result, events)
    return operator.index(number)


class Home(NamedTuple):
    """Where records of a function go while they are waited for."""

    name: str
    settings: Settings
    task: DaskTask
    complain: Callable[[str], object]
    take: Callable[..., object]
    """Takes packed records, and whether the function failed."""


def home_of_task() -> Home | None:
    """Where records of the Dask task on this thread go; None where no collector waits, or a Runner made the task."""
    from dask.utils import key_split

    worker = dask_worker()
    if worker is None:
        return None
    mark = (worker.state.tasks[worker.get_current_task()].annotations or {}).get(ANNOTATION)
    if not isinstance(mark, Mapping) or mark.get("step") is not None:
        return None
    topics = tuple(topic for topic in mark.get("collectors", ()) if topic in worker.plugins)
    settings = worker.plugins[topics[-1]].functions if topics else None
    if settings is None:
        return None
    task, transport = DaskTask(topics), Transport(topics)
    take = partial(transport.deliver, task, output=None)
    return Home(str(key_split(task.key)), settings, task, partial(transport.complain, settings.added), take)


def call_measured(
    function: Action,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    events: Events = None,
    find_home: Callable[[], Any] = home_of_task,
    *,
    always: bool = True,
) -> Any:
    """What the function gives; what it reads is recorded where somebody waits for that.

    Parameters
    ----------
    function, args, kwargs
        What is called.
    events
        What counts as events where entries do not.
    find_home : callable
        Gives the `Home` of records.
    always : bool
        Record it also where it reads nothing.
    """
    home = None if is_in_chunk() else find_home()
    attempt = None
    try:
        if home is not None:
            with interrupts_held(), reported(home.complain, LOST, Exception):
                attempt = TaskAttempt(home.task, home.settings)
        if attempt is None:
            return function(*args, **kwargs)
        result = attempt.run(function, args, kwargs)
    except BaseException as error:
        if attempt is not None:
            attempt.end_in(home, events, None, error, always=always)
        raise
    attempt.end_in(home, events, result, None, always=always)
    return result


class MeasuredTask(StandIn):
    """A task of Dask's as a worker runs it, measured where it reads."""

    __slots__ = ("_events",)

    def __init__(self, task: Any, events: Events = None) -> None:
        self._inner = task
        self._events = events

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return call_measured(self._inner, args, kwargs, self._events, always=False)

    def __repr__(self) -> str:
        return repr(self._inner)

    @property
    def stands_for(self) -> Any:
        """The task itself."""
        return self._inner


def carried_call(function: Action, _name: str, events: Events) -> Action:
    """What a `CarriedFunction` calls."""
    return lambda *args, **kwargs: call_measured(function, args, kwargs, events)


CARRIED: Final = {"probe": Probe, "call": carried_call}
"""Code that tasks need where workers lack the package."""


class Measured:
    """A function that is measured where a collector waits for it, and else is called as it is; see `measured`."""

    def __init__(self, function: Action, events: Any = None, *, sent: bool = False) -> None:
        from dask.utils import funcname

        functools.update_wrapper(self, function, updated=())
        self.__name__ = str(funcname(function))
        self._function = function
        self._events = events
        self._sent = sent
        """Whether a client has sent it: who has it now only passes it on."""
        setattr(self, IS_MEASURED, True)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return call_measured(self._function, args, kwargs, self._events, partial(find_home, self.__name__))

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_function" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self._function, name)

    def __dask_tokenize__(self) -> Any:
        from dask.base import normalize_token

        return "roastcoffea-measured", normalize_token(self._function)

    def __reduce__(self) -> Any:
        """How it travels: by its name, by value where workers lack the package, and as the function if nobody waits."""
        if self._is_global():
            return self.__qualname__
        if self._sent:
            return _sent, (self._function, self._events)
        return _way_of(self._function, self._events)

    def _is_global(self) -> bool:
        """Whether its name leads to it in a module that others can import."""
        import cloudpickle

        module, names = self.__dict__.get("__module__"), self.__dict__.get("__qualname__", "").split(".")
        by_value = cloudpickle.list_registry_pickle_by_value()
        if module in {None, "__main__"} or any(f"{module}.".startswith(f"{name}.") for name in by_value):
            return False
        found: Any = sys.modules.get(module)
        for name in names:
            found = inspect.getattr_static(found, name, None)
        return found is self


def checked_events(events: Any) -> Any:
    """What counts as events, which is a name or a function."""
    if not (events is None or isinstance(events, str) or callable(events)):
        ways = "the name of an item or attribute of the function's result, or a function that makes a number of it"
        raise TypeError(f"events is {ways}, not {type(events).__name__}")
    return events


def settings_of(backend: str, everything: bool, events: Any, *, profile: bool, peak_memory: bool) -> Settings:
    """What a collector with these arguments wants of functions that tasks run.

    Raises
    ------
    ValueError
        `everything` without a Dask client, or `events` without `everything`.
    TypeError
        `events` is neither name nor function.
    """
    if everything and backend != "dask":
        raise ValueError("everything=True measures tasks of a Dask client: MetricsCollector(client, everything=True)")
    if checked_events(events) is not None and not everything:
        raise ValueError("events needs everything=True; a function is given its own: measured(function, events=...)")
    stand_in = partial(MeasuredTask, events=events) if everything else None
    return Settings(added_patterns(), profile, peak_memory, stand_in)


def _sent(function: Action, events: Any) -> Measured:
    return Measured(function, events, sent=True)


def _way_of(function: Action, events: Any) -> tuple[Any, ...]:
    """How a measured function travels from a client: what collectors are open here decides."""
    watchers = list(calls.active)
    for watcher in watchers:
        with reported(watcher.note, "a measured function was sent as it is", Exception):
            packed = watcher.packed_for_tasks(CarriedFunction)
            if packed is not None:
                name = getattr(function, "__name__", type(function).__name__)
                return operator.call, (Packed(packed), packed, name, watcher.topic, function, (events,))
    return (_sent, (function, events)) if watchers else (getitem, ((function,), 0))


def measured(function: Any = None, *, events: Any = None) -> Any:
    """Measure what a function reads when a task runs it: `client.map(measured(function), files)`.

    What it reads with `uproot.open`, `uproot.iterate`, `uproot.concatenate` or coffea's `NanoEventsFactory` is recorded
    as a chunk is: file, entries, bytes by branch and basket, phases, sections, memory. Result and exceptions are those
    of the function, and without an open `MetricsCollector` nothing is measured. Files that the function opens in other
    ways are not seen.

    Parameters
    ----------
    function : callable
        A function, bound method or partial that Dask calls on a thread; without it, a decorator.
    events : str or callable, optional
        What counts as events where the entries that were read do not: the name of an item or attribute of the
        function's result, or a function that makes a number of it.

    Raises
    ------
    TypeError
        The function cannot be called, or is asynchronous; or `events` is neither name nor function.

    Examples
    --------
    >>> with MetricsCollector(client) as collector:  # doctest: +SKIP
    ...     counts = client.gather(client.map(measured(count_jets), files))
    """
    checked_events(events)
    if function is None:
        return partial(measured, events=events)
    if not callable(function):
        raise TypeError(f"measured takes a function, not {type(function).__name__}")
    kinds = inspect.iscoroutinefunction, inspect.isasyncgenfunction, inspect.isgeneratorfunction
    if any(is_one(function) for is_one in kinds):
        raise TypeError("measured takes a function that works when it is called: not a coroutine or generator")
    return Measured(function, events)


def find_home(name: str) -> Home | None:
    """Where records of a function of this name that runs here go; None without a collector."""
    if dask_worker() is not None:
        return home_of_task()
    if not calls.is_watched():
        return None
    reached = Watchers(watcher for watcher in calls.watchers() if watcher.out_of_reach(None) is None)
    profile, peak_memory = any(one.profile for one in reached), any(one.peak_memory for one in reached)
    settings = Settings(added_patterns(), profile, peak_memory)

    def take(records: bytes, **_: bool) -> None:
        reached.take_records(records)

    return Home(name, settings, DaskTask(), reached.note, take) if reached else None
