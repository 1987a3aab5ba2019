"""Phases of a chunk and classes of both ledgers, in one table.

Ledgers, their metrics, the verdict, comparisons, stragglers, colours, plots and exports read it. A new class is one
entry here; a new phase is one in `records.chunks`, which this module re-exports.
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

Work = Literal["useful", "waiting", "overhead", "lost", "of others", "idle", "unaccounted"]
"""Purpose of a class's time or bytes."""

Volume = Literal["events", "bytes", "chunks", "threads"]


class Family(NamedTuple):
    """Classes of similar meaning, which share a colour in bars, plots, pages and terminals."""

    name: str
    label: str
    """Text next to its colour."""
    light: str
    """Colour on a light background."""
    dark: str
    """Colour on a dark background."""


COMPUTING: Final = Family("computing", "compute", "#2352C0", "#3D88EA")
DECODING: Final = Family("decoding", "decompress, interpret", "#1A93D8", "#B1E0FB")
READING: Final = Family("reading", "read", "#AD5C0C", "#F2930F")
OPENING: Final = Family("opening", "start-up, open", "#C87B04", "#F5D098")
HANDLING: Final = Family("handling", "scheduling, transfer, merge", "#693A78", "#C0A0E6")
TROUBLE: Final = Family("trouble", "waiting, failed", "#A40B23", "#E63C2B")
IDLING: Final = Family("idling", "idle", "#7C828C", "#727884")
FAMILIES: Final = (COMPUTING, DECODING, READING, OPENING, HANDLING, TROUBLE, IDLING)
"""All colours that classes have: work is blue, storage orange, handling purple, trouble red, idle time grey.

They were found by search: any two stay 9 apart (OKLab x 100) for eyes without a defect and with each of the three kinds
of colour-blindness, and each has a contrast of 3:1 with white or light grey, or with black or dark grey.
"""


class TimeClass(NamedTuple):
    """A class of the time ledger."""

    name: str
    work: Work
    family: Family
    """Whose colour it has."""
    word: str | None
    """Its cause, as findings name it."""
    grows_with: Volume | None
    """What comparisons scale it with; none if its seconds are compared as they are.

    While the client works, every thread is idle: such time grows with the number of threads, but the wall time does
    not.
    """
    meaning: str
    task_kind: str | None = None
    """Kind of the tasks whose entire time it holds."""
    from_scheduler: bool = False
    """Whether only a scheduler records it."""
    former_name: str | None = None
    """Its former name, which still works."""

    @property
    def metric_name(self) -> str:
        """Name of its metric."""
        return _metric_name(self.name)

    @property
    def alias(self) -> str | None:
        """Former name of its metric."""
        return None if self.former_name is None else _metric_name(self.former_name)


def _metric_name(of_class: str) -> str:
    return f"time_{of_class.replace(': ', '_').replace(' ', '_').replace('-', '_')}_seconds"


class ByteClass(NamedTuple):
    """A class of the byte ledger."""

    name: str
    work: Work
    family: Family
    """Family that gives the colour, the same as in the time ledger for a class of both."""
    metric_name: str
    meaning: str
    of_branches: bool = False
    """Whether its bytes are known by branch."""


