"""Servers that a file is read from, and uproot's sources: requests, latencies, bytes, and waiting for them."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from queue import Queue
from threading import get_ident
from time import perf_counter, thread_time
from typing import Any, Final

from roastcoffea.instrument.meter.tally import ASKED, MOST_VALUES, WAITED, WHOLE, Shadow, StandIn, Tally
from roastcoffea.instrument.shared import Action, Row

OF_SERVERS: Final = (
    *("endpoint", "left_endpoint", "opens", "connect_seconds"),
    *("requests", "vector_reads", "request_seconds", "shortest_request_seconds"),
)
"""Columns of an opening's record that are unknown where the file could not be watched."""


class Servers:
    """What an attempt asked servers for. Answers come in threads of XRootD's client, or in the event loop of fsspec."""

    def __init__(self, tally: Tally, *, transferred: bool, of_xrootd: bool = True) -> None:
        self._tally = tally
        self._transferred = transferred
        self._files: list[Any] = []
        self.columns: Row = dict.fromkeys(OF_SERVERS) | {"requests": 0, "request_seconds": 0.0}
        """Columns of the opening's record."""
        self.columns |= {"metadata_requests": 0, "metadata_request_seconds": 0.0}
        if of_xrootd:
            self.columns |= {"opens": 0, "connect_seconds": 0.0, "vector_reads": 0}

    def opened(self, file: Any, seconds: float) -> None:
        """Learn that a file was opened, and how long that took."""
        with self._tally.lock:
            self.columns["opens"] += 1
            self.columns["connect_seconds"] += seconds
        self.watch(file)

    def watch(self, file: Any) -> None:
        """Meter the requests of an open file; a file that is watched already is left as it is."""
        if not any(file is known for known in self._files):
            self._files.append(file)
            self.locate(file)
            for method, shadow in (("read", RequestShadow), ("vector_read", VectorShadow), ("close", CloseShadow)):
                self._tally.shadow(file, method, shadow)

    def locate(self, file: Any) -> None:
        """Learn which server has the file, behind all redirectors: XRootD's client goes to another one if it is lost.

        That is its host, with a port that is not the usual one and no credentials.
        """
        place = file.get_property("DataServer").rpartition("://")[2].partition("/")[0].rpartition("@")[2]
        if endpoint := place.removesuffix(":1094"):
            with self._tally.lock:
                if self.columns["endpoint"] not in {None, endpoint}:
                    self.columns["left_endpoint"] = self.columns["endpoint"]
                self.columns["endpoint"] = endpoint

    def closes(self, file: Any) -> None:
        """Learn that a file will be closed."""
        self.locate(file)
        self._files = [known for known in self._files if known is not file]

    def answered(self, seconds: float, size: int = 0, *, vector: bool = False, early: bool) -> None:
        """Count a request that was answered."""
        tally, columns = self._tally, self.columns
        with tally.lock:
            columns["requests"] += 1
            columns["request_seconds"] += seconds
            columns["shortest_request_seconds"] = min(columns["shortest_request_seconds"] or seconds, seconds)
            if vector:
                columns["vector_reads"] += 1
            if early:
                columns["metadata_requests"] += 1
                columns["metadata_request_seconds"] += seconds
            if self._transferred and tally.transferred is not None:
                tally.transferred += size

    def settle(self) -> None:
        """Learn which servers have the files that are still open."""
        for file in self._files:
            self.locate(file)


def watch_own(tally: Tally, source: Any, seconds: float) -> bool:
    """Meter a source of uproot's own that reads through XRootD; False for any other one.

    `seconds` is how long it took to make the source, which opens its files.
    """
    executor = getattr(source, "_executor", None)
    # one resource, one for each of its threads, or one for its own thread
    own = getattr(source, "_resource", None) or getattr(executor, "_resource", None)
    resources = [worker.resource for worker in getattr(executor, "workers", ())] if own is None else [own]
    files = [each.file for each in resources if "XRootDResource" in [kind.__name__ for kind in type(each).__mro__]]
    if files:
        tally.servers = tally.servers or Servers(tally, transferred=True)
    for file in files:
        tally.servers.opened(file, seconds / len(files))
    return bool(files)


