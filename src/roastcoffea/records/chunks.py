"""Attempts of chunks: the probe's record of each attempt to process a range, its phases, and its sampled stacks."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from roastcoffea.records.columns import Column, bytes_column, integer_column, seconds_column, text_column

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
    seconds_column(phase.column, f"{'in process(): ' if phase.in_process else ''}{phase.recorded}") for phase in PHASES
]
_BEFORE_PROCESS: Final = sum(phase.part == "opening" for phase in PHASES)
PHASE_COLUMNS: Final = (
    *_OF_PHASES[:_BEFORE_PROCESS],
    seconds_column("process_seconds", "wall time of process(), without opening files"),
    *_OF_PHASES[_BEFORE_PROCESS:],
)
"""Where the time of an attempt went; `metrics.phases` has the class of each."""

ENDPOINT_COLUMNS: Final = (
    text_column("endpoint", "XRootD server that the data came from: behind a redirector, the data server"),
    text_column("left_endpoint", "XRootD server that was given up for that one while the file was read"),
    Column("opens", "integer", "opens", "how often the file was opened at the server; 0 where a handle was still open"),
    seconds_column("connect_seconds", "opening the file at the server, with connection and redirection"),
    Column("requests", "integer", "requests", "requests to read that the server answered"),
    Column("vector_reads", "integer", "requests", "of these, vector reads: several ranges in one request"),
    seconds_column("request_seconds", "latency of the requests, from sending to the whole answer, summed"),
    seconds_column("shortest_request_seconds", "shortest latency of a request"),
)
"""What an opening of a file tells about the server: through XRootD all of it, through HTTP and S3 its requests."""

CHUNK_COLUMNS: Final = (
    integer_column("id", "identity of the record of this attempt"),
    text_column("dataset", "dataset in the fileset; without a Runner that of events, else the tasks' name"),
    text_column("file", "path or URL of the file"),
    text_column("tree", "tree or RNTuple in the file"),
    text_column("uuid", "the file's own identity, as coffea's preprocessing read it (hexadecimal)"),
    Column("entry_start", "integer", "events", "first entry of the chunk"),
    Column("entry_stop", "integer", "events", "entry after the last one of the chunk"),
    Column("events", "integer", "events", "events that were processed; none without a result"),
    seconds_column("start", "when the attempt began (Unix time, the worker's clock)"),
    seconds_column("stop", "when the attempt ended (Unix time, the worker's clock)"),
    seconds_column("wall_seconds", "duration of the attempt: opening, building events, processing"),
    seconds_column("cpu_seconds", "CPU time of the thread that ran the attempt"),
    seconds_column("helper_cpu_seconds", "CPU time of other threads that read or decompressed for it"),
    seconds_column("process_cpu_seconds", "CPU time of all threads of the process during the attempt"),
    seconds_column("core_wait_seconds", "runnable without a free core (Linux only)"),
    bytes_column("memory_before", "resident memory of the process at the start"),
    bytes_column("memory_after", "resident memory of the process at the end"),
    bytes_column("memory_peak", "highest resident memory of the process during the attempt (Linux only)"),
    Column("overlaps", "integer", "chunks", "most other chunks open in the same process at the same time"),
    text_column("worker", "address of the Dask worker, otherwise host/process"),
    integer_column("thread", "identity of the thread in its process"),
    text_column("key", "key of the Dask task"),
    integer_column("run_id", "number that the scheduler gave this attempt of the task"),
    integer_column("attempt", "number of this attempt at its task, from 1"),
    text_column("outcome", '"ok", "error", "skipped" (bad file) or "checkpoint" (loaded, not computed)'),
    text_column("error", "text of the error, if any"),
    text_column("call", "identity of the Runner call that requested the chunk, or name of the tasks"),
    *PHASE_COLUMNS,
    seconds_column(
        "gc_seconds",
        "garbage collection by the chunk's thread, and by others as far as it can have waited beyond `lock_seconds`; "
        "part of the phases that it interrupts",
    ),
    Column("imports", "texts", None, "packages of which the process loaded modules during the attempt (at most 20)"),
    bytes_column("bytes_requested", "requested from storage by this attempt"),
    bytes_column("bytes_payload", "of these, for baskets, pages or column chunks"),
    bytes_column("bytes_metadata", "of these, for headers, keys, streamers, tree, schema"),
    bytes_column("bytes_transferred", "received from storage, including gaps between merged ranges"),
    bytes_column("bytes_uncompressed", "size of the payload after decompression"),
    Column("branches", "integer", "branches", "branches, fields or columns read"),
    Column("tree_branches", "integer", "branches", "branches, fields or columns in the tree"),
    bytes_column("file_bytes", "size of the file"),
    text_column("source", "what read the file, such as FSSpecSource(HTTPFileSystem)"),
    bytes_column("bytes_other", "requested in process() from files that it opened itself"),
    bytes_column("bytes_other_transferred", "received for them, including gaps between merged ranges"),
    Column("other_files", "texts", None, "paths or URLs of these files"),
    Column("other_requested", "integers", "B", "requested from each of them"),
    Column("other_payload", "integers", "B", "of these, for baskets, pages or column chunks"),
    Column("other_metadata", "integers", "B", "of these, for headers, keys, streamers, trees, schemas"),
    Column("other_baskets", "integers", None, "which baskets of each, as a number: equal for the same ones"),
    seconds_column("other_read_seconds", "of `read_seconds`, waiting for these files"),
    bytes_column("bytes_unmetered", "read by the thread in process() by other means than uproot (Linux only)"),
    bytes_column("bytes_cached", "arrays from coffea's buffer cache (cachestrategy)"),
    *ENDPOINT_COLUMNS,
    Column("metadata_requests", "integer", "requests", "of the requests, those before process()"),
    seconds_column("metadata_request_seconds", "latency of the requests before process(), summed"),
    bytes_column("coffea_bytes_read", "bytes requested of the file (coffea's savemetrics)"),
    Column("coffea_entries", "integer", "events", "events in the chunk (coffea's savemetrics)"),
    seconds_column("coffea_process_seconds", "wall time of process() (coffea's savemetrics)"),
    Column("coffea_columns", "texts", None, "columns read (coffea's savemetrics)"),
    Column("custom", "values", None, "values that the processor recorded, by name (roastcoffea.record)"),
)

BRANCH_READ_COLUMNS: Final = (
    integer_column("chunk", "identity of the attempt's record"),
    text_column("branch", "branch, RNTuple field or Parquet column"),
    bytes_column("bytes_payload", "compressed size of its baskets, each counted once"),
    bytes_column("bytes_again", "of baskets that this attempt requested more than once"),
    bytes_column("bytes_uncompressed", "size after decompression of everything read"),
    Column("baskets", "integer", "baskets", "baskets (RNTuple: clusters, Parquet: row groups), each counted once"),
    integer_column("basket_first", "index of the first one"),
    integer_column("basket_last", "index of the last one"),
    Column("basket_bytes", "integers", "B", "sizes from first to last; only of first and last if there are many"),
    seconds_column("read_seconds", "waiting for storage; none if a thread pool reads baskets"),
    seconds_column("decompress_seconds", "CPU time of the chunk's thread in decompression"),
    seconds_column("interpret_seconds", "CPU time of the chunk's thread in interpretation"),
)
"""One row for each branch that an attempt read. A basket that arrived with the tree (embedded) has size 0.

