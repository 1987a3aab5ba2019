"""Rates of `roastcoffea storage`, against `dd` on a throttled server.

`python benchmarks/rereading.py` starts an HTTP server that sends no more than a given number of bytes per second over
all connections, measures a run on it, reads the run's files with 1, 2 and 4 times `curl | dd`, and again with `reread`:
in processes, and on a cluster whose threads other tasks keep busy. The exit status is 1 if a server's best rate differs
from dd's best by more than a tenth, if the run's rate differs so much from what the server sent, or if busy threads
make a rate higher. With one stream, `reread` may be slower: it requests one branch after the other, as the run did,
while curl requests a whole file.
"""

from __future__ import annotations

import logging
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

import awkward as ak
import numpy as np
import uproot
from coffea.nanoevents import BaseSchema
from coffea.processor import IterativeExecutor, ProcessorABC, Runner
from distributed import Client

from roastcoffea import MetricsCollector
from roastcoffea.sheets.sheet import Sheet, columns
from roastcoffea.sheets.terminal import print_sheets
from roastcoffea.studies.rereading import reread
from roastcoffea.units import BYTE_PER_SECOND, FRACTION

GOAL: Final = 0.10
RATES: Final = (5e6, 20e6)
"""Bytes per second that the server sends."""
STREAMS: Final = (1, 2, 4)
SECONDS: Final = 6.0
BRANCHES: Final = [f"x{number}" for number in range(8)]
FILES: Final = 6
BLOCK: Final = 65_536


class Reading(ProcessorABC):  # type: ignore[misc]
    """Reads all branches."""

    def process(self, events: Any) -> dict[str, float]:
        """Sum each branch."""
        return {name: float(ak.sum(events[name])) for name in BRANCHES}

    def postprocess(self, accumulator: Any) -> Any:
        """Return the sums unchanged."""
        return accumulator


def serve(folder: Path, rate: float, ports: Any) -> None:
    """Serve a folder; all connections together get this rate."""
    lock, free = threading.Lock(), [time.monotonic()]
    sent: list[tuple[float, int]] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_HEAD(self) -> None:
            self.head(200, (folder / self.path.lstrip("/")).stat().st_size)

        def do_POST(self) -> None:
            """Tell the rate since the last time."""
            times, sizes = zip(*sent, strict=True)
            answer = f"{sum(sizes[1:]) / (times[-1] - times[0])}".encode()
            sent.clear()
            self.head(200, len(answer))
            self.wfile.write(answer)

        def do_GET(self) -> None:
            size = (folder / self.path.lstrip("/")).stat().st_size
            asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
            first, last = (int(asked[1]), min(int(asked[2]), size - 1)) if asked else (0, size - 1)
            self.head(206 if asked else 200, last - first + 1, f"bytes {first}-{last}/{size}")
            # curl ends when its time is up
            with (folder / self.path.lstrip("/")).open("rb") as file, suppress(ConnectionError):
                file.seek(first)
                left = last - first + 1
                while left:
                    block = file.read(min(BLOCK, left))
                    left -= len(block)
                    with lock:
                        free[0] = max(free[0], time.monotonic()) + len(block) / rate
                        until = free[0]
                    time.sleep(max(0.0, until - time.monotonic()))
                    self.wfile.write(block)
                    sent.append((time.monotonic(), len(block)))

        def head(self, status: int, size: int, part: str = "") -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(size))
            self.send_header("Accept-Ranges", "bytes")
            if status == 206:
                self.send_header("Content-Range", part)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    ports.put(server.server_port)
    server.serve_forever()


