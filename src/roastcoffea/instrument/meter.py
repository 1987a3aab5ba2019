"""What an attempt of a chunk reads: bytes by branch and basket, waiting for storage, decompression, interpretation.

The meter patches nothing of uproot, Arrow or coffea. It shadows methods on the objects that coffea makes for this chunk
alone (the file's source, the mapping behind the events, an RNTuple, a Parquet file), and takes the shadows away when
the attempt ends. A shadow calls the original once, with what it was given, whatever becomes of the metering; where a
version of uproot or coffea lacks what is shadowed, what cannot be metered is unknown, and told.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import repeat
from operator import getitem
from queue import Queue
from threading import get_ident
from time import perf_counter, thread_time
from typing import Any, Final

from roastcoffea.errors import error_text, noting
from roastcoffea.instrument.shared import ByThread, made_once
from roastcoffea.records.wire import BASKET_BYTES, BRANCHES_HAVE

OPTION: Final = "roastcoffea"
"""Option for `uproot.open` that leads to the meter."""

INNER_SIZES: Final = 256
"""So many sizes of baskets travel with a record, beyond two of each branch."""

SIZES: Final = ("bytes_payload", "bytes_metadata", "bytes_uncompressed", "branches")
BY_BRANCH: Final = (*SIZES, "decompress_seconds", "interpret_seconds", "compute_seconds")
WAITED: Final = ("read_seconds", "wait_seconds")
READ: Final = (*SIZES, "bytes_requested", "bytes_transferred")
"""Columns of a chunk's record that are unknown where one of the meter's views is missing."""


class BranchRead:
    """One branch as this attempt read it, or a part of that."""

    __slots__ = ("again", "decompress", "interpret", "parts", "read", "sizes", "uncompressed")

    def __init__(self, decompress: float = 0.0, interpret: float = 0.0) -> None:
        self.sizes: dict[int, int] = {}
        self.parts: set[Any] | None = None
        self.again = 0
        self.uncompressed = 0
        self.read: float | None = None
        self.decompress = decompress
        self.interpret = interpret

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

    def join(self, part: BranchRead) -> None:
        """Add what another part of the branch is."""
        for basket, size in part.sizes.items():
            self.add(basket, size)
        self.again += part.again
        self.uncompressed += part.uncompressed
        if part.read is not None:
            self.read = (self.read or 0.0) + part.read
        self.decompress += part.decompress
        self.interpret += part.interpret


class Meter:
    """Meters the reading of one attempt.

    A shadow holds the shadowed object weakly where nothing takes the shadow away: else the data in it would wait for
    the garbage collector.

    Readings are of the thread that made the meter; work that others do for it is in `helper_cpu`.
    """

    def __init__(self) -> None:
        self.branches: dict[str, BranchRead] = {}
        self.problems: list[str] = []
        self.read = 0.0
        """Time for which the thread has waited for storage so far."""
        self.helper_cpu = 0.0
        """CPU time of other threads so far."""
        self.late_metadata = 0
        self.transferred: int | None = 0
        self.tree_branches: int | None = None
        self.file_bytes: int | None = None
        self._lock = threading.RLock()
        self._sources: list[Any] = []
        self._kinds: list[str] = []
        self._undo: list[Callable[[], None]] = []
        self._clusters = False
        self.unknown: set[str] = set()
        """Columns of a chunk's record that could not be metered."""
        self._parquet: _ParquetReads | None = None
        self.handler: Any = None
        self._requested_at_end: int | None = None
        self._closed = False
        own = get_ident()
        self._place = ByThread(lambda thread: _Here(own=thread == own))
        self.in_process = False
        """Whether process() goes on: metadata that is read in it comes late."""

    # what is asked of it

    @property
    def decompress(self) -> float:
        """CPU time of the thread in decompression so far."""
        return sum([read.decompress for read in self._reads()])

    @property
    def interpret(self) -> float:
        """CPU time of the thread in interpretation so far."""
        return sum([read.interpret for read in self._reads()])

    @property
    def payload(self) -> int:
        """Bytes of baskets that were requested so far."""
        return sum([sum(read.sizes.values()) + read.again for read in self._reads()])

    def _reads(self) -> list[BranchRead]:
        # other threads may still add to them
        return list(self.branches.values())

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
        except Exception as problem:  # noqa: BLE001
            self._miss("bytes requested from storage", problem, *READ)
            return None

    def branch_columns(self) -> dict[str, Sequence[Any]]:
        """Columns of the branches that were read, see `records.wire.packed_records`."""
        read_of = {name: read for name, read in sorted(self.branches.items()) if read.sizes or read.uncompressed}
        spans = [max(read.sizes) - min(read.sizes) + 1 for read in read_of.values() if read.sizes]
        whole = sum(spans) <= INNER_SIZES + 2 * len(spans)
        rows: list[tuple[Any, ...]] = []
        told: list[int] = []
        for name, read in read_of.items():
            sizes = read.sizes
            first, last, tells = _baskets_told(sizes, whole=whole)
            told += map(sizes.get, tells, repeat(0))
            rows.append((
                name,
                sum(sizes.values()),
                read.again,
                read.uncompressed,
                len(sizes),
                first,
                last,
                read.read,
                read.decompress,
                read.interpret,
                len(tells),
            ))  # fmt: skip
        columns = zip(*rows, strict=True) if rows else [()] * len(BRANCHES_HAVE)
        return dict(zip(BRANCHES_HAVE, columns, strict=True)) | {BASKET_BYTES: told}

    # how it is put in

    def options(self, given: dict[str, Any]) -> dict[str, Any]:
        """Options for `uproot.open` that lead through the meter."""
        ours = dict(given)
        self.handler = given.get("handler")
        with self._noting("bytes requested from storage", *READ):
            ours |= {"handler": made_once(_watched_source), OPTION: self}
        with self._noting("what is read ahead of process()"):
            trivial = _trivial_executor()
            for name, metered in self._steps_of_executors():
                ours[name] = executor = _Metered(given.get(name) or trivial, metered)
                self._undo.append(executor.let_go)
        return ours

    def _steps_of_executors(self) -> tuple[tuple[str, Callable[..., Any]], ...]:
        return ("decompression_executor", self._decompressing), ("interpretation_executor", self._interpreting)

    def watch_source(self, source: Any) -> None:
        """Meter a source that was opened for this attempt."""
        self._sources.append(source)
        with self._noting("waiting for storage", *WAITED):
            self._shadow(source, "chunk", self._chunk)
            self._shadow(source, "chunks", self._chunks)
        self._kinds.append(type(source).__name__)
        with self._noting("bytes transferred", "bytes_transferred"):
            self._watch_file_system(source)

    def events_are_built(self, events: Any) -> None:
        """Meter the reading of events that come lazily."""
        with self._noting("bytes of branches", *BY_BRANCH):
            factory = events.attrs["@events_factory"]
            mapping = factory._mapping
            if type(mapping).__name__ == "ParquetSourceMapping":
                self._parquet = _ParquetReads(self, factory.file_handle)
                self._kinds.append("ParquetFile")
                self.transferred = None
                extract = self._extract_column
            else:
                self._watch_trees(mapping)
                extract = self._extract_column if self._clusters else self._extract_branch
            self._shadow(mapping, "extract_column", extract)

    def close(self) -> None:
        """Take all shadows away, and let go of the file."""
        while self._undo:
            with self._noting("a shadow was left"):
                while self._undo:
                    self._undo.pop()()
        self._requested_at_end = self.requested()
        self._closed = True
        self._sources.clear()

    def _noting(self, what: str, *unknown: str) -> noting:
        """Context for what may fail, as the chunk must be processed where it cannot be metered."""
        return noting(partial(self._take_note, unknown), f"{what} could not be metered")

    def _miss(self, what: str, problem: Exception | str, *unknown: str) -> None:
        reason = problem if isinstance(problem, str) else error_text(problem)
        self._take_note(unknown, f"{what} could not be metered: {reason}")

    def _take_note(self, unknown: Iterable[str], told: str) -> None:
        self.unknown.update(unknown)
        if told not in self.problems:
            self.problems.append(told)

    def _shadow(self, thing: Any, method: str, metered: Callable[..., Any]) -> None:
        """Have a method of one object go through the meter."""
        setattr(thing, method, _Shadow(metered, getattr(thing, method)))
        self._undo.append(partial(thing.__dict__.pop, method, None))

    # TTree

    def _watch_trees(self, mapping: Any) -> None:
        for name, metered in self._steps_of_executors():
            executor = getattr(mapping, name)
            setattr(mapping, name, _Metered(executor, metered))
            self._undo.append(partial(setattr, mapping, name, executor))
        for tree in (mapping._cache or {}).values():
            self.file_bytes = int(tree.file.fEND)
            with self._noting("a file that can be pickled"):
                # what stands there now cannot
                tree.file.options["handler"] = self.handler
                tree.file.options.pop(OPTION, None)
            ntuple = getattr(tree, "ntuple", None)
            if ntuple is None:
                self.tree_branches = _leaves_once(tree, self.file_bytes)
                continue
            self.tree_branches = len(tree.fields)
            self._clusters = True
            self._shadow(ntuple, "read_cluster_pages", partial(self._cluster_pages, ntuple))
            self._shadow(ntuple, "read_locator", self._locator)
            if getattr(mapping, "preloaded_arrays", None):
                self._miss("bytes of branches", "what is preloaded of an RNTuple is read before it can be seen", *SIZES)

    def _read_of(self, name: str) -> BranchRead:
        return self.branches.setdefault(name, BranchRead())

    def _decompressing(
        self, gives: Callable[[Any], Any], task: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Any:
        began = thread_time()
        result = task(*args, **kwargs)
        cpu = thread_time() - began
        here = self._place[get_ident()]
        if here.first_step is None:
            here.first_step = began
        try:
            chunk, branch, basket = args
            size = chunk.stop - chunk.start
            if here.own and branch is here.tree_branch:
                here.of_tree.decompress += cpu
                here.of_tree.add(basket, size)
            else:
                here.stepped += cpu
                part = BranchRead(decompress=cpu)
                part.add(basket, size)
                self._came(_path(branch), part, here)
        except Exception as problem:  # noqa: BLE001
            self._miss("baskets", problem, *BY_BRANCH)
        return gives(result)

    def _interpreting(self, gives: Callable[[Any], Any], task: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        here = self._place[get_ident()]
        basket: Any = args[0] if args else None
        branch = getattr(basket, "parent", None)
        # of the branch that is read, the end of all tells the time; another thread may not come to it before all ends
        alone = not here.own or here.of_tree is None or branch is not here.tree_branch
        began = thread_time() if alone or here.first_step is None else 0.0
        if here.first_step is None:
            here.first_step = began
        result = task(*args, **kwargs)
        cpu = thread_time() - began if alone else 0.0
        here.stepped += cpu
        try:
            read = BranchRead(interpret=cpu) if alone else here.of_tree
            if basket.is_embedded:
                # nothing was requested for it
                read.add(basket.basket_num, 0)
                read.uncompressed += _held_by(basket)
            else:
                read.uncompressed += basket.uncompressed_bytes
            if alone:
                self._came(_path(branch), read, here)
        except Exception as problem:  # noqa: BLE001
            self._miss("arrays of baskets", problem, *BY_BRANCH)
        return gives(result)

    def _came(self, name: str, read: BranchRead, here: _Here) -> None:
        """Take what was read of a branch of a TTree into the whole; what comes after the end is in none of it."""
        if self._closed:
            return
        if not here.own:
            with self._lock:
                self.helper_cpu += read.decompress + read.interpret
            read.decompress = read.interpret = 0.0
        known = self.branches.setdefault(name, read)
        if known is not read:
            with self._lock:
                known.join(read)

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

    def _extract_branch(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """A branch of a TTree, whose steps are metered: what is no CPU time in it is waiting for storage.

        From the first step on, what is not decompression is interpretation. A grouped branch has steps of others in it,
        which are measured by themselves.
        """
        here = self._place[get_ident()]
        if here.tree_branch is not None or not args or args[0] is None:
            return original(*args, **kwargs)
        here.tree_branch = branch = args[0]
        here.of_tree = read = BranchRead()
        here.first_step = None
        stepped, wall, began = here.stepped, perf_counter(), thread_time()
        try:
            return original(*args, **kwargs)
        finally:
            ended = thread_time()
            read.read = waited = max(perf_counter() - wall - ended + began, 0.0)
            here.tree_branch = here.of_tree = None
            if here.first_step is not None:
                read.interpret = ended - here.first_step - read.decompress - here.stepped + stepped
            if here.own:
                self.read += waited
            try:
                self._came(_path(branch), read, here)
            except Exception as problem:  # noqa: BLE001
                self._miss("bytes of branches", problem, *BY_BRANCH)

    def _column_came(self, read: BranchRead, waited: float, cpu: float) -> None:
        with self._lock:
            read.read = (read.read or 0.0) + waited
            if self._place[get_ident()].own:
                read.interpret += cpu
            else:
                self.helper_cpu += cpu

    def _column_read(self, handle: Any) -> BranchRead | None:
        """What is known of a Parquet column or an RNTuple field."""
        with self._noting("bytes of branches", *BY_BRANCH):
            return self._read_of(str(handle.path if self._parquet is None else handle.column))
        return None

    # RNTuple

    def _cluster_pages(self, ntuple: Any, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        here = self._place[get_ident()]
        before = here.pages
        with self._noting("bytes of branches", *BY_BRANCH):
            ntuple.page_link_list  # noqa: B018  (a list of pages is metadata, and is read when it is first asked for)
            cluster, column = [*args, *kwargs.values()][:2]
            here.pages = int(cluster), int(column)
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
        with self._lock, self._noting("bytes of branches", *BY_BRANCH):
            locator, uncompressed = [*args, *kwargs.values()][:2]
            (cluster, column), size = pages, int(locator.num_bytes)
            read.add_part(cluster, (column, int(locator.offset)), size)
            read.uncompressed += int(uncompressed)
            if here.own:
                read.decompress += cpu
            else:
                self.helper_cpu += cpu
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

    def _chunk(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        here = self._place[get_ident()]
        if here.in_chunks:
            return original(*args, **kwargs)
        chunk = self._reading(original, *args, **kwargs)
        with self._noting("waiting for storage", *WAITED):
            if self.in_process and here.pages is None:
                self.late_metadata += chunk.stop - chunk.start
            if type(chunk.future).__name__ != "TrivialFuture":
                chunk.wait = partial(self._waited, weakref.ref(chunk))
        return chunk

    def _chunks(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        here = self._place[get_ident()]
        here.in_chunks = True
        try:
            if here.tree_branch is not None:
                return original(*args, **kwargs)
            self._watch_queues(*args, *kwargs.values())
            return self._reading(original, *args, **kwargs)
        finally:
            here.in_chunks = False

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
        if here.tree_branch is not None:
            return original(*args, **kwargs)
        wall, cpu = perf_counter(), thread_time()
        try:
            return original(*args, **kwargs)
        finally:
            cpu = thread_time() - cpu
            waited = max(perf_counter() - wall - cpu, 0.0)
            here.source_cpu += cpu
            here.waited += waited
            if here.own:
                self.read += waited

    def _watch_file_system(self, source: Any) -> None:
        from fsspec.implementations.cached import CachingFileSystem

        system = getattr(source, "_fs", None)
        if system is None or isinstance(system, CachingFileSystem):
            self.transferred = None
            return
        self._kinds[-1] += f"({type(system).__name__})"
        source._fs = _CountedFileSystem(system, self._received)
        self._undo.append(partial(setattr, source, "_fs", system))

    def _received(self, data: Any, cpu: float) -> None:
        size, own = _size(data), self._place[get_ident()].own
        with self._lock:
            if self.transferred is not None:
                self.transferred += size
            if not own:
                self.helper_cpu += cpu


def _baskets_told(sizes: dict[int, int], *, whole: bool) -> tuple[int | None, int | None, Sequence[int]]:
    """First and last basket, and those whose sizes travel: all from the first to the last one, or these two."""
    if not sizes:
        return None, None, ()
    first, last = min(sizes), max(sizes)
    return first, last, range(first, last + 1) if whole or first == last else (first, last)


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
    key = tree.file.fUUID, tree.object_path, file_bytes
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


def _itself(result: Any) -> Any:
    return result


def _trivial_executor() -> Any:
    from uproot.source.futures import TrivialExecutor

    return TrivialExecutor()


def _future_of(executor: Any) -> Callable[[Any], Any] | None:
    """What uproot's own executor that runs a task at once makes of the result: it need not be asked each time."""
    from uproot.source import futures

    return futures.TrivialFuture if type(executor) is futures.TrivialExecutor else None


class _Here:
    """What a thread reads at the moment, and what it did so far."""

    __slots__ = (
        "branch",
        "first_step",
        "in_chunks",
        "of_tree",
        "own",
        "pages",
        "source_cpu",
        "stepped",
        "tree_branch",
        "waited",
    )

    def __init__(self, *, own: bool) -> None:
        self.own = own
        """Whether it is the thread that made the meter."""
        self.branch: BranchRead | None = None
        """Field of an RNTuple, or column."""
        self.tree_branch: Any = None
        """Branch of a TTree."""
        self.of_tree: Any = None
        """What is read of that branch."""
        self.first_step: float | None = None
        """The thread's CPU time at which the first step of that branch began."""
        self.pages: tuple[int, int] | None = None
        """Cluster and column of an RNTuple."""
        self.in_chunks = False
        self.waited = self.source_cpu = 0.0
        self.stepped = 0.0
        """CPU time of what was measured by itself, and is not of the branch that is read."""


class _Shadow(partial[Any]):
    """A bound method that goes through the meter; a copy or a pickle of it is the method itself."""

    def __reduce__(self) -> tuple[Any, ...]:
        (original,) = self.args
        return getattr, (original.__self__, original.__name__)


class _Metered:
    """An executor of uproot's whose tasks go through the meter; a copy or a pickle of it is the executor itself."""

    def __init__(self, inner: Any, metered: Callable[..., Any]) -> None:
        self._inner = inner
        future = _future_of(inner)
        self.submit: Callable[..., Any] = (
            partial(inner.submit, partial(metered, _itself)) if future is None else partial(metered, future)
        )

    def let_go(self) -> None:
        """Run tasks without the meter, which a file that keeps this executor would keep until garbage is collected."""
        self.submit = self._inner.submit

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __reduce__(self) -> tuple[Any, ...]:
        return getitem, ((self._inner,), 0)


def _watched_source() -> type:
    """Class for uproot's option `handler`: it makes the source that uproot would make, and shows it to the meter."""
    from uproot._util import file_path_to_source_class
    from uproot.source.chunk import Source

    class Watched(Source):  # type: ignore[misc]
        def __new__(cls, file_path: Any, **options: Any) -> Any:
            meter = options.pop(OPTION)
            options["handler"] = meter.handler
            kind, path = file_path_to_source_class(file_path, options)
            source = kind(path, **options)
            meter.watch_source(source)
            return source

    return Watched


class _CountedFileSystem:
    """A file system of fsspec, for one source of uproot, that tells how many bytes came; a copy of it does not."""

    def __init__(self, system: Any, received: Callable[[Any, float], None]) -> None:
        self._system = system
        self._received = received

    def __getattr__(self, name: str) -> Any:
        return getattr(self._system, name)

    def __reduce__(self) -> tuple[Any, ...]:
        return getitem, ((self._system,), 0)

    def cat_file(self, *args: Any, **kwargs: Any) -> Any:
        began = thread_time()
        data = self._system.cat_file(*args, **kwargs)
        self._received(data, thread_time() - began)
        return data

    def cat_ranges(self, *args: Any, **kwargs: Any) -> Any:
        began = thread_time()
        data = self._system.cat_ranges(*args, **kwargs)
        self._received(data, thread_time() - began)
        return data

    async def _cat_ranges(self, *args: Any, **kwargs: Any) -> Any:
        data = await self._system._cat_ranges(*args, **kwargs)
        self._received(data, 0.0)
        return data


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
        meter._shadow(file, "read", self._read)

    def _read(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        wall, cpu = perf_counter(), thread_time()
        table = original(*args, **kwargs)
        cpu = thread_time() - cpu
        waited = max(perf_counter() - wall - cpu, 0.0)
        with self._meter._noting("bytes of columns", *READ):
            columns = args[0] if args else kwargs.get("columns")
            names = table.column_names if columns is None else list(columns)
            for column in names:
                groups = [self._sizes(group, column) for group in range(self._metadata.num_row_groups)]
                self.requested += sum(compressed for compressed, _ in groups)
                self._meter.column_was_read(column, groups, cpu / len(names), waited / len(names))
        return table

    def _sizes(self, group: int, column: str) -> tuple[int, int]:
        """Compressed and uncompressed bytes of a column in a row group."""
        row_group = self._metadata.row_group(group)
        leaves = [row_group.column(leaf) for leaf in range(row_group.num_columns)]
        ours = [leaf for leaf in leaves if f"{leaf.path_in_schema}.".startswith(f"{column}.")]
        return sum(leaf.total_compressed_size for leaf in ours), sum(leaf.total_uncompressed_size for leaf in ours)


FOOTER_END: Final = 8
"""Bytes at the end of a Parquet file: the footer's length, and a magic number."""
