"""Metering of reads for each file format, and the meter for a chunk attempt."""

from __future__ import annotations

from collections import UserDict
from operator import attrgetter, getitem
from threading import get_ident
from time import perf_counter, thread_time
from typing import Any, Final

from roastcoffea.generations import column_readers, factory_of
from roastcoffea.instrument.meter.servers import OF_SERVERS, OPTION, watch_source, watched_source
from roastcoffea.instrument.meter.tally import BY_BRANCH, READ, SIZES, BranchRead, Shadow, StandIn, Tally
from roastcoffea.instrument.shared import Action, Remembered, Row, made_once

_counted: Final[dict[tuple[bytes, str, int], int]] = Remembered()


def leaves_once(tree: Any, file_bytes: int) -> int:
    """Number of leaves in a tree, cached because trees may have thousands of leaves."""
    # formatting uproot's file ID as a string would take longer than the rest of this function
    key = tree.file.fUUID, getattr(tree.parent, "fSeekKey", None) or tree.object_path, file_bytes
    number = _counted.get(key)
    if number is None:
        if len(_counted) >= 100:
            _counted.clear()
        number = _counted[key] = _leaves(tree)
    return number


def _leaves(tree: Any) -> int:
    return sum([_leaves(branch) if branch.branches else 1 for branch in tree.branches])


class MeteredExecutor(StandIn):
    """Metered version of uproot's default executor, which runs tasks immediately.

    The executor drops its tally after the attempt. Otherwise, a file that refers to the executor would keep the tally
    alive until the next garbage collection.
    """

    __slots__ = ("_future", "tally")

    def __init__(self, inner: Any, future: type, tally: Tally) -> None:
        self._inner = inner
        self._future = future
        self.tally: Tally | None = tally


class Decompression(MeteredExecutor):
    __slots__ = ()

    def submit(self, task: Action, /, *args: Any, **kwargs: Any) -> Any:
        tally = self.tally
        if tally is None:
            return self._inner.submit(task, *args, **kwargs)
        try:
            chunk, branch, basket = args
            size = chunk.stop - chunk.start
        except Exception as problem:
            tally.miss("bytes by branch", problem, *BY_BRANCH)
            return self._inner.submit(task, *args, **kwargs)
        clock = perf_counter if tally.in_line else thread_time
        began = clock()
        result = task(*args, **kwargs)
        ended = clock()
        try:
            here = tally.places[get_ident()]
            if clock is perf_counter:
                here.begun += (None, None, None, None, branch, basket, size, began, ended)
            else:
                with tally.lock:
                    read = tally.read_of(branch)
                    read.add(basket, size)
                    read.decompress += tally.own(here, ended - began)
        except Exception as problem:
            tally.miss("bytes by branch", problem, *BY_BRANCH)
        return self._future(result)


class Interpretation(MeteredExecutor):
    """Executor for a basket's last step, which is charged the CPU time since the thread's previous step."""

    __slots__ = ()

    def submit(self, task: Action, /, *args: Any, **kwargs: Any) -> Any:
        tally = self.tally
        if tally is None:
            return self._inner.submit(task, *args, **kwargs)
        thread, in_line = get_ident(), tally.in_line
        here = tally.places[thread]
        if not (in_line and (here.begun or here.steps)):
            here.cpu, here.wall = thread_time(), perf_counter()
        result = task(*args, **kwargs)
        ended, wall = thread_time(), perf_counter()
        try:
            (basket,) = args
            number, size = None, basket.uncompressed_bytes
            embedded = basket.is_embedded
            if embedded:
                # the header of a basket embedded in the tree contains the size of the buffer, including its unused part
                parts = basket.data, basket.byte_offsets
                number, size = basket.basket_num, sum([int(part.nbytes) for part in parts if part is not None])
            if (embedded or tally.keeps_baskets) and not tally.is_new(basket):
                size = 0
            branch = basket.parent
            if here.own:
                off_core, noted = wall - ended, ended
                if off_core - tally.waits_since > tally.shortest:
                    here.delay += tally.delayed(off_core)
                    noted = thread_time()
                tally.waits_since = off_core
            if in_line:
                begun = here.begun
                begun += (thread, here.cpu, here.wall, here.delay, branch, number, size, ended, wall)
                tally.steps.extend(begun)
                begun.clear()
                here.steps, here.delay = True, 0.0
            else:
                with tally.lock:
                    read = tally.read_of(branch)
                    if number is not None:
                        read.add(number, 0)
                    read.uncompressed += size
                    read.interpret += tally.own(here, ended - here.cpu)
            here.cpu, here.wall = ended, wall
            if here.own:
                # one basket in eight, because each reading of the clock is a system call
                if tally.baskets >= 8 * tally.timed and (noting := thread_time() - noted) < tally.longest:
                    tally.noting += noting
                    tally.timed += 1
                tally.baskets += 1
        except Exception as problem:
            tally.miss("bytes by branch", problem, *BY_BRANCH)
        return self._future(result)


