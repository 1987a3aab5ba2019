"""What others add: backends of users, and executors of coffea whose workers the operating system here does not see."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from roastcoffea.log.marks import FromEnvironment

FINE_METRICS_DELAY: Final = 0.5
"""Default seconds for workers to report their counts for a span."""


class AbstractMetricsBackend(ABC):
    """Where an analysis runs: its workers over time, and fine metrics if it counts them.

    `MetricsCollector(backend=MyBackend())` needs only a subclass with these five methods. `start_tracking` and
    `stop_tracking` are required; without the other three there are no fine metrics. The collector calls them in this
    order: `start_tracking`, `create_span`, the analysis, `stop_tracking`, `get_span_metrics`. An error in a method
    becomes a problem of the measurement, not of the analysis.

    `kind` is optional: the name of the backend in measurements, by default that of its class.
    """

    @abstractmethod
    def start_tracking(self, interval: float = 1.0) -> None:
        """Start sampling the workers.

        Parameters
        ----------
        interval : float
            Seconds between samples.
        """

    @abstractmethod
    def stop_tracking(self) -> dict[str, Any]:
        """Stop sampling; it may be started again.

        Returns
        -------
        dict
            `worker_counts` {time: number of workers}, and for each of `worker_memory` [B], `worker_memory_limit` [B],
            `worker_cpu` [%, 100 is one core], `worker_cores`, `worker_active_tasks`, `worker_executing`,
            `worker_nbytes` [B], `worker_occupancy` [s] and `worker_last_seen` a mapping {worker: [(time, value), ...]}.
            Each is optional. A time is a `datetime` (local if it has no zone) or Unix seconds. A value of None was not
            measured.
        """

    def create_span(self, name: str) -> dict[str, Any]:
        """Create a span in which work is counted.

        Returns
        -------
        dict
            `context`, a context manager whose `__enter__` returns the span's id, and `name`.
        """
        return {"context": nullcontext(), "name": name}

    def get_span_metrics(
        self,
        span_info: Mapping[str, Any],  # noqa: ARG002  (for those that count)
        delay: float = FINE_METRICS_DELAY,  # noqa: ARG002
    ) -> dict[tuple[Any, ...], float]:
        """Fine metrics of a span; empty if its id is missing or unknown.

        Parameters
        ----------
        span_info : mapping
            Result of `create_span`, with the id of the span as `id`.
        delay : float
            Most seconds to wait for the workers' reports: a timeout, not a sleep.

        Returns
        -------
        dict
            Amounts by tuple: ("execute", task prefix, activity, unit).
        """
        return {}

    def supports_fine_metrics(self) -> bool:
        """Whether spans have fine metrics in this backend."""
        return False


def checked_interval(interval: Any, name: str = "interval") -> float:
    """A number of seconds between samples; ValueError for anything else."""
    number = isinstance(interval, (int, float)) and not isinstance(interval, bool)
    if not (number and math.isfinite(interval) and interval > 0):
        raise ValueError(f"{name} must be a positive number of seconds, not {interval!r}")
    return float(interval)


EXECUTORS: Final = {
    "ParslExecutor": "roastcoffea.backends.parsl:ParslManagers",
    "TaskVineExecutor": "roastcoffea.backends.taskvine:TaskVineLogs",
}
"""Classes of coffea's executors, and where to find the `ExecutorLog` of each."""

Row = dict[str, Any]
Busy = Callable[[str], Sequence[npt.NDArray[np.float64]]]
"""Starts and ends of the chunks of a worker, in order."""


class ExecutorLog:
    """What an executor without Dask knows of its workers: by default nothing.

    A new one takes a module with a subclass, and a line in `EXECUTORS`.

    Parameters
    ----------
    note : callable
        Takes a problem.

    Attributes
    ----------
    label : str
        Its name in notes.
    environment : tuple
        What its tasks report of their environment.
    is_apart : bool
        Whether its processes, if they run on this host, are not to be counted as a pool of this analysis.
    known : bool
        Whether it knows its workers.
    """

    label: ClassVar[str]
    environment: ClassVar[FromEnvironment] = ()
    is_apart: ClassVar[bool] = False
    known = False

    def __init__(self, note: Callable[[str], None]) -> None:
        self.note = note

    def step(
        self,
        executor: Any,  # noqa: ARG002  (for those that learn from it)
        call: str | None,  # noqa: ARG002
        *,
        preprocessing: bool,  # noqa: ARG002
    ) -> AbstractContextManager[Any]:
        """Context in which an executor works for a Runner call."""
        return nullcontext()

    def size(self, executor: Any) -> int | None:  # noqa: ARG002  (as above)
        """Processes or threads that work for an executor that begins a step; None if not reported."""
        return None

    def has(self, facts: Mapping[str, Any]) -> bool:  # noqa: ARG002  (as above)
        """Whether a worker that reported these facts is one of those known."""
        return False

    def calls(self, preprocessing: bool) -> Sequence[str]:  # noqa: ARG002  (as above)
        """Runner calls whose chunks, or preprocessing, are none of the workers that the operating system knows."""
        return ()

    def placed(self, records: pa.Table, facts: Mapping[str, Row], *, preprocessing: bool) -> pa.Table:  # noqa: ARG002
        """Records of chunks, or of openings of files, with what this knows; `facts` are what workers reported."""
        return records

    def absent(self, steps_elsewhere: int) -> dict[str, str]:  # noqa: ARG002  (as above)
        """Why tables are missing, by name; steps elsewhere are those of other executors on chunks."""
        return {}

    def tasks(self) -> pa.Table | None:
        """Attempts of tasks; None if unknown."""
        return None

    def complete(self, rows: list[Row], facts: Mapping[str, Row], busy: Busy, start: float, stop: float) -> None:
        """Complete lifetimes by what only this knows, and add those of workers without a chunk.

        Parameters
        ----------
        rows : list of dict
            Lifetimes of workers with a chunk; with `cpu_seconds` if the operating system reports them.
        facts : mapping
            What workers reported of their processes.
        busy : callable
            Returns starts and ends of the chunks of a worker.
        start, stop : float
            Start and stop of the run.
        """
