"""Metering of uproot sources and servers: requests, bytes and waits."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from queue import Queue
from threading import get_ident
from time import perf_counter, thread_time
from typing import Any, Final

from roastcoffea.instrument.meter.tally import MOST_VALUES, WAITED, Shadow, StandIn, Tally
from roastcoffea.instrument.shared import Action, Row

OF_SERVERS: Final = (
    *("endpoint", "left_endpoint", "opens", "connect_seconds"),
    *("requests", "vector_reads", "request_seconds", "shortest_request_seconds"),
)
"""Columns that are unknown if a file's requests could not be metered."""


class Servers:
    """Counts an attempt's requests to servers.

    Responses arrive on the XRootD client's threads or in fsspec's event loop.
    """

    def __init__(self, *, transferred: bool, of_xrootd: bool = True) -> None:
        self.transferred = transferred
        """Whether response sizes count as transferred bytes."""
        self.lock = threading.RLock()  # reentrant: a signal handler or finalizer may close a file under the lock
        self._files: list[Any] = []
        self.columns: Row = dict.fromkeys(OF_SERVERS) | {"requests": 0, "request_seconds": 0.0}
        self.columns |= {"metadata_requests": 0, "metadata_request_seconds": 0.0}
        if of_xrootd:
            self.columns |= {"opens": 0, "connect_seconds": 0.0, "vector_reads": 0}

    def watch(self, tally: Tally, file: Any, seconds: float | None = None) -> None:
        """Meter a file's requests. For a file that was just opened, `seconds` is the time taken to open it."""
        if seconds is not None:
            with self.lock:
                self.columns["opens"] += 1
                self.columns["connect_seconds"] += seconds
        if not any(file is known for known in self._files):
            self._files.append(file)
            self.locate(file)
            for method, shadow in (("read", RequestShadow), ("vector_read", VectorShadow), ("close", CloseShadow)):
                tally.shadow(file, method, shadow)

    def locate(self, file: Any) -> None:
        """Record the server that has the file, behind any redirectors.

        The XRootD client switches to another server if it loses one. The endpoint is the server's host name, with the
        port if it is not the default port, and without credentials.
        """
        place = file.get_property("DataServer").rpartition("://")[2].partition("/")[0].rpartition("@")[2]
        if endpoint := place.removesuffix(":1094"):
            with self.lock:
                if self.columns["endpoint"] not in {None, endpoint}:
                    self.columns["left_endpoint"] = self.columns["endpoint"]
                self.columns["endpoint"] = endpoint

    def closes(self, file: Any) -> None:
        """Record a file's server just before the file is closed."""
        self.locate(file)
        self._files = [known for known in self._files if known is not file]

    def answered(self, seconds: float, *, early: bool, vector: bool = False) -> None:
        columns = self.columns
        with self.lock:
            for name in ("metadata_request", "request") if early else ("request",):
                columns[f"{name}s"] += 1
                columns[f"{name}_seconds"] += seconds
            columns["shortest_request_seconds"] = min(columns["shortest_request_seconds"] or seconds, seconds)
            if vector:
                columns["vector_reads"] += 1

    def settle(self) -> None:
        for file in self._files:
            self.locate(file)


def watch_own(tally: Tally, source: Any, seconds: float) -> bool:
    """Meter a source that uses XRootD without fsspec. Return False for any other source.

    `seconds` is the time taken to create the source, which opens its files.
    """
    executor = getattr(source, "_executor", None)
    # the resource may be shared, belong to each thread, or belong to the source's own thread
    own = getattr(source, "_resource", None) or getattr(executor, "_resource", None)
    resources = [worker.resource for worker in getattr(executor, "workers", ())] if own is None else [own]
    files = [each.file for each in resources if "XRootDResource" in [kind.__name__ for kind in type(each).__mro__]]
    if files:
        tally.servers = tally.servers or Servers(transferred=True)
    for file in files:
        tally.servers.watch(tally, file, seconds / len(files))
    return bool(files)


