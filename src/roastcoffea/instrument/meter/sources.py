"""uproot's sources: requested and transferred bytes, and waiting for them."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from functools import partial
from queue import Queue
from threading import get_ident
from time import perf_counter, thread_time
from typing import Any, Final

from roastcoffea.instrument.meter.servers import watch_handles, watch_own, watch_requests
from roastcoffea.instrument.meter.steps import ASKED, MOST_VALUES, WHOLE
from roastcoffea.instrument.meter.tally import WAITED, Shadow, StandIn, Tally
from roastcoffea.interrupts import raise_if_interrupted

OPTION: Final = "roastcoffea"
"""Option for `uproot.open` that leads to the tally."""


def watched_source() -> type:
    """Class for uproot's option `handler`: it creates the source that uproot would create, and shows it to the
    tally."""
    from uproot._util import file_path_to_source_class
    from uproot.source.chunk import Source

    class Watched(Source):  # type: ignore[misc]
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

    return Watched


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
            asks = watch_requests(tally, system)
            tally.change(source, "_fs", CountedFileSystem(system, tally, asks=asks), system)
            watch_handles(tally, system)
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


IN_OTHER_THREADS: Final = {"MemmapSource", "FSSpecSource", "XRootDSource"}
"""Sources by which the thread that requests baskets reads nothing itself that the system counts."""


class ChunksShadow(Shadow):
    """`chunks` of an uproot source, used for baskets, or for pages of an RNTuple."""

    __slots__ = ("read",)

    def __init__(self, original: Any, tally: Tally) -> None:
        super().__init__(original, tally)
        in_threads = type(getattr(original, "__self__", None)).__name__ in IN_OTHER_THREADS
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
            servers.answered(perf_counter() - began, 0, vector=False, early=early)

    def cat_ranges(self, *args: Any, **kwargs: Any) -> Any:
        return self._receiving(self._inner.cat_ranges, *args, **kwargs)

    async def _cat_ranges(self, *args: Any, **kwargs: Any) -> Any:
        if self._asks:  # it reads each range with `_cat_file`: let that be ours
            return self._received(await type(self._inner)._cat_ranges(self, *args, **kwargs))
        return self._received(await self._inner._cat_ranges(*args, **kwargs))

    def _receiving(self, read: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
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
                    size = _size(data)
                    self.received += size
                    tally.transferred += size
            except Exception as problem:
                tally.miss("bytes transferred", problem, "bytes_transferred")
        return data


def _size(data: Any) -> int:
    pieces = [data] if isinstance(data, (bytes, bytearray, memoryview)) else data
    try:
        return sum(map(len, pieces))
    except TypeError as error:
        raise_if_interrupted(error)
        return sum(len(piece) for piece in pieces if not isinstance(piece, BaseException))
