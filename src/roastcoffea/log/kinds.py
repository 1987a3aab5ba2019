"""Kinds of entries in the log of the scheduler's plugin, which the client drains, and their fields.

Entries are read in the order of writing. Each is the code of its kind (one byte), the length of its payload, and the
payload: the packed fields of the kind, and optional further data. A recurring text is written once, and fields hold its
number. msgpack would take 11 % more bytes for a task and 23 % more for a sample, and two to three times as long to read
(benchmarks/README.md).

A new kind is declared here, written by a plugin (`log.writer`), and read by a part of the client's log (`log.reader`).
Formats are text, and not `struct.Struct`: this module must survive pickling by value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

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
    then : str
        Data after the fields.
    table : str or None
        What to count if an entry is dropped for lack of space; None for small entries that others build on.
    """

    code: bytes
    fields: Fields
    then: str
    table: str | None

    @property
    def packing(self) -> str:
        """Format for `struct` of its fields."""
        return packing(self.fields)


ALL: Final[list[Kind]] = []
"""Every kind of entry; the index is the code, so that codes are unique."""


def _declared(fields: Fields = (), then: str = "", table: str | None = None) -> Kind:
    kind = Kind(bytes([len(ALL)]), fields, then, table)
    ALL.append(kind)
    return kind


STRING: Final = _declared(then="a text; those of the log are numbered from 0")

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
    then="the key; empty for a task of another user",
    table="tasks",
)
"""A finished attempt of a task.

Start and stop are on the worker's clock with Dask's shift, the last three are seconds from the start; NaN if unknown.
"""

TASK_ERROR: Final = _declared(then="text of the previous task's error", table="errors of tasks")

CHUNK: Final = _declared(then="packed records of attempts of chunks", table="chunks")

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

PROCESS_CPU: Final = _declared(
    (("worker", TEXT), ("cpu_seconds", "d")), then="first and last load of a worker, as JSON"
)
"""CPU time of a worker's process, with its last message."""

COUNTED: Final = _declared(
    (("worker", TEXT),), then="[key, amount] of each count, as compressed JSON", table="counts of workers that left"
)
"""Dask's counts of a worker that left."""

PROBLEM: Final = _declared(then="the problem as text")

STATE: Final = _declared(
    (("first", "Q"), ("size", "I")),
    then="rows of `STATE_FIELDS` of that size, and as JSON a list for each new task",
    table="states of tasks",
)
"""States that tasks entered; tasks are numbered from 0, in order of appearance.

The list of a task has its key; for coffea's tasks also the code of their kind, and for a chunk its dataset, file, tree,
first entry, and entry after the last.
"""

VIEWS: Final = _declared(
    then="address of a worker and rows of its views of tasks, as compressed JSON",
    table="batches of workers' views of tasks",
)

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
    then="rows of `WORKER_STATE_FIELDS`",
    table="sampling",
)
"""A sample that the scheduler took itself.

It has rows of the workers that changed since the previous sample; if it is `whole`, of all present workers.
"""

WORKER_STATE_FIELDS: Final = (*of(TEXT, "worker"), *of("I", "processing"), *of("q", "nbytes"), *of("f", "occupancy"))

TASK_CHUNK: Final = _declared(
    then="dataset, file, tree, first entry, and entry after the last of the previous task's chunk, as JSON",
    table="chunks of failed tasks",
)
"""Follows the task of a failed chunk: an attempt lost with its worker leaves no record of its own."""

KILLED: Final = _declared((*of(TEXT, "worker"), *of("d", "time"), *of("q", "memory")))
"""A worker killed by its nanny because of this much resident memory."""

JOB: Final = _declared((*of(TEXT, "worker"), *of("d", "time")), then="what a worker knows of its batch job, as JSON")
"""A worker's batch job: columns of lifetimes, and `job_age` and `closes_in` in seconds at that time."""

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