# fmt: off
TIME_CLASSES: Final = (
    TimeClass(COMPUTE, "useful", COMPUTING, "compute", "events",
              "CPU time in process(), except decompression and interpretation."),
    TimeClass(DECOMPRESS, "useful", DECODING, "decompression", "bytes",
              "CPU time of the chunks' threads spent decompressing."),
    TimeClass(INTERPRET, "useful", DECODING, "interpretation", "bytes",
              "CPU time of the chunks' threads spent turning baskets into arrays (interpretation in uproot)."),
    TimeClass(READ, "waiting", READING, "storage", "bytes",
              "Waiting for storage in process(), or for branches that are preloaded."),
    TimeClass(CONTENTION, "waiting", TROUBLE, "contention", "events",
              "Runnable in process() without a free core: the thread sat in the run queue."),
    TimeClass(LOCK, "waiting", TROUBLE, "interpreter lock", "events",
              "Blocked in process() while other threads of the process held the interpreter lock (estimated)."),
    TimeClass(BLOCKED, "waiting", TROUBLE, "blocked", "events",
              "Other time off the CPU in process(): sleep, locks, network services."),
    TimeClass(WAIT, "waiting", TROUBLE, "blocked", "events",
              "Contention, interpreter lock and blocked together; a class in runs that do not record them separately."),
    TimeClass(STARTUP, "overhead", OPENING, "start-up", None,
              "Imports, first tasks, and the extra time of each thread's first opening and first chunk."),
    TimeClass(OPEN, "overhead", OPENING, "metadata", "chunks",
              "Opening files; building tree, schema and events."),
    TimeClass(CHECKPOINT, "overhead", OPENING, "checkpoint", "chunks",
              "Loading and saving checkpoints."),
    TimeClass(OVERHEAD, "overhead", HANDLING, "scheduler", "chunks",
              "The rest of the processor's tasks: closing the file, compressing the result, the executor itself."),
    TimeClass(MERGE, "overhead", HANDLING, "merge", "chunks",
              "Tasks that merge results.", task_kind=task_records.MERGE, from_scheduler=True),
    TimeClass(PREPROCESSING, "overhead", OPENING, "preprocessing", None,
              "Reading the metadata of files before processing, and coffea's trace of the columns to preload.",
              task_kind=task_records.PREPROCESSING),
    TimeClass(OTHER_TASKS, "of others", TROUBLE, "other tasks", None,
              "Tasks on these workers that do not belong to this run's Runner calls.", task_kind=task_records.OTHER),
    TimeClass(FAILED, "lost", TROUBLE, "failures", None,
              "Failed attempts from start to end: error, worker lost, cancelled, repeated or unfinished."),
    TimeClass(TRANSFER, "idle", HANDLING, "transfer", "chunks",
              "Free slots whose task was waiting for its inputs.", from_scheduler=True),
    TimeClass(WORKER_OVERHEAD, "idle", HANDLING, "scheduler", "chunks",
              "Free slots whose task was ready on the worker and had not started.",
              from_scheduler=True, former_name="worker"),
    TimeClass(IN_FLIGHT, "idle", HANDLING, "scheduler", "chunks",
              "Free slots while a task or its report was in transit to or from the worker.",
              from_scheduler=True, former_name="on the way"),
    TimeClass(PAUSED, "idle", TROUBLE, "memory", "threads",
              "Free slots of workers that Dask paused for memory: they start and fetch nothing.",
              from_scheduler=True),
    TimeClass(QUEUED, "idle", IDLING, "scheduler", "threads",
              "Free slots while runnable tasks waited at the scheduler.", from_scheduler=True),
    TimeClass(MISPLACED, "idle", IDLING, "scheduler", "threads",
              "Free slots while ready tasks waited on other workers.",
              from_scheduler=True, former_name="idle: placement"),
    TimeClass(TAIL, "idle", IDLING, "tail", "threads",
              "Free slots with nothing left to run while other threads still worked."),
    TimeClass(CLIENT, "idle", IDLING, "client", "threads",
              "Free slots with no task anywhere: the client was preparing or merging, or had not started."),
    TimeClass(UNRECORDED, "unaccounted", IDLING, None, None,
              "Slots without a recorded task while the client was stopped, and nothing was recorded."),
    TimeClass(RESIDUAL, "unaccounted", IDLING, None, None,
              "Total minus all classes; close to 0 if everything is accounted for."),
)
"""Classes of the time ledger, in the order in which they are shown."""