EXECUTORS: Final = (("decompression_executor", Decompression), ("interpretation_executor", Interpretation))
"""Names shared by `uproot.open` options and attributes of coffea's mapping, each with its metered executor class."""


def metered_executor(tally: Tally, kind: type[MeteredExecutor], given: Any) -> Any:
    """Return a metered version of the given executor.

    None means uproot's default executor, which has no state.
    """
    executor = tally.executors.get(kind)
    if executor is None:
        from uproot.source.futures import TrivialExecutor, TrivialFuture

        executor = tally.executors[kind] = kind(TrivialExecutor(), TrivialFuture, tally)
    if given is None or type(given) is type(executor._inner):
        return executor
    tally.pools = True
    return _Pool(given, executor)


class _Pool(StandIn):
    """Wrapper for a user's executor that runs tasks through a metered executor."""

    __slots__ = ("_metered",)

    def __init__(self, inner: Any, metered: MeteredExecutor) -> None:
        self._inner = inner
        self._metered = metered

    @property
    def tally(self) -> Tally | None:
        return self._metered.tally

    def submit(self, *task: Any, **kwargs: Any) -> Any:
        return self._inner.submit(_result, self._metered, *task, **kwargs)


def _result(metered: Any, /, *task: Any, **kwargs: Any) -> Any:
    return metered.submit(*task, **kwargs).result()


def watch_ntuple(tally: Tally, ntuple: Any) -> None:
    tally.shadow(ntuple, column_readers(type(ntuple)).of_cluster, PagesShadow)
    tally.shadow(ntuple, "read_locator", LocatorShadow)


def watch_parquet(tally: Tally, mapping: Any, file: Any) -> None:
    tally.kinds.append("ParquetFile")
    tally.transferred = None
    # the footer is followed by its length and a magic number
    tally.without_source = file.metadata.serialized_size + 8
    tally.tree_branches = len(file.schema_arrow.names)
    tally.name_of = attrgetter("column")
    tally.shadow(file, "read", ReadShadow)
    tally.shadow(mapping, "extract_column", ColumnShadow)


class CountedCache(UserDict[Any, Any]):
    """Wrapper for coffea's buffer cache that counts each array found in the cache once."""

    def __init__(self, cache: Any, tally: Tally) -> None:
        self.data, self._tally = cache, tally
        self._known: set[Any] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.data, name)

    def __reduce__(self) -> tuple[Any, ...]:
        return getitem, ((self.data,), 0)

    def get(self, key: Any, default: Any = None) -> Any:
        # query the user's cache only once, because entries may disappear
        array = self.data.get(key, default)
        return array if array is default else self._counted(key, array)

    def __getitem__(self, key: Any) -> Any:
        return self._counted(key, self.data[key])

    def _counted(self, key: Any, array: Any) -> Any:
        with self._tally.lock:
            if key not in self._known:
                self._known.add(key)
                self._tally.cached += int(getattr(array, "nbytes", 0))
        return array

    def __setitem__(self, key: Any, array: Any) -> None:
        self._known.add(key)
        self.data[key] = array


