"""Tables of the chunk phases and of the classes in both ledgers.

To add a class, add an entry here. To add a phase, add an entry in `records.chunks`, which this module re-exports. The
ledgers, their metrics, the verdict, comparisons, plots and exports all use these tables.
"""

# ruff: noqa: F403, F405
from __future__ import annotations

from functools import reduce
from typing import Final, Literal, NamedTuple

import pyarrow.compute as pc
from pyarrow import Table

from roastcoffea.records import workers as task_records
from roastcoffea.records.chunks import *

STARTUP: Final = "start-up"
MERGE: Final = "merge"
PREPROCESSING: Final = "preprocessing"
OTHER_TASKS: Final = "other tasks"
FAILED: Final = "failed"

TRANSFER: Final = "transfer"
WORKER_OVERHEAD: Final = "worker overhead"
IN_FLIGHT: Final = "in flight"
PAUSED: Final = "paused"
QUEUED: Final = "idle: queued"
MISPLACED: Final = "idle: misplaced"
TAIL: Final = "idle: tail"
CLIENT: Final = "idle: client"

UNRECORDED: Final = "not recorded"
RESIDUAL: Final = "residual"
TOTAL: Final = "total"

PAYLOAD: Final = "payload"
REREAD: Final = "re-read"
METADATA: Final = "metadata"
OTHER_FILES: Final = "other files"

NEW_BYTES: Final = "in files"
REWRITTEN: Final = "rewritten"
OTHER_WRITES: Final = "other writes"

Work = Literal["useful", "waiting", "overhead", "lost", "of others", "idle", "unaccounted"]

Volume = Literal["events", "bytes", "chunks", "threads"]


class Family(NamedTuple):
    """A group of classes with similar meanings, which share a colour."""

    name: str
    label: str
    light: str
    dark: str


COMPUTING: Final = Family("computing", "compute", "#2352C0", "#3D88EA")
DECODING: Final = Family("decoding", "decompress, interpret", "#1A93D8", "#B1E0FB")
READING: Final = Family("reading", "read, write", "#AD5C0C", "#F2930F")
OPENING: Final = Family("opening", "start-up, open", "#C87B04", "#F5D098")
HANDLING: Final = Family("handling", "scheduling, transfer, merge", "#693A78", "#C0A0E6")
TROUBLE: Final = Family("trouble", "waiting, failed", "#A40B23", "#E63C2B")
IDLING: Final = Family("idling", "idle", "#7C828C", "#727884")
FAMILIES: Final = (COMPUTING, DECODING, READING, OPENING, HANDLING, TROUBLE, IDLING)
"""All families of classes. Work is blue, storage orange, handling purple, trouble red, and idle time grey.

The colours were found by a search. Any two of them are at least 9 apart (OKLab x 100), both for normal vision and for
each of the three kinds of colour blindness. Each colour has a contrast ratio of at least 3:1 with its background: white
or light grey on light pages, black or dark grey on dark pages.
"""

SERIES: Final = (
    Family("series-0", "", "#005049", "#99C8C1"),
    Family("series-1", "", "#5F9963", "#03892C"),
    Family("series-2", "", "#212E01", "#DFF7D6"),
    Family("series-3", "", "#546F4E", "#839F84"),
)
"""Greens for anything that is not a class, such as datasets and workers."""


class TimeClass(NamedTuple):
    name: str
    work: Work
    family: Family
    word: str | None
    """Name of the cause in findings."""
    grows_with: Volume | None
    """Quantity by which comparisons scale the time in this class; None if they do not scale it.

    For example, all threads are idle while the client is working. The time in this class then grows with the number of
    threads, although the wall time does not.
    """
    meaning: str
    task_kind: str | None = None
    """Kind of task whose entire time belongs to this class."""
    from_scheduler: bool = False
    """Whether only a scheduler can record this class."""
    former_name: str | None = None

    @property
    def metric_name(self) -> str:
        return _metric_name(self.name)

    @property
    def alias(self) -> str | None:
        return None if self.former_name is None else _metric_name(self.former_name)


def _metric_name(of_class: str) -> str:
    return f"time_{of_class.replace(': ', '_').replace(' ', '_').replace('-', '_')}_seconds"


class ByteClass(NamedTuple):
    name: str
    work: Work
    family: Family
    """A class in both ledgers has the same family in both."""
    metric_name: str
    meaning: str
    of_branches: bool = False
    """Whether the bytes in this class are known for each branch."""


