"""The log that the scheduler's plugin keeps and the client drains: packed entries, read in the order of writing.

An entry is a kind (one letter), the length of its payload, and the payload. Strings that recur are written once and
then meant by their number. Formats are text rather than `struct.Struct`: this module must survive pickling by value.
"""

from __future__ import annotations

import json
import zlib
from typing import Any, Final

ANNOTATION: Final = "roastcoffea"
"""Annotation of the Dask tasks that belong to a Runner call under a collector."""

METADATA_KEY: Final = "roastcoffea"
"""Where a chunk's record stands in the metadata of its Dask task."""

HEADER: Final = "<cI"
HEADER_SIZE: Final = 5

STRING: Final = b"S"
TASK: Final = b"T"
TASK_ERROR: Final = b"E"
CHUNK: Final = b"C"
SAMPLE: Final = b"W"
ARRIVAL: Final = b"+"
DEPARTURE: Final = b"-"
PROCESS_CPU: Final = b"F"
PROBLEM: Final = b"P"

NO_STRING: Final = 0xFFFFFFFF
NO_SIZE: Final = -1
NO_TIME: Final = 0.0

TASK_FIELDS: Final = (
    ("worker", "I"),
    ("prefix", "I"),
    ("type", "I"),
    ("span", "I"),
    ("kind", "B"),
    ("outcome", "B"),
    ("start", "d"),
    ("stop", "d"),
    ("seen", "d"),
    ("nbytes", "q"),
    ("run_id", "q"),
    ("thread", "Q"),
)
"""Fixed part of a task's entry; the key follows as text."""

ARRIVAL_FIELDS: Final = (
    ("worker", "I"),
    ("name", "I"),
    ("host", "I"),
    ("time", "d"),
    ("threads", "q"),
    ("memory_limit", "q"),
    ("process", "q"),
)
DEPARTURE_FIELDS: Final = (("worker", "I"), ("time", "d"))
PROCESS_CPU_FIELDS: Final = (("worker", "I"), ("cpu_seconds", "d"))

SAMPLE_FIELDS: Final = (
    ("worker", "I"),
    ("time", "d"),
    ("last_seen", "d"),
    ("cpu_percent", "f"),
    ("memory", "q"),
    ("processing", "I"),
    ("executing", "I"),
    ("nbytes", "q"),
    ("occupancy", "f"),
    ("spilled", "q"),
    ("cpu_seconds", "d"),
    ("event_loop_seconds", "f"),
    ("file_descriptors", "i"),
    ("network_read", "f"),
    ("network_write", "f"),
    ("disk_read", "f"),
    ("disk_write", "f"),
)
"""A sample of a worker. A number that was not measured is NaN, an integer is -1."""


def packing(fields: tuple[tuple[str, str], ...]) -> str:
    """Format for `struct` of these fields."""
    return "<" + "".join(code for _, code in fields)


def packed_record(record: dict[str, Any]) -> bytes:
    """A record as opaque bytes: compressed JSON, which nobody has to unpickle."""
    return zlib.compress(json.dumps(record, default=_plain, separators=(",", ":")).encode(), 1)


def unpacked_record(blob: bytes) -> dict[str, Any]:
    """Give the record that `packed_record` packed."""
    record: dict[str, Any] = json.loads(zlib.decompress(blob))
    return record


def _plain(value: Any) -> Any:
    return sorted(map(str, value)) if isinstance(value, (set, frozenset)) else str(value)
