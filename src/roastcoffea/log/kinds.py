"""Kinds of entries in the log of the scheduler's plugin, and its bounded buffer until the client fetches them."""

from __future__ import annotations

import math
import struct
from collections import deque
from dataclasses import dataclass
from typing import Any, Final

HEADER: Final = "<cI"
HEADER_SIZE: Final = 5

TEXT: Final = "text"
"""Format of a field that holds the number of a text."""

NO_STRING: Final = 0xFFFFFFFF
NO_SIZE: Final = -1
NO_TIME: Final = 0.0

Fields = tuple[tuple[str, str], ...]


def format_of(code: str) -> str:
    """Format for `struct` of a field."""
    return "I" if code == TEXT else code


def packing(fields: Fields) -> str:
    """Format for `struct` of all fields."""
    return "<" + "".join(format_of(code) for _, code in fields)


def of(code: str, *names: str) -> Fields:
    """Fields of one format."""
    return tuple((name, code) for name in names)


@dataclass(frozen=True, eq=False)
class Kind:
    """One kind of entry.

    Attributes
    ----------
    code : bytes
        First byte of its entries.
    fields : tuple
        Name and format (of `struct`, or `TEXT`) of each field.
    table : str or None
        What to count if an entry is dropped for lack of space; None for small entries that others build on.
    """

    code: bytes
    fields: Fields
    table: str | None = None

    @property
    def packing(self) -> str:
        """Format for `struct` of its fields."""
        return packing(self.fields)


ALL: Final[list[Kind]] = []
"""Every kind of entry; the index is the code, so that codes are unique."""


def _declared(fields: Fields = (), table: str | None = None) -> Kind:
    kind = Kind(bytes([len(ALL)]), fields, table)
    ALL.append(kind)
    return kind


STRING: Final = _declared()
"""A text; those of the log are numbered from 0."""

TASK: Final = _declared(
    (
        *of(TEXT, "worker", "prefix", "type", "span"),
        *of("B", "kind", "outcome", "stolen"),
        *of("d", "start", "stop", "seen"),
        *of("q", "nbytes", "run_id"),
        *of("Q", "thread"),
        *of("d", "runnable", "assigned"),
        *of("f", "shift", "arrived", "ready", "seceded"),
    ),
    table="tasks",
)
"""A finished attempt of a task; behind the fields is the key, empty for a task of another user.

Start and stop are on the worker's clock with Dask's shift, the last three are seconds from the start; NaN if unknown.
"""

TASK_ERROR: Final = _declared(table="errors of tasks")
"""Text of the previous task's error."""

CHUNK: Final = _declared(table="chunks")
"""Packed records of attempts of chunks."""

SAMPLE: Final = _declared(
    (
        *of(TEXT, "worker"),
        *of("d", "time", "last_seen"),
        *of("f", "noted", "cpu_percent"),
        *of("q", "memory"),
        *of("I", "processing"),
        *of("H", "executing"),
        *of("q", "nbytes"),
        *of("f", "occupancy"),
        *of("q", "spilled"),
        *of("d", "cpu_seconds"),
        *of("f", "event_loop_seconds"),
        *of("i", "file_descriptors"),
        *of("f", "network_read", "network_write", "disk_read", "disk_write"),
    ),
    table="samples",
)
"""A sample of a worker. A number that was not measured is NaN, an integer is -1.

The scheduler's time is in seconds since it last heard from the worker.
"""

ARRIVAL: Final = _declared(
    (*of(TEXT, "worker", "name", "host"), *of("d", "time"), *of("q", "threads", "memory_limit", "process"))
)

DEPARTURE: Final = _declared((("worker", TEXT), ("time", "d")))

PAUSE: Final = _declared((("worker", TEXT), ("time", "d"), ("paused", "B")))
"""A worker that is paused from that time on, or (0) resumed."""

PROCESS_CPU: Final = _declared((("worker", TEXT), ("cpu_seconds", "d")))
"""CPU time of a worker's process, with its last message; then its first and last load, as JSON."""

COUNTED: Final = _declared((("worker", TEXT),), table="counts of workers that left")
"""Dask's counts of a worker that left: [key, amount] of each, as compressed JSON."""