def watch_requests(tally: Tally, system: Any) -> Servers | None:
    """Return a request counter if the file system sends a separate request for each range.

    The file systems for HTTP and S3 do so. For fsspec-xrootd, the file handles are metered instead.
    """
    asyn = sys.modules.get("fsspec.asyn")
    if getattr(system, "protocol", None) == "root":
        try:
            handles = system._readonly_filehandle_cache
            tally.servers = tally.servers or Servers(transferred=False)
            tally.shadow(handles, "_open", HandleShadow)
        except Exception as problem:
            tally.servers = None
            tally.miss("requests to the server", problem, *OF_SERVERS)
        return None
    if asyn is None or not isinstance(system, asyn.AsyncFileSystem):
        return None
    if type(system)._cat_ranges is not asyn.AsyncFileSystem._cat_ranges:  # this file system may merge ranges
        return None
    servers: Servers = tally.servers or Servers(transferred=False, of_xrootd=False)
    tally.servers = servers
    return servers


class HandleShadow(Shadow):
    """Wrapper for the handle cache's `_open`, which opens a file or returns an open handle."""

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
            is_new = not any(handle is known for known in held)
            tally.servers.watch(tally, handle, seconds if is_new else None)
        except Exception as problem:
            tally.miss("requests to the server", problem, *OF_SERVERS)
        return handle


class RequestShadow(Shadow):
    """Wrapper for an XRootD file's `read`."""

    __slots__ = ()
    vector = False
    callback_at = 3

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
        """Count a response unless it is an error."""
        seconds, tally = perf_counter() - began, self.tally
        try:
            status, response = answer
            if status.ok:
                tally.servers.answered(seconds, vector=self.vector, early=early)
                if tally.servers.transferred:
                    size = sum([chunk.length for chunk in response.chunks]) if self.vector else len(response)
                    tally.received(size)
        except Exception as problem:
            tally.miss("requests to the server", problem, *OF_SERVERS, "bytes_transferred")


class VectorShadow(RequestShadow):
    __slots__ = ()
    vector = True
    callback_at = 2


def _answer(shadow: RequestShadow, began: float, early: bool, callback: Action, *args: Any) -> Any:
    """Callback for responses from the XRootD client, which calls the original callback."""
    shadow.note(began, early, args[:2])
    return callback(*args)


class CloseShadow(Shadow):
    __slots__ = ()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            self.tally.servers.closes(self.original.__self__)
        except Exception as problem:
            self.tally.miss("the file's server", problem, "endpoint")
        return self.original(*args, **kwargs)


OPTION: Final = "roastcoffea"
"""Option for `uproot.open` that contains the tally."""


def watched_source() -> type:
    """Create a source class for uproot's `handler` option.

    The class creates the source that uproot would otherwise use, and registers the source with the tally.
    """
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
                # nothing was requested from this source
                tally.kinds.append(kind.__name__)
                tally.requested_at_end = tally.requested_at_end or 0
                raise
            watch_source(tally, source, perf_counter() - began)
            return source

    return WatchedSource


def watch_source(tally: Tally, source: Any, seconds: float = 0.0) -> None:
    """Meter a source. `seconds` is the time that this attempt took to open it."""
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
            counted = CountedFileSystem(system, tally, watch_requests(tally, system))
            tally.change(source, "_fs", counted, system)
    except Exception as problem:
        tally.miss("bytes transferred", problem, "bytes_transferred")


class ChunkShadow(Shadow):
    """Wrapper for an uproot source's `chunk`."""

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
            # included even if the read fails, because the source has already counted the bytes
            tally.late_metadata += args[1] - args[0]
        chunk = tally.read_apart(tally.waiting, self.original, *args, **kwargs)
        try:
            if type(chunk.future).__name__ != "TrivialFuture":
                chunk.wait = partial(_wait, tally, weakref.ref(chunk))
        except Exception as problem:
            tally.miss("waiting for storage", problem, *WAITED)
        return chunk


