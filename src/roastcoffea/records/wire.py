"""The log that the scheduler's plugin keeps and the client drains: packed entries, read in the order of writing.

An entry is a kind (one letter), the length of its payload, and the payload. Strings that recur are written once and
then meant by their number. Formats are text rather than `struct.Struct`: this module must survive pickling by value.
"""

from __future__ import annotations

import json
import math
import numbers
import operator
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from roastcoffea.records.chunks import CHUNK_COLUMNS

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
    "bytes_payload",
    "bytes_again",
    "bytes_uncompressed",
    "baskets",
    "basket_first",
    "basket_last",
    "read_seconds",
    "decompress_seconds",
    "interpret_seconds",
)
"""Numbers of a branch."""

MAY_BE_NONE: Final = ("basket_first", "basket_last")
IN_MICROSECONDS: Final = ("read_seconds", "decompress_seconds", "interpret_seconds")
"""Fields that travel as 0 for what was not measured, else one more than the number, or than the microseconds."""

BASKETS_TOLD: Final = "baskets_told"
BASKET_BYTES: Final = "basket_bytes"
"""How many sizes of baskets each branch has, and the sizes, branch by branch."""

NUMBERS: Final = tuple(column.name for column in CHUNK_COLUMNS if column.kind == "number")
INTEGERS: Final = tuple(column.name for column in CHUNK_COLUMNS if column.kind == "integer")
FIGURES: Final = NUMBERS + INTEGERS
FIGURES_PACKING: Final = f"<{len(NUMBERS)}d{len(INTEGERS)}q"
FIGURE_SIZE: Final = 8
NO_NUMBER: Final = math.nan
NO_INTEGER: Final = -(1 << 63)
"""What travels for a figure that was not measured."""


LEVEL: Final = 1
WINDOW: Final = 12
MEMORY_LEVEL: Final = 4
"""For zlib: a record is small, and clearing the 256 kB that it takes by default costs more than packing."""

DICTIONARY: Final = "".join(f',"{column.name}":' for column in CHUNK_COLUMNS if column.name not in FIGURES).encode()
"""What zlib takes for known, as it stands in each record."""


def packed_records(records: list[dict[str, Any]]) -> bytes:
    """Records as opaque bytes, which nobody has to unpickle: JSON, figures, and the numbers of branches, compressed.

    A record's branches come as columns: names, `BRANCH_FIELDS`, `BASKETS_TOLD` and `BASKET_BYTES`.
    """
    heads: list[list[Any]] = []
    tails: list[bytes] = []
    for record in records:
        told = dict(record)
        columns = told.pop(BRANCHES, None)
        figures = _taken_figures(told)
        branches, of_branches = _packed_branches(columns) if columns and columns["branch"] else ([], [])
        heads.append([told, len(figures), *branches])
        tails += figures
        tails += of_branches
    head = _encoded(heads).encode()
    packer = zlib.compressobj(LEVEL, wbits=WINDOW, memLevel=MEMORY_LEVEL, zdict=DICTIONARY)
    return packer.compress(b"".join([struct.pack("<I", len(head)), head, *tails])) + packer.flush()


@dataclass(frozen=True, slots=True, eq=False)
class PackedBranches:
    """Branches of a record, as columns of the whole numbers in which they travel.

    `fields` are those of `BRANCH_FIELDS`. `sizes` has `lengths[0]` sizes of baskets of the first branch, then those of
    the second.
    """

    names: list[str]
    fields: list[npt.NDArray[np.uint64]]
    lengths: npt.NDArray[np.uint64]
    sizes: npt.NDArray[np.uint64]


