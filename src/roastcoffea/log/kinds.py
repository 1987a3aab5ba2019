"""Entry kinds in the scheduler plugin's log, and a bounded buffer for entries."""

from __future__ import annotations

import math
import struct
from collections import deque
from dataclasses import dataclass
from typing import Any, Final

HEADER: Final = "<cI"
HEADER_SIZE: Final = 5

TEXT: Final = "text"
"""Format of a field that contains a string's number."""

NO_STRING: Final = 0xFFFFFFFF
NO_SIZE: Final = -1
NO_TIME: Final = 0.0

LATEST: Final = 253_402_300_800.0
"""Unix time of the year 10000, the latest plausible time. Times near 0 are plausible, because a host without a clock
may start at 0.
"""

Fields = tuple[tuple[str, str], ...]


def format_of(code: str) -> str:
    return "I" if code == TEXT else code


def packing(fields: Fields) -> str:
    return "<" + "".join(format_of(code) for _, code in fields)


def of(code: str, *names: str) -> Fields:
    return tuple((name, code) for name in names)


@dataclass(frozen=True, eq=False)
class Kind:
    """A kind of log entry.

    Attributes
    ----------
    code : bytes
        First byte of each entry.
    fields : tuple
        Name and format of each field. The format is a `struct` format or `TEXT`.
    table : str or None
        Name under which dropped entries are counted; None for small entries, which are never dropped because other
        entries depend on them.
    """

    code: bytes
    fields: Fields
    table: str | None = None

    @property
    def packing(self) -> str:
        return packing(self.fields)


ALL: Final[list[Kind]] = []
"""All entry kinds. A kind's index is its code, so codes are unique."""


def _declared(fields: Fields = (), table: str | None = None) -> Kind:
    kind = Kind(bytes([len(ALL)]), fields, table)
    ALL.append(kind)
    return kind


STRING: Final = _declared()
"""A string. The log's strings are numbered from 0."""

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
"""A finished task attempt. The fields are followed by the task's key, which is empty for other users' tasks.

`start` and `stop` are on the worker's clock, as adjusted by Dask. The last three fields are in seconds after the start;
unknown values are NaN.
"""

TASK_ERROR: Final = _declared(table="errors of tasks")
"""Error message of the preceding task."""

CHUNK: Final = _declared(table="chunks")

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
"""A worker sample. Unmeasured numbers are NaN, and unmeasured integers are -1.

`noted` is the time in seconds since the scheduler last heard from the worker.
"""

ARRIVAL: Final = _declared(
    (*of(TEXT, "worker", "name", "host"), *of("d", "time"), *of("q", "threads", "memory_limit", "process"))
)

DEPARTURE: Final = _declared((("worker", TEXT), ("time", "d")))

PAUSE: Final = _declared((("worker", TEXT), ("time", "d"), ("paused", "B")))
"""A worker was paused or, if `paused` is 0, resumed."""

PROCESS_CPU: Final = _declared((("worker", TEXT), ("cpu_seconds", "d")))
"""A worker process's CPU time when it sent its last message. The fields are followed by its first and last load as
JSON.
"""

COUNTED: Final = _declared((("worker", TEXT),), table="counts of workers that left")
"""Dask's counts for a departed worker: [key, amount] pairs as compressed JSON."""

PROBLEM: Final = _declared()

STATE: Final = _declared((("first", "Q"), ("size", "I")), table="states of tasks")
"""State transitions of tasks. Tasks are numbered from 0 in order of appearance.

The fields are followed by `size` bytes of `STATE_FIELDS` rows, then by JSON with a list for each new task. Each list
contains the task's key. For coffea's tasks, it also contains the code for the task kind. For chunks, it also contains
the dataset, the file, the tree, the first entry and one past the last entry.
"""

VIEWS: Final = _declared(table="batches of workers' views of tasks")
"""A worker's address and its view of its tasks, as compressed JSON."""

STATES: Final = ("released", "waiting", "no-worker", "queued", "processing", "memory", "erred", "forgotten")
"""Task states on the scheduler. Entries refer to a state by its index."""

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
"""A task's new and previous states. The previous state is `NO_STATE` if the task existed when the monitor started.

`expected` is the duration in seconds that Dask expects for a task assigned to a worker; negative if unknown.
"""

SAMPLING: Final = _declared(
    (*of("d", "time"), *of("f", "late"), *of("I", "missed", "workers"), *of("B", "whole")), table="sampling"
)
"""A sample of the scheduler's state.

It contains `WORKER_STATE_FIELDS` rows for all present workers if `whole` is set. Otherwise, it contains rows for the
workers that changed since the previous sample.
"""

WORKER_STATE_FIELDS: Final = (*of(TEXT, "worker"), *of("I", "processing"), *of("q", "nbytes"), *of("f", "occupancy"))

TASK_CHUNK: Final = _declared(table="chunks of failed tasks")
"""A failed chunk as JSON: the dataset, the file, the tree, the first entry and one past the last entry. This record
follows the record for the chunk's task.

It is needed because an attempt produces no record of its own if its worker dies.
"""