Seconds are precise to one part in 32,768 and never too large.
"""

SECTION_COLUMNS: Final = (
    integer_column("chunk", "identity of the attempt's record"),
    text_column("name", "name of the section, with those around it: outer/inner"),
    integer_column("count", "how often it was passed"),
    seconds_column("wall_seconds", "wall time in it"),
    seconds_column("self_seconds", "wall time in it and in no section inside it"),
    seconds_column("cpu_seconds", "CPU time of the thread in it"),
    seconds_column("max_seconds", "longest pass"),
    bytes_column("bytes", "requested from storage in it (track_bytes)"),
    bytes_column("memory_peak", "highest resident memory of the process in it (track_memory)"),
    bytes_column("memory_delta", "growth of resident memory summed over its passes (track_memory)"),
    integer_column("errors", "passes ended by an exception"),
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

PROFILE_COLUMNS: Final = (
    text_column("call", "identity of the Runner call"),
    text_column("dataset", "dataset in the fileset"),
    Column("functions", "texts", None, "functions of the stack, from process() down; empty before process() starts"),
    Column("files", "texts", None, "their files; for installed packages relative to the directory of packages"),
    Column("lines", "integers", None, "their lines"),
    integer_column("samples", "samples of the stack"),
    seconds_column("seconds", "thread time covered by these samples"),
    seconds_column("core_seconds", "of these, on a core"),
    seconds_column("contention_seconds", "of these, runnable without a free core"),
    seconds_column("blocked_seconds", "of these, blocked: storage, the interpreter lock, sleep, a service"),
    integer_column("chunk", "identity of the attempt, for the longest one of each dataset; none for all others"),
)
"""One row per stack, dataset and Runner call, over all attempts but the longest, which has rows of its own; seconds in
no state are of unknown state."""
