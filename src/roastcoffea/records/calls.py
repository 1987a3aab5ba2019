"""Runner calls, and the kinds, steps and outcomes that records of calls and tasks contain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

FINISHED: Final = "finished"
FAILED: Final = "failed"
CLIENT_LOST: Final = "lost"
"""Outcomes of a run. A run is "lost" if its client died before the run ended; a journal may still contain the records
made until then."""

OF_TASKS: Final = "tasks: "
"""Prefix of the ID used instead of a Runner call ID if tasks run functions without a Runner."""

PROCESSOR: Final = "processor"
MERGE: Final = "merge"
"""Both a task kind and a client step."""

PREPROCESSING: Final = "preprocessing"
OTHER: Final = "other"
KINDS: Final = (OTHER, PROCESSOR, MERGE, PREPROCESSING)

MERGE_PREFIX: Final = "reduce"
"""Prefix of coffea's merge tasks, including those that merge preprocessing results."""

OK: Final = "ok"
ERROR: Final = "error"
WORKER_LOST: Final = "worker lost"
CANCELLED: Final = "cancelled"
UNFINISHED: Final = "unfinished"
OUTCOMES: Final = (OK, ERROR, WORKER_LOST, CANCELLED, UNFINISHED)

SUBMIT: Final = "submit"
RESULTS: Final = "results"
EXECUTOR: Final = "executor"
LOOP: Final = "event loop"
SHARED_LOOP: Final = "shared event loop"
"""Client steps. The event loop is shared if the scheduler also runs on it (LocalCluster)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerCall:
    """One call to coffea's `Runner.run` during the run."""

    id: str
    processor: str
    executor: str
    start: float
    stop: float
    outcome: str
    error: str | None = None
    chunks: int | None = None
    """Number of chunks passed to the executor; None if the executor was not called."""
    files: int | None = None
    """Number of files passed to the executor for preprocessing; None if the executor was not called."""
    fileset: str | None = None
    """SHA-256 hash of the chunks' datasets, files, trees and file UUIDs. Identical inputs have the same hash."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Runner and executor settings that affect performance, such as chunksize."""
    report: Mapping[str, Any] | None = None
    """Metrics from coffea; None unless the Runner has savemetrics enabled."""
    kept: list[int] | None = None
    """Indices of the requested chunks that are included in a failed call's partial output."""
