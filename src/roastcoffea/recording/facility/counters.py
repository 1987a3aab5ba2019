"""Totals of a cluster since somebody measures it: what Prometheus gets, and the live page shows.

Their number is bounded: no name of a file, dataset or task is among them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from roastcoffea.metrics.endpoints import endpoint
from roastcoffea.metrics.phases import FAILED, METADATA, PREPROCESSING, RESIDUAL

MOST_ENDPOINTS: Final = 20
MOST_FILES: Final = 256
OTHERS: Final = "others"
"""Endpoint of the bytes from all endpoints beyond the first ones."""

PAYLOAD: Final = "payload or re-read"
"""The scheduler does not know which basket has been read before: that is for the measurement to tell."""


class Counters:
    """Totals of all runs, which only grow.

    Attributes
    ----------
    chunks : Counter
        Chunks by outcome, each counted once its result is there.
    attempts : Counter
        Failed attempts of tasks, by outcome and kind of task.
    bytes : Counter
        Requested bytes by class and endpoint.
    seconds : dict
        Thread time by class, in seconds.
    capacity : float
        Threads of all workers x time, in seconds.
    """

    def __init__(self) -> None:
        self.chunks: Counter[str] = Counter()
        self.events = 0
        self.attempts: Counter[tuple[str, str]] = Counter()
        self.bytes: Counter[tuple[str, str]] = Counter()
        self.seconds: dict[str, float] = defaultdict(float)
        self.capacity = 0.0
        self._endpoints: set[str] = set()

    def add_bytes(self, record: Mapping[str, Any], *, failed: bool, preprocessing: bool) -> None:
        """Count the requested bytes of an attempt, where it has measured them."""
        requested = record.get("bytes_requested")
        if requested is None:
            return
        where = self._known(record.get("endpoint") or _endpoint(record.get("file")) or OTHERS)
        if failed or preprocessing:
            self.bytes[FAILED if failed else PREPROCESSING, where] += requested
            return
        payload, metadata = record.get("bytes_payload") or 0, record.get("bytes_metadata") or 0
        for name, size in ((PAYLOAD, payload), (METADATA, metadata), (RESIDUAL, requested - payload - metadata)):
            if size > 0:
                self.bytes[name, where] += size

    def _known(self, name: str) -> str:
        """The endpoint, or "others" once there are too many."""
        if name not in self._endpoints:
            if len(self._endpoints) >= MOST_ENDPOINTS:
                return OTHERS
            self._endpoints.add(name)
        return name


@lru_cache(MOST_FILES)
def _endpoint(file: str | None) -> str | None:
    """Endpoint of a file, remembered because a file usually has many chunks."""
    return endpoint(file)