def watch_requests(tally: Tally, system: Any) -> bool:
    """Whether each range that is read from this file system is a request that can be counted, as for HTTP and S3.

    Otherwise, the handles that the file system of fsspec-xrootd keeps are metered.
    """
    asyn = sys.modules.get("fsspec.asyn")
    if getattr(system, "protocol", None) == "root":
        try:
            handles = system._readonly_filehandle_cache
            tally.servers = tally.servers or Servers(tally, transferred=False)
            tally.shadow(handles, "_open", HandleShadow)
        except Exception as problem:
            tally.servers = None
            tally.miss("requests to the server", problem, *OF_SERVERS)
        return False
    if asyn is None or not isinstance(system, asyn.AsyncFileSystem):
        return False
    if type(system)._cat_ranges is not asyn.AsyncFileSystem._cat_ranges:  # it may merge them
        return False
    tally.servers = tally.servers or Servers(tally, transferred=False, of_xrootd=False)
    return True


class HandleShadow(Shadow):
    """`_open` of the cache of handles: opens a file, or gives a handle that is open."""

    __slots__ = ()

    async def __call__(self, *args: Any, **kwargs: Any) -> Any:
        tally, began, held = self.tally, perf_counter(), []
        try:
            held = [item.handle for item in self.original.__self__._cache.values()]
        except Exception as problem:
            tally.miss("requests to the server", problem, *OF_SERVERS)
        handle = await self.original(*args, **kwargs)
        seconds = perf_counter() - began
        try:
            if any(handle is known for known in held):
                tally.servers.watch(handle)
            else:
                tally.servers.opened(handle, seconds)
        except Exception as problem:
            tally.miss("requests to the server", problem, *OF_SERVERS)
        return handle


class RequestShadow(Shadow):
    """`read` of an XRootD file."""

    __slots__ = ()
    vector = False
    callback_at = 3
    """Place of the callback among the arguments."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given, place = [*args], self.callback_at
        began, early = perf_counter(), not self.tally.in_process
        callback = given[place] if len(given) > place else kwargs.get("callback")
        if callback is None:
            answer = self.original(*args, **kwargs)
            self.note(began, early, answer)
            return answer
        ours = partial(_answer, self, began, early, callback)
        if len(given) > place:
            given[place] = ours
        else:
            kwargs["callback"] = ours
        return self.original(*given, **kwargs)

    def note(self, began: float, early: bool, answer: Sequence[Any]) -> None:
        """Count an answer; an error is none."""
        seconds, tally = perf_counter() - began, self.tally
        try:
            status, response = answer
            if status.ok:
                size = sum([chunk.length for chunk in response.chunks]) if self.vector else len(response)
                tally.servers.answered(seconds, size, vector=self.vector, early=early)
        except Exception as problem:
            tally.miss("requests to the server", problem, *OF_SERVERS, "bytes_transferred")


class VectorShadow(RequestShadow):
    """`vector_read` of an XRootD file."""

    __slots__ = ()
    vector = True
    callback_at = 2


def _answer(shadow: RequestShadow, began: float, early: bool, callback: Action, *args: Any) -> Any:
    """What the user of a file is told by XRootD's client when an answer has come."""
    shadow.note(began, early, args[:2])
    return callback(*args)


class CloseShadow(Shadow):
    """`close` of an XRootD file."""

    __slots__ = ()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            self.tally.servers.closes(self.original.__self__)
        except Exception as problem:
            self.tally.miss("the server of the file", problem, "endpoint")
        return self.original(*args, **kwargs)


OPTION: Final = "roastcoffea"
"""Option for `uproot.open` that leads to the tally."""


