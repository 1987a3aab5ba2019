"""A run: everything that was seen between entering and leaving one collector."""

from __future__ import annotations

import uuid
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pyarrow as pa

FINISHED: Final = "finished"
FAILED: Final = "failed"

OUTSIDE: Final = "outside"
"""Key in `absent` of what is no part of the run by intention."""

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
    """Chunks that were handed to the executor; None where it was never called."""
    files: int | None = None
    """Files that were handed to the executor for preprocessing; None where it was never called."""
    fileset: str | None = None
    """SHA-256 over dataset, file, tree and file uuid of those chunks: equal for equal input."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The Runner's and the executor's settings that matter to speed, such as chunksize."""
    report: Mapping[str, Any] | None = None
    """coffea's own metrics; None unless the Runner has savemetrics on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A machine that took part, and what processes of the run could use of it."""

    name: str
    cores: int | None
    """Cores that the processes could use together, by their control groups and affinity."""
    memory: int | None
    """Memory in bytes that the processes could use together."""
    node_cores: int | None = None
    """Cores of the whole machine."""
    node_memory: int | None = None
    """Memory of the whole machine in bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """On what the run was made."""

    versions: Mapping[str, str]
    client_host: str | None
    hosts: tuple[Host, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What was seen of one run.

    Times are Unix seconds on the client's clock where a column does not say otherwise. Tables are Arrow tables with the
    columns that the modules of `records` define. What was not measured at all is None, and
    `absent` has the reason under the field's name.
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
    asked: pa.Table | None = None
    """What the Runner calls asked for."""
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
    """Samples that the scheduler took of itself, and those that it missed."""
    worker_states: pa.Table | None = None
    """What it knew of each worker in them."""
    span_metrics: SpanMetrics | None = None
    span_metrics_per_worker: Mapping[str, SpanMetrics] | None = None
    """What each worker counted in the run's tasks, and outside of tasks; by its address."""
    coffea_report: Any = None
    """What the user handed to `set_coffea_report`; None where it was not called."""
    custom_metrics: Any = None
    attempts: Mapping[str, int] | None = None
    """Attempts of tasks by kind, as the scheduler counted them; None where it did not."""
    scheduler_clock_offset: float | None = None
    """Scheduler's clock less the client's, in seconds."""
    dropped: Mapping[str, int] = field(default_factory=dict)
    """Rows that were lost because nobody could take them, by table."""
    reported: Mapping[str, Any] | None = None
    """Metrics that another program computed and stored without records (roastcoffea 0.1.2)."""
    reported_by: str | None = None
    absent: Mapping[str, str] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


def unwatched_run(**known: Any) -> Run:
    """Finished run that roastcoffea did not watch, with what is known of it."""
    unknown = {"id": uuid.uuid4().hex, "name": None, "environment": Environment(versions={}, client_host=None)}
    return Run(outcome=FINISHED, error=None, **(unknown | known))