class ColumnShadow(Shadow):
    """Wrapper for the `extract_column` method of coffea's mapping for RNTuple or Parquet."""

    __slots__ = ()

    def column(self, args: tuple[Any, ...]) -> BranchRead | None:
        """Field or column that a call with these arguments reads, or None."""
        return self.tally.branch_read(str(self.tally.name_of(args[0]))) if args and args[0] is not None else None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        tally = self.tally
        here = tally.places[get_ident()]
        read = None
        if here.branch is None:
            try:
                read = self.column(args)
            except Exception as problem:
                tally.miss("bytes by branch", problem, *BY_BRANCH)
        if read is None:
            return self.original(*args, **kwargs)
        here.branch = read
        waited, stepped, began, before = here.waited, here.stepped, thread_time(), here.source_cpu
        try:
            return self.original(*args, **kwargs)
        finally:
            here.branch = None
            cpu = thread_time() - began - here.stepped + stepped - here.source_cpu + before
            with tally.lock:
                read.read = (read.read or 0.0) + here.waited - waited
                read.interpret += tally.own(here, cpu)


class BranchShadow(Shadow):
    """Wrapper for `extract_column` in coffea 0.7's mapping class, which reads branches with uproot's executors."""

    __slots__ = ()

    def __call__(self, branch: Any, *args: Any, **kwargs: Any) -> Any:
        return self.original(_MeteredBranch(branch, self.tally), *args, **kwargs)


class _MeteredBranch(StandIn):
    __slots__ = ("_tally",)

    def __init__(self, branch: Any, tally: Tally) -> None:
        self._inner = branch
        self._tally = tally

    def array(self, *args: Any, **kwargs: Any) -> Any:
        for name, kind in EXECUTORS:
            kwargs[name] = metered_executor(self._tally, kind, kwargs.get(name))
        return self._inner.array(*args, **kwargs)


class PagesShadow(Shadow):
    """Wrapper for an RNTuple method that takes the pages' cluster and column."""

    __slots__ = ()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        here = self.tally.places[get_ident()]
        before = here.pages
        try:
            ntuple = self.original.__self__
            ntuple.page_link_list  # noqa: B018  (metadata, read on first use)
            here.pages = column_readers(type(ntuple)).place([*args, *kwargs.values()])
        except Exception as problem:
            self.tally.miss("bytes by branch", problem, *BY_BRANCH)
        try:
            return self.original(*args, **kwargs)
        finally:
            here.pages = before


class LocatorShadow(Shadow):
    """Wrapper for an RNTuple's `read_locator`, which reads and decompresses a page."""

    __slots__ = ()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        tally = self.tally
        here = tally.places[get_ident()]
        read, pages = here.branch, here.pages
        if pages is None or read is None:
            return self.original(*args, **kwargs)
        began, before = thread_time(), here.source_cpu
        result = self.original(*args, **kwargs)
        cpu = thread_time() - began - (here.source_cpu - before)
        here.stepped += cpu
        with tally.lock:
            try:
                locator, uncompressed = [*args, *kwargs.values()][:2]
                (cluster, column), size = pages, int(locator.num_bytes)
                read.add_part(cluster, (column, int(locator.offset)), size)
                read.uncompressed += int(uncompressed)
                read.decompress += tally.own(here, cpu)
            except Exception as problem:
                tally.miss("bytes by branch", problem, *BY_BRANCH)
        return result


class ReadShadow(Shadow):
    """Wrapper for the `read` method of Arrow's Parquet file."""

    __slots__ = ()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        tally, here = self.tally, self.tally.places[get_ident()]
        before = here.source_cpu
        table = tally.waiting(tally.read_apart, self.original, *args, **kwargs)
        cpu = here.source_cpu - before
        try:
            columns = args[0] if args else kwargs.get("columns")
            names, metadata = list(columns or table.column_names), self.original.__self__.metadata
            groups = [*map(metadata.row_group, range(metadata.num_row_groups))]
            with tally.lock:
                for name in names:
                    read = tally.branch_read(name)
                    read.decompress += tally.own(here, cpu / len(names))
                    for number, group in enumerate(groups):
                        leaves = map(group.column, range(group.num_columns))
                        ours = [leaf for leaf in leaves if f"{leaf.path_in_schema}.".startswith(f"{name}.")]
                        compressed = sum([leaf.total_compressed_size for leaf in ours])
                        tally.without_source = (tally.without_source or 0) + compressed
                        read.add(number, compressed)
                        read.uncompressed += sum([leaf.total_uncompressed_size for leaf in ours])
        except Exception as problem:
            tally.miss("bytes by column", problem, *READ)
        return table


