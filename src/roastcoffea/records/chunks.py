"""Records of chunk attempts, with their phases and sampled stacks."""

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
WRITE: Final = "write"
CHECKPOINT: Final = "checkpoint"
OVERHEAD: Final = "task overhead"
MEASURING: Final = "measuring"

Part = Literal["opening", "CPU", "waiting", "saving"]
"""Kinds of phases: opening (including building events), computing, waiting, and saving the result."""


class Phase(NamedTuple):
    name: str
    time_class: str
    part: Part
    recorded: str
    """Description of the phase's column in the chunk table, without the "in process()" prefix."""
    meaning: str

    @property
    def column(self) -> str:
        return f"{self.name}_seconds"

    @property
    def in_process(self) -> bool:
        return self.part in {"CPU", "waiting"}


# fmt: off
PHASES: Final = (
    Phase("open", OPEN, "opening", "time spent opening the file",
          "Wall time spent opening files"),
    Phase("build", OPEN, "opening", "time spent building the tree, schema and events",
          "Wall time spent building trees, schemas and events"),
    Phase("read", READ, "waiting", "waiting for storage",
          "Time spent waiting for storage in process() or while preloading branches"),
    Phase("decompress", DECOMPRESS, "CPU", "thread CPU time spent decompressing",
          "CPU time that chunk threads spent decompressing in process() or while preloading"),
    Phase("interpret", INTERPRET, "CPU",
          "thread CPU time spent interpreting baskets as arrays",
          "CPU time that chunk threads spent interpreting baskets in process() or while preloading"),
    Phase("compute", COMPUTE, "CPU", "other thread CPU time",
          "Other CPU time of chunk threads in process()"),
    Phase("write_cpu", WRITE, "CPU", "thread CPU time spent writing files, including serializing and compressing",
          "CPU time that chunk threads spent writing files in process()"),
    Phase("write_wait", WRITE, "waiting", "waiting for storage while writing files",
          "Time that chunk threads waited in process() while writing files"),
    Phase("contention", CONTENTION, "waiting", "runnable but waiting for a core, including while reading (Linux only)",
          "Time in process() during which the thread was runnable but waiting for a core"),
    Phase("lock", LOCK, "waiting", "blocked while other threads held the GIL (estimated)",
          "Time blocked in process() while other threads held the GIL (estimated)"),
    Phase("blocked", BLOCKED, "waiting", "other off-CPU time (sleeping, locks, network services)",
          "Other off-CPU time in process() (sleeping, locks, network services)"),
    Phase(WAIT, WAIT, "waiting", "sum of contention, interpreter lock and blocked",
          "Sum of contention, interpreter lock and blocked"),
    Phase("checkpoint", CHECKPOINT, "saving", "time spent loading and saving the checkpoint",
          "Wall time spent loading and saving checkpoints"),
    Phase("result", OVERHEAD, "saving", "after process(): closing the file and collecting coffea's own metrics",
          "Wall time after process(), for closing the file and collecting coffea's own metrics"),
    Phase("measuring", MEASURING, "saving",
          "CPU time of roastcoffea's own code at any time of the attempt, and to send its record (partly estimated)",
          "CPU time of roastcoffea's own code on chunk threads (partly estimated)"),
)
"""Phases of an attempt in chronological order. Phases within process() alternate, and measuring is everywhere."""
# fmt: on

UNSPLIT: Final = f"{WAIT}_seconds"
"""Column for the sum of the SPLIT columns, used if the platform or an older version does not separate these times."""
SPLIT: Final = tuple(phase.column for phase in PHASES if phase.time_class in {CONTENTION, LOCK, BLOCKED})


OK: Final = "ok"
ERROR: Final = "error"
SKIPPED: Final = "skipped"
TRACED: Final = "traced"
"""Outcome for a file that coffea opened only to find out which columns to preload."""

_OF_PHASES: Final = [
    seconds_column(phase.column, f"{'in process(): ' if phase.in_process else ''}{phase.recorded}") for phase in PHASES
]
_BEFORE_PROCESS: Final = sum(phase.part == "opening" for phase in PHASES)
PHASE_COLUMNS: Final = (
    *_OF_PHASES[:_BEFORE_PROCESS],
    seconds_column("process_seconds", "wall time of process(), excluding time to open files and to measure"),
    *_OF_PHASES[_BEFORE_PROCESS:],
)
"""Breakdown of an attempt's time. `metrics.phases` defines each phase's class."""

