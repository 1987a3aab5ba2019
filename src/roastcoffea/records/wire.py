"""The log that the scheduler's plugin keeps and the client drains: packed entries, read in the order of writing.

An entry is a kind (one letter), the length of its payload, and the payload. Strings that recur are written once and
then meant by their number. Formats are text rather than `struct.Struct`: this module must survive pickling by value.
"""

from __future__ import annotations

import json
import numbers
import operator
import struct
import zlib
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

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
PAUSE: Final = b"Z"
PROCESS_CPU: Final = b"F"
PROBLEM: Final = b"P"
STATE: Final = b"Z"
VIEWS: Final = b"V"

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
    ("stolen", "B"),
    ("start", "d"),
    ("stop", "d"),
    ("seen", "d"),
    ("nbytes", "q"),
    ("run_id", "q"),
    ("thread", "Q"),
    ("runnable", "d"),
    ("assigned", "d"),
    ("shift", "f"),
    ("arrived", "f"),
    ("ready", "f"),
    ("seceded", "f"),
)
"""Fixed part of a task's entry; the key follows as text.

Start and stop are on the worker's clock with Dask's shift, the last three are seconds from the start; NaN is not known.
"""

STATES: Final = ("released", "waiting", "no-worker", "queued", "processing", "memory", "erred", "forgotten")
"""States of a task at the scheduler, by their number."""

STATE_FIELDS: Final = (
    ("task", "Q"),
    ("state", "B"),
    ("suspicious", "I"),
    ("worker", "I"),
    ("type", "I"),
    ("nbytes", "q"),
    ("time", "d"),
)
"""A state that a task came to; tasks are numbered from 0, in the order of appearance.

An entry has the length of its rows, the rows, and as JSON the keys of the tasks that appear in it first.
"""

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
PAUSE_FIELDS: Final = (("worker", "I"), ("time", "d"), ("paused", "B"))
"""A worker that is paused from that time on, or (0) no longer."""

PROCESS_CPU_FIELDS: Final = (("worker", "I"), ("cpu_seconds", "d"))

