"""Analyses whose chunks take planned time: they wait, compute, or read from a storage that all workers share.

Measured runs of them are the truth for predictions: see `what_if.py`.
"""

from __future__ import annotations

import hashlib
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import awkward as ak
import numpy as np
import uproot
from coffea.processor import ProcessorABC

TREE: Final = "Events"
FIELDS: Final = ("a", "b", "c", "d")
EVENTS: Final = 80_000
BASKET: Final = 2_500
"""Events of a basket."""

EVENT_SECONDS: Final = 50e-6
FIXED_SECONDS: Final = 0.05
"""What an event takes on average, and a chunk beside its events."""

BLOCK: Final = bytes(16_384)
BLOCKS_OF_EVENT: Final = 2
"""SHA-256 of a block that fits into the nearest cache, which takes some 10 us and lets go of the interpreter."""

STREAM: Final = 0.5e6
STREAMS: Final = 2.5
LATENCY: Final = 2e-3
"""Bytes a second of one stream, how many of them the storage serves at that rate, and seconds of each request."""

QUANTUM: Final = 2e-3


class Planned(ProcessorABC):  # type: ignore[misc]
    """Waits, computes or reads for its events; those of some files take longer."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def process(self, events: Any) -> dict[str, int]:
        """Spend the planned time."""
        slow = 0.8 + 0.4 * (hashlib.md5(events.metadata["filename"].encode()).digest()[0] / 255)
        number = len(events)
        if self.kind == "waiting":
            time.sleep(FIXED_SECONDS + EVENT_SECONDS * slow * number)
        elif self.kind == "computing":
            for _ in range(round(BLOCKS_OF_EVENT * slow * number)):
                hashlib.sha256(BLOCK)
        else:
            for field in FIELDS:
                ak.sum(ak.materialize(events[field]))
            time.sleep(FIXED_SECONDS)
        return {"events": number}

    def postprocess(self, accumulator: Any) -> Any:
        """The same."""
        return accumulator


def write_files(folder: Path, files: int) -> dict[str, Any]:
    """A fileset of so many files."""
    random = np.random.default_rng(1)
    paths = [folder / f"{number}.root" for number in range(files)]
    for path in paths:
        if not path.exists():
            with uproot.recreate(path, compression=None) as root:
                root.mktree(TREE, dict.fromkeys(FIELDS, np.float32))
                for _ in range(EVENTS // BASKET):
                    root[TREE].extend({name: random.normal(size=BASKET).astype(np.float32) for name in FIELDS})
    return {"planned": {"files": {str(path): TREE for path in paths}}}


def shared_source(port: int) -> type:
    """uproot's class for a source whose baskets come from the storage at this port."""

    class SharedSource(uproot.MemmapSource):  # type: ignore[misc]
        def chunks(self, ranges: Any, notifications: Any) -> Any:
            size = sum(stop - start for start, stop in ranges)
            with socket.create_connection(("127.0.0.1", port)) as storage:
                storage.sendall(struct.pack("<Q", size))
                storage.recv(1)
            return super().chunks(ranges, notifications)

    return SharedSource


class Storage:
    """Storage that gives each of its streams the same, and no more than STREAM; a thread serves it."""

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port = self._server.getsockname()[1]
        self._left: dict[socket.socket, float] = {}
        self._lock = threading.Lock()
        self._open = True
        for serve in (self._accept, self._serve):
            threading.Thread(target=serve, daemon=True).start()

    def _accept(self) -> None:
        while self._open:
            try:
                stream, _ = self._server.accept()
            except OSError:
                return
            (size,) = struct.unpack("<Q", stream.recv(8))
            with self._lock:
                self._left[stream] = size + LATENCY * STREAM

    def _serve(self) -> None:
        before = time.perf_counter()
        while self._open:
            time.sleep(QUANTUM)
            now = time.perf_counter()
            with self._lock:
                each = STREAM * min(1.0, STREAMS / max(len(self._left), 1)) * (now - before)
                done = [stream for stream in self._left if self._left[stream] <= each]
                for stream in self._left:
                    self._left[stream] -= each
                for stream in done:
                    del self._left[stream]
            before = now
            for stream in done:
                stream.sendall(b"1")
                stream.close()

    def close(self) -> None:
        """Stop serving."""
        self._open = False
        self._server.close()


@contextmanager
def storage() -> Iterator[int]:
    """A shared storage, and its port."""
    shared = Storage()
    try:
        yield shared.port
    finally:
        shared.close()
