"""What a collector asks of a backend."""

from __future__ import annotations

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from roastcoffea.compat.tracking import tracking_data
from roastcoffea.errors import RoastcoffeaError
from roastcoffea.log.received import ReceivedRecords
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.run import Host
from roastcoffea.records.workers import PAUSE_COLUMNS

if TYPE_CHECKING:
    import pyarrow as pa


class AbstractMetricsBackend(ABC):
    """Where an analysis runs, as seen by a collector: workers over time, and fine metrics of a span."""

    kind: ClassVar[str]
    """Name of the backend in a run."""

    refused: int
    """Messages of others to the topic of the backend that were refused."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        """Forget what was seen, and take a new name."""
        self.name = f"roastcoffea-{uuid.uuid4().hex[:12]}"
        self.problems: list[str] = []
        self.dropped: dict[str, int] = {}
        self.refused = 0
        self.absent: dict[str, str] = {}
        self.hosts: tuple[Host, ...] = ()
        self.attempts: dict[str, int] | None = None
        self.clock_offset = 0.0
        self.span_metrics: dict[tuple[Any, ...], float] | None = None
        self.span_metrics_per_worker: dict[str, dict[tuple[Any, ...], float]] | None = None
        self.was_open = False
        self._open = False
        self._began = time.time()

    @abstractmethod
    def open(self, interval: float | None, span: str | None = None) -> None:
        """Begin to watch the workers; what was seen in an earlier period is forgotten.

        Parameters
        ----------
        interval
            Seconds between samples of the workers; None for no samples.
        span
            Identity of the Dask span of the run.

        Raises
        ------
        RoastcoffeaError
            It watches already.
        """

    def _begin(self) -> None:
        if self._open:
            text = "this backend watches the workers already: stop it first"
            raise RoastcoffeaError(text)
        if self.was_open:
            self._reset()

    @abstractmethod
    def drain(self) -> None:
        """Take home what was seen so far."""

    @abstractmethod
    def close(self) -> None:
        """End the watch and keep what was seen; what could not be had is noted."""

    @abstractmethod
    def reaches(self, executor: Any) -> bool:
        """Whether this executor runs where the backend looks."""

    @abstractmethod
    def packed_for_tasks(self, thing: Any) -> bytes | None:
        """Pickle by value of what tasks need of ours; None where they can import it."""

    @property
    @abstractmethod
    def received(self) -> ReceivedRecords:
        """Records of attempts that came home."""

    def workers_now(self) -> int | None:
        """Workers that are there now; None where that is not known before the end."""
        return None

    def saw_executor(self, executor: Any) -> None:  # noqa: B027  (nothing to learn where a scheduler tells)
        """Learn the executor of a Runner call that begins."""

    def saw_chunks(self, chunks: pa.Table) -> None:  # noqa: B027  (as above)
        """Learn where chunks ran, before lifetimes and samples are asked for."""

    @abstractmethod
    def lifetimes(self, start: float, stop: float) -> pa.Table:
        """Workers that were there between start and stop."""

    def pauses(self, start: float, stop: float) -> pa.Table:  # noqa: ARG002  (for those that have a scheduler)
        """When workers were paused between start and stop; never where no scheduler pauses them."""
        return table_of_rows(PAUSE_COLUMNS, [])

    @abstractmethod
    def samples(self) -> pa.Table:
        """Samples of the workers."""

    @abstractmethod
    def tasks(self) -> pa.Table | None:
        """Finished attempts of tasks; None where there are no tasks."""

    @abstractmethod
    def notes(self) -> list[str]:
        """Problems that were met."""

    @abstractmethod
    def create_span(self, name: str) -> dict[str, Any]:
        """Give a span in which work can be counted.

        Returns
        -------
        dict
            `context`, a context manager whose `__enter__` returns the span's id, and `name`.
        """

    @abstractmethod
    def get_span_metrics(self, span: Mapping[str, Any]) -> dict[tuple[Any, ...], float]:
        """Fine metrics of a span under tuple keys; empty where its `id` is missing or unknown."""

    @abstractmethod
    def supports_fine_metrics(self) -> bool:
        """Whether spans have fine metrics here."""

    def start_tracking(self, interval: float) -> None:
        """Begin to sample the workers each `interval` seconds."""
        self.open(interval)

    def stop_tracking(self) -> dict[str, Any]:
        """End sampling.

        Returns
        -------
        dict
            `worker_counts` {datetime: int}, and for each worker field {worker address: [(datetime, value), ...]}.
        """
        self.close()
        return tracking_data(self.samples(), self.lifetimes(self._began, time.time()))

    def _note(self, problem: str) -> None:
        if problem not in self.problems:
            self.problems.append(problem)
