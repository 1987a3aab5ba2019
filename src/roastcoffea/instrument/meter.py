"""What an attempt of a chunk reads: bytes by branch and basket, waiting for storage, decompression, interpretation.

The meter patches nothing of uproot, Arrow or coffea. It shadows methods on the objects that coffea makes for this chunk
alone (the file's source, the mapping behind the events, an RNTuple, a Parquet file), and takes the shadows away when
the attempt ends.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from roastcoffea.errors import error_text

INNER_SIZES: Final = 256
"""So many sizes of baskets that are neither first nor last of their branch travel with a record."""


class BranchRead:
    """One branch as this attempt read it."""

    __slots__ = ("again", "decompress", "interpret", "read", "seen", "sizes", "uncompressed")

    def __init__(self) -> None:
        self.sizes: dict[int, int] = {}
        self.seen: set[Any] = set()
        self.again = 0
        self.uncompressed = 0
        self.read: float | None = None
        self.decompress = 0.0
        self.interpret = 0.0

    def add(self, basket: int, size: int, part: Any = None) -> None:
        """Count a basket, or a part of one, that was requested."""
        if (basket, part) in self.seen:
            self.again += size
            return
        self.seen.add((basket, part))
        self.sizes[basket] = self.sizes.get(basket, 0) + size


class Meter:
    """Meters the reading of one attempt.

    Readings are of the thread that made the meter; work that others do for it is in `helper_cpu`.
    """

    def __init__(self) -> None:
        self.branches: dict[str, BranchRead] = {}
        self.problems: list[str] = []
        self.read = self.decompress = self.interpret = self.helper_cpu = 0.0
        self.late_metadata = 0
        self.transferred: int | None = 0
        self.tree_branches: int | None = None
        self.file_bytes: int | None = None
        self._thread = threading.get_ident()
        self._lock = threading.Lock()
        self._sources: list[Any] = []
        self._kinds: list[str] = []
        self._undo: list[Callable[[], None]] = []
        self._names: dict[Any, str] = {}
        self._parquet: _ParquetReads | None = None
        self._branch: BranchRead | None = None
        self._cluster: int | None = None
        self._column: int | None = None
        self._source_cpu = 0.0
        self._in_process = False

    # what is asked of it

    @property
    def payload(self) -> int:
        """Bytes of baskets that were requested so far."""
        return sum(sum(branch.sizes.values()) + branch.again for branch in self.branches.values())

    @property
    def uncompressed(self) -> int:
        """Size of what was read so far, after decompression."""
        return sum(branch.uncompressed for branch in self.branches.values())

    @property
    def source(self) -> str | None:
        """What read the file; None where nothing was seen to."""
        return ", ".join(dict.fromkeys(self._kinds)) or None

    def requested(self) -> int | None:
        """Bytes that were requested of storage so far; None where no source was seen."""
        if self._parquet is not None:
            return self._parquet.requested
        return sum(int(source.num_requested_bytes) for source in self._sources) if self._sources else None

    def branch_rows(self) -> list[dict[str, Any]]:
        """One row for each branch that was read."""
        inner = sum(max(len(branch.sizes) - 2, 0) for branch in self.branches.values())
        return [
            _branch_row(name, branch, whole=inner <= INNER_SIZES)
            for name, branch in self.branches.items()
            if branch.sizes or branch.uncompressed
        ]

    # how it is put in

    def options(self, given: dict[str, Any]) -> dict[str, Any]:
        """Options for `uproot.open` that lead through the meter."""
        ours = dict(given)
        with self._noting("bytes requested from storage"):
            ours["handler"] = _watched_handler(self, given.get("handler"))
        with self._noting("what is read ahead of process()"):
            for step, metered in (("decompression", self._decompressing), ("interpretation", self._interpreting)):
                name = f"{step}_executor"
                ours[name] = _Metered(given.get(name) or _trivial_executor(), metered)
        return ours

    def watch_source(self, source: Any) -> None:
        """Meter a source that was opened for this attempt."""
        self._sources.append(source)
        with self._noting("waiting for storage"):
            self._shadow(source, "chunk", self._chunk)
            self._shadow(source, "chunks", self._chunks)
        self._kinds.append(type(source).__name__)
        with self._noting("bytes transferred"):
            self._watch_file_system(source)

    def events_are_built(self, events: Any) -> None:
        """Meter the reading of events that come lazily."""
        with self._noting("bytes of branches"):
            factory = events.attrs["@events_factory"]
            mapping = factory._mapping
            if type(mapping).__name__ == "ParquetSourceMapping":
                self._parquet = _ParquetReads(self, factory.file_handle)
                self._kinds.append("ParquetFile")
                self.transferred = None
            else:
                self._watch_trees(mapping)
            self._shadow(mapping, "extract_column", self._extract_column)

    @contextmanager
    def processing(self) -> Iterator[None]:
        """Time of process(): metadata that is read in it comes late."""
        self._in_process = True
        try:
            yield
        finally:
            self._in_process = False

    def close(self) -> None:
        """Take all shadows away."""
        while self._undo:
            self._undo.pop()()

    @contextmanager
    def _noting(self, what: str) -> Iterator[None]:
        try:
            yield
        except Exception as problem:  # noqa: BLE001  (the chunk must be processed where it cannot be metered)
            self.problems.append(f"{what} could not be metered: {error_text(problem)}")

    def _shadow(self, thing: Any, method: str, metered: Callable[..., Any]) -> None:
        """Have a method of one object go through the meter."""
        setattr(thing, method, partial(metered, getattr(thing, method)))
        self._undo.append(partial(thing.__dict__.pop, method, None))

    # TTree

    def _watch_trees(self, mapping: Any) -> None:
        mapping.decompression_executor = _Metered(mapping.decompression_executor, self._decompressing)
        mapping.interpretation_executor = _Metered(mapping.interpretation_executor, self._interpreting)
        for tree in (mapping._cache or {}).values():
            self.file_bytes = int(tree.file.fEND)
            ntuple = getattr(tree, "ntuple", None)
            if ntuple is None:
                self.tree_branches = _leaves(tree)
            else:
                self.tree_branches = len(tree.fields)
                self._shadow(ntuple, "read_cluster_pages", partial(self._cluster_pages, ntuple))
                self._shadow(ntuple, "read_locator", self._locator)

    def _named(self, branch: Any) -> BranchRead:
        """What is known of a branch, under its path in the tree."""
        key = branch.cache_key
        name = self._names.get(key)
        if name is None:
            name = self._names[key] = str(branch.object_path).partition(":")[2] or str(branch.name)
        return self._read_of(name)

    def _read_of(self, name: str) -> BranchRead:
        found = self.branches.get(name)
        if found is None:
            with self._lock:
                found = self.branches.setdefault(name, BranchRead())
        return found

    def _decompressing(self, task: Callable[..., Any], chunk: Any, branch: Any, basket: int) -> Any:
        began = time.thread_time()
        result = task(chunk, branch, basket)
        cpu = time.thread_time() - began
        read = self._named(branch)
        with self._lock:
            read.add(basket, chunk.stop - chunk.start)
            if self._own(cpu):
                self.decompress += cpu
                read.decompress += cpu
        return result

    def _interpreting(self, task: Callable[..., Any], basket: Any) -> Any:
        number, embedded, size = basket.basket_num, basket.is_embedded, basket.uncompressed_bytes
        read = self._named(basket.parent)
        began = time.thread_time()
        result = task(basket)
        cpu = time.thread_time() - began
        with self._lock:
            read.uncompressed += size
            if embedded:
                read.add(number, 0)
            if self._own(cpu):
                self.interpret += cpu
                read.interpret += cpu
        return result

    def _own(self, cpu: float) -> bool:
        """Whether CPU time is of the attempt's own thread; that of another is counted apart."""
        if threading.get_ident() == self._thread:
            return True
        self.helper_cpu += cpu
        return False

    # any branch, field or column

    def _extract_column(self, original: Callable[..., Any], handle: Any, *args: Any, **kwargs: Any) -> Any:
        if handle is None or self._branch is not None:
            return original(handle, *args, **kwargs)
        ntuple = hasattr(handle, "ntuple")
        read = self._branch = self._read_of(str(handle.column)) if self._parquet else self._field(handle)
        waited, decompressed = self.read, self.decompress
        began, before = time.thread_time(), self._source_cpu
        try:
            return original(handle, *args, **kwargs)
        finally:
            self._branch = None
            read.read = (read.read or 0.0) + self.read - waited
            if ntuple or self._parquet:
                cpu = time.thread_time() - began - (self.decompress - decompressed) - (self._source_cpu - before)
                self.interpret += cpu
                read.interpret += cpu

    def _field(self, handle: Any) -> BranchRead:
        """What is known of a branch of a TTree, or a field of an RNTuple."""
        return self._read_of(str(handle.path)) if hasattr(handle, "ntuple") else self._named(handle)

    # RNTuple

    def _cluster_pages(
        self, ntuple: Any, original: Callable[..., Any], cluster: int, column: int, *args: Any, **kwargs: Any
    ) -> Any:
        ntuple.page_link_list  # noqa: B018  (a list of pages is metadata, and is read when it is first asked for)
        before = self._cluster, self._column
        self._cluster, self._column = int(cluster), int(column)
        try:
            return original(cluster, column, *args, **kwargs)
        finally:
            self._cluster, self._column = before

    def _locator(self, original: Callable[..., Any], locator: Any, uncompressed: int) -> Any:
        if self._cluster is None or self._branch is None:
            return original(locator, uncompressed)
        began, before = time.thread_time(), self._source_cpu
        result = original(locator, uncompressed)
        cpu = time.thread_time() - began - (self._source_cpu - before)
        self.decompress += cpu
        read = self._branch
        read.decompress += cpu
        read.uncompressed += int(uncompressed)
        read.add(self._cluster, int(locator.num_bytes), (self._column, int(locator.offset)))
        return result

    # Parquet

    def column_was_read(self, column: str, groups: list[tuple[int, int]], cpu: float, waited: float) -> None:
        """Take note of a column that Arrow has read: (compressed, uncompressed) bytes of each row group."""
        read = self._read_of(column)
        for group, (compressed, uncompressed) in enumerate(groups):
            read.add(group, compressed)
            read.uncompressed += uncompressed
        self.read += waited
        self.decompress += cpu
        read.decompress += cpu

    # the source

    def _chunk(self, original: Callable[..., Any], start: int, stop: int) -> Any:
        with self._reading():
            chunk = original(start, stop)
        if self._in_process and self._cluster is None:
            self.late_metadata += stop - start
        if type(chunk.future).__name__ != "TrivialFuture":
            chunk.wait = partial(self._wait, chunk.wait)
        return chunk

    def _chunks(self, original: Callable[..., Any], ranges: Any, notifications: Any) -> Any:
        notifications.get = partial(self._wait, notifications.get)
        with self._reading():
            return original(ranges, notifications)

    def _wait(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with self._reading():
            return original(*args, **kwargs)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        wall, cpu = time.perf_counter(), time.thread_time()
        try:
            yield
        finally:
            if threading.get_ident() == self._thread:
                cpu = time.thread_time() - cpu
                self._source_cpu += cpu
                self.read += max(time.perf_counter() - wall - cpu, 0.0)

    def _watch_file_system(self, source: Any) -> None:
        from fsspec.implementations.cached import CachingFileSystem

        system = getattr(source, "_fs", None)
        if system is None or isinstance(system, CachingFileSystem):
            self.transferred = None
            return
        self._kinds[-1] += f"({type(system).__name__})"
        source._fs = _CountedFileSystem(system, self._received)
        self._undo.append(partial(setattr, source, "_fs", system))

    def _received(self, size: int, cpu: float) -> None:
        with self._lock:
            if self.transferred is not None:
                self.transferred += size
            if threading.get_ident() != self._thread:
                self.helper_cpu += cpu


def _branch_row(name: str, branch: BranchRead, *, whole: bool) -> dict[str, Any]:
    first, last = min(branch.sizes, default=0), max(branch.sizes, default=-1)
    baskets = range(first, last + 1)
    told = baskets if whole or len(baskets) < 2 else (first, last)
    return {
        "branch": name,
        "bytes_payload": sum(branch.sizes.values()),
        "bytes_again": branch.again,
        "bytes_uncompressed": branch.uncompressed,
        "baskets": len(branch.sizes),
        "basket_first": first if baskets else None,
        "basket_last": last if baskets else None,
        "basket_bytes": [branch.sizes.get(basket, 0) for basket in told],
        "read_seconds": branch.read,
        "decompress_seconds": branch.decompress,
        "interpret_seconds": branch.interpret,
    }


def _leaves(tree: Any) -> int:
    """Number of branches that hold data of their own."""
    number, waiting = 0, list(tree.branches)
    while waiting:
        inner = waiting.pop().branches
        number += not inner
        waiting.extend(inner)
    return number


def _trivial_executor() -> Any:
    from uproot.source.futures import TrivialExecutor

    return TrivialExecutor()


class _Metered:
    """An executor of uproot's whose tasks go through the meter."""

    def __init__(self, inner: Any, metered: Callable[..., Any]) -> None:
        self._inner = inner
        self._metered = metered

    def submit(self, task: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        return self._inner.submit(self._metered, task, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def _watched_handler(meter: Meter, given: Any) -> type:
    """Class for uproot's option `handler`: it makes the source that uproot would make, and shows it to the meter."""
    from uproot._util import file_path_to_source_class
    from uproot.source.chunk import Source

    class Watched(Source):  # type: ignore[misc]
        def __new__(cls, file_path: Any, **options: Any) -> Any:
            options["handler"] = given
            kind, path = file_path_to_source_class(file_path, options)
            source = kind(path, **options)
            meter.watch_source(source)
            return source

    return Watched


class _CountedFileSystem:
    """A file system of fsspec, for one source of uproot, that tells how many bytes came."""

    def __init__(self, system: Any, received: Callable[[int, float], None]) -> None:
        self._system = system
        self._received = received

    def __getattr__(self, name: str) -> Any:
        return getattr(self._system, name)

    def cat_file(self, *args: Any, **kwargs: Any) -> Any:
        return self._counted(self._system.cat_file, *args, **kwargs)

    def cat_ranges(self, *args: Any, **kwargs: Any) -> Any:
        return self._counted(self._system.cat_ranges, *args, **kwargs)

    async def _cat_ranges(self, *args: Any, **kwargs: Any) -> Any:
        data = await self._system._cat_ranges(*args, **kwargs)
        self._received(_size(data), 0.0)
        return data

    def _counted(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        began = time.thread_time()
        data = original(*args, **kwargs)
        self._received(_size(data), time.thread_time() - began)
        return data


def _size(data: Any) -> int:
    pieces: Iterable[Any] = [data] if isinstance(data, (bytes, bytearray, memoryview)) else data
    return sum(len(piece) for piece in pieces if not isinstance(piece, BaseException))


class _ParquetReads:
    """Columns that Arrow reads of one Parquet file: whole columns, in all row groups."""

    def __init__(self, meter: Meter, file: Any) -> None:
        self._meter = meter
        self._metadata = metadata = file.metadata
        self.requested: int = metadata.serialized_size + FOOTER_END
        meter.tree_branches = len(file.schema_arrow.names)
        meter._shadow(file, "read", self._read)

    def _read(self, original: Callable[..., Any], columns: Any = None, *args: Any, **kwargs: Any) -> Any:
        wall, cpu = time.perf_counter(), time.thread_time()
        table = original(columns, *args, **kwargs)
        cpu = time.thread_time() - cpu
        wall = time.perf_counter() - wall
        for column in columns if columns is not None else table.column_names:
            groups = [self._sizes(group, column) for group in range(self._metadata.num_row_groups)]
            self.requested += sum(compressed for compressed, _ in groups)
            self._meter.column_was_read(column, groups, cpu / len(columns or table.column_names), max(wall - cpu, 0.0))
        return table

    def _sizes(self, group: int, column: str) -> tuple[int, int]:
        """Compressed and uncompressed bytes of a column in a row group."""
        row_group = self._metadata.row_group(group)
        leaves = [row_group.column(leaf) for leaf in range(row_group.num_columns)]
        ours = [leaf for leaf in leaves if leaf.path_in_schema.split(".")[0] == column]
        return sum(leaf.total_compressed_size for leaf in ours), sum(leaf.total_uncompressed_size for leaf in ours)


FOOTER_END: Final = 8
"""Bytes at the end of a Parquet file: the footer's length, and a magic number."""
