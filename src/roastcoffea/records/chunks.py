"""Attempts of chunks: the probe's record of each attempt to process a range, its phases, and its sampled stacks."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from roastcoffea.records.columns import Column

COMPUTE: Final = "compute"
DECOMPRESS: Final = "decompress"
INTERPRET: Final = "interpret"
READ: Final = "read"
CONTENTION: Final = "contention"
LOCK: Final = "interpreter lock"
BLOCKED: Final = "blocked"
WAIT: Final = "wait"
OPEN: Final = "open"
CHECKPOINT: Final = "checkpoint"
OVERHEAD: Final = "task overhead"

Part = Literal["opening", "CPU", "waiting", "saving"]
"""What an attempt does in a phase: open its file and build events, compute or wait in process(), save the result."""


class Phase(NamedTuple):
    """A part of an attempt's time."""

    name: str
    time_class: str
    """Its class of the time ledger."""
    part: Part
    recorded: str
    """What its column in the table of chunks holds, without the prefix for process()."""
    meaning: str

    @property
    def column(self) -> str:
        """Its column in the table of chunks."""
        return f"{self.name}_seconds"

    @property
    def in_process(self) -> bool:
        """Whether it is part of process()."""
        return self.part in {"CPU", "waiting"}


# fmt: off
PHASES: Final = (
    Phase("open", OPEN, "opening", "opening the file",
          "Wall time to open files"),
    Phase("build", OPEN, "opening", "building tree, schema and events",
          "Wall time to build trees, schemas and events"),
    Phase("read", READ, "waiting", "waiting for storage",
          "Waiting for storage in process(), or as branches are preloaded"),
    Phase("decompress", DECOMPRESS, "CPU", "CPU time of the thread spent decompressing",
          "CPU time in process() or preloading spent decompressing, in the chunks' own threads"),
    Phase("interpret", INTERPRET, "CPU",
          "CPU time of the thread spent interpreting baskets as arrays",
          "CPU time in process() or preloading spent interpreting baskets, in the chunks' own threads"),
    Phase("compute", COMPUTE, "CPU", "other CPU time of the thread",
          "Other CPU time in process(), in the chunks' own threads"),
    Phase("contention", CONTENTION, "waiting", "runnable without a free core, also while reading (Linux only)",
          "Runnable in process() without a free core"),
    Phase("lock", LOCK, "waiting", "blocked while other threads held the interpreter lock (estimated)",
          "Blocked in process() while other threads held the interpreter lock (estimated)"),
    Phase("blocked", BLOCKED, "waiting", "other time off the CPU: sleep, locks, network services",
          "Other time off the CPU in process(): sleep, locks, network services"),
    Phase(WAIT, WAIT, "waiting", "contention, interpreter lock and blocked combined",
          "Contention, interpreter lock and blocked combined"),
    Phase("checkpoint", CHECKPOINT, "saving", "loading and saving the checkpoint",
          "Wall time to load and save checkpoints"),
    Phase("result", OVERHEAD, "saving", "after process(): closing the file, coffea's own metrics",
          "Wall time after process(): closing the file, coffea's own metrics"),
)
"""Phases of an attempt, in order of time; those within process() alternate."""
# fmt: on

UNSPLIT: Final = f"{WAIT}_seconds"
"""Sum of the next columns, on platforms or in older versions that do not separate them."""
SPLIT: Final = tuple(phase.column for phase in PHASES if phase.time_class in {CONTENTION, LOCK, BLOCKED})


OK: Final = "ok"
ERROR: Final = "error"
SKIPPED: Final = "skipped"
TRACED: Final = "traced"
"""Outcome of a file that coffea opened to find out which columns the processor reads, to preload them."""

_OF_PHASES: Final = [
    Column(phase.column, "number", "s", f"{'in process(): ' if phase.in_process else ''}{phase.recorded}")
    for phase in PHASES
]
_BEFORE_PROCESS: Final = sum(phase.part == "opening" for phase in PHASES)
PHASE_COLUMNS: Final[tuple[Column, ...]] = (
    *_OF_PHASES[:_BEFORE_PROCESS],
    Column("process_seconds", "number", "s", "wall time of process(), without opening files"),
    *_OF_PHASES[_BEFORE_PROCESS:],
)
"""Where the time of an attempt went; `metrics.phases` has the class of each."""