SAMPLE_FIELDS: Final = (
    ("worker", "I"),
    ("time", "d"),
    ("last_seen", "d"),
    ("noted", "f"),
    ("cpu_percent", "f"),
    ("memory", "q"),
    ("processing", "I"),
    ("executing", "H"),
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
"""A sample of a worker. A number that was not measured is NaN, an integer is -1.

The scheduler's time is in seconds since it heard of the worker.
"""


def packing(fields: tuple[tuple[str, str], ...]) -> str:
    """Format for `struct` of these fields."""
    return "<" + "".join(code for _, code in fields)


BRANCHES: Final = "branch_reads"
SECTIONS: Final = "sections"
TOLD: Final = "problems"
PREPROCESSING: Final = "preprocessing"
"""What a record holds beside the columns of its own table; the last marks a record of preprocessing.

A record that holds nothing but problems is of no attempt, and needs no identity.
"""

MICROSECOND: Final = 1e-6
BRANCH_FIELDS: Final = (
    ("bytes_payload", None),
    ("bytes_again", None),
    ("bytes_uncompressed", None),
    ("baskets", None),
    ("basket_first", None),
    ("basket_last", None),
    ("read_seconds", MICROSECOND),
    ("decompress_seconds", MICROSECOND),
    ("interpret_seconds", MICROSECOND),
)
"""Numbers of a branch, and the step in which those that are not whole travel."""

BASKET_BYTES: Final = "basket_bytes"

BRANCH_ROW: Final = ("branch", *(name for name, _ in BRANCH_FIELDS), BASKET_BYTES)
"""Order of the fields in which a record holds a branch before it is packed."""


WINDOW: Final = 12
MEMORY_LEVEL: Final = 5
"""For zlib: a record is small, and clearing the 256 kB that it takes by default costs more than packing."""


def packed_records(records: list[dict[str, Any]]) -> bytes:
    """Records as opaque bytes, which nobody has to unpickle: JSON, then the numbers of their branches, compressed.

    Their branches come as tuples in the order of `BRANCH_ROW`.
    """
    heads, tails = [], []
    for record in records:
        rows = sorted(record.get(BRANCHES, ()))
        names, *columns = zip(*rows, strict=True) if rows else ((),)
        widths, data = _packed_branches(columns) if names else ([], b"")
        heads.append(_rounded(record) | {BRANCHES: [widths, *names]})
        tails.append(data)
    head = _encoded(heads).encode()
    packer = zlib.compressobj(wbits=WINDOW, memLevel=MEMORY_LEVEL)
    return packer.compress(b"".join([struct.pack("<I", len(head)), head, *tails])) + packer.flush()


@dataclass(frozen=True, slots=True, eq=False)
class PackedBranches:
    """Branches of a record, as columns of the whole numbers in which they travel.

    `fields` are those of `BRANCH_FIELDS`: 0 for what was not measured, else one more than the value in steps. `sizes`
    has `lengths[0]` sizes of baskets of the first branch, then those of the second.
    """

    names: list[str]
    fields: list[npt.NDArray[np.uint64]]
    lengths: npt.NDArray[np.uint64]
    sizes: npt.NDArray[np.uint64]


def unpacked_records(blob: bytes) -> list[dict[str, Any]]:
    """Give the records that `packed_records` packed, with their branches as `PackedBranches`; it needs NumPy."""
    data = zlib.decompress(blob)
    at = 4 + struct.unpack_from("<I", data)[0]
    records: list[dict[str, Any]] = json.loads(data[4:at])
    for record in records:
        widths, *names = record.pop(BRANCHES)
        if names:
            record[BRANCHES], at = _unpacked_branches(names, widths, data, at)
    return records


def _unpacked_branches(names: list[str], widths: list[int], data: bytes, at: int) -> tuple[PackedBranches, int]:
    """Branches that begin at a place in the data, and where they end."""
    *of_branches, of_sizes = widths
    columns = []
    for width in of_branches:
        columns.append(_unpacked_integers(data, at, len(names), width))
        at += len(names) * width
    *fields, lengths = columns
    count = int(lengths.sum())
    sizes = _unpacked_integers(data, at, count, of_sizes)
    return PackedBranches(names, fields, lengths, sizes), at + count * of_sizes


def _unpacked_integers(data: bytes, at: int, count: int, width: int) -> npt.NDArray[np.uint64]:
    """Whole numbers of so many bytes each, of which all the lowest bytes come first."""
    import numpy as np

    integers = np.zeros((count, 8), dtype=np.uint8)
    integers[:, :width] = np.frombuffer(data, np.uint8, count * width, at).reshape(width, count).T
    return integers.view("<u8").reshape(count)


def _rounded(record: dict[str, Any]) -> dict[str, Any]:
    """The record with its times to ten nanoseconds: digits beyond are noise, and do not compress."""
    return {name: round(value, 8) if type(value) is float else value for name, value in record.items()}


def _packed_branches(columns: list[tuple[Any, ...]]) -> tuple[list[int], bytes]:
    """Bytes a number of each column, and the columns: fields, how many baskets, and their sizes.

    They are whole numbers: in the fields 0 for what was not measured, else one more than the value. All the lowest
    bytes of a column come first, which compresses best.
    """
    *fields, told = columns
    whole = [_whole(column, step) for column, (_, step) in zip(fields, BRANCH_FIELDS, strict=True)]
    whole += [list(map(len, told)), list(chain.from_iterable(told))]
    widths = [(operator.index(max(column, default=0)).bit_length() + 7) // 8 for column in whole]
    data = struct.pack(f"<{sum(map(len, whole))}Q", *chain.from_iterable(whole))
    packed, start = [], 0
    for column, width in zip(whole, widths, strict=True):
        stop = start + 8 * len(column)
        packed += [data[start + place : stop : 8] for place in range(width)]
        start = stop
    return widths, b"".join(packed)


def _whole(values: tuple[Any, ...], step: float | None) -> list[int]:
    if step is None:
        return [0 if value is None else 1 + value for value in values]
    # half a step more, and what is below 0 is 0
    return [0 if value is None else 1 + int(value / step + 0.5) if value > 0 else 1 for value in values]


def _plain(value: Any) -> Any:
    """What JSON has of a value that it does not know: numbers of NumPy stay numbers."""
    if isinstance(value, numbers.Integral):
        return operator.index(value)
    if isinstance(value, numbers.Real):
        return float(value)
    return sorted(map(str, value)) if isinstance(value, (set, frozenset)) else str(value)


_encoded: Final = json.JSONEncoder(default=_plain, separators=(",", ":")).encode