PROBLEM: Final = _declared()
"""A problem as text."""

STATE: Final = _declared(
    (("first", "Q"), ("size", "I")),
    table="states of tasks",
)
"""States that tasks entered; tasks are numbered from 0, in order of appearance.

Behind the fields are rows of `STATE_FIELDS` of that size, and as JSON a list for each new task. The list of a task has
its key; for coffea's tasks also the code of their kind, and for a chunk its dataset, file, tree, first entry, and entry
after the last.
"""

VIEWS: Final = _declared(table="batches of workers' views of tasks")
"""Address of a worker and rows of its views of tasks, as compressed JSON."""

STATES: Final = ("released", "waiting", "no-worker", "queued", "processing", "memory", "erred", "forgotten")
"""States of a task at the scheduler, by their number."""

NO_STATE: Final = 255

STATE_FIELDS: Final = (
    *of("Q", "task"),
    *of("B", "before", "state"),
    *of("I", "suspicious"),
    *of(TEXT, "worker", "type"),
    *of("q", "nbytes"),
    *of("f", "expected"),
    *of("d", "time"),
)
"""A state that a task entered, and the previous one: `NO_STATE` if the task existed when the monitor started.

`expected` is Dask's expected duration in seconds of a task given to a worker, negative if unknown.
"""

SAMPLING: Final = _declared(
    (*of("d", "time"), *of("f", "late"), *of("I", "missed", "workers"), *of("B", "whole")),
    table="sampling",
)
"""A sample that the scheduler took itself.

It has rows of `WORKER_STATE_FIELDS` of the workers that changed since the previous sample; if it is `whole`, of all
present workers.
"""

WORKER_STATE_FIELDS: Final = (*of(TEXT, "worker"), *of("I", "processing"), *of("q", "nbytes"), *of("f", "occupancy"))

TASK_CHUNK: Final = _declared(table="chunks of failed tasks")
"""Follows the task of a failed chunk, with dataset, file, tree, first entry, and entry after the last as JSON.

An attempt lost with its worker leaves no record of its own.
"""

KILLED: Final = _declared((*of(TEXT, "worker"), *of("d", "time"), *of("q", "memory")))
"""A worker killed by its nanny because of this much resident memory."""

JOB: Final = _declared((*of(TEXT, "worker"), *of("d", "time")))
"""What a worker knows of its batch job, as JSON: columns of lifetimes, `job_age`, and `closes_in` in seconds then."""

CLOSING: Final = _declared((("worker", TEXT), ("time", "d")))
"""A worker that begins to close."""

RESUMED: Final = _declared(of("d", "since", "time"))
"""The first entry of a plugin that takes the place of one that gave up on the client; nothing is known between."""

USAGE: Final = _declared((*of("d", "loop_cpu", "loop_queue", "process_cpu"), *of("q", "transitions")))
"""Follows a sample that the scheduler took: what its event loop's thread and its process used so far."""

MERGED: Final = _declared((*of("I", "level", "inputs"), *of("q", "input_bytes")))
"""Follows the task of a merge: its level in the tree, and the results that it merges."""

MOST_LEVELS: Final = 64
"""Most levels of merges that are counted."""

LEFT: Final = 0xFFFFFFFF
"""Placeholder for the tasks of a worker that left."""


LOG_CAP = 64_000_000
"""Most bytes of the log on the scheduler; beyond that, rows are dropped and counted."""

BLOCK = 256_000

MOST_TEXTS = 10_000
"""Most texts with a remembered number; beyond that numbering restarts, and a text may get a second number."""