ENDPOINT_COLUMNS: Final[tuple[Column, ...]] = (
    Column("endpoint", "text", None, "XRootD server that the data came from: behind a redirector, the data server"),
    Column("left_endpoint", "text", None, "XRootD server that was given up for that one while the file was read"),
    Column("opens", "integer", "opens", "how often the file was opened at the server; 0 where a handle was still open"),
    Column("connect_seconds", "number", "s", "opening the file at the server, with connection and redirection"),
    Column("requests", "integer", "requests", "requests to read that the server answered"),
    Column("vector_reads", "integer", "requests", "of these, vector reads: several ranges in one request"),
    Column("request_seconds", "number", "s", "latency of the requests, from sending to the whole answer, summed"),
    Column("shortest_request_seconds", "number", "s", "shortest latency of a request"),
)
"""What an opening of a file tells about the server: through XRootD all of it, through HTTP and S3 its requests."""

CHUNK_COLUMNS: Final[tuple[Column, ...]] = (
    Column("id", "integer", None, "identity of the record of this attempt"),
    Column("dataset", "text", None, "dataset in the fileset; without a Runner that of events, else the tasks' name"),
    Column("file", "text", None, "path or URL of the file"),
    Column("tree", "text", None, "tree or RNTuple in the file"),
    Column("uuid", "text", None, "the file's own identity, as coffea's preprocessing read it (hexadecimal)"),
    Column("entry_start", "integer", "events", "first entry of the chunk"),
    Column("entry_stop", "integer", "events", "entry after the last one of the chunk"),
    Column("events", "integer", "events", "events that were processed; none without a result"),
    Column("start", "number", "s", "when the attempt began (Unix time, the worker's clock)"),
    Column("stop", "number", "s", "when the attempt ended (Unix time, the worker's clock)"),
    Column("wall_seconds", "number", "s", "duration of the attempt: opening, building events, processing"),
    Column("cpu_seconds", "number", "s", "CPU time of the thread that ran the attempt"),
    Column("helper_cpu_seconds", "number", "s", "CPU time of other threads that read or decompressed for it"),
    Column("process_cpu_seconds", "number", "s", "CPU time of all threads of the process during the attempt"),
    Column("core_wait_seconds", "number", "s", "runnable without a free core (Linux only)"),
    Column("memory_before", "integer", "B", "resident memory of the process at the start"),
    Column("memory_after", "integer", "B", "resident memory of the process at the end"),
    Column("memory_peak", "integer", "B", "highest resident memory of the process during the attempt (Linux only)"),
    Column("overlaps", "integer", "chunks", "most other chunks open in the same process at the same time"),
    Column("worker", "text", None, "address of the Dask worker, otherwise host/process"),
    Column("thread", "integer", None, "identity of the thread in its process"),
    Column("key", "text", None, "key of the Dask task"),
    Column("run_id", "integer", None, "number that the scheduler gave this attempt of the task"),
    Column("attempt", "integer", None, "number of this attempt at its task, from 1"),
    Column("outcome", "text", None, '"ok", "error", "skipped" (bad file) or "checkpoint" (loaded, not computed)'),
    Column("error", "text", None, "text of the error, if any"),
    Column("call", "text", None, "identity of the Runner call that requested the chunk, or name of the tasks"),
    *PHASE_COLUMNS,
    Column(
        "gc_seconds",
        "number",
        "s",
        "garbage collection by the chunk's thread, and by others as far as it can have waited beyond `lock_seconds`; "
        "part of the phases that it interrupts",
    ),
    Column("imports", "texts", None, "packages of which the process loaded modules during the attempt (at most 20)"),
    Column("bytes_requested", "integer", "B", "requested from storage by this attempt"),
    Column("bytes_payload", "integer", "B", "of these, for baskets, pages or column chunks"),
    Column("bytes_metadata", "integer", "B", "of these, for headers, keys, streamers, tree, schema"),
    Column("bytes_transferred", "integer", "B", "received from storage, including gaps between merged ranges"),
    Column("bytes_uncompressed", "integer", "B", "size of the payload after decompression"),
    Column("branches", "integer", "branches", "branches, fields or columns read"),
    Column("tree_branches", "integer", "branches", "branches, fields or columns in the tree"),
    Column("file_bytes", "integer", "B", "size of the file"),
    Column("source", "text", None, "what read the file, such as FSSpecSource(HTTPFileSystem)"),
    Column("bytes_other", "integer", "B", "requested in process() from files that it opened itself"),
    Column("bytes_other_transferred", "integer", "B", "received for them, including gaps between merged ranges"),
    Column("other_files", "texts", None, "paths or URLs of these files"),
    Column("other_requested", "integers", "B", "requested from each of them"),
    Column("other_payload", "integers", "B", "of these, for baskets, pages or column chunks"),
    Column("other_metadata", "integers", "B", "of these, for headers, keys, streamers, trees, schemas"),
    Column("other_baskets", "integers", None, "which baskets of each, as a number: equal for the same ones"),
    Column("other_read_seconds", "number", "s", "of `read_seconds`, waiting for these files"),
    Column(
        "bytes_unmetered", "integer", "B", "read by the thread in process() by other means than uproot (Linux only)"
    ),
    Column("bytes_cached", "integer", "B", "arrays from coffea's buffer cache (cachestrategy)"),
    *ENDPOINT_COLUMNS,
    Column("metadata_requests", "integer", "requests", "of the requests, those before process()"),
    Column("metadata_request_seconds", "number", "s", "latency of the requests before process(), summed"),
    Column("coffea_bytes_read", "integer", "B", "bytes requested of the file (coffea's savemetrics)"),
    Column("coffea_entries", "integer", "events", "events in the chunk (coffea's savemetrics)"),
    Column("coffea_process_seconds", "number", "s", "wall time of process() (coffea's savemetrics)"),
    Column("coffea_columns", "texts", None, "columns read (coffea's savemetrics)"),
    Column("custom", "values", None, "values that the processor recorded, by name (roastcoffea.record)"),
)