def watched_source() -> type:
    """Class for uproot's option `handler`: it creates the source that uproot would create, and shows it to the
    tally."""
    from uproot._util import file_path_to_source_class
    from uproot.source.chunk import Source

    class WatchedSource(Source):  # type: ignore[misc]
        def __new__(cls, file_path: Any, **options: Any) -> Any:
            tally: Tally = options.pop(OPTION)
            options["handler"] = tally.handler
            kind, path = file_path_to_source_class(file_path, options)
            began = perf_counter()
            try:
                source = kind(path, **options)
            except BaseException:
                # nothing was requested from it
                tally.kinds.append(kind.__name__)
                tally.requested_at_end = tally.requested_at_end or 0
                raise
            watch_source(tally, source, perf_counter() - began)
            return source

    return WatchedSource


def watch_source(tally: Tally, source: Any, seconds: float = 0.0) -> None:
    """Meter a source that took this many seconds to open for this attempt."""
    tally.sources.append(source)
    try:
        tally.shadow(source, "chunk", ChunkShadow)
        tally.shadow(source, "chunks", ChunksShadow)
    except Exception as problem:
        tally.miss("waiting for storage", problem, *WAITED)
    tally.kinds.append(type(source).__name__)
    try:
        system = getattr(source, "_fs", None)
        caching = sys.modules.get("fsspec.implementations.cached")
        if system is None and watch_own(tally, source, seconds):
            return
        if system is None or (caching is not None and isinstance(system, caching.CachingFileSystem)):
            tally.transferred = None
        else:
            tally.kinds[-1] += f"({type(system).__name__})"
            counted = CountedFileSystem(system, tally, asks=watch_requests(tally, system))
            tally.change(source, "_fs", counted, system)
    except Exception as problem:
        tally.miss("bytes transferred", problem, "bytes_transferred")


class ChunkShadow(Shadow):
    """`chunk` of an uproot source."""

    __slots__ = ()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        tally = self.tally
        if not tally.in_process:
            return self.original(*args, **kwargs)
        here = tally.places[get_ident()]
        if here.in_chunks:
            return self.original(*args, **kwargs)
        tally.asked.append((args,))
        if here.pages is None and len(args) > 1:
            # also where it fails: the source has counted it
            tally.late_metadata += args[1] - args[0]
        chunk = tally.read_apart(tally.waiting, self.original, *args, **kwargs)
        try:
            if type(chunk.future).__name__ != "TrivialFuture":
                chunk.wait = partial(_wait, tally, weakref.ref(chunk))
        except Exception as problem:
            tally.miss("waiting for storage", problem, *WAITED)
        return chunk


def _wait(tally: Tally, chunk: Callable[[], Any], *args: Any, **kwargs: Any) -> Any:
    """`wait` of an uproot chunk."""
    found = chunk()
    try:
        return tally.waiting(type(found).wait, found, *args, **kwargs)
    finally:
        # everything has arrived; each number read from it would ask again
        found.__dict__.pop("wait", None)


