"""Files that a function opens itself are noticed where uproot and coffea open and read them.

While functions of tasks are metered in this process a few methods of uproot and coffea pass through here, and they are
restored with the last of these functions. Whoever calls them outside of such a function notices nothing.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Callable
from typing import Any, Final

from roastcoffea.generations import column_readers
from roastcoffea.instrument.meter.files import BUILD, OPEN, OTHER, FilesMeter
from roastcoffea.instrument.meter.tally import BY_BRANCH, OF_CLASS, READ, Tally
from roastcoffea.instrument.shared import Remembered, joined, leave, lock_of, name_here
from roastcoffea.instrument.track import CHUNKS

_STATE: Final = "_roastcoffea_openings"

_made: Final[dict[tuple[Any, str], tuple[Any, Any]]] = Remembered()
"""What is put in the place of methods, and of which it was made: a function may run thousands of times."""

FACTORY: Final = "coffea.nanoevents.factory"

OF_OTHERS: Final = ("MainThread", "IO loop", "Dask-Offload")
"""Beginnings of the names of threads that work for no function: on a worker they unpickle files for other tasks."""

WHOSE: Final = (
    "several functions ran in the process, so reads by a thread could not be assigned to one of them "
    "(run the thread's function in contextvars.copy_context())"
)
TOO_LATE: Final = "NanoEvents were imported in the function itself: import coffea before it is called"


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
        self._state = state = joined(_STATE, self._meter, undo=[], patched=set())
        try:
            _patch_first(state, self._meter)
            if self._everything:
                _patch_rest(state, self._meter)
        except BaseException:  # of a signal's handler
            self._leave()
            raise
        finally:
            state.lock.release()
        self._without_events = FACTORY not in state.patched

    def __exit__(self, *_: object) -> None:
        with lock_of(self._state):
            self._leave()
        if self._without_events and FACTORY in sys.modules:
            self._meter.miss("building events and reading Parquet", TOO_LATE)

    def _leave(self) -> None:
        if self._state.open == {self._meter}:
            _restore(self._state)
        leave(self._state, self._meter)


def _patch_first(state: Any, meter: Tally) -> None:
    """Patch that through which files are first seen, if it is loaded and was not patched yet; uproot is loaded.

    Functions of modules if possible, as classes that change with each chunk are slow.
    """
    try:
        if "uproot" not in state.patched:
            import uproot.behaviors.TBranch
            import uproot.reading

            state.patched.add("uproot")
            _patch(state, uproot._util, "file_path_to_source_class", _noticed_path)
            # later it would be too late for the first file, which may be one that cannot be opened
            _patch(state, uproot.reading.ReadOnlyFile, "__init__", _noticed_opening)
            _patch(state, uproot.behaviors.TBranch, "_ranges_or_baskets_to_arrays", _metered_baskets)
        if FACTORY in sys.modules and FACTORY not in state.patched:
            state.patched.add(FACTORY)
            for name in ("from_root", "from_parquet"):
                _patch(state, sys.modules[FACTORY].NanoEventsFactory, name, _built_events)
    except Exception as problem:
        meter.miss("files that the function opens", problem, *_unknown_to(meter))


def _patch_rest(state: Any, meter: Tally) -> None:
    """Patch the rest, which the first leads to."""
    try:
        import uproot.behaviors.RNTuple
        import uproot.models.RNTuple
        import uproot.reading

        ntuple = uproot.models.RNTuple.Model_ROOT_3a3a_RNTuple
        for owner, name, wrapping in (
            (uproot.reading.ReadOnlyFile, "hook_before_get_chunks", _noticed_source),
            (uproot.reading.ReadOnlyDirectory, "__init__", OPENING),
            (uproot.reading.ReadOnlyKey, "get", OPENING),
            (uproot.behaviors.RNTuple.HasFields, "arrays", _noticed_entries),
            (ntuple, column_readers(ntuple).of_clusters, _metered_columns),
            *([(sys.modules[FACTORY].NanoEventsFactory, "events", BUILDING)] if FACTORY in sys.modules else ()),
        ):
            if (owner, name) not in state.patched:
                state.patched.add((owner, name))
                _patch(state, owner, name, wrapping)
    except Exception as problem:
        meter.miss("files that the function opens", problem, *_unknown_to(meter))


def _unknown_to(meter: Tally) -> tuple[str, ...]:
    """Columns that are unknown where a meter cannot see which files are opened."""
    return (*READ, *BY_BRANCH) if isinstance(meter, FilesMeter) else OTHER


def _patch(state: Any, owner: Any, name: str, wrapping: Callable[[Any], Any]) -> None:
    before = vars(owner).get(name, OF_CLASS)
    made = _made.get((owner, name))
    if made is None or made[0] is not before:
        of_class = isinstance(before, classmethod)
        after = wrapping(before.__func__ if isinstance(before, classmethod) else getattr(owner, name))
        made = _made[owner, name] = before, classmethod(after) if of_class else after
    after = made[1]
    setattr(owner, name, after)
    state.undo.append((owner, name, before, after))


def _restore(state: Any) -> None:
    """Let methods be as they were, but one that somebody else has put in the place of ours."""
    while state.undo:
        owner, name, before, after = state.undo.pop()
        if vars(owner).get(name) is not after:
            continue
        if before is OF_CLASS:
            delattr(owner, name)
        else:
            setattr(owner, name, before)


def current_meter() -> FilesMeter | None:
    """The meter of the chunk or function that called this code, if known."""
    meter = _meter_of_chunk()
    if meter is None or isinstance(meter, FilesMeter):
        return meter
    if not meter.in_process:
        return None
    others: FilesMeter | None = meter.others
    if others is None:
        state = sys.modules[name_here(_STATE)]
        with state.lock:
            others = meter.others = meter.others or FilesMeter(meter)
            _patch_rest(state, meter)
    return others


def _meter_of_chunk() -> Any:
    """The meter of the chunk that called this code, where it can be told."""
    state = sys.modules.get(name_here(CHUNKS))
    if state is None:
        return None
    chunk = state.current.get()
    if chunk is None:
        worker = sys.modules.get("distributed.worker")
        if worker is not None and hasattr(worker.thread_state, "key"):
            return None  # the thread runs another task
        if threading.current_thread().name.startswith(OF_OTHERS):
            return None
        with state.lock:
            chunks = list(state.open)
        if len(chunks) > 1:
            for other in chunks:
                if other.meter is not None:
                    other.meter.miss("what threads of the function read", WHOSE, *_unknown_to(other.meter))
            return None
        (chunk,) = chunks or (None,)
    return chunk.meter if chunk is not None and chunk in state.open else None


def _noting(action: Callable[..., Any], meter: FilesMeter, *unknown: str) -> Any:
    """What an action of ours gives; where it fails that is reported, as the function must go on."""
    try:
        return action()
    except Exception as problem:
        meter.miss("what the function reads", problem, *unknown)
        return None


def _in_phase(meter: FilesMeter, phase: str, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    begun = _noting(functools.partial(meter.begin, phase), meter)
    try:
        return original(*args, **kwargs)
    finally:
        if begun is not None:
            _noting(functools.partial(meter.end, phase), meter)


def _phase(phase: str, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def timed(*args: Any, **kwargs: Any) -> Any:
        meter = current_meter()
        return original(*args, **kwargs) if meter is None else _in_phase(meter, phase, original, *args, **kwargs)

    return timed


def _noticed_path(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def file_path_to_source_class(path: Any, *args: Any, **kwargs: Any) -> Any:
        meter = current_meter()
        if meter is not None:
            _noting(functools.partial(meter.opening, path), meter, *READ)
        return original(path, *args, **kwargs)

    return file_path_to_source_class


def _noticed_opening(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def __init__(self: Any, file_path: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
        meter = current_meter()
        if meter is None:
            return original(self, file_path, *args, **kwargs)
        _noting(functools.partial(meter.opening, file_path), meter, *READ)
        try:
            return _in_phase(meter, OPEN, original, self, file_path, *args, **kwargs)
        except BaseException as error:
            _noting(functools.partial(meter.not_opened, file_path, vars(self).get("_source"), error), meter, *READ)
            raise

    return __init__


def _noticed_source(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def hook_before_get_chunks(self: Any, **kwargs: Any) -> Any:
        meter = current_meter()
        if meter is not None:
            _noting(functools.partial(meter.opened, self), meter, *READ, *BY_BRANCH)
        return original(self, **kwargs)

    return hook_before_get_chunks


PLACES: Final = (
    *("hasbranches", "entry_start", "entry_stop", "decompression_executor", "interpretation_executor"),
    "update_ranges_or_baskets",
)


def _metered_baskets(original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)
    names = list(signature.parameters)
    missing = [name for name in PLACES if name not in names]
    if missing:
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


def _noticed_entries(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def arrays(self: Any, *args: Any, **kwargs: Any) -> Any:
        meter = current_meter()
        if meter is not None:
            _noting(functools.partial(_note_entries, meter, self, kwargs), meter, "events")
        return original(self, *args, **kwargs)

    return arrays


def _note_entries(meter: FilesMeter, fields: Any, options: dict[str, Any]) -> None:
    """Take note of the entries that are read of an RNTuple: a negative one counts from the end."""
    number = int(fields.ntuple.num_entries)
    start, stop, _ = slice(options.get("entry_start"), options.get("entry_stop")).indices(number)
    meter.reading(fields.ntuple, start, max(start, stop))


def _metered_columns(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def read_column(self: Any, *args: Any, **kwargs: Any) -> Any:
        watched = vars(self).get("read_locator")
        # the chunk's own ntuple has the chunk's meter
        is_own = watched is not None and not isinstance(watched.tally, FilesMeter)
        meter = None if is_own else current_meter()
        bound = functools.partial(original, self)
        shadow = None
        if meter is not None:
            shadow = _noting(functools.partial(meter.reading_column, original.__get__(self)), meter, *BY_BRANCH)
        return (shadow or bound)(*args, **kwargs)

    return read_column


OPENING: Final = functools.partial(_phase, OPEN)
BUILDING: Final = functools.partial(_phase, BUILD)


def _built_events(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def build(kind: Any, file: Any, *args: Any, **kwargs: Any) -> Any:
        meter = current_meter()
        if meter is None:
            return original(kind, file, *args, **kwargs)
        try:
            factory = _in_phase(meter, BUILD, original, kind, file, *args, **kwargs)
        except BaseException as error:
            if original.__name__ == "from_parquet":
                _noting(functools.partial(meter.not_opened, file, None, error), meter)
            raise
        _noting(functools.partial(meter.built, factory, file, kwargs.get("metadata")), meter, *READ)
        return factory

    return build
