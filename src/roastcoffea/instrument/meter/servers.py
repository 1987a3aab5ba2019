"""Servers that a file is read from: who answers, opens, requests, latencies and bytes.

With HTTP and S3 each range is a request of an asynchronous file system of fsspec, which `sources.py` counts.

With XRootD every request goes through an `XRootD.client.File`: that of uproot's own sources, or the one in the cache of
handles of fsspec-xrootd. Its methods are shadowed for the attempt. The library is never imported here: an analysis that
does not use it need not have it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import Any, Final

from roastcoffea.instrument.meter.tally import Shadow, Tally

PROPERTY: Final = "DataServer"
"""Property of an open file: the server that it was opened at, behind all redirectors."""

DEFAULT_PORT: Final = ":1094"

OF_REQUESTS: Final = ("requests", "vector_reads", "request_seconds", "shortest_request_seconds")
OF_SERVERS: Final = ("endpoint", "left_endpoint", "opens", "connect_seconds", *OF_REQUESTS)
"""Columns of an opening's record that are unknown where the file could not be watched."""


class Servers:
    """What an attempt asked servers for. Answers come in threads of XRootD's client, or in the event loop of fsspec."""

    def __init__(self, tally: Tally, *, transferred: bool, of_xrootd: bool = True) -> None:
        self._tally = tally
        self._of_xrootd = of_xrootd
        self._transferred = transferred
        self._files: list[Any] = []
        self._endpoint: str | None = None
        self._left: str | None = None
        self._opens = 0
        self._connect = 0.0
        self._requests = self._vectors = self._early = 0
        self._seconds = self._early_seconds = 0.0
        self._shortest: float | None = None

    def opened(self, file: Any, seconds: float) -> None:
        """Learn that a file was opened, and how long that took."""
        with self._tally.lock:
            self._opens += 1
            self._connect += seconds
        self.watch(file)

    def watch(self, file: Any) -> None:
        """Meter the requests of an open file; a file that is watched already is left as it is."""
        if not any(file is known for known in self._files):
            self._files.append(file)
            self.locate(file)
            for method, shadow in SHADOWS.items():
                self._tally.shadow(file, method, shadow)

    def locate(self, file: Any) -> None:
        """Learn which server has the file: XRootD's client goes to another one where the first is lost."""
        endpoint = _host(file.get_property(PROPERTY))
        if endpoint is None:
            return
        with self._tally.lock:
            if self._endpoint not in {None, endpoint}:
                self._left = self._endpoint
            self._endpoint = endpoint

    def closes(self, file: Any) -> None:
        """Learn that a file will be closed."""
        self.locate(file)
        self._files = [known for known in self._files if known is not file]

    def answered(self, seconds: float, size: int, *, vector: bool, early: bool) -> None:
        """Count a request that was answered."""
        tally = self._tally
        with tally.lock:
            self._requests += 1
            self._vectors += vector
            self._seconds += seconds
            self._shortest = seconds if self._shortest is None else min(self._shortest, seconds)
            if early:
                self._early += 1
                self._early_seconds += seconds
            if self._transferred and tally.transferred is not None:
                tally.transferred += size

    def columns(self) -> dict[str, Any]:
        """Columns of the opening's record."""
        return {
            "endpoint": self._endpoint,
            "left_endpoint": self._left,
            "opens": self._opens if self._of_xrootd else None,
            "connect_seconds": self._connect if self._of_xrootd else None,
            "requests": self._requests,
            "vector_reads": self._vectors if self._of_xrootd else None,
            "request_seconds": self._seconds,
            "shortest_request_seconds": self._shortest,
            "metadata_requests": self._early,
            "metadata_request_seconds": self._early_seconds,
        }

    def settle(self) -> None:
        """Learn which servers have the files that are still open."""
        for file in self._files:
            self.locate(file)


def watch_own(tally: Tally, source: Any, seconds: float) -> bool:
    """Meter a source of uproot's own that reads through XRootD; False for any other one.

    `seconds` is how long it took to make the source, which opens its files.
    """
    files = [resource.file for resource in _resources(source) if _is_of_xrootd(resource)]
    if not files:
        return False
    tally.servers = servers = tally.servers or Servers(tally, transferred=True)
    for file in files:
        servers.opened(file, seconds / len(files))
    return True