# fmt: off
TIME_CLASSES: Final = (
    TimeClass(COMPUTE, "useful", COMPUTING, "compute", "events",
              "CPU time in process(), excluding decompression and interpretation."),
    TimeClass(DECOMPRESS, "useful", DECODING, "decompression", "bytes",
              "CPU time that chunk threads spent decompressing data."),
    TimeClass(INTERPRET, "useful", DECODING, "interpretation", "bytes",
              "CPU time that chunk threads spent turning baskets into arrays."),
    TimeClass(READ, "waiting", READING, "storage", "bytes",
              "Time spent waiting for storage in process(), or for preloaded branches."),
    TimeClass(WRITE, "useful", READING, "writing", "events",
              "Time spent writing files in process(): serializing, compressing and waiting for storage."),
    TimeClass(CONTENTION, "waiting", TROUBLE, "contention", "events",
              "Time in process() during which the thread was runnable but waiting for a core."),
    TimeClass(LOCK, "waiting", TROUBLE, "interpreter lock", "events",
              "Time blocked in process() while other threads held the GIL (estimated)."),
    TimeClass(BLOCKED, "waiting", TROUBLE, "blocked", "events",
              "Other off-CPU time in process(), such as sleeping or waiting for locks or network services."),
    TimeClass(WAIT, "waiting", TROUBLE, "blocked", "events",
              "Sum of contention, interpreter lock and blocked, for runs that did not record them separately."),
    TimeClass(STARTUP, "overhead", OPENING, "start-up", None,
              "Imports, delays before first tasks, and the extra time taken by each thread's first chunk."),
    TimeClass(OPEN, "overhead", OPENING, "metadata", "chunks",
              "Time spent opening files and building trees, schemas and events."),
    TimeClass(CHECKPOINT, "overhead", OPENING, "checkpoint", "chunks",
              "Time spent loading and saving checkpoints."),
    TimeClass(OVERHEAD, "overhead", HANDLING, "scheduler", "chunks",
              "Other time in the processor's tasks: closing files, compressing results, running the executor."),
    TimeClass(MEASURING, "overhead", HANDLING, "scheduler", "chunks",
              "CPU time of roastcoffea's own code in the processor's tasks (partly estimated)."),
    TimeClass(MERGE, "overhead", HANDLING, "merge", "chunks",
              "Time spent in tasks that merge results.", task_kind=task_records.MERGE, from_scheduler=True),
    TimeClass(PREPROCESSING, "overhead", OPENING, "preprocessing", None,
              "Time spent reading file metadata before processing, including coffea's column tracing.",
              task_kind=task_records.PREPROCESSING),
    TimeClass(OTHER_TASKS, "of others", TROUBLE, "other tasks", None,
              "Time spent in tasks that ran on the run's workers but outside its Runner calls.",
              task_kind=task_records.OTHER),
    TimeClass(FAILED, "lost", TROUBLE, "failures", None,
              "Time spent on attempts that failed, lost their worker, or were cancelled, repeated or unfinished."),
    TimeClass(TRANSFER, "idle", HANDLING, "transfer", "chunks",
              "Slots left free while a task on the worker was waiting for its inputs.", from_scheduler=True),
    TimeClass(WORKER_OVERHEAD, "idle", HANDLING, "scheduler", "chunks",
              "Slots left free although a task was ready on the worker.",
              from_scheduler=True, former_name="worker"),
    TimeClass(IN_FLIGHT, "idle", HANDLING, "scheduler", "chunks",
              "Slots left free while a task or its report was in transit.",
              from_scheduler=True, former_name="on the way"),
    TimeClass(PAUSED, "idle", TROUBLE, "memory", "threads",
              "Slots left free on workers that Dask paused because of their memory use.",
              from_scheduler=True),
    TimeClass(QUEUED, "idle", IDLING, "scheduler", "threads",
              "Slots left free while runnable tasks were queued on the scheduler.", from_scheduler=True),
    TimeClass(MISPLACED, "idle", IDLING, "scheduler", "threads",
              "Slots left free while ready tasks were waiting on other workers.",
              from_scheduler=True, former_name="idle: placement"),
    TimeClass(TAIL, "idle", IDLING, "tail", "threads",
              "Slots that had nothing left to run while other slots were still busy."),
    TimeClass(CLIENT, "idle", IDLING, "client", "threads",
              "Slots left free because there was no task: the client was preparing or merging, or had not started."),
    TimeClass(UNRECORDED, "unaccounted", IDLING, None, None,
              "Slots without a recorded task while the client was suspended."),
    TimeClass(RESIDUAL, "unaccounted", IDLING, None, None,
              "Total minus all other classes. The value is close to 0 if the ledger is complete."),
)
"""Classes of the time ledger, in display order."""