KILLED: Final = _declared((*of(TEXT, "worker"), *of("d", "time"), *of("q", "memory")))
"""A worker was killed by its nanny. `memory` is the worker's resident memory at that time."""

JOB: Final = _declared((*of(TEXT, "worker"), *of("d", "time")))
"""Description of a worker's batch job, as JSON: columns of `lifetimes`, plus `job_age` and `closes_in` in seconds."""

CLOSING: Final = _declared((("worker", TEXT), ("time", "d")))

RESUMED: Final = _declared(of("d", "since", "time"))
"""First entry from the replacement for a plugin that gave up on the client. Nothing was recorded in between."""

USAGE: Final = _declared((*of("d", "loop_cpu", "loop_queue", "process_cpu"), *of("q", "transitions")))
"""Resources used so far by the event loop's thread and by the process. This entry follows a `SAMPLING` entry."""

MERGED: Final = _declared((*of("I", "level", "inputs"), *of("q", "input_bytes")))
"""A merge's level in the tree, and the number and total size of its inputs. This entry follows the merge task."""

GPU: Final = _declared(
    (*of(TEXT, "worker"), *of("d", "time", "gpu_percent"), *of("q", "gpu_memory")), table="GPU samples"
)
"""Load of a worker's GPU, as measured by Dask through pynvml. This entry precedes the worker's `SAMPLE` entry."""

MOST_LEVELS: Final = 64

LEFT: Final = 0xFFFFFFFF
"""Task count that marks a departed worker."""


LOG_CAP = 64_000_000
"""Maximum size of the scheduler's log in bytes. Rows beyond this limit are dropped and counted."""

BLOCK = 256_000

MOST_TEXTS = 10_000
"""Maximum number of strings whose numbers are remembered. Beyond this limit, a string may get a second number."""


class LogWriter:
    """A log whose entries are stored as bytes. The number of bytes waiting to be drained is limited.

    Parameters
    ----------
    cap : int
        The limit in bytes.
    first_text : int
        Number of the first string, i.e. the number of strings that the client already has from an earlier log.
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

    # entries

    def has_room(self, kind: Kind, rows: int = 1) -> bool:
        """Whether there is room for this many rows; if not, the rows are counted as dropped."""
        if self.size <= self.cap or kind.table is None:
            return True
        self.dropped[kind.table] = self.dropped.get(kind.table, 0) + rows
        return False

    def write(self, kind: Kind, payload: bytes) -> None:
        if self.has_room(kind):
            self.append(kind, payload)

    def append(self, kind: Kind, payload: bytes) -> None:
        """Append an entry; call this method only after `has_room` has returned True."""
        entry = (
            self._header(kind.code, len(payload)) + payload
        )  # a payload that is not bytes fails here, before the log changes
        self._block += entry
        self.size += len(entry)
        if len(self._block) >= BLOCK:
            self._blocks.append(bytes(self._block))
            self._block = bytearray()

    def write_fields(self, kind: Kind, *values: Any, then: bytes = b"") -> None:
        """Write an entry from its field values. This is too slow for frequent use."""
        self.write(kind, struct.pack(kind.packing, *values) + then)

    def write_text(self, kind: Kind, text: str) -> None:
        self.write(kind, text.encode("utf-8", "surrogatepass"))

    def number(self, text: str | None) -> int:
        """Number assigned to a recurring string; the string is logged on first use."""
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
        """Return the oldest entries, but keep them until the client confirms that it received them.

        Parameters
        ----------
        limit : int
            Approximate number of bytes to return.
        received : int
            Number of bytes that the client has received so far. A lost response is sent again.

        Returns
        -------
        dict
            `data` (complete entries), `at` (bytes returned earlier), `more` (whether entries are left), `dropped` (rows
            lost so far, by table).
        """
        if received == self.given:
            self._given = self._take(limit)
            self.given += len(self._given)
        at = self.given - len(self._given)
        return {"data": self._given, "at": at, "more": self.size > 0, "dropped": dict(self.dropped)}

    def _take(self, limit: int) -> bytes:
        """Remove the oldest complete entries, about `limit` bytes in total."""
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
    def __init__(self, name: str, log: LogWriter) -> None:
        self._name = name
        self._log = log
        self._pack = struct.Struct(SAMPLE.packing).pack
        self.sampled: dict[str, float] = {}
        """Time of each worker's last sampled report."""

    def take(self, address: str, state: Any, now: float) -> None:
        get, nan = state.metrics.get, math.nan
        measured = get("time")
        if measured is None or measured == self.sampled.get(address):
            return
        self.sampled[address] = measured
        if "gpu_utilization" in state.metrics:
            # Dask reports None for what a GPU does not support
            percent, memory = get("gpu_utilization"), get("gpu_memory_used")
            load = nan if percent is None else percent, NO_SIZE if memory is None else memory
            self._log.write(GPU, struct.pack(GPU.packing, self._log.number(address), measured, *load))
        network, disk = get("host_net_io") or {}, get("host_disk_io") or {}
        spilled = get("spilled_bytes") or {}
        # unpacking tuples in the call would be 20 % slower
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