def _resources(source: Any) -> list[Any]:
    """What a source reads from: one resource, one for each of its threads, or one for its own thread."""
    executor = getattr(source, "_executor", None)
    own = getattr(source, "_resource", None) or getattr(executor, "_resource", None)
    return [own] if own is not None else [worker.resource for worker in getattr(executor, "workers", ())]


def _is_of_xrootd(resource: Any) -> bool:
    return any(kind.__name__ == "XRootDResource" for kind in type(resource).__mro__)


def watch_requests(tally: Tally, system: Any) -> bool:
    """Whether each range that is read from this file system is a request that can be counted, as for HTTP and S3."""
    protocols, asyn = getattr(system, "protocol", None), sys.modules.get("fsspec.asyn")
    if protocols == "root" or asyn is None or not isinstance(system, asyn.AsyncFileSystem):
        return False
    if type(system)._cat_ranges is not asyn.AsyncFileSystem._cat_ranges:  # it may merge them
        return False
    tally.servers = tally.servers or Servers(tally, transferred=False, of_xrootd=False)
    return True


def watch_handles(tally: Tally, system: Any) -> None:
    """Meter the handles that the file system of fsspec-xrootd keeps."""
    if getattr(system, "protocol", None) != "root":
        return
    try:
        handles = system._readonly_filehandle_cache
        tally.servers = tally.servers or Servers(tally, transferred=False)
        tally.shadow(handles, "_open", HandleShadow)
    except Exception as problem:
        tally.servers = None
        tally.miss("requests to the server", problem, *OF_SERVERS)


class HandleShadow(Shadow):
    """`_open` of the cache of handles: opens a file, or gives a handle that is open."""

    __slots__ = ()

    async def __call__(self, *args: Any, **kwargs: Any) -> Any:
        began, before = perf_counter(), self._held()
        handle = await self.original(*args, **kwargs)
        seconds = perf_counter() - began
        try:
            servers = self.tally.servers
            if not any(handle is known for known in before):
                servers.opened(handle, seconds)
            else:
                servers.watch(handle)
        except Exception as problem:
            self.tally.miss("requests to the server", problem, *OF_SERVERS)
        return handle

    def _held(self) -> list[Any]:
        """Handles that were open before."""
        try:
            return [item.handle for item in self.original.__self__._cache.values()]
        except Exception as problem:
            self.tally.miss("requests to the server", problem, *OF_SERVERS)
            return []


class RequestShadow(Shadow):
    """`read` of an XRootD file."""

    __slots__ = ()
    vector = False
    callback_at = 3
    """Place of the callback among the arguments."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        tally, given = self.tally, [*args]
        early, began = not tally.in_process, perf_counter()
        callback = given[self.callback_at] if len(given) > self.callback_at else kwargs.get("callback")
        if callback is None:
            answer = self.original(*args, **kwargs)
            self.note(began, early, answer)
            return answer
        ours = partial(_answer, self, began, early, callback)
        if len(given) > self.callback_at:
            given[self.callback_at] = ours
        else:
            kwargs["callback"] = ours
        return self.original(*given, **kwargs)

    def note(self, began: float, early: bool, answer: Sequence[Any]) -> None:
        """Count an answer; an error is none."""
        seconds, tally = perf_counter() - began, self.tally
        try:
            status, response = answer
            if status.ok:
                tally.servers.answered(seconds, self.size(response), vector=self.vector, early=early)
        except Exception as problem:
            tally.miss("requests to the server", problem, *OF_SERVERS, "bytes_transferred")

    def size(self, response: Any) -> int:
        """Bytes of an answer."""
        return len(response)


class VectorShadow(RequestShadow):
    """`vector_read` of an XRootD file."""

    __slots__ = ()
    vector = True
    callback_at = 2

    def size(self, response: Any) -> int:
        return sum([chunk.length for chunk in response.chunks])


def _answer(shadow: RequestShadow, began: float, early: bool, callback: Callable[..., Any], *args: Any) -> Any:
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


SHADOWS: Final = {"read": RequestShadow, "vector_read": VectorShadow, "close": CloseShadow}


def _host(place: str) -> str | None:
    """Host of what XRootD's client calls a server, with a port that is not the usual one and no credentials."""
    return place.rpartition("://")[2].partition("/")[0].rpartition("@")[2].removesuffix(DEFAULT_PORT) or None
