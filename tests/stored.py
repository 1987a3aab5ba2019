"""Files whose baskets are known, read with and without a collector, and storage that counts what is asked of it."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import awkward as ak
import numpy as np
import pytest
import uproot
from coffea.nanoevents import BaseSchema
from coffea.processor import IterativeExecutor, ProcessorABC, Runner
from coffea.processor.executor import WorkItem
from fsspec.implementations.local import LocalFileSystem
from releases import READS_ON

from roastcoffea import MetricsCollector, track_time
from roastcoffea.instrument.track import OpenChunk
from roastcoffea.measurement import Measurement

REFUSED = "refused.root"
"""A file that the server gives to nobody."""
CUT = 0


class CountingServer(ThreadingHTTPServer):
    """Serves ranges of the files in a folder, each answer after a latency, and counts the bytes that it sends.

    The query of a URL makes no difference, but that it is repeated in the answer to who asks for `REFUSED`.
    An answer takes as long as `rate` (bytes per second) asks for, and by file `delays` seconds more. `refusals` has, by
    file, the statuses with which its next requests for content are refused; `CUT` closes the connection in the middle
    of the answer.
    """

    daemon_threads = True

    def __init__(self, folder: Path, latency: float = 0.0, rate: float = float("inf")) -> None:
        super().__init__(("127.0.0.1", 0), _Ranges)
        self.folder = folder
        self.latency = latency
        self.rate = rate
        self.delays: dict[str, float] = {}
        self.refusals: dict[str, list[int]] = {}
        self.sent = 0
        self.requests = 0
        self.lock = threading.Lock()

    def url(self, file: str) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/{file}"


class _Ranges(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # head and body are two packets, and the second would wait 40 ms for the receipt of the first
    disable_nagle_algorithm = True
    server: CountingServer

    def do_GET(self) -> None:
        time.sleep(self.server.latency + self.server.delays.get(self._file().name, 0.0))
        if self._file().name == REFUSED:
            self.send_error(403, f"Forbidden: {self.path}")
            return
        if refusals := self.server.refusals.get(self.path.lstrip("/")):
            self._refuse(refusals.pop(0))
            return
        data = self._file().read_bytes()
        found = re.match(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if found:
            start, stop = int(found[1]), min(int(found[2]) + 1, len(data))
            body = data[start:stop]
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(data)}")
        else:
            body = data
            self.send_response(200)
        time.sleep(len(body) / self.server.rate)
        with self.server.lock:
            self.server.sent += len(body)
            self.server.requests += 1
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _file(self) -> Path:
        return self.server.folder / self.path.partition("?")[0].lstrip("/")

    def _refuse(self, status: int) -> None:
        self.send_response(206 if status == CUT else status)
        self.send_header("Content-Length", "403" if status == CUT else "0")
        self.end_headers()
        if status == CUT:
            self.wfile.write(b"root")
            self.close_connection = True

    def do_HEAD(self) -> None:
        if self._file().name == REFUSED:
            self.send_error(403, f"Forbidden: {self.path}")
            return
        self.send_response(200)
        self.send_header("Content-Length", str(self._file().stat().st_size))
        self.send_header("Accept-Ranges", "bytes")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@contextmanager
def served(folder: Path, latency: float = 0.0, rate: float = float("inf")) -> Iterator[CountingServer]:
    """A server of a folder while the block runs."""
    server = CountingServer(folder, latency, rate)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def columns(events: int, flat: int, seed: int) -> dict[str, Any]:
    """Flat columns of a few kinds and a jagged one, as many flat ones as asked."""
    random = np.random.default_rng(seed)
    counts = random.poisson(3, events)
    made: dict[str, Any] = {
        f"f{number}": random.normal(size=events).round(number % 4).astype(np.float32) for number in range(flat)
    }
    return made | {"Jet_pt": ak.unflatten(random.exponential(30, counts.sum()).astype(np.float32), counts)}


def write_tree(path: Path, baskets: int = 4, events: int = 1000, flat: int = 6, compression: Any = None) -> Path:
    """A TTree `Events` of so many baskets a branch, with so many events each."""
    with uproot.recreate(path, compression=compression) as file:
        first = columns(events, flat, 0)
        file.mktree("Events", {name: _type(array) for name, array in first.items()})
        for number in range(baskets):
            file["Events"].extend(first if number == 0 else columns(events, flat, number))
    return path


def _type(array: Any) -> Any:
    return array.type if isinstance(array, ak.Array) else array.dtype


def write_rntuple(path: Path, clusters: int = 4, events: int = 1000, flat: int = 6) -> Path:
    """An RNTuple `Events` of so many clusters, with so many events each."""
    with uproot.recreate(path) as file:
        ntuple = file.mkrntuple("Events", ak.Array(columns(events, flat, 0)))
        for number in range(1, clusters):
            ntuple.extend(ak.Array(columns(events, flat, number)))
    return path


def write_parquet(path: Path, groups: int = 4, events: int = 1000, flat: int = 6) -> Path:
    """A Parquet file of so many row groups, with so many events each."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    tables = [
        pa.table({name: ak.to_arrow(ak.Array(array), extensionarray=False) for name, array in made.items()})
        for made in (columns(events, flat, number) for number in range(groups))
    ]
    pq.write_table(pa.concat_tables(tables), path, row_group_size=events)
    return path


@cache
def _tree(path: str | Path, tree: str = "Events") -> Any:
    return uproot.open(path)[tree]


