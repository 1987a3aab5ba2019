"""Metering of files that a function opens or writes itself, by patching uproot and coffea.

The few methods that open and read files are patched while any function is metered in this process. They are restored
when the last metered function ends. Calls from code that is not metered are passed on unchanged.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import operator
import sys
from collections.abc import Iterator, Mapping
from typing import Any, Final

from roastcoffea.generations import classes_of_ntuples, column_readers
from roastcoffea.instrument.meter.files import BUILD, OPEN, OTHER, FilesMeter
from roastcoffea.instrument.meter.tally import BY_BRANCH, OF_CLASS, READ, Tally
from roastcoffea.instrument.meter.writers import WRITE_TIMES, WRITTEN, Writes
from roastcoffea.instrument.shared import Action, Remembered, joined, leave, lock_of, name_here
from roastcoffea.instrument.track import OpenChunk, open_chunk_of

_STATE: Final = "_roastcoffea_openings"

_made: Final[dict[tuple[Any, str], tuple[Any, Any]]] = Remembered()
"""Original methods and their replacements, cached because a function may run thousands of times."""

FACTORY: Final = "coffea.nanoevents.factory"

Patch = tuple[Any, str, Action]
"""A method's owner and name, and the factory for its replacement."""


class openings_noticed:  # noqa: N801  (a context, like those in contextlib)
    """Context manager that meters files opened in the current chunk.

    If `everything` is set, all methods are patched immediately. By default, only methods that reveal a newly opened
    file are patched at first, because many chunks open no further files.
    """

    def __init__(self, meter: Tally, *, everything: bool = False) -> None:
        self._meter = meter
        self._everything = everything

    def __enter__(self) -> None:
        self._without_events, self._without_parquet = (name not in sys.modules for name in (FACTORY, PARQUET))
        self._state = state = joined(_STATE, self._meter, patched={})
        try:
            _patch(state, self._meter, _first_seen)
            _patch(state, self._meter, _first_written)
            if self._everything:
                _patch(state, self._meter, _further)
        except BaseException:  # raised by a signal handler
            self._leave()
            raise
        finally:
            state.lock.release()

    def __exit__(self, *_: object) -> None:
        parquet = sys.modules.get(PARQUET) if self._without_parquet else None
        unseen = parquet is not None and (parquet.ParquetWriter, "__init__") not in self._state.patched
        with lock_of(self._state):
            self._leave()
        if unseen:
            problem = "pyarrow.parquet was imported inside the function: import it beforehand"
            self._meter.miss("writing Parquet", problem, *WRITTEN, *WRITE_TIMES)
        if self._without_events and FACTORY in sys.modules:
            problem = "coffea's NanoEvents was imported inside the function: import it beforehand"
            self._meter.miss("building events and reading Parquet", problem)

    def _leave(self) -> None:
        """Remove the meter. The last meter restores the methods that nothing else has replaced."""
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
    """Methods to patch in order to detect newly opened files.

    Module functions are preferred, because patching classes for each chunk is slow.
    """
    import uproot.behaviors.TBranch
    import uproot.reading

    yield uproot._util, "file_path_to_source_class", _noticed_path
    # patching this later would miss the first file, which may fail to open
    yield uproot.reading.ReadOnlyFile, "__init__", _noticed_opening
    yield uproot.behaviors.TBranch, "_ranges_or_baskets_to_arrays", _metered_baskets
    if FACTORY in sys.modules:
        factory = sys.modules[FACTORY].NanoEventsFactory
        yield factory, "from_root", _built_events
        yield factory, "from_parquet", _built_events


def _further() -> Iterator[Patch]:
    """Methods to patch once a file has been detected."""
    import uproot.reading

    yield uproot.reading.ReadOnlyFile, "hook_before_get_chunks", _noticed_source
    yield uproot.reading.ReadOnlyDirectory, "__init__", _opening
    yield uproot.reading.ReadOnlyKey, "get", _opening
    if (ntuples := classes_of_ntuples()) is not None:
        fields, ntuple = ntuples
        yield fields, "arrays", _noticed_entries
        yield ntuple, column_readers(ntuple).of_clusters, _metered_columns
    if FACTORY in sys.modules:
        yield sys.modules[FACTORY].NanoEventsFactory, "events", _building


def _patch(state: Any, meter: Tally, patches: Action) -> None:
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
        meter.miss("files that the function opens or writes", problem, *_unknown_to(meter), *WRITTEN, *WRITE_TIMES)


def _patch_further(meter: Tally, patches: Action) -> None:
    state = sys.modules.get(name_here(_STATE))
    if state is not None:
        with state.lock:
            if meter in state.open:  # a thread may outlive its chunk
                _patch(state, meter, patches)


