"""What an attempt of a chunk reads: bytes by branch and basket, waiting for storage, decompression, interpretation.

The meter patches nothing of uproot, Arrow or coffea. It shadows methods on the objects that coffea makes for this chunk
alone (the file's source, the mapping behind the events, an RNTuple, a Parquet file), and takes the shadows away when
the attempt ends. A shadow calls the original once, with what it was given, whatever becomes of the metering; where a
version of uproot or coffea lacks what is shadowed, what cannot be metered is unknown, and told.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain
from operator import attrgetter, getitem
from queue import Queue
from threading import get_ident
from time import perf_counter, thread_time
from typing import Any, Final

from roastcoffea.errors import error_text
from roastcoffea.instrument.shared import made_once
from roastcoffea.log.wire import BRANCHES_HAVE

OPTION: Final = "roastcoffea"
"""Option for `uproot.open` that leads to the meter."""

INNER_SIZES: Final = 256
"""So many baskets are told one by one in a record, beyond two of each branch."""

SIZES: Final = ("bytes_payload", "bytes_metadata", "bytes_uncompressed", "branches")
BY_BRANCH: Final = (*SIZES, "decompress_seconds", "interpret_seconds", "compute_seconds")
AS_COLUMNS: Final = attrgetter("sizes", "again", "uncompressed", "read", "decompress", "interpret")
WAITED: Final = ("read_seconds", "wait_seconds")
READ: Final = (*SIZES, "bytes_requested", "bytes_transferred")
"""Columns of a chunk's record that are unknown where one of the meter's views is missing."""

ASKED, INTERRUPTED, DECOMPRESSED, INTERPRETED = range(4)
"""Steps of reading branches of a TTree.

What is noted of the last two: step, thread, branch, number of the basket (None: it was told before), its bytes in the
file or uncompressed, CPU time of the thread at the beginning (None: at the end of the step before) and at the end, wall
time at the end. Of the first: how many baskets in place of a number, CPU and wall time; the wall time is None where
waiting is not told. Of the second: seconds of CPU and of wall time that it took.
"""

NOTED: Final = 8
MOST_NOTED: Final = 40_000
"""Values that are noted before they are added up."""

SHADOW: Final = object()
"""Stands for what an attribute was before: the class's own."""


class BranchRead:
    """One branch as this attempt read it."""

    __slots__ = ("again", "decompress", "interpret", "parts", "read", "sizes", "uncompressed")

    def __init__(self) -> None:
        self.sizes: dict[int, int] = {}
        self.parts: set[Any] | None = None
        self.again = self.uncompressed = 0
        self.read: float | None = None
        self.decompress = self.interpret = 0.0

    def add(self, basket: int, size: int) -> None:
        """Count a basket that was requested."""
        if basket in self.sizes:
            self.again += size
        else:
            self.sizes[basket] = size

    def add_part(self, cluster: int, part: Any, size: int) -> None:
        """Count a part of a cluster that was requested."""
        if self.parts is None:
            self.parts = set()
        if (cluster, part) in self.parts:
            self.again += size
            return
        self.parts.add((cluster, part))
        self.sizes[cluster] = self.sizes.get(cluster, 0) + size


