"""Support for several releases of coffea, distributed and uproot, including on workers and schedulers."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from types import FunctionType
from typing import Any, Final, NamedTuple

UNMARKED: Final = 'included in "open": coffea before 2025.11 does not mark when opening ends'


def arguments_of(closure: Any) -> dict[str, Any]:
    """Arguments of coffea's closure, by name; before 2025, most of them were positional."""
    if not isinstance(closure, partial):
        return {}
    if not closure.args:
        return closure.keywords
    function, names = inspect.unwrap(closure.func), list[str]()
    if isinstance(function, FunctionType):  # in every chunk: a signature takes as long as reading ten baskets
        names += function.__code__.co_varnames[: function.__code__.co_argcount]
    if len(names) < len(closure.args):
        names = [*inspect.signature(closure.func).parameters]
    return dict(zip(names, closure.args, strict=False)) | closure.keywords


def with_arguments(closure: Any, replaced: Mapping[str, Any]) -> Any:
    if not (isinstance(closure, partial) and closure.args):
        return partial(closure, **replaced)
    given = arguments_of(closure)
    places = [replaced.get(name, given[name]) for name in [*given][: len(closure.args)]]
    return partial(closure.func, *places, **{name: replaced.get(name, given[name]) for name in closure.keywords})


def opens_itself(arguments: Mapping[str, Any]) -> bool:
    """Whether coffea opens the chunk's file without the user's options, as in all 0.7 releases."""
    return bool(arguments) and "uproot_options" not in arguments


def factory_of(events: Any) -> Any:
    """coffea's factory for these events; with awkward 1, it is stored in their behavior."""
    attributes = getattr(events, "attrs", None)
    return events.behavior["__events_factory__"] if attributes is None else attributes["@events_factory"]


def runner_and_executor() -> tuple[type, type] | None:
    """coffea's Runner and executor base class; None for coffea 2024.1 to 2025.3, which use task graphs instead."""
    from coffea import processor

    if not hasattr(processor, "Runner"):
        return None
    from coffea.processor.executor import ExecutorBase

    return processor.Runner, ExecutorBase


def classes_of_ntuples() -> tuple[Any, Any] | None:
    """uproot's class for reading RNTuple fields, and its RNTuple class; the result is None for uproot 4."""
    try:
        behaviors, models = map(importlib.import_module, ("uproot.behaviors.RNTuple", "uproot.models.RNTuple"))
    except ImportError:
        return None
    return getattr(behaviors, "HasFields", None), models.Model_ROOT_3a3a_RNTuple


def marker_of_opening(arguments: Mapping[str, Any]) -> Callable[[], Any] | None:
    """Callback that coffea runs after opening a chunk's file; None before coffea 2025.11."""
    marker = arguments.get("cache_function")
    return marker if callable(marker) else None


def output_of(result: Any) -> Any:
    """Output of `Runner.run`; since coffea 2026.7, it may be wrapped in a result object."""
    return result if isinstance(result, Mapping) else getattr(result, "value", None)


def captured_error(result: Any) -> BaseException | None:
    """Error that coffea captured instead of raising; since coffea 2026.7, it may be in a result object."""
    output = output_of(result)
    captured = output.get("exception") if isinstance(output, Mapping) else getattr(result, "exception", None)
    return captured if isinstance(captured, BaseException) else None


def own_client(runner: Any) -> AbstractContextManager[Any]:
    """Context manager for the client that coffea starts if a `DaskExecutor` has none.

    Before version 2026.9, coffea started a client for each step and left it open; with those versions, the context
    manager yields None.
    """
    made: AbstractContextManager[Any] = getattr(runner, "_auto_dask_client", nullcontext)()
    return made


def event_topics(scheduler: Any) -> dict[str, Any]:
    """The scheduler's event topics; empty if this release of Dask stores them elsewhere."""
    topics: dict[str, Any] = getattr(getattr(scheduler, "_broker", None), "_topics", {})
    return topics


def unwrapped(result: Any) -> Any:
    """Unwrap the return value of a function that ran on a worker; some releases of distributed wrap it."""
    from distributed.protocol.serialize import Serialize, Serialized, deserialize

    if isinstance(result, Serialized):
        return deserialize(result.header, result.frames)
    return result.data if isinstance(result, Serialize) else result


READS_ON: Final = "uproot before 5.7.6 also reads the basket after each chunk; later releases do not"


def reads_on(version: str | None) -> bool:
    """Whether this release of uproot also reads a basket that starts at the end of the requested range."""
    found = re.match(r"(\d+)\.(\d+)\.(\d+)", version or "")
    return found is not None and tuple(map(int, found.groups())) < (5, 7, 6)


class ColumnReaders(NamedTuple):
    """Names of the RNTuple methods that read a column from a range of clusters or from one cluster."""

    of_clusters: str
    of_cluster: str
    cluster: int
    """Position of the cluster number among the arguments of `of_cluster`."""

    def place(self, arguments: Sequence[Any]) -> tuple[int, int]:
        return int(arguments[self.cluster]), int(arguments[1 - self.cluster])


def column_readers(ntuple: type) -> ColumnReaders:
    """Names of the column readers, which were renamed in uproot 5.7."""
    if hasattr(ntuple, "read_cluster_range"):
        return ColumnReaders("read_cluster_range", "read_cluster_pages", 0)
    return ColumnReaders("read_col_pages", "read_col_page", 1)