class Meter(Tally):
    """Meter for an attempt's reads, from `options` to `close`."""

    opens_own = False
    """Whether coffea is about to open the chunk's file without our options."""

    def options(self, given: Row) -> Row:
        ours = dict(given)
        self.handler = given.get("handler")
        try:
            ours |= {"handler": made_once(watched_source), OPTION: self}
            for name, kind in EXECUTORS:
                ours[name] = metered_executor(self, kind, given.get(name))
        except Exception as problem:
            self.miss("bytes requested from storage", problem, *READ)
        return ours

    def opens(self) -> None:
        """Prepare for coffea to open the chunk's file itself, without our options."""
        self.opens_own, self._asked_for = True, perf_counter()
        self.requested_at_end = 0

    def opened(self, file: Any) -> None:
        self.opens_own = False
        watch_source(self, file.source, perf_counter() - self._asked_for)

    def events_are_built(self, events: Any) -> None:
        try:
            factory = factory_of(events)
            mapping = factory._mapping
            self.watch_cache(mapping)
            if type(mapping).__name__ == "ParquetSourceMapping":
                watch_parquet(self, mapping, factory.file_handle)
            else:
                self._watch_trees(mapping)
        except Exception as problem:
            self.miss("bytes by branch", problem, *BY_BRANCH, "bytes_cached")

    def watch_cache(self, mapping: Any) -> None:
        if (cache := getattr(mapping, "_buffer_cache", None)) is not None:
            self.change(mapping, "_buffer_cache", CountedCache(cache, self), cache)

    def _watch_trees(self, mapping: Any) -> None:
        if hasattr(mapping, EXECUTORS[0][0]):
            for name, kind in EXECUTORS:
                executor = getattr(mapping, name)
                self.change(mapping, name, metered_executor(self, kind, executor), executor)
        else:
            self.shadow(mapping, "extract_column", BranchShadow)
        self.in_line = not self.pools
        for tree in (mapping._cache or {}).values():
            self.file_bytes = int(tree.file.fEND)
            if tree.file.options.pop(OPTION, None) is not None:
                # this option is needed only to open the file, and cannot be pickled
                tree.file.options["handler"] = self.handler
            ntuple = getattr(tree, "ntuple", None)
            if ntuple is None:
                self.tree_branches = leaves_once(tree, self.file_bytes)
            else:
                self.in_line = False
                self.tree_branches = len(tree.fields)
                watch_ntuple(self, ntuple)
                self.shadow(mapping, "extract_column", ColumnShadow)
                if getattr(mapping, "preloaded_arrays", None):
                    reason = "preloaded fields of an RNTuple are read before metering starts"
                    self.miss("bytes by branch", reason, *SIZES)

    def server_columns(self) -> Row:
        """Server columns for the record; empty if the file was not read from a server."""
        found = {} if self.servers is None else self.servers.columns
        return {name: value for name, value in found.items() if name not in self.unknown}

    def close(self) -> None:
        if self.others is not None:
            self.others.close()
            self.problems += self.others.problems
        if self.servers is not None:
            try:
                self.servers.settle()
            except Exception as problem:
                self.miss("the file's server", problem, *OF_SERVERS[:2])
        self.restore()
        for executor in self.executors.values():
            executor.tally = None
        self.requested_at_end = self.requested()
        with self.lock:
            for thread, here in [*self.places.items()]:
                if here.begun and thread != get_ident():  # another thread's clock cannot be read
                    self.settle(thread, here, None, here.begun[-1])
            self.add_up(ended=True)
            self.closed = True
        self.sources.clear()
        self.asked.clear()
        self.places.clear()