BRANCH_READ_COLUMNS: Final[tuple[Column, ...]] = (
    Column("chunk", "integer", None, "identity of the attempt's record"),
    Column("branch", "text", None, "branch, RNTuple field or Parquet column"),
    Column("bytes_payload", "integer", "B", "compressed size of its baskets, each counted once"),
    Column("bytes_again", "integer", "B", "of baskets that this attempt requested more than once"),
    Column("bytes_uncompressed", "integer", "B", "size after decompression of everything read"),
    Column("baskets", "integer", "baskets", "baskets (RNTuple: clusters, Parquet: row groups), each counted once"),
    Column("basket_first", "integer", None, "index of the first one"),
    Column("basket_last", "integer", None, "index of the last one"),
    Column("basket_bytes", "integers", "B", "sizes from first to last; only of first and last if there are many"),
    Column("read_seconds", "number", "s", "waiting for storage; none if a thread pool reads baskets"),
    Column("decompress_seconds", "number", "s", "CPU time of the chunk's thread in decompression"),
    Column("interpret_seconds", "number", "s", "CPU time of the chunk's thread in interpretation"),
)
"""One row for each branch that an attempt read. A basket that arrived with the tree (embedded) has size 0.

Seconds are precise to one part in 32,768 and never too large.
"""

SECTION_COLUMNS: Final[tuple[Column, ...]] = (
    Column("chunk", "integer", None, "identity of the attempt's record"),
    Column("name", "text", None, "name of the section, with those around it: outer/inner"),
    Column("count", "integer", None, "how often it was passed"),
    Column("wall_seconds", "number", "s", "wall time in it"),
    Column("self_seconds", "number", "s", "wall time in it and in no section inside it"),
    Column("cpu_seconds", "number", "s", "CPU time of the thread in it"),
    Column("max_seconds", "number", "s", "longest pass"),
    Column("bytes", "integer", "B", "requested from storage in it (track_bytes)"),
    Column("memory_peak", "integer", "B", "highest resident memory of the process in it (track_memory)"),
    Column("memory_delta", "integer", "B", "growth of resident memory summed over its passes (track_memory)"),
    Column("errors", "integer", None, "passes ended by an exception"),
)
"""One row for each section of an attempt."""


OTHER: Final = "(other stacks)"
"""Placeholder function for stacks beyond the size limit of a record."""

NOT_SAMPLED: Final = "(not sampled)"
"""Placeholder function for time in which the sampler itself could not run."""

DEEPER: Final = "(more frames)"
"""Placeholder for the middle frames of a very deep stack."""

STATES: Final = ("core", "contention", "blocked")
"""State of a sampled thread: on a core, waiting for a core, or waiting for something else."""

PROFILE_COLUMNS: Final[tuple[Column, ...]] = (
    Column("call", "text", None, "identity of the Runner call"),
    Column("dataset", "text", None, "dataset in the fileset"),
    Column("functions", "texts", None, "functions of the stack, from process() down; empty before process() starts"),
    Column("files", "texts", None, "their files; for installed packages relative to the directory of packages"),
    Column("lines", "integers", None, "their lines"),
    Column("samples", "integer", None, "samples of the stack"),
    Column("seconds", "number", "s", "thread time covered by these samples"),
    Column("core_seconds", "number", "s", "of these, on a core"),
    Column("contention_seconds", "number", "s", "of these, runnable without a free core"),
    Column("blocked_seconds", "number", "s", "of these, blocked: storage, the interpreter lock, sleep, a service"),
    Column(
        "chunk", "integer", None, "identity of the attempt, for the longest one of each dataset; none for all others"
    ),
)
"""One row per stack, dataset and Runner call, over all attempts but the longest, which has rows of its own; seconds in
no state are of unknown state."""
