"""One table of what time and bytes go into: phases of a chunk, and the classes of both ledgers.

Ledgers, their metrics, the verdict, comparisons, stragglers, colours, plots and exports read it. A new class is one
entry here; a new phase is one in `records.phases`, which this module hands on.
"""

# ruff: noqa: F403, F405
from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Final, Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from roastcoffea.records import tasks as task_records
from roastcoffea.records.phases import *

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

RESIDUAL: Final = "residual"
TOTAL: Final = "total"

PAYLOAD: Final = "payload"
REREAD: Final = "re-read"
METADATA: Final = "metadata"

Work = Literal["useful", "waiting", "overhead", "lost", "of others", "idle", "unaccounted"]
"""What the time or the bytes of a class were spent for."""

Volume = Literal["events", "bytes", "chunks", "threads"]


class Family(NamedTuple):
    """Classes of one meaning, which share a colour in bars, plots, pages and terminals."""

    name: str
    label: str
    """What stands next to its colour."""
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
    """Cause that it belongs to, as findings name it."""
    grows_with: Volume | None
    """What a comparison takes it to grow with; none where its seconds are compared as they are.

    A slot that idles while the client works idles on every thread: such time grows with the threads, and takes no more
    wall time the more there are.
    """
    meaning: str
    task_kind: str | None = None
    """Kind of the tasks whose whole time it has."""
    from_scheduler: bool = False
    """Whether only a scheduler tells of it."""
    once: str | None = None
    """Its older name, which still answers."""

    @property
    def metric_name(self) -> str:
        """Name of its metric."""
        return _metric_name(self.name)

    @property
    def alias(self) -> str | None:
        """Older name of its metric."""
        return None if self.once is None else _metric_name(self.once)


def _metric_name(of_class: str) -> str:
    return f"time_{of_class.replace(': ', '_').replace(' ', '_').replace('-', '_')}_seconds"


class ByteClass(NamedTuple):
    """A class of the byte ledger."""

    name: str
    work: Work
    family: Family
    """Whose colour it has: that of the time ledger's class where both have it."""
    metric_name: str
    meaning: str
    of_branches: bool = False
    """Whether its bytes are known by branch."""


# fmt: off
TIME_CLASSES: Final = (
    TimeClass(COMPUTE, "useful", COMPUTING, "compute", "events",
              "CPU time of the threads in process(), less decompression and interpretation."),
    TimeClass(DECOMPRESS, "useful", DECODING, "decompression", "bytes",
              "CPU time of the chunks' threads in decompression."),
    TimeClass(INTERPRET, "useful", DECODING, "interpretation", "bytes",
              "CPU time of the chunks' threads in interpretation of baskets, from hand-over to final array."),
    TimeClass(READ, "waiting", READING, "storage", "bytes",
              "Waiting for storage inside of process()."),
    TimeClass(CONTENTION, "waiting", TROUBLE, "contention", "events",
              "Time in process() in which the thread could run and had no core: it stood in the run queue."),
    TimeClass(LOCK, "waiting", TROUBLE, "interpreter lock", "events",
              "Blocked in process() while other threads of the process held the interpreter's lock (estimated)."),
    TimeClass(BLOCKED, "waiting", TROUBLE, "blocked", "events",
              "Other time in process() without CPU: sleep, locks, network services."),
    TimeClass(WAIT, "waiting", TROUBLE, "blocked", "events",
              "Contention, interpreter lock and blocked together, where they were not told apart."),
    TimeClass(STARTUP, "overhead", OPENING, "start-up", None,
              "Imports, first tasks, and what a thread's first opening and first chunk take beyond later ones."),
    TimeClass(OPEN, "overhead", OPENING, "metadata", "chunks",
              "Opening files, and building tree, schema and events."),
    TimeClass(CHECKPOINT, "overhead", OPENING, "checkpoint", "chunks",
              "Loading and saving checkpoints."),
    TimeClass(OVERHEAD, "overhead", HANDLING, "scheduler", "chunks",
              "The rest of the processor's tasks: closing the file, compressing the result, the executor itself."),
    TimeClass(MERGE, "overhead", HANDLING, "merge", "chunks",
              "Tasks that merge results.", task_kind=task_records.MERGE, from_scheduler=True),
    TimeClass(PREPROCESSING, "overhead", OPENING, "preprocessing", None,
              "Tasks that fetch the metadata of files.", task_kind=task_records.PREPROCESSING),
    TimeClass(OTHER_TASKS, "of others", TROUBLE, "other tasks", None,
              "Tasks on these workers that belong to nobody's Runner call here.", task_kind=task_records.OTHER),
    TimeClass(FAILED, "lost", TROUBLE, "failures", None,
              "Whole failed attempts: they erred, lost their worker, were cancelled, repeated or "
              "unfinished."),
    TimeClass(TRANSFER, "idle", HANDLING, "transfer", "chunks",
              "Free slots whose task waited for its inputs.", from_scheduler=True),
    TimeClass(WORKER_OVERHEAD, "idle", HANDLING, "scheduler", "chunks",
              "Free slots whose task had arrived, was ready, and had not begun.", from_scheduler=True, once="worker"),
    TimeClass(IN_FLIGHT, "idle", HANDLING, "scheduler", "chunks",
              "Free slots while an assignment or a report travelled.", from_scheduler=True, once="on the way"),
    TimeClass(PAUSED, "idle", TROUBLE, "memory", "threads",
              "Free slots of workers that Dask had paused for memory: they begin nothing and fetch nothing.",
              from_scheduler=True),
    TimeClass(QUEUED, "idle", IDLING, "scheduler", "threads",
              "Free slots while tasks that could run waited at the scheduler.", from_scheduler=True),
    TimeClass(MISPLACED, "idle", IDLING, "scheduler", "threads",
              "Free slots while ready tasks waited on other workers.", from_scheduler=True, once="idle: placement"),
    TimeClass(TAIL, "idle", IDLING, "tail", "threads",
              "Free slots with nothing left to run while others still worked."),
    TimeClass(CLIENT, "idle", IDLING, "client", "threads",
              "Free slots while nothing was anywhere: the client prepared, merged, or had not begun."),
    TimeClass(RESIDUAL, "unaccounted", IDLING, None, None,
              "Total less all classes: small where all is understood."),
)
"""Classes of the time ledger, in the order in which they are shown."""

