"""Functions that users hand to tasks themselves, or run without Dask: wrapped so that what they do is recorded."""

from __future__ import annotations

import functools
import inspect
import operator
import sys
import types
from collections.abc import Callable
from operator import getitem
from typing import Any, Final, TypeVar, overload

from roastcoffea.errors import reported
from roastcoffea.instrument.calls import Watchers, is_watched, watchers
from roastcoffea.instrument.channels import CarriedFunction, DaskTask, Packed, dask_worker
from roastcoffea.instrument.probe import Probe
from roastcoffea.instrument.tasks import Home, MeasuredTask, Settings, call_measured, home_of_task
from roastcoffea.log.marks import IS_MEASURED
from roastcoffea.log.packing import packed_records
from roastcoffea.redaction import added_patterns

Function = TypeVar("Function", bound=Callable[..., Any])

CARRIED: Final = {"probe": Probe, "call": call_measured}
"""Code that tasks need where workers lack the package."""

EVENTS_ARE: Final = (
    "events is the name of an item or attribute of the function's result, or a function that makes a number of it"
)


class Measured:
    """A function that is measured where a collector waits for it, and else is called as it is; see `measured`."""

    def __init__(self, function: Callable[..., Any], events: Any = None, *, sent: bool = False) -> None:
        functools.update_wrapper(self, function, updated=())
        self.__name__ = _name_of(function)
        self._function = function
        self._events = events
        self._sent = sent
        """Whether a client has sent it: who has it now only passes it on."""
        setattr(self, IS_MEASURED, True)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:

        return call_measured(self._function, args, kwargs, self._events, find_home)

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
        raise TypeError(f"{EVENTS_ARE}, not {type(events).__name__}")
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
    stand_in = functools.partial(MeasuredTask, events=events) if everything else None
    return Settings(added_patterns(), profile, peak_memory, stand_in)


def _sent(function: Callable[..., Any], events: Any) -> Measured:
    return Measured(function, events, sent=True)


def _way_of(function: Callable[..., Any], events: Any) -> tuple[Any, ...]:
    """How a measured function travels from a client: what collectors are open here decides."""
    from roastcoffea.instrument import calls

    watchers = list(calls.active)
    for watcher in watchers:
        with reported(watcher.note, "a measured function was sent as it is", Exception):
            packed = watcher.packed_for_tasks(CarriedFunction)
            if packed is not None:
                return operator.call, (Packed(packed), packed, function, events, watcher.topic)
    return (_sent, (function, events)) if watchers else (getitem, ((function,), 0))


def _name_of(function: Any) -> str:
    """Name by which Dask calls tasks of a function."""
    from dask.utils import funcname

    return str(funcname(function))


@overload
def measured(function: Function, *, events: Any = None) -> Function: ...


@overload
def measured(function: None = None, *, events: Any = None) -> Callable[[Function], Function]: ...


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
        return functools.partial(measured, events=events)
    if not callable(function):
        raise TypeError(f"measured takes a function, not {type(function).__name__}")
    if any(is_one(function) for is_one in OTHER_FUNCTIONS):
        raise TypeError("measured takes a function that works when it is called: not a coroutine or generator")
    return Measured(function, events)


OTHER_FUNCTIONS: Final = (
    inspect.iscoroutinefunction,
    inspect.isasyncgenfunction,
    inspect.isgeneratorfunction,
)
"""Whether what a function does comes after it has returned."""


class LocalHome:
    """Collectors of this process as those to whom records go."""

    def __init__(self, reached: Watchers, name: str) -> None:
        self.settings = Settings(
            added_patterns(), any(one.profile for one in reached), any(one.peak_memory for one in reached)
        )
        self.task = DaskTask()
        self.name = name
        self.complain = reached.note
        self._reached = reached

    def take(self, records: list[dict[str, Any]], *, failed: bool) -> None:  # noqa: ARG002  (there is one way)
        """Hand records over."""
        packed = packed_records(records)
        for watcher in self._reached:
            watcher.take_records(packed)


def find_home(function: Any) -> Home | LocalHome | None:
    """Where records of a function that runs here go; None without a collector."""
    if dask_worker() is not None:
        return home_of_task(function)
    if not is_watched():
        return None
    reached = Watchers(watcher for watcher in watchers() if watcher.out_of_reach(None) is None)
    name = getattr(function, "__name__", type(function).__name__)
    return LocalHome(reached, name) if reached else None