def _unknown_to(meter: Tally) -> tuple[str, ...]:
    return (*READ, *BY_BRANCH) if isinstance(meter, FilesMeter) else OTHER


OF_NO_CHUNK: Final = ("MainThread", "IO loop", "Dask-Offload")
"""Prefixes of threads that work for no function. On a worker, they unpickle files for other tasks."""


def current_meter() -> FilesMeter | None:
    """Meter for the chunk or function that is running this code, if known."""
    chunk = open_chunk_of(_unassigned_read, OF_NO_CHUNK)
    meter = None if chunk is None else chunk.meter
    if meter is None or isinstance(meter, FilesMeter):
        return meter
    if meter.in_process and meter.others is None:
        _patch_further(meter, _further)
        meter.__dict__.setdefault("others", FilesMeter(meter))
    others: FilesMeter | None = meter.others if meter.in_process else None
    return others


def current_writes() -> Writes | None:
    """Write meter of the chunk or function that is running this code, if known."""
    chunk = open_chunk_of(_unassigned_write, OF_NO_CHUNK)
    meter = None if chunk is None else chunk.meter
    if meter is None or not meter.in_process:
        return None
    if meter.writes is None:
        _patch_further(meter, _further_written)
        meter.__dict__.setdefault("writes", Writes(meter))
    writes: Writes = meter.writes
    return writes


def _unassigned(did: str, chunk: OpenChunk) -> None:
    if chunk.meter is not None:
        reason = (
            f"several functions ran in the process, so {did}s by a thread could not be attributed to any one of them "
            "(run the thread's function in contextvars.copy_context())"
        )
        unknown = _unknown_to(chunk.meter) if did == "read" else WRITTEN
        chunk.meter.miss(f"{did}s by the function's threads", reason, *unknown)


_unassigned_read, _unassigned_write = (functools.partial(_unassigned, did) for did in ("read", "write"))


def _noting(meter: Tally, unknown: tuple[str, ...], action: Action, /, *args: Any, **kwargs: Any) -> Any:
    """Run our own code. If the code fails, report the error and return None."""
    try:
        return action(*args, **kwargs)
    except Exception as problem:
        meter.miss(f"the function's {'writes' if unknown is WRITTEN else 'reads'}", problem, *unknown)
        return None


def _in_phase(phase: str, meter: FilesMeter, original: Action, *args: Any, **kwargs: Any) -> Any:
    begun = _noting(meter, (), meter.begin, phase)
    try:
        return original(*args, **kwargs)
    finally:
        if begun is not None:
            _noting(meter, (), meter.end, phase)


def _metered(call: Action, find: Action = current_meter) -> Action:
    """Make a patch factory. In metered code, `call` receives the meter and the original method."""

    def wrapping(original: Action) -> Action:
        @functools.wraps(original)
        def method(*args: Any, **kwargs: Any) -> Any:
            meter = find()
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


def _noticed_source(original: Action) -> Action:
    @functools.wraps(original)
    def hook(file: Any, **kwargs: Any) -> Any:
        meter: Any = current_meter()
        if meter is None and (chunk := open_chunk_of(_unassigned_read, OF_NO_CHUNK)) is not None:
            meter = chunk.meter if getattr(chunk.meter, "opens_own", False) else None  # coffea opens the chunk's file
        if meter is not None:
            _noting(meter, (*READ, *BY_BRANCH), meter.opened, file)
        return original(file, **kwargs)

    return hook


PLACES: Final = (
    *("hasbranches", "entry_start", "entry_stop", "decompression_executor", "interpretation_executor"),
    "update_ranges_or_baskets",
)


def _metered_baskets(original: Action) -> Action:
    signature = inspect.signature(original)
    names = list(signature.parameters)
    if missing := [name for name in PLACES if name not in names]:
        raise TypeError(f"uproot's function for reading baskets has no {', '.join(missing)}")
    places = [*map(names.index, PLACES)]
    *_, decompression, interpretation, keeps = places
    how, number = operator.itemgetter(*places[:5]), len(names)

    @functools.wraps(original)
    def read(*args: Any, **kwargs: Any) -> Any:
        complete = len(args) == number
        if complete and getattr(args[decompression], "tally", None) is not None:
            return original(*args)  # the chunk's own file
        meter = current_meter()
        if meter is None:
            return original(*args, **kwargs)
        try:
            given = [*(args if complete else signature.bind(*args, **kwargs).args)]
            given[decompression], given[interpretation] = meter.metered(*how(given))
            if given[keeps]:
                meter.keeps_baskets = True
        except Exception as problem:
            meter.miss("the function's reads", problem, *READ, *BY_BRANCH)
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
        # the chunk's RNTuple is metered by the chunk's own meter
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