class Meter:
    """Meters the reading of one attempt.

    A shadow holds the shadowed object weakly where nothing takes the shadow away: else the data in it would wait for
    the garbage collector.

    Readings are of the thread that made the meter; work that others do for it is in `helper_cpu`.
    """

    read = 0.0
    """Time for which the thread has waited for storage so far."""
    helper_cpu = 0.0
    """CPU time of other threads so far."""
    in_process = False
    """Whether process() goes on: only in it is waiting told, and metadata that is read in it comes late."""
    late_metadata = 0
    transferred: int | None = 0
    tree_branches: int | None = None
    file_bytes: int | None = None
    handler: Any = None
    _parquet: _ParquetReads | None = None
    _clusters = False
    _pools = False
    """Whether executors of the user's take part."""
    _in_line = False
    """Whether a thread that reads a branch of a TTree makes arrays of its baskets itself."""
    _requested_at_end: int | None = None
    _closed = False
    _stepping: int | None = None
    """Thread of the last step, if baskets were not asked for since."""

    problems: tuple[str, ...] = ()
    unknown: frozenset[str] = frozenset()
    """Columns of a chunk's record that could not be metered."""

    def __init__(self) -> None:
        # of few objects: they bring the next collection of garbage nearer, and one takes a worker some 0.4 s
        self.branches: dict[str, BranchRead] = {}
        self._steps: list[Any] = []
        """What threads did with branches of a TTree and is not added up yet: `NOTED` values in a row for each step.

        To note a step takes less than to add it up, where the analysis has emptied the processor's caches.
        """
        self._lock = threading.RLock()
        self._sources: list[Any] = []
        self._kinds: list[str] = []
        self._undo: list[tuple[Any, str, Any]] = []
        """Objects, names of their attributes, and what these were before."""
        self._executors: dict[type[_Metered], _Metered] = {}
        self._place = _Places()

    # what is asked of it

    def seconds(self) -> tuple[float, float, float]:
        """What the thread did so far: waiting for storage, CPU time in decompression, and in interpretation."""
        decompress = interpret = 0.0
        for read in self._reads():
            decompress += read.decompress
            interpret += read.interpret
        return self.read, decompress, interpret

    @property
    def payload(self) -> int:
        """Bytes of baskets that were requested so far."""
        return sum([sum(read.sizes.values()) + read.again for read in self._reads()])

    def _reads(self) -> list[BranchRead]:
        """All branches so far; other threads may still add to them."""
        self._add_up()
        return [*self.branches.values()]

    @property
    def source(self) -> str | None:
        """What read the file; None where nothing was seen to."""
        return ", ".join(dict.fromkeys(self._kinds)) or None

    def requested(self) -> int | None:
        """Bytes that were requested of storage so far; None where no source was seen, or one does not count them."""
        if self._parquet is not None:
            return self._parquet.requested
        if not self._sources:
            return self._requested_at_end
        try:
            return sum([int(source.num_requested_bytes) for source in self._sources])
        except Exception as problem:
            self._miss("bytes requested from storage", problem, *READ)
            return None

    def branch_columns(self) -> dict[str, Sequence[Any]]:
        """Columns of the branches that were read, see `records.wire.packed_records`."""
        with self._lock:
            return self._branch_columns()

    def _branch_columns(self) -> dict[str, Sequence[Any]]:
        names = [name for name, read in sorted(self.branches.items()) if read.sizes or read.uncompressed]
        if not names:
            return dict.fromkeys(BRANCHES_HAVE, ())
        rows: list[Any] = [AS_COLUMNS(self.branches[name]) for name in names]
        sizes, again, uncompressed, *seconds = zip(*rows, strict=True)
        counts = told = [*map(len, sizes)]
        payload = [*map(sum, map(dict.values, sizes))]
        if sum(counts) > INNER_SIZES + 2 * len(counts):
            sizes = tuple(map(_ends, sizes))
            told = [*map(len, sizes)]
        baskets = [*chain.from_iterable(sizes)]
        bytes_of_baskets = [*chain.from_iterable(map(dict.values, sizes))]
        columns: Sequence[Any] = (
            names,
            payload,
            again,
            uncompressed,
            counts,
            *seconds,
            told,
            baskets,
            bytes_of_baskets,
        )
        return dict(zip(BRANCHES_HAVE, columns, strict=True))

    # how it is put in

    def options(self, given: dict[str, Any]) -> dict[str, Any]:
        """Options for `uproot.open` that lead through the meter."""
        ours = dict(given)
        self.handler = given.get("handler")
        try:
            ours |= {"handler": made_once(_watched_source), OPTION: self}
        except Exception as problem:
            self._miss("bytes requested from storage", problem, *READ)
        try:
            for name, step in STEPS_OF_EXECUTORS:
                ours[name] = self._metered(step, given.get(name))
        except Exception as problem:
            self._miss("what is read ahead of process()", problem)
        return ours

    def _metered(self, step: type[_Metered], given: Any) -> Any:
        """An executor that notes its steps, and works like the given one; None is uproot's own, which has no state."""
        trivial = made_once(_trivial_executor)
        executor = self._executors.get(step)
        if executor is None:
            executor = self._executors[step] = step(trivial(), self)
        if given is None or type(given) is trivial:
            return executor
        self._pools = True
        return _Pool(given, executor)

    def watch_source(self, source: Any) -> None:
        """Meter a source that was opened for this attempt."""
        self._sources.append(source)
        try:
            self._shadow(source, "chunk", _ChunkShadow)
            self._shadow(source, "chunks", _ChunksShadow)
        except Exception as problem:
            self._miss("waiting for storage", problem, *WAITED)
        self._kinds.append(type(source).__name__)
        try:
            self._watch_file_system(source)
        except Exception as problem:
            self._miss("bytes transferred", problem, "bytes_transferred")

    def source_failed(self, kind: str) -> None:
        """A source of this kind could not be made, so that nothing was requested of it."""
        self._kinds.append(kind)
        self._requested_at_end = self._requested_at_end or 0

    def events_are_built(self, events: Any) -> None:
        """Meter the reading of events that come lazily."""
        try:
            factory = events.attrs["@events_factory"]
            mapping = factory._mapping
            if type(mapping).__name__ == "ParquetSourceMapping":
                self._parquet = _ParquetReads(self, factory.file_handle)
                self._kinds.append("ParquetFile")
                self.transferred = None
            else:
                self._watch_trees(mapping)
            if self._parquet is not None or self._clusters:
                self._shadow(mapping, "extract_column", partial(_ShadowBy, self._extract_column))
        except Exception as problem:
            self._miss("bytes of branches", problem, *BY_BRANCH)

    def close(self) -> None:
        """Take all shadows away, and let go of the file."""
        while self._undo:
            thing, name, before = self._undo.pop()
            try:
                if before is SHADOW:
                    thing.__dict__.pop(name, None)
                else:
                    setattr(thing, name, before)
            except Exception as problem:
                self._miss("a shadow was left", problem)
        for executor in self._executors.values():
            executor.meter = None
        self._requested_at_end = self.requested()
        with self._lock:
            self._add_up()
            self._closed = True
        self._sources.clear()
        self._place.clear()

    def _miss(self, what: str, problem: Exception | str, *unknown: str) -> None:
        """Tell what could not be metered, as the chunk must be processed all the same."""
        reason = problem if isinstance(problem, str) else error_text(problem)
        told = f"{what} could not be metered: {reason}"
        with self._lock:
            self.unknown |= set(unknown)
            if told not in self.problems:
                self.problems += (told,)

    def _shadow(self, thing: Any, method: str, shadow: Callable[..., Any]) -> None:
        """Have a method of one object go through the meter."""
        setattr(thing, method, shadow(getattr(thing, method), self))
        self._undo.append((thing, method, SHADOW))

    # TTree

    def _watch_trees(self, mapping: Any) -> None:
        for name, step in STEPS_OF_EXECUTORS:
            executor = getattr(mapping, name)
            setattr(mapping, name, self._metered(step, executor))
            self._undo.append((mapping, name, executor))
        for tree in (mapping._cache or {}).values():
            self.file_bytes = int(tree.file.fEND)
            try:
                # what stands there now cannot
                tree.file.options["handler"] = self.handler
                tree.file.options.pop(OPTION, None)
            except Exception as problem:
                self._miss("a file that can be pickled", problem)
            ntuple = getattr(tree, "ntuple", None)
            if ntuple is None:
                self.tree_branches = _leaves_once(tree, self.file_bytes)
                continue
            self.tree_branches = len(tree.fields)
            self._clusters = True
            self._shadow(ntuple, "read_cluster_pages", partial(_ShadowBy, partial(self._cluster_pages, ntuple)))
            self._shadow(ntuple, "read_locator", partial(_ShadowBy, self._locator))
            if getattr(mapping, "preloaded_arrays", None):
                self._miss("bytes of branches", "what is preloaded of an RNTuple is read before it can be seen", *SIZES)
        self._in_line = not self._pools and not self._clusters

    def _read_of(self, name: str) -> BranchRead:
        return self.branches.setdefault(name, BranchRead())

    def _add_up(self) -> None:
        """Add up what threads have noted."""
        with self._lock:
            noted = self._steps[:]
            del self._steps[: len(noted)]
            if not self._closed:
                try:
                    self._add(zip(*[iter(noted)] * NOTED, strict=True))
                except Exception as problem:
                    self._miss("bytes of branches", problem, *BY_BRANCH)

    def _add(self, steps: Iterable[tuple[Any, ...]]) -> None:
        before, read = None, BranchRead()
        for step, thread, branch, basket, size, began, ended, wall in steps:
            here = self._place[thread]
            if step == ASKED:
                here.asked(basket, ended, wall)
                continue
            if step == INTERRUPTED:
                here.interrupted(ended, wall)
                continue
            if branch is not before:
                before, read = branch, self._read_of(_path(branch))
            cpu = ended - here.begins(began, ended)
            if not here.own:
                self.helper_cpu += cpu
                cpu = 0.0
            if step == DECOMPRESSED:
                read.add(basket, size)
                read.decompress += cpu
                if here.wall is not None:
                    waited = here.came(ended, wall)
                    read.read = (read.read or 0.0) + waited
                    if here.own:
                        self.read += waited
            else:
                if basket is not None:
                    # it came with the tree, and nothing was requested for it
                    read.add(basket, 0)
                read.uncompressed += size
                read.interpret += cpu
                if here.wall is not None:
                    here.wall = wall
            here.mark = here.cpu = ended

    # any branch, field or column

    def _extract_column(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        here = self._place[get_ident()]
        read = None if here.branch is not None or not args or args[0] is None else self._column_read(args[0])
        if read is None:
            return original(*args, **kwargs)
        here.branch = read
        waited, stepped, began, before = here.waited, here.stepped, thread_time(), here.source_cpu
        try:
            return original(*args, **kwargs)
        finally:
            here.branch = None
            cpu = thread_time() - began - here.stepped + stepped
            self._column_came(read, here.waited - waited, cpu - here.source_cpu + before)

    def _column_came(self, read: BranchRead, waited: float, cpu: float) -> None:
        with self._lock:
            read.read = (read.read or 0.0) + waited
            if self._place[get_ident()].own:
                read.interpret += cpu
            else:
                self.helper_cpu += cpu

    def _column_read(self, handle: Any) -> BranchRead | None:
        """What is known of a Parquet column or an RNTuple field."""
        try:
            return self._read_of(str(handle.path if self._parquet is None else handle.column))
        except Exception as problem:
            self._miss("bytes of branches", problem, *BY_BRANCH)
        return None

    # RNTuple

    def _cluster_pages(self, ntuple: Any, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        here = self._place[get_ident()]
        before = here.pages
        try:
            ntuple.page_link_list  # noqa: B018  (a list of pages is metadata, and is read when it is first asked for)
            cluster, column = [*args, *kwargs.values()][:2]
            here.pages = int(cluster), int(column)
        except Exception as problem:
            self._miss("bytes of branches", problem, *BY_BRANCH)
        try:
            return original(*args, **kwargs)
        finally:
            here.pages = before

    def _locator(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        here = self._place[get_ident()]
        read, pages = here.branch, here.pages
        if pages is None or read is None:
            return original(*args, **kwargs)
        began, before = thread_time(), here.source_cpu
        result = original(*args, **kwargs)
        cpu = thread_time() - began - (here.source_cpu - before)
        here.stepped += cpu
        with self._lock:
            try:
                locator, uncompressed = [*args, *kwargs.values()][:2]
                (cluster, column), size = pages, int(locator.num_bytes)
                read.add_part(cluster, (column, int(locator.offset)), size)
                read.uncompressed += int(uncompressed)
                if here.own:
                    read.decompress += cpu
                else:
                    self.helper_cpu += cpu
            except Exception as problem:
                self._miss("bytes of branches", problem, *BY_BRANCH)
        return result

    # Parquet

    def column_was_read(self, column: str, groups: list[tuple[int, int]], cpu: float, waited: float) -> None:
        """Take note of a column that Arrow has read: (compressed, uncompressed) bytes of each row group."""
        read = self._read_of(column)
        with self._lock:
            for group, (compressed, uncompressed) in enumerate(groups):
                read.add(group, compressed)
                read.uncompressed += uncompressed
            here = self._place[get_ident()]
            here.waited += waited
            here.stepped += cpu
            if here.own:
                self.read += waited
                read.decompress += cpu
            else:
                self.helper_cpu += cpu

    # the source

    def _watch_queues(self, *given: Any) -> None:
        queues = [each for each in given if type(each) is Queue]
        if not queues:
            self._miss("waiting for storage", "uproot hands no queue to its source", *WAITED)
        for notifications in queues:
            got = partial(self._got, notifications.queue, weakref.ref(notifications))
            notifications.get = got  # type: ignore[method-assign]

    def _got(self, there: Any, notifications: Callable[[], Any], *args: Any, **kwargs: Any) -> Any:
        """`get` of a queue, metered where nothing waits in it yet: only then time passes."""
        if there:
            return Queue.get(notifications(), *args, **kwargs)
        return self._reading(Queue.get, notifications(), *args, **kwargs)

    def _waited(self, chunk: Callable[[], Any], *args: Any, **kwargs: Any) -> Any:
        found = chunk()
        try:
            return self._reading(type(found).wait, found, *args, **kwargs)
        finally:
            # all of it has come now; each number that is read of it would ask again
            found.__dict__.pop("wait", None)

    def _reading(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        here = self._place[get_ident()]
        cpu, wall = thread_time(), perf_counter()
        try:
            return original(*args, **kwargs)
        finally:
            cpu, wall = thread_time() - cpu, perf_counter() - wall
            waited = max(wall - cpu, 0.0)
            if self._in_line:
                self._steps.extend((INTERRUPTED, get_ident(), None, 0, 0, None, cpu, wall))
            here.source_cpu += cpu
            here.waited += waited
            if here.own:
                with self._lock:
                    self.read += waited

    def _watch_file_system(self, source: Any) -> None:
        system = getattr(source, "_fs", None)
        caching = sys.modules.get("fsspec.implementations.cached")
        if system is None or (caching is not None and isinstance(system, caching.CachingFileSystem)):
            self.transferred = None
            return
        self._kinds[-1] += f"({type(system).__name__})"
        source._fs = _CountedFileSystem(system, self)
        self._undo.append((source, "_fs", system))

    def _receiving(self, read: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """What a file system reads, which may be in another thread."""
        if self._place[get_ident()].own:
            return self._received(read(*args, **kwargs))
        began = thread_time()
        data = read(*args, **kwargs)
        return self._received(data, thread_time() - began)

    def _received(self, data: Any, helper_cpu: float = 0.0) -> Any:
        with self._lock:
            self.helper_cpu += helper_cpu
            try:
                if self.transferred is not None:
                    self.transferred += _size(data)
            except Exception as problem:
                self._miss("bytes transferred", problem, "bytes_transferred")
        return data


def _ends(sizes: dict[int, int]) -> dict[int, int]:
    """Of the sizes of baskets those of the first and the last one."""
    return {end(sizes): sizes[end(sizes)] for end in (min, max) if sizes}


def _path(branch: Any) -> str:
    """Names of a branch and of those that it is in, below the tree."""
    try:
        # where its properties find them, after half a dozen calls
        name, parent = branch._bases[0]._members["fName"], branch._parent
    except (AttributeError, LookupError, TypeError):
        name, parent = branch.name, branch.parent
    return f"{_path(parent)}/{name}" if hasattr(type(parent), "basket") else str(name)


def _held_by(basket: Any) -> int:
    """Bytes in a basket that came with the tree: its header tells the size of its buffer, used or not."""
    return sum(int(part.nbytes) for part in (basket.data, basket.byte_offsets) if part is not None)


_counted: Final[dict[tuple[bytes, str, int], int]] = {}
MOST_COUNTED: Final = 100


def _leaves_once(tree: Any, file_bytes: int) -> int:
    """Number of leaves of a tree, which is not counted again for each chunk: a wide file has thousands."""
    # what uproot has of the file's identity as text would take longer than all else here
    key = tree.file.fUUID, getattr(tree.parent, "fSeekKey", None) or tree.object_path, file_bytes
    number = _counted.get(key)
    if number is None:
        if len(_counted) >= MOST_COUNTED:
            _counted.clear()
        number = _counted[key] = _leaves(tree)
    return number


def _leaves(tree: Any) -> int:
    """Number of branches that hold data of their own."""
    number = 0
    for branch in tree.branches:
        inner = branch.branches
        number += _leaves(branch) if inner else 1
    return number


def _trivial_executor() -> type:
    from uproot.source.futures import TrivialExecutor

    return TrivialExecutor  # type: ignore[no-any-return]


def _trivial_future() -> type:
    from uproot.source.futures import TrivialFuture

    return TrivialFuture  # type: ignore[no-any-return]


class _Here:
    """What a thread reads at the moment, and what it did so far."""

    branch: BranchRead | None = None
    """Field of an RNTuple, or column."""
    pages: tuple[int, int] | None = None
    """Cluster and column of an RNTuple."""
    waited = 0.0
    source_cpu = 0.0
    stepped = 0.0
    """CPU time of what was measured by itself, and is not of the field or column that is read."""
    in_chunks = False

    wall: float | None = None
    cpu = 0.0
    """Times since which baskets are waited for, where the thread itself decompresses them."""
    awaited = 0
    """So many baskets have not come yet."""
    mark = 0.0
    """CPU time at the end of the step before."""

    def __init__(self, *, own: bool) -> None:
        self.own = own
        """Whether it is the thread that made the meter."""

    def asked(self, baskets: int, cpu: float, wall: float | None) -> None:
        """So many baskets were asked for; without a wall time waiting for them is not told."""
        self.awaited, self.mark, self.cpu, self.wall = baskets, cpu, cpu, wall

    def interrupted(self, cpu: float, wall: float) -> None:
        """So many seconds were not for the baskets that are waited for."""
        if self.wall is not None:
            self.wall += wall
            self.cpu += cpu

    def begins(self, began: float | None, ended: float) -> float:
        """CPU time from which on a step is counted: not before the end of one that was a part of it."""
        if began is None:
            return self.mark
        # after the end only where this was another thread, which had the same identity
        return max(began, self.mark) if self.mark <= ended else began

    def came(self, cpu: float, wall: float) -> float:
        """Seconds that were waited for a basket, which has come and is decompressed."""
        waited = 0.0 if self.wall is None else wall - self.wall - cpu + self.cpu
        self.awaited -= 1
        self.wall = wall if self.awaited > 0 else None
        return max(waited, 0.0)


class _Places(dict[int, _Here]):
    """What each thread reads, by its identity; the thread that makes this is the meter's own. See also `ByThread`."""

    __slots__ = ("own",)

    def __init__(self) -> None:
        super().__init__()
        self.own = get_ident()

    def __missing__(self, thread: int) -> _Here:
        return self.setdefault(thread, _Here(own=thread == self.own))


class _Shadow:
    """A method of one object, that goes through the meter; a copy or a pickle of it is the method itself."""

    __slots__ = ("meter", "original")

    def __init__(self, original: Any, meter: Meter) -> None:
        self.original = original
        self.meter = meter

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self.original.__self__, self.original.__name__)


class _ShadowBy(_Shadow):
    """It hands the method to another function, and then what it is called with."""

    __slots__ = ("metered",)

    def __init__(self, metered: Callable[..., Any], original: Any, meter: Meter) -> None:
        super().__init__(original, meter)
        self.metered = metered

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.metered(self.original, *args, **kwargs)


class _ChunkShadow(_Shadow):
    """`chunk` of a source of uproot's."""

    __slots__ = ()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        meter = self.meter
        if not meter.in_process:
            return self.original(*args, **kwargs)
        here = meter._place[get_ident()]
        if here.in_chunks:
            return self.original(*args, **kwargs)
        chunk = meter._reading(self.original, *args, **kwargs)
        try:
            if here.pages is None:
                meter.late_metadata += chunk.stop - chunk.start
            if type(chunk.future).__name__ != "TrivialFuture":
                chunk.wait = partial(meter._waited, weakref.ref(chunk))
        except Exception as problem:
            meter._miss("waiting for storage", problem, *WAITED)
        return chunk


class _ChunksShadow(_Shadow):
    """`chunks` of a source of uproot's, of which it asks for baskets, or for pages of an RNTuple."""

    __slots__ = ()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        meter, thread = self.meter, get_ident()
        meter._stepping = None
        if not meter.in_process:
            meter._steps.extend((ASKED, thread, None, 0, 0, None, thread_time(), None))
            return self.original(*args, **kwargs)
        here = meter._place[thread]
        here.in_chunks = True
        try:
            if len(meter._steps) > MOST_NOTED:
                meter._add_up()
            if meter._in_line:
                ranges = args[0] if args else None
                baskets = len(ranges) if type(ranges) is list else 0
                wall = perf_counter() if baskets else None
                meter._steps.extend((ASKED, thread, None, baskets, 0, None, thread_time(), wall))
                return self.original(*args, **kwargs)
            meter._steps.extend((ASKED, thread, None, 0, 0, None, thread_time(), None))
            meter._watch_queues(*args, *kwargs.values())
            return meter._reading(self.original, *args, **kwargs)
        finally:
            here.in_chunks = False


class _StandIn:
    """Has all other attributes of an object that it stands in for; a copy or a pickle of it is that object."""

    __slots__ = ("_inner",)
    _inner: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __reduce__(self) -> tuple[Any, ...]:
        return getitem, ((self._inner,), 0)


class _Metered(_StandIn):
    """uproot's own executor, which runs a task at once, with its tasks noted.

    When the attempt has ended it has no meter, which a file that keeps this executor would keep until garbage is
    collected.
    """

    __slots__ = ("_future", "meter")

    def __init__(self, inner: Any, meter: Meter) -> None:
        self._inner = inner
        self._future = made_once(_trivial_future)
        self.meter: Meter | None = meter

    def submit(self, task: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Run the task."""
        raise NotImplementedError


class _Decompression(_Metered):
    __slots__ = ()

    def submit(self, task: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        meter = self.meter
        if meter is None:
            return self._inner.submit(task, *args, **kwargs)
        began = thread_time()
        result = task(*args, **kwargs)
        ended, wall = thread_time(), perf_counter()
        try:
            chunk, branch, basket = args
            size = chunk.stop - chunk.start
            meter._stepping = thread = get_ident()
            meter._steps.extend((DECOMPRESSED, thread, branch, basket, size, began, ended, wall))
        except Exception as problem:
            meter._miss("bytes of branches", problem, *BY_BRANCH)
        return self._future(result)


class _Interpretation(_Metered):
    """A basket's last step, to which the CPU time since the step before belongs, if there was one on this thread."""

    __slots__ = ()

    def submit(self, task: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        meter = self.meter
        if meter is None:
            return self._inner.submit(task, *args, **kwargs)
        thread = get_ident()
        began = None if meter._in_line and meter._stepping == thread else thread_time()
        result = task(*args, **kwargs)
        ended, wall = thread_time(), perf_counter()
        try:
            (basket,) = args
            number, size = None, basket.uncompressed_bytes
            if basket.is_embedded:
                number, size = basket.basket_num, _held_by(basket)
            meter._stepping = thread
            meter._steps.extend((INTERPRETED, thread, basket.parent, number, size, began, ended, wall))
        except Exception as problem:
            meter._miss("bytes of branches", problem, *BY_BRANCH)
        return self._future(result)


STEPS_OF_EXECUTORS: Final[tuple[tuple[str, type[_Metered]], ...]] = (
    ("decompression_executor", _Decompression),
    ("interpretation_executor", _Interpretation),
)


class _Pool(_StandIn):
    """An executor of the user's that runs what another one notes."""

    __slots__ = ("_noting",)

    def __init__(self, inner: Any, noting: _Metered) -> None:
        self._inner = inner
        self._noting = noting

    def submit(self, task: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        return self._inner.submit(_result, self._noting.submit, task, *args, **kwargs)


def _result(submit: Callable[..., Any], task: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    return submit(task, *args, **kwargs).result()


def _watched_source() -> type:
    """Class for uproot's option `handler`: it makes the source that uproot would make, and shows it to the meter."""
    from uproot._util import file_path_to_source_class
    from uproot.source.chunk import Source

    class Watched(Source):  # type: ignore[misc]
        def __new__(cls, file_path: Any, **options: Any) -> Any:
            meter = options.pop(OPTION)
            options["handler"] = meter.handler
            kind, path = file_path_to_source_class(file_path, options)
            try:
                source = kind(path, **options)
            except BaseException:
                meter.source_failed(kind.__name__)
                raise
            meter.watch_source(source)
            return source

    return Watched


class _CountedFileSystem(_StandIn):
    """A file system of fsspec, for one source of uproot, that tells how many bytes came."""

    __slots__ = ("_meter",)

    def __init__(self, system: Any, meter: Meter) -> None:
        self._inner = system
        self._meter = meter

    def cat_file(self, *args: Any, **kwargs: Any) -> Any:
        return self._meter._receiving(self._inner.cat_file, *args, **kwargs)

    def cat_ranges(self, *args: Any, **kwargs: Any) -> Any:
        return self._meter._receiving(self._inner.cat_ranges, *args, **kwargs)

    async def _cat_ranges(self, *args: Any, **kwargs: Any) -> Any:
        return self._meter._received(await self._inner._cat_ranges(*args, **kwargs))


def _size(data: Any) -> int:
    if isinstance(data, (bytes, bytearray, memoryview)):
        return len(data)
    try:
        return sum(map(len, data))
    except TypeError:
        return sum(len(piece) for piece in data if not isinstance(piece, BaseException))


class _ParquetReads:
    """Columns that Arrow reads of one Parquet file: whole columns, in all row groups."""

    def __init__(self, meter: Meter, file: Any) -> None:
        self._meter = meter
        self._metadata = metadata = file.metadata
        self.requested: int = metadata.serialized_size + FOOTER_END
        meter.tree_branches = len(file.schema_arrow.names)
        meter._shadow(file, "read", partial(_ShadowBy, self._read))

    def _read(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        wall, cpu = perf_counter(), thread_time()
        table = original(*args, **kwargs)
        cpu = thread_time() - cpu
        waited = max(perf_counter() - wall - cpu, 0.0)
        try:
            columns = args[0] if args else kwargs.get("columns")
            names = table.column_names if columns is None else list(columns)
            for column in names:
                groups = [self._sizes(group, column) for group in range(self._metadata.num_row_groups)]
                self.requested += sum(compressed for compressed, _ in groups)
                self._meter.column_was_read(column, groups, cpu / len(names), waited / len(names))
        except Exception as problem:
            self._meter._miss("bytes of columns", problem, *READ)
        return table

    def _sizes(self, group: int, column: str) -> tuple[int, int]:
        """Compressed and uncompressed bytes of a column in a row group."""
        row_group = self._metadata.row_group(group)
        leaves = [row_group.column(leaf) for leaf in range(row_group.num_columns)]
        ours = [leaf for leaf in leaves if f"{leaf.path_in_schema}.".startswith(f"{column}.")]
        return sum(leaf.total_compressed_size for leaf in ours), sum(leaf.total_uncompressed_size for leaf in ours)


FOOTER_END: Final = 8
"""Bytes at the end of a Parquet file: the footer's length, and a magic number."""
