"""Records of a run and its Runner calls, from entering to leaving a collector."""

from __future__ import annotations

import uuid
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from roastcoffea.records.calls import *  # noqa: F403  (its names belong to a run)
from roastcoffea.records.calls import CLIENT_LOST, FAILED, FINISHED, RunnerCall
from roastcoffea.records.chunks import CHUNK_COLUMNS, ENDPOINT_COLUMNS
from roastcoffea.records.columns import Column, bytes_column, integer_column, picked, seconds_column, text_column

if TYPE_CHECKING:
    import pyarrow as pa


LOST: Final = CLIENT_LOST

OUTSIDE: Final = "outside"
"""Key in `absent` for anything deliberately excluded from the run."""

NO_FILE: Final = "no task opened a file with uproot"
"""Reason for missing chunk records when every task was supposed to be measured."""

OF_CALL: Final = "chunks of "
"""Prefix of the key in `absent` for a Runner call without chunk records. The call ID follows the prefix."""

LONGEST_NAME: Final = 60

Gaps = tuple[tuple[float, ...], ...]
"""Start and end of each period for which data are missing because the client was suspended."""

SpanMetrics = Mapping[tuple[Hashable, ...], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A machine used by the run, and the resources available to the run's processes."""

    name: str
    cores: int | None
    """Total number of cores available to the run's processes, given their control groups and CPU affinity."""
    memory: int | None
    """Total memory available to the run's processes, in bytes."""
    node_cores: int | None = None
    node_memory: int | None = None
    """Memory of the whole machine, in bytes."""
    others: float | None = None
    """Average number of the machine's cores used by processes outside the run."""
    others_absent: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    versions: Mapping[str, str]
    client_host: str | None
    hosts: tuple[Host, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedRun:
    """An independent run that was merged into another run."""

    id: str
    name: str | None
    start: float
    stop: float
    outcome: str
    error: str | None
    backend: str
    client_host: str | None
    gaps: Gaps = ()


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Run:
    """The records of one run.

    Times are Unix seconds on the client's clock unless a column names another clock. Tables are Arrow tables with the
    columns defined in `roastcoffea.records`; in large tables, texts are dictionaries and integers are short. A field
    that was not measured is None, and `absent` maps its name to the reason.
    """

    id: str
    name: str | None
    start: float
    stop: float
    outcome: str
    error: str | None
    backend: str
    environment: Environment
    sampling_interval: float | None = None
    calls: tuple[RunnerCall, ...] = ()
    merged: tuple[MergedRun, ...] = ()
    """Independent runs that were merged into this run. Empty if this run was recorded directly."""
    asked: pa.Table | None = None
    """Chunks and files requested by the Runner calls."""
    chunks: pa.Table | None = None
    branch_reads: pa.Table | None = None
    sections: pa.Table | None = None
    profile: pa.Table | None = None
    """Sampled stacks of threads that processed chunks, summed by Runner call and dataset."""
    preprocessing: pa.Table | None = None
    tasks: pa.Table | None = None
    samples: pa.Table | None = None
    lifetimes: pa.Table | None = None
    pauses: pa.Table | None = None
    sampling: pa.Table | None = None
    """Samples taken by the scheduler itself, with the number of missed samples."""
    worker_states: pa.Table | None = None
    """State of each worker at the time of each sample, as known to the scheduler."""
    client_steps: pa.Table | None = None
    """Steps of the client thread (Dask executors), and samples of the client's event loop."""
    worker_requests: pa.Table | None = None
    """Workers requested by the client's cluster object, and the states of their jobs."""
    span_metrics: SpanMetrics | None = None
    span_metrics_per_worker: Mapping[str, SpanMetrics] | None = None
    """Dask's activity counters by worker address, both inside and outside the run's tasks."""
    coffea_report: Any = None
    """The report passed to `set_coffea_report`; None if this method was not called."""
    custom_metrics: Any = None
    gaps: Gaps = ()
    attempts: Mapping[str, int] | None = None
    """Number of task attempts of each kind, counted by the scheduler; None if they were not counted."""
    scheduler_clock_offset: float | None = None
    """The scheduler's clock minus the client's clock, in seconds."""
    dropped: Mapping[str, int] = field(default_factory=dict)
    """Number of rows lost from each table because they were never received."""
    reported: Mapping[str, Any] | None = None
    """Metrics computed by another program and stored without records (roastcoffea 0.1.2)."""
    reported_by: str | None = None
    absent: Mapping[str, str] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    shared: bool = False
    """Whether hosts, users and paths were replaced with made-up names."""

    @property
    def ended_early(self) -> bool:
        """Whether the run failed or was lost. Either way, part of its work may be missing."""
        return self.outcome in {FAILED, LOST}

    @property
    def ending(self) -> str:
        return "was lost" if self.outcome == LOST else self.outcome

    def __repr__(self) -> str:
        chunks = "" if self.chunks is None else f", {len(self.chunks)} chunk attempts"
        return (
            f"<Run {(self.name or self.id)[:LONGEST_NAME]!r}: {self.outcome}, {self.stop - self.start:.3g} s{chunks}>"
        )


def unwatched_run(**known: Any) -> Run:
    """Build a finished, unmeasured run from its known fields."""
    unknown = {"id": uuid.uuid4().hex, "name": None, "environment": Environment(versions={}, client_host=None)}
    return Run(outcome=FINISHED, error=None, **(unknown | known))


ASKED_COLUMNS: Final = (
    text_column("call", "Runner call ID"),
    *picked(CHUNK_COLUMNS, "dataset", "file", "tree"),
    text_column("uuid", "UUID of the file (hexadecimal); none if the whole file was requested"),
    Column("entry_start", "integer", "events", "first entry of the chunk; none if the whole file was requested"),
    Column(
        "entry_stop", "integer", "events", "one past the last entry of the chunk; none if the whole file was requested"
    ),
    text_column("site", "site that stores the file, if the fileset or coffea's site map names the site"),
)
"""One row for each requested chunk and for each file whose metadata was requested, in request order."""

PREPROCESSING_COLUMNS: Final = (
    integer_column("id", "record ID"),
    *picked(CHUNK_COLUMNS, "dataset", "file", "tree"),
    seconds_column("start", "when the attempt began (Unix time, the worker's clock)"),
    seconds_column("stop", "when the attempt ended (Unix time, the worker's clock)"),
    seconds_column("wall_seconds", "duration of the attempt"),
    seconds_column("cpu_seconds", "CPU time of the thread that ran the attempt"),
    bytes_column("bytes_requested", "bytes requested from storage"),
    bytes_column("bytes_transferred", "bytes received from storage"),
    text_column("source", "reader used for the file"),
    *ENDPOINT_COLUMNS,
    *picked(CHUNK_COLUMNS, "worker", "thread", "key", "run_id"),
    text_column("outcome", '"ok", "error", or "traced" (opened to find out which columns to preload)'),
    text_column("error", "error message, if any"),
    text_column("call", "Runner call ID, if any"),
)

SECTION_COLUMNS: Final = (
    integer_column("chunk", "record ID of the attempt"),
    text_column("name", "name of the section, prefixed with its enclosing sections (outer/inner)"),
    integer_column("count", "number of times the section was entered"),
    seconds_column("wall_seconds", "wall time spent in the section"),
    seconds_column("self_seconds", "wall time excluding nested sections"),
    seconds_column("cpu_seconds", "thread CPU time spent in the section"),
    seconds_column("max_seconds", "longest single pass"),
    bytes_column("bytes", "bytes requested from storage in the section (track_bytes)"),
    bytes_column("memory_peak", "highest resident memory of the process in the section (track_memory)"),
    bytes_column("memory_delta", "growth in resident memory, summed over passes (track_memory)"),
    integer_column("errors", "number of passes that raised an exception"),
)
"""One row per section and attempt."""

PROFILE_COLUMNS: Final = (
    text_column("call", "Runner call ID"),
    text_column("dataset", "dataset in the fileset"),
    Column("functions", "texts", None, "functions on the stack, from process() inwards; empty before process() starts"),
    Column(
        "files", "texts", None, "files containing these functions; for installed packages, relative to site-packages"
    ),
    Column("lines", "integers", None, "line number in each of these functions"),
    integer_column("samples", "number of samples of the stack"),
    seconds_column("seconds", "thread time represented by these samples"),
    seconds_column("core_seconds", "part of `seconds` spent running on a core"),
    seconds_column("contention_seconds", "part of `seconds` spent runnable but waiting for a core"),
    seconds_column("blocked_seconds", "part of `seconds` spent sleeping or blocked on storage, the GIL or a service"),
    integer_column("chunk", "ID of the attempt if it is the longest in its dataset; otherwise none"),
)
"""One row per stack, dataset and Runner call, summed over attempts. Each dataset's longest attempt has separate rows.
For the remainder of `seconds`, the thread's state is unknown."""