# writing


def _where_loaded(places: Mapping[tuple[str, str, str], Action]) -> Iterator[Patch]:
    for (module, owner, name), wrapping in places.items():
        found = sys.modules.get(module)
        found = getattr(found, owner, None) if owner else found
        if name in getattr(found, "__dict__", ()):
            yield found, name, wrapping


def _timed(after: Action | None, writes: Writes, original: Action, /, *args: Any, **kwargs: Any) -> Any:
    """Run a call that writes, and measure its time unless it is part of another one.

    `after` receives the call's arguments, and counts what it has written.
    """
    began = _noting(writes.meter, WRITTEN, writes.begin)
    try:
        result = original(*args, **kwargs)
        if after is not None:
            _noting(writes.meter, WRITTEN, after, writes, *args, **kwargs)
        return result
    finally:
        if began is not None:
            _noting(writes.meter, WRITTEN, writes.end, began)


def _loading(module: str, writes: Writes, original: Action, /, *args: Any, **kwargs: Any) -> Any:
    """Run a call that loads a module of Arrow and then writes with it. The module must be patched in between."""
    try:  # noqa: SIM105
        importlib.import_module(module)
    except ImportError:  # the call itself raises it
        pass
    _patch_further(writes.meter, _further_written)
    return _timed(None, writes, original, *args, **kwargs)


def _sink_written(writes: Writes, original: Action, thing: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Run a call that writes to the sink of an uproot file, or to this sink."""
    sink = getattr(getattr(thing, "file", None), "sink", thing)
    before = _noting(writes.meter, WRITTEN, writes.before, sink)
    after = None if before is None else lambda *_, **__: writes.after(sink, *before)
    return _timed(after, writes, original, thing, *args, **kwargs)


def _writer_closed(writes: Writes, original: Action, writer: Any) -> Any:
    def close() -> Any:
        if getattr(writer, "is_open", False):
            # as the original does, but before it closes the file: only then is its size known
            writer.writer.close()
            _noting(writes.meter, WRITTEN, writes.reach, writer)
        return original(writer)

    return _timed(None, writes, close)


def _dataset_written(
    writes: Writes, original: Action, /, data: Any, base_dir: Any, *args: Any, file_visitor: Any = None, **kwargs: Any
) -> Any:
    dataset = _noting(writes.meter, WRITTEN, writes.dataset, base_dir, kwargs.get("filesystem"))

    def visit(written: Any) -> None:
        _noting(writes.meter, WRITTEN, writes.add, dataset, written.size, written.size)
        if file_visitor is not None:
            file_visitor(written)

    return _timed(
        lambda *_, **__: writes.add(dataset, 0, 0),
        writes,
        original,
        data,
        base_dir,
        *args,
        file_visitor=visit,
        **kwargs,
    )


def _written(call: Action, *args: Any) -> Action:
    return _metered(functools.partial(call, *args), current_writes)


_called = _written(_sink_written)
CASCADE, WRITABLE = "uproot.writing._cascade", "uproot.writing.writable"
PARQUET, DATASET = "pyarrow.parquet", "pyarrow.dataset"

FIRST_WRITTEN: Final = {
    (CASCADE, "", "create_empty"): _called,
    (CASCADE, "", "update_existing"): _called,
    ("awkward.operations.ak_to_parquet", "", "_impl"): _written(_loading, PARQUET),
    (PARQUET, "ParquetWriter", "__init__"): _written(_timed, Writes.of_writer),
    (PARQUET, "", "write_to_dataset"): _written(_loading, DATASET),
    (DATASET, "", "write_dataset"): _written(_dataset_written),
}
"""Factories of replacements, by module, class and method."""

FURTHER_WRITTEN: Final = {
    (WRITABLE, "WritableTree", "extend"): _called,
    (WRITABLE, "WritableTree", "add_branches"): _called,
    (WRITABLE, "WritableNTuple", "extend"): _called,
    **{
        (WRITABLE, "WritableDirectory", name): _called
        for name in ("copy_from", "mkdir", "mkrntuple", "mktree", "update")
    },
    ("uproot.sink.file", "FileSink", "close"): _called,
    (PARQUET, "ParquetWriter", "write_table"): _written(_timed, Writes.reach),
    (PARQUET, "ParquetWriter", "close"): _written(_writer_closed),
}
_first_written = functools.partial(_where_loaded, FIRST_WRITTEN)
# modules may have been loaded meanwhile
_further_written = functools.partial(_where_loaded, FIRST_WRITTEN | FURTHER_WRITTEN)