BYTE_CLASSES: Final = (
    ByteClass(PAYLOAD, "useful", READING, "bytes_payload",
              "Bytes of baskets, pages or column chunks that chunks read for the first time.", of_branches=True),
    ByteClass(REREAD, "lost", TROUBLE, "bytes_reread",
              "Bytes of baskets, pages or column chunks that chunks read again.", of_branches=True),
    ByteClass(METADATA, "overhead", OPENING, "bytes_metadata",
              "Bytes of headers, keys, streamers, trees and schemata that chunks requested."),
    ByteClass(PREPROCESSING, "overhead", OPENING, "bytes_preprocessing",
              "Bytes that coffea's metadata tasks requested."),
    ByteClass(FAILED, "lost", TROUBLE, "bytes_failed",
              "Bytes requested by attempts that erred or whose result was not used."),
    ByteClass(RESIDUAL, "unaccounted", IDLING, "bytes_residual",
              "Bytes requested that are in no class of the byte ledger: 0 where all is understood."),
)
"""Classes of the byte ledger, in the order in which they are shown."""
# fmt: on

PARTS_OF_WAIT: Final = (CONTENTION, LOCK, BLOCKED)
"""Classes that one was before: "wait", which still has the time of chunks that do not tell them apart."""

OLDER_NAMES: Final = {one.once: (one.name,) for one in TIME_CLASSES if one.once is not None} | {WAIT: PARTS_OF_WAIT}
"""Classes by the name that they, or their sum, had before."""

FAMILY_OF: Final[Mapping[str, Family]] = {one.name: one.family for one in (*TIME_CLASSES, *BYTE_CLASSES)}
"""Family of each class of both ledgers."""

TIME_NAMES: Final = tuple(one.name for one in TIME_CLASSES)
BYTE_NAMES: Final = tuple(one.name for one in BYTE_CLASSES)
BUSY: Final = tuple(one.name for one in TIME_CLASSES if one.work not in {"idle", "unaccounted"})
IDLE: Final = tuple(one.name for one in TIME_CLASSES if one.work == "idle")
"""Why the slot of a thread is free."""

OF_TASK_KIND: Final = {one.task_kind: one.name for one in TIME_CLASSES if one.task_kind is not None}
"""Classes that have the whole time of tasks, by the kind of these."""

COLUMNS_OF: Final[Mapping[str, tuple[str, ...]]] = {
    name: columns
    for name in BUSY
    if name != OVERHEAD and (columns := tuple(phase.column for phase in PHASES if phase.time_class == name))
}
"""Columns of chunks that make a class. Task overhead is what a task takes beyond these, its result included."""


def phases_of(chunks: pa.Table) -> tuple[Phase, ...]:
    """Phases that these chunks have: waiting in process() is one, or told apart, or both where platforms differ."""
    whole, parts = (any(chunks[name].null_count < len(chunks) for name in of) for of in ((UNSPLIT,), SPLIT))
    without = () if whole and parts else SPLIT if whole else (UNSPLIT,)
    return tuple(phase for phase in PHASES if phase.column not in without)


def with_sum_of_waits(chunks: pa.Table | None) -> pa.Table | None:
    """Chunks with all their waiting in process() as one column, whether or not its parts were measured."""
    if chunks is None:
        return None
    parts = reduce(pc.add, (chunks[name] for name in SPLIT))
    place = chunks.schema.get_field_index(UNSPLIT)
    return chunks.set_column(place, chunks.field(place), pc.coalesce(chunks[UNSPLIT], parts))