BYTE_CLASSES: Final = (
    ByteClass(PAYLOAD, "useful", READING, "bytes_payload",
              "Bytes from baskets, pages or column chunks read for the first time.", of_branches=True),
    ByteClass(REREAD, "lost", TROUBLE, "bytes_reread",
              "Bytes from baskets, pages or column chunks that had already been read.", of_branches=True),
    ByteClass(METADATA, "overhead", OPENING, "bytes_metadata",
              "Bytes from headers, keys, streamers, trees and schemas."),
    ByteClass(OTHER_FILES, "useful", READING, "bytes_other_files",
              "Bytes from files that process() opened itself, such as friend trees."),
    ByteClass(PREPROCESSING, "overhead", OPENING, "bytes_preprocessing",
              "Bytes requested by coffea's preprocessing, including column tracing."),
    ByteClass(FAILED, "lost", TROUBLE, "bytes_failed",
              "Bytes requested by attempts that failed or whose result was not used."),
    ByteClass(RESIDUAL, "unaccounted", IDLING, "bytes_residual",
              "Requested bytes that belong to no other class. The value is 0 if the ledger is complete."),
)
"""Classes of the byte ledger, in display order."""

WRITTEN_CLASSES: Final = (
    ByteClass(NEW_BYTES, "useful", READING, "bytes_in_files",
              "Bytes by which the files grew that process() wrote with uproot, awkward or Arrow."),
    ByteClass(REWRITTEN, "overhead", OPENING, "bytes_rewritten",
              "Bytes that replaced earlier ones in these files, such as headers and directories of ROOT files."),
    ByteClass(OTHER_WRITES, "useful", HANDLING, "bytes_other_writes",
              "Bytes that chunk threads wrote in other ways, such as plain files and logs (Linux only)."),
    ByteClass(FAILED, "lost", TROUBLE, "bytes_written_failed",
              "Bytes written by attempts that failed or whose results were not used."),
    ByteClass(RESIDUAL, "unaccounted", IDLING, "bytes_written_residual",
              "The system's count minus all other classes; 0 if the ledger is complete."),
)
"""Classes of the write ledger, in display order."""
# fmt: on

OPENED: Final = "open_seconds"
BUILD: Final = "build_seconds"
"""Column that is null if OPENED includes building events, as it did before coffea 2025.11."""

PARTS_OF_WAIT: Final = (CONTENTION, LOCK, BLOCKED)
"""Classes formerly combined in "wait", which is still used for chunks recorded without them."""

OLDER_NAMES: Final = {
    **{one.former_name: (one.name,) for one in TIME_CLASSES if one.former_name is not None},
    WAIT: PARTS_OF_WAIT,
}
"""Maps each former name, and "wait", to the current classes."""

FAMILY_OF: Final = {one.name: one.family for one in (*WRITTEN_CLASSES, *TIME_CLASSES, *BYTE_CLASSES)}

TIME_NAMES: Final = tuple(one.name for one in TIME_CLASSES)
BYTE_NAMES: Final = tuple(one.name for one in BYTE_CLASSES)
BUSY: Final = tuple(one.name for one in TIME_CLASSES if one.work not in {"idle", "unaccounted"})
IDLE: Final = tuple(one.name for one in TIME_CLASSES if one.work == "idle")

CLASS_OF_KIND: Final = {one.task_kind: one.name for one in TIME_CLASSES if one.task_kind is not None}

COLUMNS_OF: Final = {
    name: columns
    for name in BUSY
    if name != OVERHEAD and (columns := tuple(phase.column for phase in PHASES if phase.time_class == name))
}
"""Maps each class to its chunk columns. Task overhead has none, because it is the remainder of the task's time."""

WRITING: Final = COLUMNS_OF[WRITE]
MEASURED_LATER: Final = {
    WRITE: f'its time is in "{COMPUTE}" and "{BLOCKED}"',
    MEASURING: f'its time is in "{COMPUTE}", "{OPEN}" and "{OVERHEAD}"',
}
"""Classes that older measurements lack, and where their time is."""
LATER: Final = tuple(column for name in MEASURED_LATER for column in COLUMNS_OF[name])


def phases_of(chunks: Table) -> tuple[Phase, ...]:
    """Phases recorded for these chunks. Waiting in process() may be combined, split, or, on mixed platforms, both."""
    whole, parts = (any(chunks[name].null_count < len(chunks) for name in of) for of in ((UNSPLIT,), SPLIT))
    without = () if whole and parts else SPLIT if whole else (UNSPLIT,)
    without += (BUILD,) if is_opening_whole(chunks) else ()
    without += tuple(name for name in LATER if 0 < len(chunks) == chunks[name].null_count)
    return tuple(phase for phase in PHASES if phase.column not in without)


def is_opening_whole(chunks: Table) -> bool:
    """Whether opening the file and building events were recorded as one phase."""
    if chunks[BUILD].null_count < len(chunks):
        return False
    return bool(pc.any(pc.and_(chunks[OPENED].is_valid(), chunks["compute_seconds"].is_valid())).as_py())


def with_sum_of_waits(chunks: Table) -> Table:
    """Combine all waiting in process() into one column, whether or not its parts were recorded separately."""
    parts = reduce(pc.add, (chunks[name] for name in SPLIT))
    place = chunks.schema.get_field_index(UNSPLIT)
    return chunks.set_column(place, chunks.field(place), pc.coalesce(chunks[UNSPLIT], parts))