class LogWriter:
    """Entries as bytes in order of writing, with a limit on those waiting to be drained.

    Parameters
    ----------
    cap : int
        That limit, in bytes.
    first_text : int
        Number of the first text: how many the client already has from an earlier log.
    """

    def __init__(self, cap: int = LOG_CAP, first_text: int = 0) -> None:
        self.cap = cap
        self.size = 0
        self.dropped: dict[str, int] = {}
        self._header = struct.Struct(HEADER).pack
        self._blocks: deque[bytes] = deque()
        self._block = bytearray()
        self._numbers: dict[str, int] = {}
        self._next_number = first_text
        self._given = b""
        self.given = 0
        """Bytes returned so far."""

    # entries

    def has_room(self, kind: Kind, rows: int = 1) -> bool:
        """Whether rows can be written now; otherwise they are counted as dropped."""
        if self.size <= self.cap or kind.table is None:
            return True
        self.dropped[kind.table] = self.dropped.get(kind.table, 0) + rows
        return False

    def write(self, kind: Kind, payload: bytes) -> None:
        """Append an entry, or count it as dropped."""
        if self.has_room(kind):
            self.append(kind, payload)

    def append(self, kind: Kind, payload: bytes) -> None:
        """Append an entry for which there is room."""
        entry = self._header(kind.code, len(payload)) + payload  # fails here for anything but bytes, before writing
        self._block += entry
        self.size += len(entry)
        if len(self._block) >= BLOCK:
            self._blocks.append(bytes(self._block))
            self._block = bytearray()

    def write_fields(self, kind: Kind, *values: Any, then: bytes = b"") -> None:
        """Write an entry of these fields; not for frequent use."""
        self.write(kind, struct.pack(kind.packing, *values) + then)

    def write_text(self, kind: Kind, text: str) -> None:
        """Write an entry that is a text."""
        self.write(kind, text.encode("utf-8", "surrogatepass"))

    def number(self, text: str | None) -> int:
        """Number of a recurring text."""
        if text is None:
            return NO_STRING
        number = self._numbers.get(text)
        if number is None:
            if len(self._numbers) >= MOST_TEXTS:
                self._numbers.clear()
            self.write_text(STRING, text)
            number = self._numbers[text] = self._next_number
            self._next_number += 1
        return number

    # to the client

    def drain(self, limit: int, received: int) -> dict[str, Any]:
        """Return the oldest entries, which are kept until the client confirms them.

        Parameters
        ----------
        limit : int
            Approximate number of bytes.
        received : int
            Bytes that the client has so far. If the last answer was lost, it is repeated.

        Returns
        -------
        dict
            `data` (bytes of whole entries) and `at` (bytes given before them), `more` (whether entries are left), and
            `dropped` (rows lost so far, by table).
        """
        if received == self.given:
            self._given = self._take(limit)
            self.given += len(self._given)
        at = self.given - len(self._given)
        return {"data": self._given, "at": at, "more": self.size > 0, "dropped": dict(self.dropped)}

    def _take(self, limit: int) -> bytes:
        """Remove about `limit` bytes of complete entries, oldest first."""
        taken, size = [], 0
        while self._blocks and size < limit:
            taken.append(self._blocks.popleft())
            size += len(taken[-1])
        if not self._blocks and size < limit:
            taken.append(bytes(self._block))
            self._block = bytearray()
        data = b"".join(taken)
        self.size -= len(data)
        return data


class Samples:
    """Writes the reports in workers' heartbeats: the values, in the order of the fields of `SAMPLE`."""

    def __init__(self, name: str, log: LogWriter) -> None:
        self._name = name
        self._log = log
        self._pack = struct.Struct(SAMPLE.packing).pack
        self.sampled: dict[str, float] = {}
        """When each worker measured what was sampled last."""

    def take(self, address: str, state: Any, now: float) -> None:
        """Write a sample of a worker, if it has reported since its last one."""
        get, nan = state.metrics.get, math.nan
        measured = get("time")
        if measured is None or measured == self.sampled.get(address):
            return
        self.sampled[address] = measured
        network, disk = get("host_net_io") or {}, get("host_disk_io") or {}
        spilled = get("spilled_bytes") or {}
        # unpacking tuples in the call would take a fifth longer
        sample = self._pack(
            self._log.number(address),
            measured,
            state.last_seen,
            now - state.last_seen,
            get("cpu", nan),
            get("memory", NO_SIZE),
            len(state.processing),
            min(len(state.executing), 65_535),
            state.nbytes,
            state.occupancy,
            spilled.get("memory", NO_SIZE),
            get(self._name, nan),
            get("event_loop_interval", nan),
            get("num_fds", NO_SIZE),
            network.get("read_bps", nan),
            network.get("write_bps", nan),
            disk.get("read_bps", nan),
            disk.get("write_bps", nan),
        )
        self._log.write(SAMPLE, sample)
