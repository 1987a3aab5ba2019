"""Metering of functions that run in non-Runner tasks or without Dask.

A function is measured if the user has wrapped it with `measured`, or if a collector measures every task.
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
from roastcoffea.records.calls import OF_TASKS
from roastcoffea.redaction import Added, added_patterns, redacted

Events = str | Callable[[Any], Any] | None
"""How to count events: an item or attribute of the function's result, or a function applied to the result."""


class Settings(NamedTuple):
    added: Added = ()
    profile: bool = False
    peak_memory: bool = True
    stand_in: Callable[[Any], Any] | None = None
    """Creates the replacement that a worker runs instead of a task, if every task is measured."""


class TaskAttempt(Attempt):
    meter: FilesMeter

    def __init__(self, task: DaskTask, settings: Settings) -> None:
        added, profile, peak_memory, _ = settings
        super().__init__(task, added, profile=profile, peak_memory=peak_memory, meter=FilesMeter())
        self.meter.added = added
        self._open.meter = self.meter

    def run(self, function: Action, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        with self.current, openings_noticed(self.meter, everything=True):
            return self.timed(self.sampled(partial(function, *args, **kwargs)))

    def end_in(self, home: Any, events: Events, result: Any, error: BaseException | None, *, always: bool) -> None:
        """End the run. Records are sent if there is anything to report or `always` is set."""
        with reported(home.complain, LOST, Exception):
            did = self.meter.files or self.meter.failed or self._open.entered or self._open.recorded
            records = self.records(home.name, events, result, error)
            if always or did or len(records) > 1:
                home.take(packed_records(records), failed=error is not None)

    def records(self, name: str, events: Events, result: Any, error: BaseException | None) -> list[Row]:
        """Records for a finished run: one that includes its time, and one for each additional file."""
        meter = self.meter
        record = self.end(error) | {"call": OF_TASKS + name, "dataset": meter.dataset or name}
        problems = record.setdefault(PROBLEMS, [])
        failed = meter.columns_of_failed()
        metadata = record.get("bytes_metadata")
        if metadata is not None:
            metadata -= sum(other["bytes_requested"] or 0 for other in failed)
        first, *others = meter.columns_of_files(metadata) or [{"events": 0, **dict.fromkeys(READ, 0)}]
        if error is not None:
            # a failed attempt's requests are counted together
            place = next(iter(failed), first) if first.get("file") is None else first
            first = {column: place.get(column) for column in ("file", "tree", "uuid", "entry_start", "entry_stop")}
            others, failed = [], []
        elif events is not None and meter.files:
            with reported(problems.append, "a task's number of events is unknown", Exception):
                first["events"] = None
                first["events"] = events_of(result, events)
            others = [other | {"events": 0} for other in others]
        if others:
            which = "their time and memory are recorded for only one of these files"
            problems.append(f"tasks read more than one file each: {which}")
        with reported(problems.append, "exceptions in a task's result are unknown", Exception):
            failed += columns_of_returned(result, failed, self._added)
        records = [record | first, *(further(record) | other for other in (*others, *failed))]
        for each in records:
            named = {column: each.get(column) for column in ("dataset", "file", "tree")}
            clean = {column: None if text is None else redacted(text, self._added) for column, text in named.items()}
            each.update(clean, **dict.fromkeys(meter.unknown & each.keys()))
        return records


def events_of(result: Any, events: Any) -> int:
    if callable(events):
        number = events(result)
    else:
        number = result[events] if isinstance(result, Mapping) else getattr(result, events)
    return operator.index(number)


class Home(NamedTuple):
    """Destination for a function's records."""

    name: str
    settings: Settings
    task: DaskTask
    complain: Callable[[str], object]
    take: Callable[..., object]
    """Called with the packed records, and with `failed` set if the function failed."""


def home_of_task() -> Home | None:
    """Destination for records of the Dask task on this thread.

    The result is None if no collector is waiting for records or if a Runner created the task.
    """
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
    """Call the function, and record its reads if a collector is waiting for records.

    Parameters
    ----------
    events
        How to count events. By default, each entry read is an event.
    find_home : callable
        Returns the `Home` for the records.
    always : bool
        Whether to record the call even if it reads nothing.
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
    """Stand-in for a Dask task that is measured if it reads data."""

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
        return self._inner


def carried_call(function: Action, _name: str, events: Events) -> Action:
    """Create the function that a `CarriedFunction` calls on a worker."""
    return lambda *args, **kwargs: call_measured(function, args, kwargs, events)


CARRIED: Final = {"probe": Probe, "call": carried_call}
"""Factories in the code that is sent to workers without the package."""


class Measured:
    """Wrapper that measures a function if a collector is waiting for records; see `measured`."""

    def __init__(self, function: Action, events: Any = None, *, sent: bool = False) -> None:
        from dask.utils import funcname

        functools.update_wrapper(self, function, updated=())
        self.__name__ = str(funcname(function))
        self._function = function
        self._events = events
        self._sent = sent
        """Whether a client has sent the function. If so, other processes only pass it on."""
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
        """Pickle the wrapper by name if other processes can import it.

        Otherwise, the pickle contains a stand-in if workers lack the package, or the plain function if no collector is
        open.
        """
        if self._is_global():
            return self.__qualname__
        if self._sent:
            return _sent, (self._function, self._events)
        return _way_of(self._function, self._events)

    def _is_global(self) -> bool:
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
    if not (events is None or isinstance(events, str) or callable(events)):
        ways = "the name of an item or attribute of the function's result, or a function that counts them in the result"
        raise TypeError(f"events must be {ways}, not {type(events).__name__}")
    return events


def settings_of(backend: str, everything: bool, events: Any, *, profile: bool, peak_memory: bool) -> Settings:
    """Build the settings for task functions from a collector's arguments.

    Raises
    ------
    ValueError
        `everything` is set without a Dask client, or `events` without `everything`.
    TypeError
        `events` is neither a name nor a function.
    """
    if everything and backend != "dask":
        raise ValueError("everything=True requires a Dask client: MetricsCollector(client, everything=True)")
    if checked_events(events) is not None and not everything:
        raise ValueError("events requires everything=True; for a single function, use measured(function, events=...)")
    stand_in = partial(MeasuredTask, events=events) if everything else None
    return Settings(added_patterns(), profile, peak_memory, stand_in)


def _sent(function: Action, events: Any) -> Measured:
    return Measured(function, events, sent=True)


def _way_of(function: Action, events: Any) -> tuple[Any, ...]:
    watchers = list(calls.active)
    for watcher in watchers:
        with reported(watcher.note, "a measured function was sent without roastcoffea's code", Exception):
            packed = watcher.packed_for_tasks(CarriedFunction)
            if packed is not None:
                name = getattr(function, "__name__", type(function).__name__)
                return type.__call__, (Packed(packed), packed, name, watcher.topic, function, (events,))
    return (_sent, (function, events)) if watchers else (getitem, ((function,), 0))


def measured(function: Any = None, *, events: Any = None) -> Any:
    """Measure a task function's reads: `client.map(measured(f), files)`.

    Reads through `uproot.open`, `uproot.iterate`, `uproot.concatenate` or coffea's `NanoEventsFactory` are recorded in
    the same way as for chunks: file, entries, bytes by branch and basket, phases, sections and memory. Files opened in
    other ways are not measured. The function's result and exceptions do not change. Nothing is measured unless a
    `MetricsCollector` is open.

    Parameters
    ----------
    function : callable
        A function, bound method or partial that Dask calls on a thread. If the function is omitted, `measured` returns
        a decorator.
    events : str or callable, optional
        How to count events if they are not the entries read: the name of an item or attribute of the function's result,
        or a function that returns the number of events for a result.

    Raises
    ------
    TypeError
        The function is not callable or is asynchronous, or `events` is neither a name nor a function.

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
        raise TypeError("measured takes a plain function, not a coroutine or generator")
    return Measured(function, events)


def find_home(name: str) -> Home | None:
    """Destination for records of a function in this process, or None if there is no collector."""
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