def baskets_of(
    path: str | Path, branch: str, start: int, stop: int, tree: str = "Events"
) -> dict[int, tuple[int, int]]:
    """Baskets of a branch that hold entries of a range: {number: (compressed, uncompressed) bytes}."""
    found = _tree(path, tree)[branch]
    edges = found.entry_offsets
    return {
        number: (int(found.basket_compressed_bytes(number)), int(found.basket_uncompressed_bytes(number)))
        for number in range(found.num_baskets)
        if (edges[number] <= stop if READS_ON else edges[number] < stop) and edges[number + 1] > start
    }


def clusters_of(path: str | Path, field: str, start: int, stop: int) -> dict[int, int]:
    """Clusters of a top-level field that uproot reads for a range: {number: bytes of its pages}.

    It reads the cluster that begins where the range ends as well.
    """
    ntuple = _tree(path).ntuple
    starts = [cluster.num_first_entry for cluster in ntuple.cluster_summaries]
    ends = [*starts[1:], ntuple.num_entries]
    ours = _columns_below(ntuple, field)
    pages = ntuple.page_link_list
    return {
        number: sum(page.locator.num_bytes for column in ours for page in pages[number][column].pages)
        for number in range(len(starts))
        if starts[number] <= stop and ends[number] > start
    }


def _columns_below(ntuple: Any, field: str) -> list[int]:
    records = ntuple.field_records
    number = next(n for n, record in enumerate(records) if record.field_name == field and record.parent_field_id == n)
    below = {number}
    for other, record in enumerate(records):
        if record.parent_field_id in below:
            below.add(other)
    return [column.idx for column in ntuple.column_records if column.field_id in below]


FLAT = 12
"""Branches of one number an event in the files below."""


class Doing(ProcessorABC):
    """Gives what a function makes of the events."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = function

    def process(self, events: Any) -> list[Any]:
        return [self.function(events)]

    def postprocess(self, accumulator: Any) -> Any:
        return accumulator


def outcome(
    source: Any,
    function: Callable[[Any], Any],
    *,
    kind: str = "root",
    preload: list[str] | None = None,
    **options: Any,
) -> tuple[Any, Measurement]:
    """What the function gives, which must be the same without a collector; and a measurement of it."""
    runner = Runner(
        executor=IterativeExecutor(status=False), schema=BaseSchema, metadata_cache={}, format=kind, chunksize=10**6
    )
    fileset: Any = {"a": {"files": {str(source): "Events"}} | ({"preload": preload} if preload else {})}
    if isinstance(source, WorkItem):
        fileset = [source]
    if options:
        options = {"uproot_options": options}
    plain = runner(fileset, processor_instance=Doing(function), **options)
    runner.metadata_cache = {}
    with MetricsCollector() as collector:
        output = runner(fileset, processor_instance=Doing(function), **options)
    assert output == plain
    return output[0], collector.measurement


class Slept(list[float]):
    """Seconds that sleeps really took: on a busy host they take longer."""

    def sleep(self, seconds: float) -> None:
        began = time.perf_counter()
        time.sleep(seconds)
        self.append(time.perf_counter() - began)


WAITED = Slept()


def wait_for(seconds: float) -> None:
    """Sleep in a processor: coffea copies the processor, and with it what is defined in a test."""
    WAITED.sleep(seconds)


def is_spent_on(chunk: Any, read: list[float], waited: list[float]) -> bool:
    """Whether a chunk's reading and waiting hold these sleeps, each once, and nothing of the others.

    Between a sleep and the clock that measures it the host may do something else; it cannot take time away.
    """
    between = chunk["process_seconds"] - sum(read) - sum(waited)
    small = 0.005 * (1 + len(read) + len(waited))
    differences = chunk["read_seconds"] - sum(read), chunk["wait_seconds"] - sum(waited)
    # when it wakes up the thread may wait for a core, which is neither
    late = chunk["contention_seconds"] if chunk["contention_seconds"] is not None else 0.0
    return all(-small - late <= difference <= between + small + late for difference in differences)


def slow_storage(monkeypatch: pytest.MonkeyPatch) -> Slept:
    """Have each request of local storage take 0.2 s; give how long each took."""
    ranges, slept = LocalFileSystem.cat_ranges, Slept()

    def slow_ranges(self: Any, *args: Any, **kwargs: Any) -> Any:
        slept.sleep(0.2)
        return ranges(self, *args, **kwargs)

    monkeypatch.setattr(LocalFileSystem, "cat_ranges", slow_ranges)
    return slept


def total_of_f0(events: Any) -> float:
    return float(ak.sum(events["f0"]))


def branch_named(name: str) -> Any:
    return SimpleNamespace(_bases=[SimpleNamespace(_members={"fName": name})], _parent=None)


class Clock:
    """Stands for `time`: wall and CPU time go on when they are told to."""

    def __init__(self) -> None:
        self.wall = self.cpu = 0.0

    def perf_counter(self) -> float:
        return self.wall

    def thread_time(self) -> float:
        return self.cpu

    def go(self, wall: float, cpu: float = 0.0) -> None:
        self.wall += wall
        self.cpu += cpu


def by_name(chunk: OpenChunk) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in chunk.sections.rows()}


def column(chunk: OpenChunk, name: str) -> dict[str, Any]:
    """One column of the rows, by section."""
    return {row["name"]: row[name] for row in chunk.sections.rows()}


def in_thread(function: Callable[[], Any]) -> None:
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


def read_on() -> Iterator[int]:
    """A generator with a section in it."""
    with track_time("generator"):
        yield 1
        yield 2