BYTE_CLASSES: Final = (
    ByteClass(PAYLOAD, "useful", READING, "bytes_payload",
              "Bytes of baskets, pages or column chunks read for the first time.", of_branches=True),
    ByteClass(REREAD, "lost", TROUBLE, "bytes_reread",
              "Bytes of baskets, pages or column chunks read again.", of_branches=True),
    ByteClass(METADATA, "overhead", OPENING, "bytes_metadata",
              "Bytes of headers, keys, streamers, trees and schemas."),
    ByteClass(OTHER_FILES, "useful", READING, "bytes_other_files",
              "Bytes, of metadata as well, from files that process() opened itself, such as friend trees."),
    ByteClass(PREPROCESSING, "overhead", OPENING, "bytes_preprocessing",
              "Bytes requested by coffea's preprocessing, with its trace of the columns to preload."),
    ByteClass(FAILED, "lost", TROUBLE, "bytes_failed",
              "Bytes requested by attempts that failed or whose result was not used."),
    ByteClass(RESIDUAL, "unaccounted", IDLING, "bytes_residual",
              "Requested bytes in no other class; 0 if everything is accounted for."),
)
"""Classes of the byte ledger, in the order in which they are shown."""
# fmt: on

OPENED: Final = "open_seconds"
BUILD: Final = "build_seconds"
"""Column that chunks lack if building events is in the other one, as before coffea 2025.11."""

PARTS_OF_WAIT: Final = (CONTENTION, LOCK, BLOCKED)
"""Classes that used to be one, "wait", which still holds the time of chunks that do not separate them."""

OLDER_NAMES: Final = {
    **{one.former_name: (one.name,) for one in TIME_CLASSES if one.former_name is not None},
    WAIT: PARTS_OF_WAIT,
}
"""Classes by their former name, or by that of their sum."""

FAMILY_OF: Final = {one.name: one.family for one in (*TIME_CLASSES, *BYTE_CLASSES)}
"""Family of each class of both ledgers."""

TIME_NAMES: Final = tuple(one.name for one in TIME_CLASSES)
BYTE_NAMES: Final = tuple(one.name for one in BYTE_CLASSES)
BUSY: Final = tuple(one.name for one in TIME_CLASSES if one.work not in {"idle", "unaccounted"})
IDLE: Final = tuple(one.name for one in TIME_CLASSES if one.work == "idle")
"""Reasons for free thread slots."""

CLASS_OF_KIND: Final = {one.task_kind: one.name for one in TIME_CLASSES if one.task_kind is not None}
"""Classes that hold the entire time of tasks, by task kind."""

COLUMNS_OF: Final = {
    name: columns
    for name in BUSY
    if name != OVERHEAD and (columns := tuple(phase.column for phase in PHASES if phase.time_class == name))
}
"""Columns of chunks that make up a class. Task overhead is the rest of a task's time, including its result."""


def phases_of(chunks: Table) -> tuple[Phase, ...]:
    """Phases that these chunks have: waiting in process() as one, split, or both if platforms differ."""
    whole, parts = (any(chunks[name].null_count < len(chunks) for name in of) for of in ((UNSPLIT,), SPLIT))
    without = () if whole and parts else SPLIT if whole else (UNSPLIT,)
    without += (BUILD,) if is_opening_whole(chunks) else ()
    return tuple(phase for phase in PHASES if phase.column not in without)


def is_opening_whole(chunks: Table) -> bool:
    """Whether opening the file and building events were recorded as one phase."""
    if chunks[BUILD].null_count < len(chunks):
        return False
    return bool(pc.any(pc.and_(chunks[OPENED].is_valid(), chunks["compute_seconds"].is_valid())).as_py())


def with_sum_of_waits(chunks: Table) -> Table:
    """Chunks with all waiting in process() as one column, whether or not its parts were measured."""
    parts = reduce(pc.add, (chunks[name] for name in SPLIT))
    place = chunks.schema.get_field_index(UNSPLIT)
    return chunks.set_column(place, chunks.field(place), pc.coalesce(chunks[UNSPLIT], parts))