class ChunksShadow(Shadow):
    """`chunks` of an uproot source, used for baskets, or for pages of an RNTuple."""

    __slots__ = ("read",)

    def __init__(self, original: Any, tally: Tally) -> None:
        super().__init__(original, tally)
        source = getattr(original, "__self__", None)
        # the thread that requests baskets reads nothing itself that the system counts
        in_threads = type(source).__name__ in {"MemmapSource", "FSSpecSource", "XRootDSource"} or (
            type(source).__module__.startswith("uproot.") and getattr(source, "num_workers", 0) > 0
        )
        self.read = original if in_threads else partial(tally.read_apart, original)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        tally, thread = self.tally, get_ident()
        tally.stepping = None
        if not (tally.in_process or tally.preloads):
            tally.note_begun(thread, tally.places[thread])
            tally.steps.extend((ASKED, thread, None, 0, 0, None, thread_time(), None))
            return self.original(*args, **kwargs)
        here = tally.places[thread]
        here.in_chunks = True
        tally.asked.extend(args[:1])
        try:
            if len(tally.steps) > MOST_VALUES:
                tally.add_up()
            if here.begun:
                tally.note_begun(thread, here)
            if tally.in_line:
                ranges = args[0] if args else None
                baskets = len(ranges) if type(ranges) is list else 0
                wall, cpu = perf_counter() if baskets else None, thread_time()
                if wall is not None and here.own:
                    tally.waits(wall - cpu)
                if baskets == 1:
                    here.begun += (WHOLE, thread, cpu, wall)
                else:
                    tally.steps.extend((ASKED, thread, None, baskets, 0, None, cpu, wall))
                return self.read(*args, **kwargs)
            tally.steps.extend((ASKED, thread, None, 0, 0, None, thread_time(), None))
            queues = [each for each in (*args, *kwargs.values()) if type(each) is Queue]
            if not queues:
                tally.miss("waiting for storage", "uproot passes no queue to its source", *WAITED)
            for notifications in queues:
                got = partial(_got, tally, notifications.queue, weakref.ref(notifications))
                notifications.get = got  # type: ignore[method-assign]
            return tally.waiting(self.read, *args, **kwargs)
        finally:
            here.in_chunks = False


def _got(tally: Tally, there: Any, notifications: Callable[[], Any], *args: Any, **kwargs: Any) -> Any:
    """`get` of a queue, metered only if the queue is empty: otherwise no time passes."""
    if there:
        return Queue.get(notifications(), *args, **kwargs)
    return tally.waiting(Queue.get, notifications(), *args, **kwargs)


class CountedFileSystem(StandIn):
    """An fsspec file system for one uproot source that counts received bytes, and requests if each range is one."""

    __slots__ = ("_asks", "_tally", "received")

    def __init__(self, system: Any, tally: Tally, *, asks: bool = False) -> None:
        self._inner = system
        self._tally = tally
        self._asks = asks
        self.received = 0

    def cat_file(self, *args: Any, **kwargs: Any) -> Any:
        early, began = not self._tally.in_process, perf_counter()
        data = self._receiving(self._inner.cat_file, *args, **kwargs)
        if self._asks:
            self._answered(began, early)
        return data

    async def _cat_file(self, *args: Any, **kwargs: Any) -> Any:
        """One of the ranges of `_cat_ranges`."""
        early, began = not self._tally.in_process, perf_counter()
        data = await self._inner._cat_file(*args, **kwargs)
        self._answered(began, early)
        return data

    def _answered(self, began: float, early: bool) -> None:
        servers = self._tally.servers  # None once the attempt has ended
        if servers is not None:
            servers.answered(perf_counter() - began, early=early)

    def cat_ranges(self, *args: Any, **kwargs: Any) -> Any:
        return self._receiving(self._inner.cat_ranges, *args, **kwargs)

    async def _cat_ranges(self, *args: Any, **kwargs: Any) -> Any:
        if self._asks:  # it reads each range with `_cat_file`: let that be ours
            return self._received(await type(self._inner)._cat_ranges(self, *args, **kwargs))
        return self._received(await self._inner._cat_ranges(*args, **kwargs))

    def _receiving(self, read: Action, *args: Any, **kwargs: Any) -> Any:
        """Result of a read by the file system, which may run in another thread."""
        if self._tally.places[get_ident()].own:
            return self._received(read(*args, **kwargs))
        began = thread_time()
        data = read(*args, **kwargs)
        return self._received(data, thread_time() - began)

    def _received(self, data: Any, helper_cpu: float = 0.0) -> Any:
        tally = self._tally
        with tally.lock:
            tally.helper_cpu += helper_cpu
            try:
                if tally.transferred is not None:
                    pieces = [data] if isinstance(data, (bytes, bytearray, memoryview)) else data
                    size = sum([len(piece) for piece in pieces if not isinstance(piece, BaseException)])
                    self.received += size
                    tally.transferred += size
            except Exception as problem:
                tally.miss("bytes transferred", problem, "bytes_transferred")
        return data