ENDPOINT_COLUMNS: Final = (
    text_column("endpoint", "XRootD server that sent the data (the data server, not a redirector)"),
    text_column("left_endpoint", "XRootD server in use before the client switched servers during the read"),
    Column("opens", "integer", "opens", "number of times the file was opened on the server; 0 if it was already open"),
    seconds_column(
        "connect_seconds", "time to open the file on the server, including connection setup and redirection"
    ),
    Column("requests", "integer", "requests", "number of read requests answered by the server"),
    Column("vector_reads", "integer", "requests", "number of vector reads (requests for several ranges)"),
    seconds_column(
        "request_seconds", "total latency of the requests, from sending each request to receiving its complete response"
    ),
    seconds_column("shortest_request_seconds", "shortest request latency"),
)
"""Columns for a file's server. XRootD provides all of them; HTTP and S3 provide only the request columns."""

WRITTEN_COLUMNS: Final = (
    Column(
        "files_written",
        "integer",
        "files",
        "files that process() wrote with uproot, awkward or Arrow; an Arrow dataset counts as one",
    ),
    bytes_column("bytes_written", "bytes written to these files, including bytes that replaced earlier ones"),
    bytes_column(
        "bytes_written_unmetered",
        "other bytes that the thread wrote in process(); negative if fewer than `bytes_written` arrived (Linux only)",
    ),
    Column("written_files", "texts", None, "paths or URLs of these files, or folders of Arrow datasets"),
    Column("written_kinds", "texts", None, 'format of each: "ROOT", "Parquet", or "dataset" for Arrow datasets'),
    Column("written_sizes", "integers", "B", "bytes by which each file grew"),
    Column("written_bytes", "integers", "B", "bytes written to each file"),
    Column("written_microseconds", "integers", "us", "time spent writing each file"),
)