def unpacked_records(blob: bytes) -> list[dict[str, Any]]:
    """Give the records that `packed_records` packed, with their branches as `PackedBranches`; it needs NumPy."""
    unpacker = zlib.decompressobj(zdict=DICTIONARY)
    data = unpacker.decompress(blob)
    if not unpacker.eof:
        raise zlib.error("records that were cut off")
    at = 4 + struct.unpack_from("<I", data)[0]
    records: list[dict[str, Any]] = []
    for record, planes, *branches in json.loads(data[4:at]):
        if planes:
            figures = _unpacked_integers(data, at, len(FIGURES), planes).tobytes()
            record.update(_unpacked_figures(figures))
            at += len(figures)
        if branches:
            width, count, *names = branches
            record[BRANCHES] = _unpacked_branches(names, _unpacked_integers(data, at, count, width))
            at += count * width
        records.append(record)
    return records


def _unpacked_figures(figures: bytes) -> Iterator[tuple[str, Any]]:
    """Names and values of what was measured."""
    for name, value in zip(FIGURES, struct.unpack(FIGURES_PACKING, figures), strict=True):
        if value == value and value != NO_INTEGER:  # noqa: PLR0124  (not a number is like nothing)
            yield name, value


def _unpacked_branches(names: list[str], integers: npt.NDArray[np.uint64]) -> PackedBranches:
    of_branches = len(names) * (1 + len(BRANCH_FIELDS))
    *fields, lengths = integers[:of_branches].reshape(-1, len(names))
    return PackedBranches(names, fields, lengths, integers[of_branches:])


def _unpacked_integers(data: bytes, at: int, count: int, width: int) -> npt.NDArray[np.uint64]:
    """Whole numbers of so many bytes each, of which all the lowest bytes come first."""
    import numpy as np

    integers = np.zeros((count, 8), dtype=np.uint8)
    integers[:, :width] = np.frombuffer(data, np.uint8, count * width, at).reshape(width, count).T
    return integers.view("<u8").reshape(count)


def _taken_figures(record: dict[str, Any]) -> list[bytes]:
    """The figures of a record, taken out of it; none, and the record as it was, where a value does not fit."""
    times = [NO_NUMBER if (value := record.get(name)) is None else value for name in NUMBERS]
    integers = [NO_INTEGER if (value := record.get(name)) is None else value for name in INTEGERS]
    try:
        data = struct.pack(FIGURES_PACKING, *times, *integers)
    except (struct.error, OverflowError, TypeError, ValueError):
        return []
    for name in FIGURES:
        record.pop(name, None)
    return _planes(data, FIGURE_SIZE)


def _planes(data: bytes, width: int) -> list[bytes]:
    """Numbers of so many bytes each with all their lowest bytes first, which compresses best."""
    return [data[place::width] for place in range(width)]


def _packed_branches(columns: dict[str, list[Any]]) -> tuple[list[Any], list[bytes]]:
    """Bytes a number, how many numbers and the branches' names; and the numbers: fields, then sizes of baskets."""
    whole: list[Any] = []
    for name in BRANCH_FIELDS:
        if name in MAY_BE_NONE:
            whole += [0 if value is None else 1 + value for value in columns[name]]
        elif name in IN_MICROSECONDS:
            # half a step more, so that they are rounded; what is below 0 is 0
            whole += [
                0 if value is None else int(value / MICROSECOND + 1.5) if value > 0 else 1 for value in columns[name]
            ]
        else:
            whole += columns[name]
    whole += columns[BASKETS_TOLD]
    whole += columns[BASKET_BYTES]
    width = 4
    try:
        data = struct.pack(f"<{len(whole)}I", *whole)
    except struct.error:
        width = 8
        data = struct.pack(f"<{len(whole)}Q", *whole)
    return [width, len(whole), *columns["branch"]], _planes(data, width)


def _plain(value: Any) -> Any:
    """What JSON has of a value that it does not know: numbers of NumPy stay numbers."""
    if isinstance(value, numbers.Integral):
        return operator.index(value)
    if isinstance(value, numbers.Real):
        return float(value)
    return sorted(map(str, value)) if isinstance(value, (set, frozenset)) else str(value)


_encoded: Final = json.JSONEncoder(default=_plain, separators=(",", ":")).encode
