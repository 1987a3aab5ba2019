"""What is counted of requests to XRootD servers, with stand-ins for its client."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from roastcoffea.instrument.meter.formats import Meter
from roastcoffea.instrument.meter.servers import watch_source

GOOD, BAD = SimpleNamespace(ok=True), SimpleNamespace(ok=False)


class File:
    """A file as XRootD's client has it: answers come at once, or through a callback."""

    def __init__(self, server: str = "root://user@data-1:1094/") -> None:
        self.server = server
        self.status: Any = GOOD
        self.closed = False

    def get_property(self, name: str) -> str:
        assert name == "DataServer"
        return self.server

    def read(self, offset: int = 0, size: int = 0, timeout: int = 0, callback: Any = None) -> Any:
        return self._answer(bytes(size), callback)

    def vector_read(self, chunks: Any, timeout: int = 0, callback: Any = None) -> Any:
        parts = [SimpleNamespace(offset=offset, length=length) for offset, length in chunks]
        return self._answer(SimpleNamespace(chunks=parts), callback)

    def close(self, timeout: int = 0) -> None:
        self.closed = True

    def _answer(self, response: Any, callback: Callable[..., Any] | None) -> Any:
        if callback is None:
            return self.status, response if self.status.ok else None
        callback(self.status, response if self.status.ok else None, [])
        return GOOD


class XRootDResource:
    """A resource of uproot's, by its name."""

    def __init__(self, file: File) -> None:
        self.file = file


def source_of(*files: File) -> Any:
    """A source of uproot's own: with one resource, or with one for each thread."""
    if len(files) == 1:
        return source_with(_resource=XRootDResource(*files))
    threads = [SimpleNamespace(resource=XRootDResource(file)) for file in files]
    return source_with(_executor=SimpleNamespace(workers=threads))


def source_with(**parts: Any) -> Any:
    return SimpleNamespace(chunk=None, chunks=None, num_requested_bytes=0, **parts)


@pytest.fixture
def meter() -> Meter:
    return Meter()


def test_requests_are_counted_by_what_they_are(meter: Meter) -> None:
    file, told = File(), []
    watch_source(meter, source_of(file), 0.25)
    assert file.read(0, 100) == (GOOD, bytes(100))
    meter.in_process = True
    file.vector_read([(0, 10), (50, 20)], timeout=5, callback=lambda *answer: told.append(answer))
    file.read(0, 7, 0, lambda *answer: told.append(answer))
    assert [answer[0] for answer in told] == [GOOD, GOOD]
    columns = meter.server_columns()
    assert {name: columns[name] for name in ("endpoint", "left_endpoint", "opens", "connect_seconds")} == {
        "endpoint": "data-1",
        "left_endpoint": None,
        "opens": 1,
        "connect_seconds": 0.25,
    }
    assert (columns["requests"], columns["vector_reads"], columns["metadata_requests"]) == (3, 1, 1)
    assert 0 < columns["shortest_request_seconds"] <= columns["metadata_request_seconds"] <= columns["request_seconds"]
    assert meter.transferred == 137
    assert meter.problems == ()


def test_nothing_is_left_on_a_file_when_the_attempt_has_ended(meter: Meter) -> None:
    file = File()
    before = dict(vars(file))
    watch_source(meter, source_of(file))
    assert {"read", "vector_read", "close"} < vars(file).keys()
    meter.close()
    assert vars(file) == before
    file.read(0, 100)
    assert meter.server_columns()["requests"] == 0


def test_no_attempt_waits_for_the_garbage_collector() -> None:
    meter, file = Meter(), File()
    watch_source(meter, source_of(file))
    file.read(0, 100)
    gone = weakref.ref(meter)
    gc.disable()
    try:
        meter.close()
        assert meter.server_columns()["requests"] == 1
        del meter
        assert gone() is None
    finally:
        gc.enable()


def test_each_thread_of_a_source_has_its_file(meter: Meter) -> None:
    files = [File(), File()]
    watch_source(meter, source_of(*files), 0.4)
    for file in files:
        file.read(0, 50)
    columns = meter.server_columns()
    assert (columns["opens"], columns["connect_seconds"], columns["requests"]) == (2, pytest.approx(0.4), 2)
    assert meter.transferred == 100


def test_what_fails_is_no_answer_and_stays_as_it_is(meter: Meter) -> None:
    file = File()
    watch_source(meter, source_of(file))
    file.status = BAD
    assert file.read(0, 100) == (BAD, None)
    told: list[Any] = []
    file.vector_read([(0, 10)], callback=lambda *answer: told.append(answer))
    assert told == [(BAD, None, [])]
    assert (meter.server_columns()["requests"], meter.transferred) == (0, 0)
    assert meter.problems == ()


@pytest.mark.parametrize("closes", [True, False])
def test_a_server_that_was_given_up_is_known(meter: Meter, closes: bool) -> None:
    file = File("root://data-1:1095")
    watch_source(meter, source_of(file))
    file.server = "root://data-2:1095//"
    if closes:
        file.close()
        assert file.closed
        file.server = ""
    meter.close()
    columns = meter.server_columns()
    assert (columns["left_endpoint"], columns["endpoint"]) == ("data-1:1095", "data-2:1095")


class Handles:
    """The cache of handles that fsspec-xrootd keeps."""

    def __init__(self) -> None:
        self._cache: dict[str, Any] = {}

    def read(self, url: str) -> None:
        """Read as fsspec-xrootd does."""
        asyncio.run(self._open(url, 0)).read(0, 10)

    async def _open(self, url: str, timeout: int) -> File:
        if url not in self._cache:
            if url == "none":
                raise OSError("no such file")
            self._cache[url] = SimpleNamespace(handle=File())
        handle: File = self._cache[url].handle
        return handle


def test_handles_of_fsspec_are_opened_once(meter: Meter) -> None:
    handles = Handles()
    source = source_with(_fs=SimpleNamespace(protocol="root", _readonly_filehandle_cache=handles))
    watch_source(meter, source)
    handles.read("a")
    handles.read("a")
    columns = meter.server_columns()
    assert (columns["opens"], columns["requests"], columns["endpoint"]) == (1, 2, "data-1")
    assert meter.transferred == 0  # the file system itself counts what came
    with pytest.raises(OSError, match="no such file"):
        handles.read("none")
    meter.close()
    assert "_open" not in vars(handles)
    again = Meter()
    watch_source(again, source)
    handles.read("a")
    columns = again.server_columns()
    assert (columns["opens"], columns["requests"], columns["endpoint"]) == (0, 1, "data-1")


def test_a_client_that_is_another_one_is_reported_and_read(meter: Meter) -> None:
    file = File()
    file.get_property = None  # type: ignore[assignment,method-assign]
    watch_source(meter, source_of(file))
    assert file.read(0, 10) == (GOOD, bytes(10))
    assert meter.transferred is None or meter.transferred == 0
    assert "could not be metered" in meter.problems[0]