CHUNK_COLUMNS: Final = (
    integer_column("id", "record ID of this attempt"),
    text_column(
        "dataset",
        "dataset in the fileset; without a Runner, the dataset in the events' metadata or, failing that, the task name",
    ),
    text_column("file", "path or URL of the file"),
    text_column("tree", "name of the tree or RNTuple in the file"),
    text_column("uuid", "UUID of the file (hexadecimal), as read by coffea's preprocessing"),
    Column("entry_start", "integer", "events", "first entry of the chunk"),
    Column("entry_stop", "integer", "events", "one past the last entry of the chunk"),
    Column("events", "integer", "events", "number of events processed; none if there is no result"),
    seconds_column("start", "when the attempt began (Unix time, the worker's clock)"),
    seconds_column("stop", "when the attempt ended (Unix time, the worker's clock)"),
    seconds_column("wall_seconds", "duration of the attempt, including opening the file and building events"),
    seconds_column("cpu_seconds", "CPU time of the thread that ran the attempt"),
    seconds_column("helper_cpu_seconds", "CPU time that other threads spent reading or decompressing for the attempt"),
    seconds_column("process_cpu_seconds", "CPU time of all threads of the process during the attempt"),
    seconds_column("core_wait_seconds", "time that the thread spent runnable but waiting for a core (Linux only)"),
    bytes_column("memory_before", "resident memory of the process when the attempt began"),
    bytes_column("memory_after", "resident memory of the process when the attempt ended"),
    bytes_column("memory_peak", "highest resident memory of the process during the attempt (Linux only)"),
    Column("overlaps", "integer", "chunks", "maximum number of other chunks open at the same time in the process"),
    text_column("worker", "address of the Dask worker or, without Dask, host/process"),
    integer_column("thread", "thread ID within the process"),
    text_column("key", "Dask task key"),
    integer_column("run_id", "number that the scheduler assigned to this task attempt"),
    integer_column("attempt", "attempt number for the task, starting at 1"),
    text_column("outcome", '"ok", "error", "skipped" (bad file) or "checkpoint" (loaded, not computed)'),
    text_column("error", "error message, if any"),
    text_column("call", "ID of the Runner call that requested the chunk; without a Runner, the task name"),
    *PHASE_COLUMNS,
    seconds_column(
        "gc_seconds",
        "time spent in garbage collection on the chunk's thread, plus the time beyond `lock_seconds` that "
        "collections on other threads may have added; also included in the interrupted phases",
    ),
    Column(
        "imports",
        "texts",
        None,
        "modules that the process imported during the attempt, excluding submodules (at most 20)",
    ),
    bytes_column("bytes_requested", "bytes requested from storage by this attempt"),
    bytes_column("bytes_payload", "part of `bytes_requested` for baskets, pages or column chunks"),
    bytes_column("bytes_metadata", "part of `bytes_requested` for headers, keys, streamers, trees and schemas"),
    bytes_column("bytes_transferred", "bytes received from storage, including gaps between merged ranges"),
    bytes_column("bytes_uncompressed", "uncompressed size of the payload"),
    Column("branches", "integer", "branches", "number of branches, fields or columns read"),
    Column("tree_branches", "integer", "branches", "number of branches, fields or columns in the tree"),
    bytes_column("file_bytes", "size of the file"),
    text_column("source", "reader used for the file, e.g. FSSpecSource(HTTPFileSystem)"),
    bytes_column("bytes_other", "bytes requested from files that process() opened itself"),
    bytes_column("bytes_other_transferred", "bytes received from files that process() opened itself, including gaps"),
    Column("other_files", "texts", None, "paths or URLs of the files that process() opened itself"),
    Column("other_requested", "integers", "B", "bytes requested from each file in `other_files`"),
    Column("other_payload", "integers", "B", "part of `other_requested` for baskets, pages or column chunks"),
    Column(
        "other_metadata", "integers", "B", "part of `other_requested` for headers, keys, streamers, trees and schemas"
    ),
    Column(
        "other_baskets",
        "integers",
        None,
        "checksum of the baskets read from each file; equal if the baskets are identical",
    ),
    seconds_column("other_read_seconds", "part of `read_seconds` spent waiting for files that process() opened itself"),
    bytes_column("bytes_unmetered", "bytes that the thread read in process() without using uproot (Linux only)"),
    bytes_column("bytes_cached", "size of the arrays taken from coffea's buffer cache (cachestrategy)"),
    *WRITTEN_COLUMNS,
    *ENDPOINT_COLUMNS,
    Column("metadata_requests", "integer", "requests", "number of requests sent before process() started"),
    seconds_column("metadata_request_seconds", "total latency of the requests sent before process() started"),
    bytes_column("coffea_bytes_read", "bytes requested from the file (coffea's savemetrics)"),
    Column("coffea_entries", "integer", "events", "events in the chunk (coffea's savemetrics)"),
    seconds_column("coffea_process_seconds", "wall time of process() (coffea's savemetrics)"),
    Column("coffea_columns", "texts", None, "columns read (coffea's savemetrics)"),
    Column("custom", "values", None, "values that the processor recorded, by name (roastcoffea.record)"),
)

BRANCH_READ_COLUMNS: Final = (
    integer_column("chunk", "record ID of the attempt"),
    text_column("branch", "name of the branch, RNTuple field or Parquet column"),
    bytes_column("bytes_payload", "compressed size of the baskets that were read, counting each basket once"),
    bytes_column("bytes_again", "bytes of baskets that this attempt requested more than once"),
    bytes_column("bytes_uncompressed", "uncompressed size of all data read"),
    Column("baskets", "integer", "baskets", "number of distinct baskets (clusters in RNTuple, row groups in Parquet)"),
    integer_column("basket_first", "index of the first basket"),
    integer_column("basket_last", "index of the last basket"),
    Column("basket_bytes", "integers", "B", "basket sizes, in order; only the first and last if there are many"),
    seconds_column("read_seconds", "time spent waiting for storage; none if a thread pool reads the baskets"),
    seconds_column("decompress_seconds", "CPU time that the chunk's thread spent decompressing"),
    seconds_column("interpret_seconds", "CPU time that the chunk's thread spent interpreting baskets"),
)
"""One row for each branch that an attempt read. Baskets embedded in the tree have size 0.

Times are accurate to within one part in 32,768 and are never overestimated.
"""

OTHER: Final = "(other stacks)"
"""Placeholder function for stacks that exceed a record's size limit."""

NOT_SAMPLED: Final = "(not sampled)"
"""Placeholder function for time during which the sampler itself could not run."""

DEEPER: Final = "(more frames)"
"""Placeholder for the middle frames of a very deep stack."""

STATES: Final = ("core", "contention", "blocked")
"""States of a sampled thread: running on a core, waiting for a core, or waiting for something else."""