def _wait(tally: Tally, chunk: Callable[[], Any], *args: Any, **kwargs: Any) -> Any:
    """Wrapper for an uproot chunk's `wait`."""
    found = chunk()
    try:
        return tally.waiting(type(found).wait, found, *args, **kwargs)
    finally:
        # all data have arrived, so later reads from the chunk need not check again
        found.__dict__.pop("wait", None)


class ChunksShadow(Shadow):
    """Wrapper for an uproot source's `chunks`, used for baskets and RNTuple pages."""

    __slots__ = ("read",)

    def __init__(self, original: Any, tally: Tally) -> None:
        super().__init__(original, tally)
        source = getattr(original, "__self__", None)
        # with these sources, the system counts no reads for the thread that requests baskets
        in_threads = type(source).__name__ in {"MemmapSource", "FSSpecSource", "XRootDSource"} or (
            type(source).__module__.startswith("uproot.") and getattr(source, "num_workers", 0) > 0
        )
        self.read = original if in_threads else partial(tally.read_apart, original)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        tally, thread = self.tally, get_ident()
        here = tally.places[thread]
        here.steps = False
        if tally.in_line:
            wall, cpu = perf_counter(), thread_time()
            if here.own:
                tally.waits(wall - cpu)
            if here.begun:
                tally.settle(thread, here, cpu, wall)
            here.cpu, here.wall, here.delay = cpu, wall, 0.0
        if not (tally.in_process or tally.preloads):
            return self.original(*args, **kwargs)
        here.in_chunks = True
        tally.asked.extend(args[:1])
        try:
            if len(tally.steps) > MOST_VALUES:
                tally.add_up()
            if tally.in_line:
                return self.read(*args, **kwargs)
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
    """Wrapper for a queue's `get`; a call is metered only if it has to wait."""
    if there:
        return Queue.get(notifications(), *args, **kwargs)
    return tally.waiting(Queue.get, notifications(), *args, **kwargs)


class CountedFileSystem(StandIn):
    """Wrapper for an uproot source's fsspec file system that counts requests and received bytes.

    Requests are counted only if the file system sends a separate request for each range.
    """

    __slots__ = ("_asks", "_tally", "received")

    def __init__(self, system: Any, tally: Tally, asks: Servers | None = None) -> None:
        self._inner = system
        self._tally = tally
        self._asks = asks
        self.received = 0

    def cat_file(self, *args: Any, **kwargs: Any) -> Any:
        early, began = not self._tally.in_process, perf_counter()
        data = self._receiving(self._inner.cat_file, *args, **kwargs)
        if self._asks:
            self._asks.answered(perf_counter() - began, early=early)
        return data

    async def _cat_file(self, *args: Any, **kwargs: Any) -> Any:
        """Read one of the ranges passed to `_cat_ranges`."""
        early, began = not self._tally.in_process, perf_counter()
        data = await self._inner._cat_file(*args, **kwargs)
        if self._asks:
            self._asks.answered(perf_counter() - began, early=early)
        return data

    def cat_ranges(self, *args: Any, **kwargs: Any) -> Any:
        return self._receiving(self._inner.cat_ranges, *args, **kwargs)

    async def _cat_ranges(self, *args: Any, **kwargs: Any) -> Any:
        if self._asks:  # fsspec reads each range with `_cat_file`, which must be our override
            return self._received(await type(self._inner)._cat_ranges(self, *args, **kwargs))
        return self._received(await self._inner._cat_ranges(*args, **kwargs))

    def _receiving(self, read: Action, *args: Any, **kwargs: Any) -> Any:
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
                pieces = [data] if isinstance(data, (bytes, bytearray, memoryview)) else data
                size = sum([len(piece) for piece in pieces if not isinstance(piece, BaseException)])
                self.received += size
                tally.received(size)
            except Exception as problem:
                tally.miss("bytes transferred", problem, "bytes_transferred")
        return data
