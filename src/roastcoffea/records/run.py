"""A run: everything recorded between entering and leaving one collector, with its Runner calls."""

from __future__ import annotations

import uuid
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from roastcoffea.records.chunks import CHUNK_COLUMNS, ENDPOINT_COLUMNS
from roastcoffea.records.columns import Column, bytes_column, integer_column, picked, seconds_column, text_column

if TYPE_CHECKING:
    import pyarrow as pa


FINISHED: Final = "finished"
FAILED: Final = "failed"
LOST: Final = "lost"
"""Outcomes: a run is lost with its client, before it ended; a journal may have what was recorded until then."""

OUTSIDE: Final = "outside"
"""Key in `absent` of what is excluded from the run on purpose."""

NO_FILE: Final = "no task opened a file with uproot"
"""Reason for no records of chunks where all tasks were to be measured."""

OF_CALL: Final = "chunks of "
"""Beginning of the key in `absent` of a Runner call whose chunks have no records; its identity follows."""

LONGEST_NAME: Final = 60
"""Letters of a run's name where it stands for the run."""

Gaps = tuple[tuple[float, ...], ...]
"""Start and end of times of which nothing was recorded, as the client was stopped."""

SpanMetrics = Mapping[tuple[Hashable, ...], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerCall:
    """One call of coffea's `Runner.run` inside the run."""

    id: str
    processor: str
    executor: str
    start: float
    stop: float
    outcome: str
    error: str | None = None
    chunks: int | None = None
    """Chunks given to the executor; None if it was not called."""
    files: int | None = None
    """Files given to the executor for preprocessing; None if it was not called."""
    fileset: str | None = None
    """SHA-256 over dataset, file, tree and file uuid of those chunks: equal for equal input."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the Runner and executor that affect speed, such as chunksize."""
    report: Mapping[str, Any] | None = None
    """coffea's own metrics; None unless the Runner has savemetrics on."""
    kept: list[int] | None = None
    """Of a call that failed: numbers of the chunks in its partial output, in the order in which it asked for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A machine of the run, and the resources that the run's processes could use."""

    name: str
    cores: int | None
    """Cores available to all processes together, given their control groups and affinity."""
    memory: int | None
    """Memory in bytes available to all processes together."""
    node_cores: int | None = None
    """Cores of the whole machine."""
    node_memory: int | None = None
    """Memory of the whole machine in bytes."""
    others: float | None = None
    """Cores of the whole machine that processes of others used, on average."""
    others_absent: str | None = None
    """Why that is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Versions and machines of the run."""

    versions: Mapping[str, str]
    client_host: str | None
    hosts: tuple[Host, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedRun:
    """One of the independent runs that a run was merged from."""

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

    Times are Unix seconds on the client's clock unless a column says otherwise. Tables are Arrow tables with the
    columns defined in the modules of `records`. A field that was not measured is None, and `absent` has the reason
    under its name.
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
    """Independent runs that this one was merged from; empty for a recorded run."""
    asked: pa.Table | None = None
    """Chunks and files that the Runner calls requested."""
    chunks: pa.Table | None = None
    branch_reads: pa.Table | None = None
    sections: pa.Table | None = None
    profile: pa.Table | None = None
    """Stacks of threads that processed chunks, summed by Runner call and dataset."""
    preprocessing: pa.Table | None = None
    tasks: pa.Table | None = None
    samples: pa.Table | None = None
    lifetimes: pa.Table | None = None
    pauses: pa.Table | None = None
    sampling: pa.Table | None = None
    """Samples that the scheduler took itself, and those it missed."""
    worker_states: pa.Table | None = None
    """State of each worker in these samples, as known to the scheduler."""
    client_steps: pa.Table | None = None
    """What the client's thread did for executors on Dask, and samples of its event loop."""
    span_metrics: SpanMetrics | None = None
    span_metrics_per_worker: Mapping[str, SpanMetrics] | None = None
    """Each worker's counts inside and outside the run's tasks, by address."""
    coffea_report: Any = None
    """Argument of `set_coffea_report`; None if it was not called."""
    custom_metrics: Any = None
    gaps: Gaps = ()
    attempts: Mapping[str, int] | None = None
    """Attempts of tasks by kind, as counted by the scheduler; None if not counted."""
    scheduler_clock_offset: float | None = None
    """Scheduler's clock minus the client's, in seconds."""
    dropped: Mapping[str, int] = field(default_factory=dict)
    """Rows lost for lack of a receiver, by table."""
    reported: Mapping[str, Any] | None = None
    """Metrics that another program computed and stored without records (roastcoffea 0.1.2)."""
    reported_by: str | None = None
    absent: Mapping[str, str] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    shared: bool = False
    """Whether its hosts, users and paths have made-up names."""

    @property
    def ended_early(self) -> bool:
        """Whether it failed or was lost, so that it may lack a part of its work."""
        return self.outcome in {FAILED, LOST}

    @property
    def ending(self) -> str:
        """How it ended, as a verb."""
        return "was lost" if self.outcome == LOST else self.outcome

    def __repr__(self) -> str:
        chunks = "" if self.chunks is None else f", {len(self.chunks)} attempts of chunks"
        return (
            f"<Run {(self.name or self.id)[:LONGEST_NAME]!r}: {self.outcome}, {self.stop - self.start:.3g} s{chunks}>"
        )


def unwatched_run(**known: Any) -> Run:
    """Finished run that roastcoffea did not measure, with the known facts."""
    unknown = {"id": uuid.uuid4().hex, "name": None, "environment": Environment(versions={}, client_host=None)}
    return Run(outcome=FINISHED, error=None, **(unknown | known))


OF_TASKS: Final = "tasks: "
"""Beginning of the identity of what stands for a Runner call where tasks run functions without one."""

ASKED_COLUMNS: Final = (
    text_column("call", "identity of the Runner call"),
    *picked(CHUNK_COLUMNS, "dataset", "file", "tree"),
    text_column("uuid", "the file's own identity (hexadecimal); none if the whole file was requested"),
    Column("entry_start", "integer", "events", "first entry of the chunk; none if the whole file was requested"),
    Column("entry_stop", "integer", "events", "entry after the last one; none if the whole file was requested"),
    text_column("site", "site that holds the file, if the fileset or coffea's map of sites names it"),
)
"""One row for each requested chunk, and for each file whose metadata was requested, in order of request."""

PREPROCESSING_COLUMNS: Final = (
    integer_column("id", "identity of the record"),
    *picked(CHUNK_COLUMNS, "dataset", "file", "tree"),
    seconds_column("start", "when it began (Unix time, the worker's clock)"),
    seconds_column("stop", "when it ended (Unix time, the worker's clock)"),
    seconds_column("wall_seconds", "duration"),
    seconds_column("cpu_seconds", "CPU time of the thread"),
    bytes_column("bytes_requested", "requested from storage"),
    bytes_column("bytes_transferred", "received from storage"),
    text_column("source", "what read the file"),
    *ENDPOINT_COLUMNS,
    *picked(CHUNK_COLUMNS, "worker", "thread", "key", "run_id"),
    text_column("outcome", '"ok", "error", or "traced" (to find out which columns to preload)'),
    text_column("error", "text of the error, if any"),
    text_column("call", "identity of the Runner call, if any"),
)
