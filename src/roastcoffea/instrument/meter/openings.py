"""Files that a function opens itself are noticed where uproot and coffea open and read them.

While functions of tasks are metered in this process a few methods of uproot and coffea pass through here, and they are
restored with the last of these functions. Whoever calls them outside of such a function notices nothing.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Iterator
from typing import Any, Final

from roastcoffea.generations import column_readers
from roastcoffea.instrument.meter.files import BUILD, OPEN, OTHER, FilesMeter
from roastcoffea.instrument.meter.tally import BY_BRANCH, OF_CLASS, READ, Tally
from roastcoffea.instrument.shared import Action, Remembered, joined, leave, lock_of, name_here
from roastcoffea.instrument.track import OpenChunk, open_chunk_of

_STATE: Final = "_roastcoffea_openings"

_made: Final[dict[tuple[Any, str], tuple[Any, Any]]] = Remembered()
"""What is put in the place of methods, and of which it was made: a function may run thousands of times."""

FACTORY: Final = "coffea.nanoevents.factory"

Patch = tuple[Any, str, Action]
"""Owner and name of a method, and what makes the one in its place."""


class openings_noticed:  # noqa: N801  (a context, as those of contextlib)
    """Context in which files that are opened in the current chunk are metered.

    Parameters
    ----------
    meter : Tally
        Meter of the chunk.
    everything : bool
        Patch all methods, and not only those through which a file is first seen: a chunk may open none.
    """

    def __init__(self, meter: Tally, *, everything: bool = False) -> None:
        self._meter = meter
        self._everything = everything

    def __enter__(self) -> None:
        self._without_events = FACTORY not in sys.modules
        self._state = state = joined(_STATE, self._meter, patched={})
        try:
            _patch(state, self._meter, _first_seen)
            if self._everything:
                _patch(state, self._meter, _further)
        except BaseException:  # of a signal's handler
            self._leave()
            raise
        finally:
            state.lock.release()

    def __exit__(self, *_: object) -> None:
        with lock_of(self._state):
            self._leave()
        if self._without_events and FACTORY in sys.modules:
            problem = "NanoEvents were imported in the function itself: import coffea before it is called"
            self._meter.miss("building events and reading Parquet", problem)

    def _leave(self) -> None:
        """Let methods be as they were after the last one, but those that somebody else has put in the place of ours."""
        patched = self._state.patched
        while self._state.open == {self._meter} and patched:
            (owner, name), (before, after) = patched.popitem()
            if vars(owner).get(name) is after:
                if before is OF_CLASS:
                    delattr(owner, name)
                else:
                    setattr(owner, name, before)
        leave(self._state, self._meter)


def _first_seen() -> Iterator[Patch]:
    """Where files are first seen: functions of modules if possible, as classes that change with each chunk are slow."""
    import uproot.behaviors.TBranch
    import uproot.reading

    yield uproot._util, "file_path_to_source_class", _noticed_path
    # later it would be too late for the first file, which may be one that cannot be opened
    yield uproot.reading.ReadOnlyFile, "__init__", _noticed_opening
    yield uproot.behaviors.TBranch, "_ranges_or_baskets_to_arrays", _metered_baskets
    if FACTORY in sys.modules:
        factory = sys.modules[FACTORY].NanoEventsFactory
        yield factory, "from_root", _built_events
        yield factory, "from_parquet", _built_events


def _further() -> Iterator[Patch]:
    """The rest, which the first leads to."""
    import uproot.behaviors.RNTuple
    import uproot.models.RNTuple
    import uproot.reading

    ntuple = uproot.models.RNTuple.Model_ROOT_3a3a_RNTuple
    yield uproot.reading.ReadOnlyFile, "hook_before_get_chunks", _noticed_source
    yield uproot.reading.ReadOnlyDirectory, "__init__", _opening
    yield uproot.reading.ReadOnlyKey, "get", _opening
    yield uproot.behaviors.RNTuple.HasFields, "arrays", _noticed_entries
    yield ntuple, column_readers(ntuple).of_clusters, _metered_columns
    if FACTORY in sys.modules:
        yield sys.modules[FACTORY].NanoEventsFactory, "events", _building


def _patch(state: Any, meter: Tally, patches: Action) -> None:
    """Patch methods that are not patched yet."""
    try:
        for owner, name, wrapping in patches():
            if (owner, name) not in state.patched:
                before = vars(owner).get(name, OF_CLASS)
                made = _made.get((owner, name))
                if made is None or made[0] is not before:
                    if isinstance(before, classmethod):
                        made = before, classmethod(wrapping(before.__func__))
                    else:
                        made = before, wrapping(getattr(owner, name))
                    _made[owner, name] = made
                state.patched[owner, name] = made
                setattr(owner, name, made[1])
    except Exception as problem:
        meter.miss("files that the function opens", problem, *_unknown_to(meter))


def _unknown_to(meter: Tally) -> tuple[str, ...]:
    """Columns that are unknown where a meter cannot see which files are opened."""
    return (*READ, *BY_BRANCH) if isinstance(meter, FilesMeter) else OTHER


def current_meter() -> FilesMeter | None:
    """The meter of the chunk or function that called this code, if known."""
    # threads that work for no function: on a worker they unpickle files for other tasks
    chunk = open_chunk_of(_unassigned, ("MainThread", "IO loop", "Dask-Offload"))
    meter = None if chunk is None else chunk.meter
    if meter is None or isinstance(meter, FilesMeter):
        return meter
    if meter.in_process and meter.others is None:
        state = sys.modules[name_here(_STATE)]
        with state.lock:
            meter.others = meter.others or FilesMeter(meter)
            _patch(state, meter, _further)
    others: FilesMeter | None = meter.others if meter.in_process else None
    return others


def _unassigned(chunk: OpenChunk) -> None:
    if chunk.meter is not None:
        reason = (
            "several functions ran in the process, so reads by a thread could not be assigned to one of them "
            "(run the thread's function in contextvars.copy_context())"
        )
        chunk.meter.miss("what threads of the function read", reason, *_unknown_to(chunk.meter))


def _noting(meter: FilesMeter, unknown: tuple[str, ...], action: Action, *args: Any) -> Any:
    """What an action of ours gives; where it fails that is reported, as the function must go on."""
    try:
        return action(*args)
    except Exception as problem:
        meter.miss("what the function reads", problem, *unknown)
        return None


def _in_phase(phase: str, meter: FilesMeter, original: Action, *args: Any, **kwargs: Any) -> Any:
    begun = _noting(meter, (), meter.begin, phase)
    try:
        return original(*args, **kwargs)
    finally:
        if begun is not None:
            _noting(meter, (), meter.end, phase)


def _metered(call: Action) -> Action:
    """Makes a method of its original, which calls this with the meter and the original first, if there is a meter."""

    def wrapping(original: Action) -> Action:
        @functools.wraps(original)
        def method(*args: Any, **kwargs: Any) -> Any:
            meter = current_meter()
            return original(*args, **kwargs) if meter is None else call(meter, original, *args, **kwargs)

        return method

    return wrapping


_opening, _building = (_metered(functools.partial(_in_phase, phase)) for phase in (OPEN, BUILD))


@_metered
def _noticed_path(meter: FilesMeter, original: Action, path: Any, *args: Any, **kwargs: Any) -> Any:
    _noting(meter, READ, meter.opening, path)
    meter.opens_with = original(path, *args, **kwargs)
    return meter.opens_with


@_metered
def _noticed_opening(meter: FilesMeter, original: Action, file: Any, file_path: Any, *args: Any, **kwargs: Any) -> Any:
    _noting(meter, READ, meter.opening, file_path)
    try:
        return _in_phase(OPEN, meter, original, file, file_path, *args, **kwargs)
    except BaseException as error:
        _noting(meter, READ, meter.not_opened, file_path, vars(file).get("_source"), error)
        raise


@_metered
def _noticed_source(meter: FilesMeter, original: Action, file: Any, **kwargs: Any) -> Any:
    _noting(meter, (*READ, *BY_BRANCH), meter.opened, file)
    return original(file, **kwargs)


PLACES: Final = (
    *("hasbranches", "entry_start", "entry_stop", "decompression_executor", "interpretation_executor"),
    "update_ranges_or_baskets",
)


def _metered_baskets(original: Action) -> Action:
    signature = inspect.signature(original)
    names = list(signature.parameters)
    if missing := [name for name in PLACES if name not in names]:
        raise TypeError(f"uproot's way to read baskets has no {', '.join(missing)}")
    owner, start, stop, decompression, interpretation, keeps = map(names.index, PLACES)
    number = len(names)

    @functools.wraps(original)
    def read(*args: Any, **kwargs: Any) -> Any:
        if len(args) == number and getattr(args[decompression], "tally", None) is not None:
            return original(*args)  # of the chunk's own file
        meter = current_meter()
        if meter is None:
            return original(*args, **kwargs)
        try:
            given = list(args if len(args) == number else signature.bind(*args, **kwargs).args)
            meter.reading(given[owner], given[start], given[stop])
            meter.keeps_baskets |= bool(given[keeps])
            given[decompression], given[interpretation] = meter.metered(given[decompression], given[interpretation])
        except Exception as problem:
            meter.miss("what the function reads", problem, *READ, *BY_BRANCH)
            return original(*args, **kwargs)
        return original(*given)

    return read


@_metered
def _noticed_entries(meter: FilesMeter, original: Action, fields: Any, *args: Any, **kwargs: Any) -> Any:
    _noting(meter, ("events",), meter.reading_fields, fields, kwargs)
    return original(fields, *args, **kwargs)


def _metered_columns(original: Action) -> Action:
    @functools.wraps(original)
    def read_column(self: Any, *args: Any, **kwargs: Any) -> Any:
        watched = vars(self).get("read_locator")
        # the chunk's own ntuple has the chunk's meter
        is_own = watched is not None and not isinstance(watched.tally, FilesMeter)
        meter = None if is_own else current_meter()
        bound = original.__get__(self)
        shadow = None if meter is None else _noting(meter, BY_BRANCH, meter.reading_column, bound)
        return (shadow or bound)(*args, **kwargs)

    return read_column


@_metered
def _built_events(meter: FilesMeter, original: Action, kind: Any, file: Any, *args: Any, **kwargs: Any) -> Any:
    try:
        factory = _in_phase(BUILD, meter, original, kind, file, *args, **kwargs)
    except BaseException as error:
        if original.__name__ == "from_parquet":
            _noting(meter, (), meter.not_opened, file, None, error)
        raise
    _noting(meter, READ, meter.built, factory, file, kwargs.get("metadata"))
    return factory