@contextmanager
def served(folder: Path, rate: float) -> Iterator[str]:
    """Context manager with the URL of such a server, which is a process of its own."""
    context = get_context("spawn")
    ports = context.Queue()
    process = context.Process(target=serve, args=(folder, rate, ports), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{ports.get()}"
    finally:
        process.kill()
        process.join()


def dd_rate(urls: list[str], streams: int) -> float:
    """Bytes per second that so many downloads receive together in a few seconds."""
    command = f"curl -s --max-time {SECONDS} {{}} | dd of=/dev/null bs=64k"
    processes = [
        subprocess.Popen(command.format(" ".join(urls)), shell=True, stderr=subprocess.PIPE, text=True)
        for _ in range(streams)
    ]
    said = [process.communicate()[1] for process in processes]
    found = [re.search(r"(\d+) bytes.*copied, ([\d.e-]+) s", text) for text in said]
    return sum(int(one[1]) / float(one[2]) for one in found if one)


def sent_rate(url: str) -> float:
    """Bytes per second that the server sent since the last call."""
    with urllib.request.urlopen(urllib.request.Request(url, method="POST")) as answer:
        return float(answer.read())


@contextmanager
def busy_cluster() -> Iterator[Client]:
    """Cluster with a thread for each stream, on which short tasks of another program start all the time."""
    ended, tasks = threading.Event(), list[Any]()

    def keep_busy() -> None:
        while not ended.wait(1):
            tasks.append(client.submit(time.sleep, 2, pure=False))

    settings: dict[str, Any] = {"dashboard_address": ":0", "silence_logs": logging.CRITICAL, "set_as_default": False}
    with Client(n_workers=1, threads_per_worker=STREAMS[-1], **settings) as client:
        thread = threading.Thread(target=keep_busy)
        thread.start()
        try:
            yield client
        finally:
            ended.set()
            thread.join()


def main() -> int:
    """Compare the rates and print them."""
    rows: list[tuple[Any, ...]] = []
    with tempfile.TemporaryDirectory() as scratch:
        folder, drawn = Path(scratch), np.random.default_rng(1)
        for number in range(FILES):
            with uproot.recreate(folder / f"{number}.root", compression=None) as file:
                tree = file.mktree("Events", dict.fromkeys(BRANCHES, "float64"))
                for _ in range(40):
                    tree.extend({name: drawn.normal(size=40_000) for name in BRANCHES})
        for rate in RATES:
            with served(folder, rate) as url:
                urls = [f"{url}/{number}.root" for number in range(FILES)]
                runner = Runner(
                    executor=IterativeExecutor(status=False), schema=BaseSchema, chunksize=40_000, maxchunks=60
                )
                with MetricsCollector() as collector:
                    items = list(runner.preprocess({"numbers": {"files": dict.fromkeys(urls, "Events")}}))
                    sent_rate(url)
                    runner(items, processor_instance=Reading())
                    true = sent_rate(url)
                expected: dict[Any, float] = {streams: dd_rate(urls, streams) for streams in STREAMS}
                expected |= {"best": max(expected.values()), "run": true}
                (one,) = reread(collector.measurement, streams=STREAMS, seconds=SECONDS).endpoints
                with busy_cluster() as client:
                    (busy,) = reread(collector.measurement, client, streams=STREAMS, seconds=SECONDS).endpoints
            rates: dict[Any, float] = {each.streams: each.rate for each in one.rates}
            rates |= {"best": one.best.rate if one.best else np.nan, "run": one.run_rate}
            if busy.best:
                rates["busy"], expected["busy"] = busy.best.rate, expected["best"]
            name = BYTE_PER_SECOND.text(rate)
            rows += [(name, what, expected[what], rates[what], rates[what] / expected[what] - 1) for what in rates]
    heads = [
        *columns(None, "server"),
        *columns(None, "streams"),
        *columns(BYTE_PER_SECOND, "dd", "roastcoffea storage"),
        *columns(FRACTION, "difference"),
    ]
    print_sheets([Sheet(title=f"storage (goal: within {GOAL:.0%})", columns=heads, rows=rows)])
    exact = all(abs(row[-1]) <= GOAL for row in rows if row[1] in {"best", "run"})
    return int(not (exact and all(row[-1] <= GOAL for row in rows if row[1] == "busy")))


if __name__ == "__main__":
    sys.exit(main())
