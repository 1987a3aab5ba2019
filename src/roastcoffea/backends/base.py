"""Extension points for custom backends and for executors with remote workers."""

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
"""Default time to wait for the workers to report on a span, in seconds."""


class AbstractMetricsBackend(ABC):
    """Base class for backends that record workers and, optionally, fine metrics.

    To be used in `MetricsCollector(backend=MyBackend())`, a subclass must implement `start_tracking` and
    `stop_tracking`. The other three methods are needed only for fine metrics. The collector calls `start_tracking` and
    `create_span` before the analysis, and `stop_tracking` and `get_span_metrics` after it. If a method raises an
    exception, the analysis continues, and the error is recorded as a measurement problem.

    The optional attribute `kind` is the backend's name in measurements; the default is the class name.
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
        """Stop sampling and return the samples.

        `start_tracking` may be called again afterwards.

        Returns
        -------
        dict
            `worker_counts` is a mapping {time: number of workers}. Each of the other keys is a mapping
            {worker: [(time, value), ...]}: `worker_memory` [B], `worker_memory_limit` [B], `worker_cpu` [%, 100 is one
            core], `worker_cores`, `worker_active_tasks`, `worker_executing`, `worker_nbytes` [B], `worker_occupancy`
            [s] and `worker_last_seen`. All keys are optional. Times are Unix timestamps or `datetime` objects (in local
            time unless they have a time zone). None marks a value that was not measured.
        """

    def create_span(self, name: str) -> dict[str, Any]:
        """Create a span for the run's fine metrics.

        Returns
        -------
        dict
            `context` is a context manager whose `__enter__` method returns the span's ID, and `name` is the span's
            name.
        """
        return {"context": nullcontext(), "name": name}

    def get_span_metrics(
        self,
        span_info: Mapping[str, Any],  # noqa: ARG002  (for backends with fine metrics)
        delay: float = FINE_METRICS_DELAY,  # noqa: ARG002
    ) -> dict[tuple[Any, ...], float]:
        """Fine metrics for a span; empty if the span's ID is missing or unknown.

        Parameters
        ----------
        span_info : mapping
            Result of `create_span`, with the span's ID added as `id`.
        delay : float
            Maximum time in seconds to wait for the workers' reports.

        Returns
        -------
        dict
            Amounts, keyed by tuples of the form ("execute", task prefix, activity, unit).
        """
        return {}

    def supports_fine_metrics(self) -> bool:
        """Whether this backend provides fine metrics for spans."""
        return False


def checked_interval(interval: Any, name: str = "interval") -> float:
    number = isinstance(interval, (int, float)) and not isinstance(interval, bool)
    if not (number and math.isfinite(interval) and interval > 0):
        raise ValueError(f"{name} must be a positive number of seconds, not {interval!r}")
    return float(interval)


EXECUTORS: Final = {
    "ParslExecutor": "roastcoffea.backends.parsl:ParslManagers",
    "TaskVineExecutor": "roastcoffea.backends.taskvine:TaskVineLogs",
}
"""Import path of the `ExecutorLog` subclass for each coffea executor class."""

Row = dict[str, Any]
Busy = Callable[[str], Sequence[npt.NDArray[np.float64]]]
"""Function that returns the start times and the end times of a worker's chunks, both sorted."""


class ExecutorLog:
    """Information about the workers of a non-Dask executor.

    To support another executor, add a module with a subclass, and list it in `EXECUTORS`. By default, the methods
    provide no information.

    Parameters
    ----------
    note : callable
        Called with each problem.

    Attributes
    ----------
    label : str
        Name of the executor in problem messages.
    environment : tuple
        Environment variables that the executor's tasks report.
    is_apart : bool
        Whether the executor's processes on this host are separate from the analysis's own pools.
    known : bool
        Whether the executor's workers are known.
    """

    label: ClassVar[str]
    environment: ClassVar[FromEnvironment] = ()
    is_apart: ClassVar[bool] = False
    known = False

    def __init__(self, note: Callable[[str], None]) -> None:
        self.note = note

    def step(
        self,
        executor: Any,  # noqa: ARG002  (for subclasses that need it)
        call: str | None,  # noqa: ARG002
        *,
        preprocessing: bool,  # noqa: ARG002
    ) -> AbstractContextManager[Any]:
        """Context manager entered while an executor runs a Runner call."""
        return nullcontext()

    def size(self, executor: Any) -> int | None:  # noqa: ARG002  (as above)
        """Number of processes or threads that an executor uses; None if not reported."""
        return None

    def has(self, facts: Mapping[str, Any]) -> bool:  # noqa: ARG002  (as above)
        """Whether the worker described by `facts` is known."""
        return False

    def calls(self, preprocessing: bool) -> Sequence[str]:  # noqa: ARG002  (as above)
        """IDs of the Runner calls that ran in unmonitored processes."""
        return ()

    def placed(self, records: pa.Table, facts: Mapping[str, Row], *, preprocessing: bool) -> pa.Table:  # noqa: ARG002
        """Chunk or file-open records, completed with data from the executor's log.

        `facts` contains the information that each worker reported.
        """
        return records

    def absent(self, steps_elsewhere: int) -> dict[str, str]:  # noqa: ARG002  (as above)
        """Reasons for missing tables, by table name.

        `steps_elsewhere` is the number of steps in which other executors processed chunks.
        """
        return {}

    def tasks(self) -> pa.Table | None:
        """Task attempts, or None if unknown."""
        return None

    def complete(self, rows: list[Row], facts: Mapping[str, Row], busy: Busy, start: float, stop: float) -> None:
        """Fill in lifetimes from the executor's log, and add workers that ran no chunks.

        Parameters
        ----------
        rows : list of dict
            Lifetimes of the workers that ran chunks, including `cpu_seconds` if the operating system reports it.
        facts : mapping
            Information that each worker reported about its process.
        busy : callable
            Function that returns the start times and the end times of a worker's chunks.
        start, stop : float
            Start and end of the run.
        """
